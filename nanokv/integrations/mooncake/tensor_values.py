"""What the calls about tensors share: how one is stored and read, and how their arguments are checked.

A key is bytes in here: all keys of a call are converted before it stores anything, so that a wrong one stops all of it.
"""

import operator

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import Part, part_of
from nanokv.integrations.mooncake.tensor_header import Header
from nanokv.integrations.mooncake.tensor_memory import copied, copied_into, storable, tensor_at, whole_header
from nanokv.integrations.mooncake.values import Values, key_bytes, listed

_INT32 = range(-(1 << 31), 1 << 31)


def int32(name: str, given: object) -> int:
    """A rank, a size or a dimension that a call was given.

    Raises:
        TypeError: it is no integer of 32 bits.
    """
    try:
        value = operator.index(given)  # type: ignore[arg-type]  # it raises TypeError for all others
    except TypeError:
        value = None
    if value is None or value not in _INT32:
        raise TypeError(f"incompatible function arguments: {name} must be an int, not {given!r}")
    return int(value)


def names(given: object) -> list[bytes]:
    """The keys that a call was given.

    Raises:
        TypeError: they are no list of keys.
    """
    return [key_bytes(key) for key in listed("keys", given)]


def exact_list(name: str, given: object) -> list[object]:
    """A list that a call was given; a tuple is none, as for the real store.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, list):
        return given
    raise TypeError(f"incompatible function arguments: {name} must be a list, not {given!r}")


def segments_fit(config: ReplicateConfig) -> bool:
    """Whether a config that names segments names one for each replica."""
    return not config.preferred_segments or len(config.preferred_segments) == config.replica_num


def of_each(config: ReplicateConfig, objects: int) -> ReplicateConfig | None:
    """The config of each of some objects; None if the config names groups, and not one for each."""
    if config.group_ids is None:
        return config
    if len(config.group_ids) != objects:
        return None
    ours = ReplicateConfig()
    for name in ReplicateConfig.__slots__:
        setattr(ours, name, getattr(config, name))
    ours.group_ids = None  # NanoKV has no groups of this interface: they are only checked
    return ours


class TensorValues(Values):
    """A tensor under a key: its header, then its data."""

    def _store_data(
        self, name: bytes, header: Header, data: torch.Tensor, config: ReplicateConfig, *, replace: bool
    ) -> int:
        """Store a header and contiguous data, which may lie on a GPU: 0 or a code."""
        head, alive = part_of(header.packed())
        host = data.cpu()
        parts = [head, Part(host.data_ptr(), host.nbytes)] if host.nbytes else [head]
        done = self._store(name, parts, config, replace=replace)
        del alive
        return done

    def _put_tensor(self, name: bytes, given: object, config: ReplicateConfig, *, replace: bool) -> int:
        """Store a tensor whole."""
        tensor = storable(given)
        if tensor is None:
            return Code.INVALID_PARAMS
        return self._store_data(name, whole_header(tensor), tensor, config, replace=replace)

    def _put_tensors(self, keys: object, tensors: object, config: ReplicateConfig, *, replace: bool) -> list[int]:
        """`_put_tensor` for each key."""
        each, given = names(keys), exact_list("tensors_list", tensors)
        single = of_each(config, len(each))
        if not self._ready() or len(each) != len(given) or single is None:
            return [Code.INVALID_PARAMS] * len(each)
        return [
            self._put_tensor(name, tensor, single, replace=replace) for name, tensor in zip(each, given, strict=True)
        ]

    def _put_object(self, name: bytes, ptr: int, size: int, config: ReplicateConfig, *, replace: bool) -> int:
        """Store memory that has a header, and the data behind it."""
        return self._store(name, [Part(ptr, size)], config, replace=replace)

    def _tensor(self, name: bytes) -> torch.Tensor | None:
        """A copy of a tensor; None if the key has none."""
        found = self._reading(name, copied)
        return found if isinstance(found, torch.Tensor) else None

    def _tensor_into(self, name: bytes, ptr: int, size: int) -> torch.Tensor | None:
        """Copy header and data to an address: a tensor over the data there; None if there is none, or no room."""
        nbytes = int(self._reading(name, copied_into(ptr, size)))
        return tensor_at(ptr, nbytes) if nbytes > 0 else None
