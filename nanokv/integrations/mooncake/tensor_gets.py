"""Calls that read tensors: as new ones, or into memory of the caller."""

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.tensor_puts import memory_of
from nanokv.integrations.mooncake.tensor_values import TensorValues, exact_list, names
from nanokv.integrations.mooncake.values import key_bytes, number

_INVALID = Code.INVALID_PARAMS


class TensorGets(TensorValues):
    """None stands for a key without a tensor: there is nothing, or a value that is no tensor.

    What comes back has the dtype and shape that were stored, except that a tensor without dimensions has one of size 1,
    as the real store's.
    """

    def get_tensor(self, key: str) -> torch.Tensor | None:
        """A copy of a tensor, in host memory."""
        return self._tensor(key_bytes(key))

    def batch_get_tensor(self, keys: list[str]) -> list[torch.Tensor | None]:
        """`get_tensor` for each key."""
        return [self._tensor(name) for name in names(keys)]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> torch.Tensor | None:
        """Copy header and data of a tensor to an address where `size` bytes are free: a tensor over the data there.

        The caller keeps that memory alive. None also if there is no room.
        """
        name, ptr, room = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        return self._tensor_into(name, ptr, room) if ptr else None

    def batch_get_tensor_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]
    ) -> list[torch.Tensor | int | None]:
        """`get_tensor_into` for each key. INVALID_PARAMS for each: lists of different lengths, or an address is 0."""
        return self._tensors_into(names(keys), memory_of(buffer_ptrs, sizes))

    def _tensors_into(self, each: list[bytes], memory: list[tuple[int, int]] | None) -> list[torch.Tensor | int | None]:
        known = memory is not None and len(memory) == len(each) and all(ptr for ptr, _ in memory)
        if memory is None or not known or not self._ready():
            return [_INVALID] * len(each)
        return [self._tensor_into(name, *part) for name, part in zip(each, memory, strict=True)]

    def get_tensor_into_cuda(self, key: str, tensor: object) -> int:
        """INVALID_PARAMS, as from each client of the real store that reaches memory by itself."""
        key_bytes(key)
        return _INVALID

    def batch_get_tensor_into_cuda(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """INVALID_PARAMS for each key, as `get_tensor_into_cuda`."""
        exact_list("tensors_list", tensors_list)
        return [_INVALID] * len(names(keys))
