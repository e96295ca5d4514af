"""From a tensor to its number of bytes and its descriptor, and back; and the tensors that are refused."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import torch

from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import Descriptor, Found, What, Words
from nanokv.device.segment.layout import DTYPE_MASK, MAX_DIMS, NDIM_MASK, NDIM_SHIFT
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import InvalidArgument

#: by torch's dtype: the code that is stored
DTYPE_CODES = {getattr(torch, name): code for code, name in enumerate(DTYPE_NAMES, 1) if hasattr(torch, name)}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
REMEMBERED = 4096  #: pairs of a dtype and a shape
_MOST_ELEMENTS = 2**48  #: of a stored shape, zeros counted as ones: torch computes strides of it
_DTYPE_MASK, _NDIM_SHIFT, _NDIM_MASK = DTYPE_MASK.value, NDIM_SHIFT.value, NDIM_MASK.value

_MOST_BYTES = 2**56  #: more than any memory; larger sizes would overflow where they are aligned

RAW: Descriptor = (0, 0, 0, 0, 0, 0, 0, 0)
_described: dict[tuple[torch.dtype, torch.Size], What] = {}
MAY_BE_LAZY = frozenset(
    getattr(torch, name) for name in ("float16", "float32", "float64", "complex32", "complex64", "complex128")
)  # parts of complex tensors, which may be lazily conjugated or negated; asking costs 0.1 us each


def described(tensor: torch.Tensor) -> What:
    """The number of bytes of a tensor's values, its dtype and its shape.

    Raises:
        InvalidArgument: it is not a dense tensor of a known dtype with at most seven dimensions, or it has no memory of
            its own (`plain_tensor`).
    """
    plain = plain_tensor(tensor)
    return what_of(plain.dtype, plain.shape)


def describe(tensor: torch.Tensor) -> tuple[int, Descriptor]:
    """The number of bytes of a tensor's values, and the descriptor of its dtype and shape. Raises as `described`."""
    return described(tensor)[:2]


def descriptor_of(dtype: torch.dtype, shape: torch.Size) -> tuple[int, Descriptor]:
    """The number of bytes of a tensor of a dtype and shape, and its descriptor. Raises as `describe`."""
    return what_of(dtype, shape)[:2]


def what_of(dtype: torch.dtype, shape: torch.Size) -> What:
    """Size, dtype and shape of a tensor of them. Raises InvalidArgument as `describe`."""
    return _described.get((dtype, shape)) or _describe(dtype, shape)


def _describe(dtype: torch.dtype, shape: torch.Size) -> What:
    code = DTYPE_CODES.get(dtype)
    if code is None:
        raise InvalidArgument(f"dtype {dtype} is not supported; view it as one that is, such as torch.uint8")
    if len(shape) > MAX_DIMS:
        raise InvalidArgument(f"at most {MAX_DIMS} dimensions are supported, not {len(shape)}: reshape the tensor")
    d0, d1, d2, d3, d4, d5, d6 = (*shape, *(0,) * (MAX_DIMS - len(shape)))
    descriptor: Descriptor = (code | len(shape) << _NDIM_SHIFT, d0, d1, d2, d3, d4, d5, d6)
    if len(_described) >= REMEMBERED:
        _described.clear()
    nbytes = dtype.itemsize * prod(shape)
    if nbytes > _MOST_BYTES:
        raise InvalidArgument(f"no segment holds a tensor of {nbytes} bytes, {dtype} {list(shape)}")
    known = _described[dtype, shape] = What.of(nbytes, descriptor)
    return known


@lru_cache(REMEMBERED)
def shape_of(descriptor: Descriptor, nbytes: int) -> tuple[torch.dtype, tuple[int, ...]] | None:
    """The dtype and shape of a descriptor; raw bytes are flat uint8. None if it contradicts `nbytes`."""
    code, ndim = descriptor[0] & _DTYPE_MASK, descriptor[0] >> _NDIM_SHIFT & _NDIM_MASK
    if code == 0:
        return torch.uint8, (nbytes,)
    shape = descriptor[1 : 1 + ndim]
    dtype = _DTYPES.get(code)
    if (
        dtype is None
        or not 0 <= ndim <= MAX_DIMS
        or min(shape, default=0) < 0
        or prod(shape) * dtype.itemsize != nbytes
        or prod(d or 1 for d in shape) > _MOST_ELEMENTS
    ):
        return None
    return dtype, shape


def empty_like_described(descriptor: Descriptor, nbytes: int, device: torch.device) -> torch.Tensor | None:
    """A new tensor of a descriptor's dtype and shape. None if it contradicts `nbytes`."""
    known = shape_of(descriptor, nbytes)
    return None if known is None else torch.empty(known[1], dtype=known[0], device=device)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8, one dimension, shared."""
    # not `view(-1)`: a dimension of one item may have any stride, and keeps it
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def is_plain(tensor: torch.Tensor) -> bool:
    """True if the tensor's values are its bytes in order: contiguous, and not lazily conjugated or negated."""
    if tensor.dtype in MAY_BE_LAZY and (tensor.is_conj() or tensor.is_neg()):
        return False
    return tensor.is_contiguous()


def unsuited(dst: torch.Tensor, found: Found) -> InvalidArgument:
    """The error for a destination that does not have the dtype, shape or size of an object."""
    nbytes = found.place.nbytes
    hint = "; reinterpret=True copies the bytes as they are" if dst.nbytes == nbytes else ""
    mine = f"{dst.dtype} {list(dst.shape)} of {dst.nbytes} bytes"
    return InvalidArgument(f"dst is {mine}, the object {_shown(found.descriptor)} of {nbytes} bytes{hint}")


def _shown(descriptor: Descriptor) -> str:
    code, ndim = descriptor[0] & _DTYPE_MASK, descriptor[0] >> _NDIM_SHIFT & _NDIM_MASK
    return f"{_DTYPES[code]} {list(descriptor[1 : 1 + ndim])}" if code else "raw bytes"


def checked_destination(dst: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A destination as a plain tensor of the same memory.

    Raises:
        InvalidArgument: it cannot be described, or is not contiguous memory on the heap's device.
    """
    plain = plain_tensor(dst)
    if plain.device != device:
        raise InvalidArgument(f"dst is on {plain.device}, the heap on {device}")
    if not is_plain(plain):
        raise InvalidArgument(f"dst must be contiguous, not of strides {plain.stride()} for shape {tuple(plain.shape)}")
    return plain


def check_apart(dsts: Iterable[torch.Tensor]) -> None:
    """Refuse destinations, each contiguous, of which two share memory: InvalidArgument."""
    spans = sorted((dst.data_ptr(), dst.data_ptr() + dst.nbytes) for dst in dsts if dst.nbytes)
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise _shared()


def check_alike_apart(places: Words, nbytes: int) -> None:
    """`check_apart` of destinations of `nbytes` each, at these addresses."""
    if len(places) > 1 and nbytes:
        ordered = np.sort(places)
        if (ordered[1:] - ordered[:-1] < nbytes).any():
            raise _shared()


def check_rows_apart(rows: torch.Tensor) -> None:
    """`check_apart` of the rows of a tensor."""
    count = rows.shape[0]
    if count > 1 and rows.stride(0) * count < rows.numel():
        raise _shared()


def _shared() -> InvalidArgument:
    return InvalidArgument("dsts share memory: each needs bytes of its own, or it ends with those of another object")
