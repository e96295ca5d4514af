"""What all calls of a client share: its objects, if it is set up, and values as tensor calls read and write them."""

import ctypes
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.memory import Part, Registered
from nanokv.integrations.mooncake.objects import Objects

PLAIN = ReplicateConfig()  #: the default of `config`. Nobody changes it: `config_code` and `_Call` only read it


def key_bytes(key: object) -> bytes:
    """The bytes of a key, a str or bytes.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"incompatible function arguments: {error}") from None
    if isinstance(key, bytes):
        return key
    if isinstance(key, bytearray):
        return bytes(key)
    raise TypeError(f"incompatible function arguments: a key must be a str, not {key!r}")


def listed(name: str, given: object) -> list[Any]:
    """A list, or another sequence except a text, that a call was given.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, list):
        return given
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, str | bytes | dict):
        return [given[number] for number in range(len(given))]
    raise TypeError(f"incompatible function arguments: {name} must be a list, not {given!r}")


def number(name: str, given: object) -> int:
    """A size, an offset or an address that a call was given.

    Raises:
        TypeError: it is no integer, or negative.
    """
    if type(given) is int and given >= 0:
        return given
    if hasattr(given, "__index__") and operator.index(given) >= 0:
        return operator.index(given)
    raise TypeError(f"incompatible function arguments: {name} must be an int >= 0, not {given!r}")


def config_code(config: object, objects: int = 1) -> int:
    """Whether NanoKV can store `objects` objects in the way that a config says.

    Raises:
        TypeError: it is no config.
    """
    if config is PLAIN:
        return Code.OK
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"incompatible function arguments: config must be a ReplicateConfig, not {config!r}")
    if config.dfs_replica_num:
        return Code.DFS_SERVICE_UNAVAILABLE
    timed_without_pin = config.soft_pin_ttl_ms is not None and config.soft_pin_action != SoftPinAction.ENABLE
    grouped_wrongly = config.group_ids is not None and len(config.group_ids) != objects
    if not config.replica_num or config.nof_replica_num or timed_without_pin or grouped_wrongly:
        return Code.INVALID_PARAMS
    return Code.OK


class Values:
    """The base of a client's calls."""

    def __init__(self) -> None:
        self._set_up: Objects | None = None
        self._local_buffer = 0  #: bytes; values that `put` and `get` copy may have no more
        self._registered = Registered()

    @property
    def _objects(self) -> Objects | None:
        """The objects of a client that is set up, and not closed. Raises Forked: the client is the parent's."""
        found = self._set_up
        if found is not None and found.world.closed:
            found.world.engine.check_open()
        return found

    @_objects.setter
    def _objects(self, objects: Objects | None) -> None:
        self._set_up = objects

    def _ready(self) -> bool:
        """Whether the client is set up, and not closed."""
        return self._objects is not None

    # --- writing ---
    def _store(self, key: object, parts: Sequence[Part], config: ReplicateConfig, *, replace: bool) -> int:
        """Store the parts under a key, which keeps the value that it has unless `replace`. The parts are not empty."""
        name = key_bytes(key)
        if self._objects is None or not name:
            return Code.INVALID_PARAMS
        code = config_code(config)
        if code:
            return code
        chosen = None if config is PLAIN else config
        if replace:
            return self._objects.replace(name, parts, chosen)
        done = self._objects.write(name, parts, chosen)
        return Code.OK if done == Code.OBJECT_ALREADY_EXISTS else done

    def _write(self, key: str, parts: Sequence[torch.Tensor], config: ReplicateConfig, *, replace: bool = False) -> int:
        """Store uint8 tensors (contiguous, one dimension, in host memory) one after another as one value: 0 or a code.

        Without `replace` a key that exists keeps its value, which is no error.
        """
        found = [Part(part.data_ptr(), part.nbytes) for part in parts if part.nbytes]
        if not found:
            config_code(config)
            return Code.INVALID_PARAMS
        if sum(part.nbytes for part in found) > self._local_buffer:
            return Code.INVALID_PARAMS
        return self._store(key, found, config, replace=replace)

    def _write_many(
        self,
        keys: Sequence[str],
        parts: Sequence[Sequence[torch.Tensor]],
        config: ReplicateConfig,
        *,
        replace: bool = False,
    ) -> list[int]:
        """`_write` for each key."""
        return [self._write(key, each, config, replace=replace) for key, each in zip(keys, parts, strict=True)]

    # --- reading ---
    def _reading(self, key: object, take: Callable[[int, int], Any]) -> Any:
        """`Objects.read` of a key; OBJECT_NOT_FOUND for a client that is not set up, and for the empty key."""
        name = key_bytes(key)
        if self._objects is None or not name:
            return Code.OBJECT_NOT_FOUND
        return self._objects.read(name, take)

    def _read(self, key: str) -> torch.Tensor | int:
        """A value as a new uint8 tensor of one dimension, or a code."""
        found: torch.Tensor | int = self._reading(key, _as_tensor)
        return found

    def _read_many(self, keys: Sequence[str]) -> list[torch.Tensor | int]:
        """`_read` for each key."""
        return [self._read(key) for key in keys]

    def _read_into(self, key: str, ptr: int, size: int) -> int:
        """Copy a value to an address: its bytes, or a code."""
        if not ptr:
            size = 0  # nothing fits there
        if type(key) is str and key and self._objects is not None:
            small = self._objects.small.get_into(key, ptr, size)
            if small >= 0:
                return small
        name = key_bytes(key)
        if self._objects is None or not name:
            return Code.OBJECT_NOT_FOUND
        return self._objects.read_into(name, ptr, size)

    def _read_part(self, key: str, offset: int, nbytes: int) -> torch.Tensor | int:
        """Some bytes of a value as a new uint8 tensor, or a code: INVALID_PARAMS if the value ends before."""

        def part(address: int, size: int) -> torch.Tensor | int:
            return _as_tensor(address + offset, nbytes) if offset + nbytes <= size else Code.INVALID_PARAMS

        found: torch.Tensor | int = self._reading(key, part)
        return found

    def _size(self, key: str) -> int:
        """Bytes of a value, or a code."""
        return int(self._reading(key, lambda _, nbytes: nbytes))


def _as_tensor(address: int, nbytes: int) -> torch.Tensor:
    made = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    ctypes.memmove(made.data_ptr(), address, nbytes)
    return made


def compiled(pattern: str) -> re.Pattern[bytes] | None:
    """A regular expression over the bytes of keys, in Python's syntax and with POSIX' classes; None if it is none.

    Raises:
        TypeError: it is no str.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"incompatible function arguments: a regular expression must be a str, not {pattern!r}")
    for name, characters in _CLASSES.items():
        pattern = pattern.replace(f"[:{name}:]", characters)
    try:
        with warnings.catch_warnings(action="error"):  # of what another syntax would read in another way
            return re.compile(pattern.encode("utf-8", "surrogatepass"))
    except (re.error, FutureWarning, RecursionError, OverflowError):
        return None


_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
    "punct": r"!-/:-@\[-`{-~",
}
