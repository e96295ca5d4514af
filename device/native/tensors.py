"""What a tensor of torch is, by one call: its dtype, shape and strides, and where its bytes are.

torch fills a DLTensor by a C function, which it hands out for that (DLPack 1.3, `DLPackExchangeAPI` in dlpack.h). It
takes a hundredth of a microsecond; each property of a tensor takes Python five times as long, and a put needs seven.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nanokv.device.memory.triton import load64, word
from nanokv.device.segment.host_records import (
    LOWEST,
    NOT_ALIKE,
    T_DATA,
    T_DEVICE,
    T_DIMS,
    T_FUNCTION,
    T_KIND,
    T_LIKE_DEVICE,
    T_LIKE_DIMS,
    T_LIKE_KIND,
    T_OFFSET,
    T_STRIDES,
)
from nanokv.device.segment.layout import WORD_BYTES

NDIM = tl.constexpr(0xFFFFFFFF)  #: the bits of `kind` that are the number of dimensions


@intrinsic
def fill(typing: Any, function: Any, tensor: Any, out: Any) -> tuple[Any, Callable[..., Any]]:
    """Call torch's function: int (*)(PyObject *tensor, DLTensor *out). Not 0: Python has an error."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, status = ir.IntType(64), ir.IntType(32)
        callee = builder.inttoptr(args[0], ir.FunctionType(status, [word, word]).as_pointer())
        return builder.sext(builder.call(callee, args[1:]), word)

    return types.int64(types.int64, types.int64, types.int64), emit


@triton.jit
def look(tensor: tl.int64, record: tl.int64) -> Any:
    """Compare a tensor with what a TENSOR record asks for. Returns the address of its bytes, or NOT_ALIKE.

    NOT_ALIKE: device, dtype or shape are others, it is not contiguous, torch cannot say, or it may have no memory. The
    interpreter's lock is held: no two threads use a record at once.
    """
    if fill(load64(record + T_FUNCTION, "relaxed"), tensor, record) != 0:
        return word(NOT_ALIKE)
    kind = load64(record + T_KIND, "relaxed")
    differs = (load64(record + T_DEVICE, "relaxed") != load64(record + T_LIKE_DEVICE, "relaxed")) | (
        kind != load64(record + T_LIKE_KIND, "relaxed")
    )
    if differs:
        return word(NOT_ALIKE)
    dims, strides = load64(record + T_DIMS, "relaxed"), load64(record + T_STRIDES, "relaxed")
    i = ((kind & NDIM) - 1) * WORD_BYTES
    dense = True
    items = word(1)  # in the dimensions after this one: the stride that makes it contiguous
    while i >= 0:
        here = load64(dims + i, "relaxed")
        if here != load64(record + T_LIKE_DIMS + i, "relaxed"):
            return word(NOT_ALIKE)
        dense = dense & ((here == 1) | (load64(strides + i, "relaxed") == items))
        items = items * here
        i -= WORD_BYTES
    if not dense and items != 0:
        return word(NOT_ALIKE)
    address = load64(record + T_DATA, "relaxed") + load64(record + T_OFFSET, "relaxed")
    if address < LOWEST and items != 0:
        return word(NOT_ALIKE)
    return address
