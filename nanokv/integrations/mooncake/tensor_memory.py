"""Tensors and memory: which tensors can be stored, and tensors over bytes that lie somewhere.

Values are copied as integers of the element's size: no bit changes, whatever it means.
"""

import ctypes
import math
from collections.abc import Callable

import torch

from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.integrations.mooncake.tensor_header import HEADER_BYTES, MAX_DIMS, NUMBERS, Header, Shape, parsed

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def storable(given: object) -> torch.Tensor | None:
    """A contiguous tensor with the values of what a call was given; None for what cannot be stored.

    Those are: other objects, complex and other dtypes that the header has no number for, more than 8 dimensions, sparse
    tensors, and tensors without memory of their own, such as those of classes that wrap others.
    """
    try:
        plain = plain_tensor(given)
    except InvalidArgument:
        return None
    if plain.dtype not in NUMBERS or plain.ndim > MAX_DIMS:
        return None
    return plain.detach().resolve_neg().contiguous()


def whole_header(tensor: torch.Tensor) -> Header:
    """The header of a tensor that is stored whole."""
    shape = tuple(tensor.shape)
    return Header(tensor.dtype, shape, shape)


def over(address: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory, which the caller keeps alive. Without dimensions it gets one of size 1."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape or (1,))


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as integers of the same size."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def header_at(address: int, nbytes: int) -> Header | None:
    """The header of the tensor in a value that lies at an address; None if it is no tensor."""
    if not address:
        return None
    return parsed(ctypes.string_at(address, min(nbytes, HEADER_BYTES)), nbytes)


def tensor_at(address: int, nbytes: int) -> torch.Tensor | None:
    """A tensor over the data of a value that lies at an address; None if it is no tensor."""
    header = header_at(address, nbytes)
    return None if header is None else over(address + header.offset, header.shape, header.dtype)


def copied(address: int, nbytes: int) -> torch.Tensor | None:
    """A copy of the tensor in a value that lies at an address; None if it is no tensor."""
    header = header_at(address, nbytes)
    if header is None:
        return None
    made = torch.empty(header.shape or (1,), dtype=header.dtype, device="cpu")
    ctypes.memmove(made.data_ptr(), address + header.offset, header.data_bytes)
    return made


def copied_into(target: int, room: int) -> Callable[[int, int], int]:
    """What copies a value to an address, and tells its bytes; 0, and no copy: it is no tensor, or there is no room."""

    def copy(address: int, nbytes: int) -> int:
        if nbytes > room or header_at(address, nbytes) is None:
            return 0
        ctypes.memmove(target, address, nbytes)
        return nbytes

    return copy
