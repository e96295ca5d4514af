"""Tensors whose values are their bytes in host memory, in order: what they are, and where."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nanokv.device.machines.native_code import code
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import What, Words
from nanokv.device.segment.host_records import LOWEST, TENSOR, WHAT
from nanokv.device.segment.layout import WORD
from nanokv.errors import InvalidArgument
from nanokv.transfer.descriptors import MAY_BE_LAZY, check_alike_apart, check_rows_apart, is_plain, what_of
from nanokv.transfer.dlpack import describing_function, dtype_words
from nanokv.transfer.lazy_tensors import lazy_functions

_STRIDED = torch.strided
_LOWEST: int = LOWEST.value


class NativeLook:
    """What native code asks of torch when it looks at a tensor: a TENSOR record. Only where `describing_function` is.

    Attributes:
        record: its address; the record lives as long as this.
    """

    def __init__(self) -> None:
        self._words = np.zeros((), TENSOR.dtype)
        self._dtypes = dtype_words()
        self._words["type"], self._words["function"] = id(Tensor), describing_function()
        self._words["dtypes"] = self._dtypes.ctypes.data
        lazy = lazy_functions()
        if lazy is not None:  # else no dtype that may be lazy is among those that are known
            self._words["is_neg"], self._words["is_conj"], self._words["reference"] = lazy
        self.record = int(self._words.ctypes.data)


@cache
def native_look() -> NativeLook:
    """The look of this process: native code uses it with the interpreter's lock."""
    return NativeLook()


def in_host_memory(tensor: Tensor) -> tuple[What, int] | None:
    """Size, dtype and shape of a tensor, and the address of its bytes; None if they are not its values, in order."""
    if type(tensor) is not Tensor:
        return None
    try:
        if not tensor.is_cpu or tensor.layout is not _STRIDED or not is_plain(tensor):
            return None
        address = tensor.data_ptr()
        if address < _LOWEST:
            plain_tensor(tensor)
        return what_of(tensor.dtype, tensor.shape), address
    except (RuntimeError, InvalidArgument):  # it has no shape or no memory, or cannot be stored: others say why
        return None


def all_in_host_memory(tensors: Sequence[Tensor] | Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """What tensors in host memory have in common, and the address of each: int64 [n]. None if they have not.

    They are all of one dtype and shape, their values are their bytes in order, and there is one at least. A tensor,
    which is a plain one, stands for its rows.
    """
    if not len(tensors):
        return None
    if type(tensors) is Tensor:
        return _rows(tensors)
    look_each = code().get("look_each")
    if look_each is not None and describing_function() is not None:
        alike = _alike(look_each, tensors if type(tensors) is list else list(tensors))
        if alike is not None:
            return alike
    addresses = []
    first: What | None = None
    for tensor in tensors:
        found = in_host_memory(tensor)
        if found is None or found[0] is not (first := first or found[0]):
            return None
        addresses.append(found[1])
    assert first is not None
    return first, np.array(addresses, np.int64)


def _alike(look_each: Callable[..., int], tensors: list[Tensor]) -> tuple[What, Words] | None:
    """`all_in_host_memory` in one native call, of what is usual."""
    words, addresses = np.empty(WHAT.size // WORD, np.int64), np.empty(len(tensors), np.int64)
    at = int(words.ctypes.data)
    if look_each(tensors, native_look().record, at, addresses.ctypes.data) != len(tensors):
        return None
    nbytes, *descriptor = words.tolist()
    return What(nbytes, tuple(descriptor), at, words), addresses


def alike_destinations(dsts: Sequence[Tensor] | Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """`all_in_host_memory` of destinations. Raises InvalidArgument if two share memory."""
    alike = all_in_host_memory(dsts)
    if alike is not None:
        if isinstance(dsts, Tensor):
            check_rows_apart(dsts)
        else:
            check_alike_apart(alike[1], alike[0].nbytes)
    return alike


def _rows(tensor: Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """`all_in_host_memory` of the rows of a plain tensor, without making one of the first row, which takes longest."""
    dtype, shape, strides = tensor.dtype, tensor.shape, tensor.stride()
    if not tensor.is_cpu or not _is_contiguous(shape[1:], strides[1:]):
        return None
    if dtype in MAY_BE_LAZY and (tensor.is_conj() or tensor.is_neg()):
        return None
    return what_of(dtype, shape[1:]), tensor.data_ptr() + strides[0] * dtype.itemsize * np.arange(shape[0])


def _is_contiguous(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """Whether torch's is_contiguous would say so: the stride of a dimension of one item means nothing."""
    expected = 1
    for items, stride in zip(reversed(shape), reversed(strides), strict=True):
        if items != 1 and stride != expected:
            return 0 in shape
        expected *= items
    return True
