"""Memory objects of LMCache as tensors that share their memory, and new ones for what was read.

A memory object has either one tensor, or one per group of layers, one behind the other; or it is a buffer of bytes. One
tensor is stored with its dtype and shape, the others as flat bytes.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryObj

from nanokv.errors import InvalidArgument


def has_groups(memory_obj: MemoryObj) -> bool:
    """Whether it has more than one tensor."""
    return memory_obj.meta.shapes is not None and len(memory_obj.meta.shapes) > 1


def tensor_of(memory_obj: MemoryObj) -> torch.Tensor:
    """What is stored of a memory object, sharing its memory, which the caller keeps.

    Raises:
        InvalidArgument: it has no memory that can be read here, as those of LMCache's GPUDirect Storage.
    """
    if isinstance(memory_obj, BytesBufferMemoryObj):
        return _bytes_of(memory_obj.byte_array)
    raw = memory_obj.raw_tensor
    if raw is None:
        raise InvalidArgument(f"{type(memory_obj).__name__} has no tensor: it was freed, or its bytes are elsewhere")
    if has_groups(memory_obj):
        flat: torch.Tensor = raw[: memory_obj.get_size()].view(torch.uint8)
        return flat
    tensor: torch.Tensor = memory_obj.tensor
    return tensor


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8, sharing its memory."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


def _bytes_of(raw: Any) -> torch.Tensor:
    """Bytes as a tensor. Torch warns of read-only memory, and nobody writes to this."""
    array = np.frombuffer(raw, np.uint8)
    if not array.size:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(_array_of(array.size).from_address(array.ctypes.data), dtype=torch.uint8)


@lru_cache(256)
def _array_of(nbytes: int) -> Any:
    return ctypes.c_uint8 * nbytes
