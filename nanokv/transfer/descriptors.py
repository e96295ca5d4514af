"""From a tensor to its number of bytes and its descriptor, and back; and the tensors that are refused."""

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nanokv.device.machines.records import Descriptor, Found, What
from nanokv.device.segment.layout import DTYPE_MASK, MAX_DIMS, NDIM_MASK, NDIM_SHIFT
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import InvalidArgument

_CODES = {getattr(torch, name): code for code, name in enumerate(DTYPE_NAMES, 1) if hasattr(torch, name)}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_REMEMBERED = 4096
_MOST_ELEMENTS = 2**48  #: of a stored shape, zeros counted as ones: torch computes strides of it
_DTYPE_MASK, _NDIM_SHIFT, _NDIM_MASK = DTYPE_MASK.value, NDIM_SHIFT.value, NDIM_MASK.value

RAW: Descriptor = (0, 0, 0, 0, 0, 0, 0, 0)
_STRIDED = torch.strided
_described: dict[tuple[torch.dtype, torch.Size], What] = {}
_last: list[tuple[torch.dtype, torch.Size, What]] = [(torch.uint8, torch.Size((0,)), What.of(0, RAW))]
_MAY_BE_LAZY = frozenset(
    getattr(torch, name) for name in ("float16", "float32", "float64", "complex32", "complex64", "complex128")
)  # parts of complex tensors, which may be lazily conjugated or negated; asking costs 0.1 us each


def described(tensor: torch.Tensor) -> What:
    """The number of bytes of a tensor's values, its dtype and its shape.

    Raises:
        InvalidArgument: it is not a dense tensor of a known dtype with at most seven dimensions.
    """
    if not isinstance(tensor, Tensor):
        raise InvalidArgument(f"a torch.Tensor is needed, not {type(tensor).__name__}")
    known = _described.get((tensor.dtype, tensor.shape)) or _describe(tensor.dtype, tensor.shape)
    if tensor.layout is not _STRIDED or tensor.is_meta:
        raise InvalidArgument(f"a dense tensor with data is needed, not layout {tensor.layout} on {tensor.device}")
    return known


def described_in_place(tensor: torch.Tensor) -> What | None:
    """`described` of a tensor whose values are its bytes in host memory, in order; None for any other tensor.

    Each put and get asks that, and each property of a tensor costs 0.05 to 0.1 us: so it asks for few.
    """
    if type(tensor) is not Tensor or not tensor.is_cpu or tensor.layout is not _STRIDED:
        return None
    dtype = tensor.dtype
    if not tensor.is_contiguous() or (dtype in _MAY_BE_LAZY and (tensor.is_conj() or tensor.is_neg())):
        return None
    shape = tensor.shape
    last_dtype, last_shape, what = _last[0]
    if dtype is not last_dtype or shape != last_shape:  # mostly all tensors of a cache have one shape
        what = _described.get((dtype, shape)) or _describe(dtype, shape)
        _last[0] = dtype, shape, what
    return what


def described_alike(tensors: Sequence[Tensor] | Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """What tensors in host memory have in common, and the address of each: int64 [n]. None if they have not.

    They are all of one dtype and shape, their values are their bytes in order, and there is one at least. A tensor
    stands for its rows: what one call then says of all of them each of a list is asked for, which takes 0.4 us.
    """
    if not len(tensors):
        return None
    if type(tensors) is Tensor:
        return _described_rows(tensors)
    what = described_in_place(tensors[0])
    if what is None:
        return None
    first = tensors[0]
    dtype, shape, lazy = first.dtype, first.shape, first.dtype in _MAY_BE_LAZY
    for tensor in tensors:  # as `described_in_place`
        if (
            type(tensor) is not Tensor
            or not tensor.is_cpu
            or tensor.layout is not _STRIDED
            or tensor.dtype is not dtype
            or tensor.shape != shape
            or not tensor.is_contiguous()
            or (lazy and (tensor.is_conj() or tensor.is_neg()))
        ):
            return None
    return what, np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def _described_rows(tensor: Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """`described_alike` of a tensor's rows, without making a tensor of the first one, which takes longest."""
    dtype, shape, strides = tensor.dtype, tensor.shape, tensor.stride()
    if not tensor.is_cpu or tensor.layout is not _STRIDED or not _is_contiguous(shape[1:], strides[1:]):
        return None
    if dtype in _MAY_BE_LAZY and (tensor.is_conj() or tensor.is_neg()):
        return None
    what = _described.get((dtype, shape[1:])) or _describe(dtype, shape[1:])
    return what, tensor.data_ptr() + strides[0] * dtype.itemsize * np.arange(shape[0])


def _is_contiguous(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """As torch's is_contiguous: the stride of a dimension of one item means nothing."""
    expected = 1
    for items, stride in zip(reversed(shape), reversed(strides), strict=True):
        if items != 1 and stride != expected:
            return 0 in shape
        expected *= items
    return True


def describe(tensor: torch.Tensor) -> tuple[int, Descriptor]:
    """The number of bytes of a tensor's values, and the descriptor of its dtype and shape. Raises as `described`."""
    return described(tensor)[:2]


def descriptor_of(dtype: torch.dtype, shape: torch.Size) -> tuple[int, Descriptor]:
    """The number of bytes of a tensor of a dtype and shape, and its descriptor. Raises as `describe`."""
    return (_described.get((dtype, shape)) or _describe(dtype, shape))[:2]


def _describe(dtype: torch.dtype, shape: torch.Size) -> What:
    code = _CODES.get(dtype)
    if code is None:
        raise InvalidArgument(f"dtype {dtype} is not supported; view it as one that is, such as torch.uint8")
    if len(shape) > MAX_DIMS:
        raise InvalidArgument(f"at most {MAX_DIMS} dimensions are supported, not {len(shape)}: reshape the tensor")
    d0, d1, d2, d3, d4, d5, d6 = (*shape, *(0,) * (MAX_DIMS - len(shape)))
    descriptor: Descriptor = (code | len(shape) << _NDIM_SHIFT, d0, d1, d2, d3, d4, d5, d6)
    if len(_described) >= _REMEMBERED:
        _described.clear()
    known = _described[dtype, shape] = What.of(dtype.itemsize * prod(shape), descriptor)
    return known


def empty_like_described(descriptor: Descriptor, nbytes: int, device: torch.device) -> torch.Tensor | None:
    """A new tensor of a descriptor's dtype and shape; raw bytes are flat uint8. None if it contradicts `nbytes`."""
    code, ndim = descriptor[0] & _DTYPE_MASK, descriptor[0] >> _NDIM_SHIFT & _NDIM_MASK
    if code == 0:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
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
    return torch.empty(shape, dtype=dtype, device=device)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8, one dimension, shared."""
    return tensor.reshape(-1).view(torch.uint8)


def is_plain(tensor: torch.Tensor) -> bool:
    """True if the tensor's values are its bytes in order: contiguous, and not lazily conjugated or negated."""
    if tensor.dtype in _MAY_BE_LAZY and (tensor.is_conj() or tensor.is_neg()):
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


def check_place(dst: torch.Tensor, device: torch.device) -> None:
    """Refuse a destination that is not contiguous memory on the heap's device: InvalidArgument."""
    if dst.device != device:
        raise InvalidArgument(f"dst is on {dst.device}, the heap on {device}")
    if not is_plain(dst):
        raise InvalidArgument(f"dst must be contiguous, not of strides {dst.stride()} for shape {tuple(dst.shape)}")
