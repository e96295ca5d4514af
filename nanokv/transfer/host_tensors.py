"""Tensors whose values are their bytes in host memory, in order: what they are, and where.

Each put and get asks that. Where torch has a C function for it (`dlpack`), one native call compares the tensor with the
last one; else, and for a tensor of another kind than the last, its properties are asked for one by one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nanokv.device.machines.native_code import code
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import What, Words
from nanokv.device.segment.host_records import LOWEST, NOT_ALIKE, TENSOR
from nanokv.device.segment.layout import WORD
from nanokv.errors import InvalidArgument
from nanokv.transfer.descriptors import (
    MAY_BE_LAZY,
    REMEMBERED,
    check_alike_apart,
    check_rows_apart,
    is_plain,
    what_of,
)
from nanokv.transfer.dlpack import describing_function

_STRIDED = torch.strided
_NOT_ALIKE: int = NOT_ALIKE.value
_LOWEST: int = LOWEST.value
_WORDS = {name: at // WORD for name, at in TENSOR.offsets.items()}


class _Kind(NamedTuple):
    """Tensors of one dtype and shape."""

    what: What
    lazy: bool  #: they may be lazily negated, which DLPack does not tell
    is_complex: bool  #: and lazily conjugated; torch lets no others be
    look: Callable[[Tensor, int], int]
    record: int  #: the address of `words`
    words: Words  #: a TENSOR record


def _never(tensor: Tensor, record: int) -> int:
    return _NOT_ALIKE


_no_words = np.zeros(TENSOR.size // WORD, np.int64)  # no tensor has its type
last_kind = [_Kind(what_of(torch.uint8, torch.Size((0,))), False, False, _never, _no_words.ctypes.data, _no_words)]
_kinds: dict[tuple[torch.dtype, torch.Size], _Kind] = {}


def in_host_memory(tensor: Tensor) -> tuple[What, int] | None:
    """Size, dtype and shape of a tensor, and the address of its bytes; None if they are not its values, in order."""
    what, lazy, is_complex, look, record, _ = last_kind[0]
    if type(tensor) is Tensor and (address := look(tensor, record)) != _NOT_ALIKE:
        if lazy and (tensor.is_neg() or (is_complex and tensor.is_conj())):
            return None
        return what, address
    return _of_another_kind(tensor)


def _of_another_kind(tensor: Tensor) -> tuple[What, int] | None:
    if type(tensor) is not Tensor:
        return None
    try:
        if not tensor.is_cpu or tensor.layout is not _STRIDED or not is_plain(tensor):
            return None
        address = tensor.data_ptr()
        if address < _LOWEST:
            plain_tensor(tensor)
        kind = _kinds.get((tensor.dtype, tensor.shape)) or _learned(tensor)
        if kind is None:
            return what_of(tensor.dtype, tensor.shape), address
    except (RuntimeError, InvalidArgument):  # it has no shape or no memory, or cannot be stored: others say why
        return None
    last_kind[0] = kind
    return kind.what, address


def _learned(tensor: Tensor) -> _Kind | None:
    """What `look` compares with, taken from a first tensor of that kind; None: there is nothing to look with."""
    look, function = code().get("look"), describing_function()
    if look is None or function is None:  # this process has no native code, or torch no such function
        return None
    dtype, shape, words = tensor.dtype, tensor.shape, np.zeros(TENSOR.size // WORD, np.int64)
    what = what_of(dtype, shape)
    kind = _Kind(what, dtype in MAY_BE_LAZY, dtype.is_complex, look, words.ctypes.data, words)
    words[_WORDS["type"]], words[_WORDS["function"]], words[_WORDS["what"]] = id(Tensor), function, what.address
    look(tensor, kind.record)
    words[_WORDS["like_device"]], words[_WORDS["like_kind"]] = words[_WORDS["device"]], words[_WORDS["kind"]]
    words[_WORDS["like_dims"] :][: len(shape)] = shape
    if len(_kinds) >= REMEMBERED:
        _kinds.clear()
    _kinds[dtype, shape] = kind
    return kind


def all_in_host_memory(tensors: Sequence[Tensor] | Tensor) -> tuple[What, npt.NDArray[np.int64]] | None:
    """What tensors in host memory have in common, and the address of each: int64 [n]. None if they have not.

    They are all of one dtype and shape, their values are their bytes in order, and there is one at least. A tensor,
    which is a plain one, stands for its rows.
    """
    if not len(tensors):
        return None
    if type(tensors) is Tensor:
        return _rows(tensors)
    addresses = []
    first: What | None = None
    for tensor in tensors:
        found = in_host_memory(tensor)
        if found is None or found[0] is not (first := first or found[0]):
            return None
        addresses.append(found[1])
    assert first is not None
    return first, np.array(addresses, np.int64)


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
    """As torch's is_contiguous: the stride of a dimension of one item means nothing."""
    expected = 1
    for items, stride in zip(reversed(shape), reversed(strides), strict=True):
        if items != 1 and stride != expected:
            return 0 in shape
        expected *= items
    return True
