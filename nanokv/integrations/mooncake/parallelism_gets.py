"""Calls that read tensors in a layout, which may be another one than that in which they were stored."""

import ctypes
from typing import Any

import torch

from nanokv.integrations.mooncake.parallelism_reads import Join, LaidOutReads
from nanokv.integrations.mooncake.tensor_gets import TensorGets
from nanokv.integrations.mooncake.tensor_header import HEADER_BYTES
from nanokv.integrations.mooncake.tensor_memory import over
from nanokv.integrations.mooncake.tensor_puts import memory_of
from nanokv.integrations.mooncake.tensor_values import names
from nanokv.integrations.mooncake.values import key_bytes, number


class ParallelismGets(LaidOutReads, TensorGets):
    """`target`: a `ReadTarget`; None reads the object of the key as it was stored.

    - "shard" with a layout: this rank's shard. If it was not stored so, it is made of the shards that were.
    - "full" with a layout: the whole, made of all shards along the tensor axis.
    - "full" without a layout: the whole, made of all shards of writers; without those the object of the key.

    None stands for what is not there, not all there, or not of one whole.
    """

    def get_tensor_with_parallelism(self, key: str, target: object = None) -> torch.Tensor | None:
        """A copy of a tensor in a layout."""
        return self._laid_out(key_bytes(key), target)

    def batch_get_tensor_with_parallelism(self, keys: list[str], targets: object = None) -> list[torch.Tensor | None]:
        """`get_tensor_with_parallelism` for each key, with a list of targets. None for each: that is no such list."""
        each = names(keys)
        wanted = _targets(targets, len(each))
        if wanted is None:
            return [None] * len(each)
        return [self._laid_out(name, target) for name, target in zip(each, wanted, strict=True)]

    def _laid_out(self, name: bytes, target: object) -> torch.Tensor | None:
        found = self._found(name, target)
        if not isinstance(found, Join):
            return None if found is None else self._tensor(found)
        made = torch.empty(found.header.shape, dtype=found.header.dtype, device="cpu")
        return made if self._copy(found, made) else None

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: object = None
    ) -> torch.Tensor | None:
        """Lay header and data of a tensor in a layout to an address: a tensor over the data there.

        The `size` bytes at the address have to be registered. None also if there is no room.
        """
        name, ptr, room = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        return self._laid_out_into(name, ptr, room, target)

    def batch_get_tensor_with_parallelism_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], targets: object = None
    ) -> list[torch.Tensor | None]:
        """`get_tensor_with_parallelism_into` for each key. None for each: lists of different lengths."""
        each, memory = names(keys), memory_of(buffer_ptrs, sizes)
        wanted = _targets(targets, len(each))
        if wanted is None or memory is None or len(memory) != len(each):
            return [None] * len(each)
        return [
            self._laid_out_into(name, *part, target) for name, part, target in zip(each, memory, wanted, strict=True)
        ]

    def _laid_out_into(self, name: bytes, ptr: int, room: int, target: object) -> torch.Tensor | None:
        found = self._found(name, target)
        if found is None or room > self._registered.room(ptr):
            return None
        if not isinstance(found, Join):
            return self._tensor_into(found, ptr, room)
        header = found.header
        if HEADER_BYTES + header.data_bytes > room:
            return None
        made = over(ptr + HEADER_BYTES, header.shape, header.dtype)
        if not self._copy(found, made):
            return None
        ctypes.memmove(ptr, header.packed(), HEADER_BYTES)
        return made


def _targets(given: Any, count: int) -> list[Any] | None:
    """A target for each of some keys; None if what was given is no list of that length."""
    if given is None:
        return [None] * count
    return given if isinstance(given, list) and len(given) == count else None
