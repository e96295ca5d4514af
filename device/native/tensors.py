"""What a tensor of torch is, by one call: its dtype, shape and strides, and where its bytes are.

torch fills a DLTensor by a C function, which it hands out for that (DLPack 1.3, `DLPackExchangeAPI` in dlpack.h). It
takes a tenth of a microsecond; Python takes half as long for each property of a tensor, of which a put needs seven.
It does not say whether values are lazily negated or conjugated: torch's own functions do (`transfer.lazy_tensors`).
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.python_objects import list_item, size_of_list, type_of
from nanokv.device.protocol.header import load_descriptor, raw_bytes, store_descriptor, unlike
from nanokv.device.protocol.structs import Descriptor
from nanokv.device.segment.host_records import (
    DTYPE_BYTES_SHIFT,
    DTYPE_CONJUGATED,
    DTYPE_NEGATED,
    LOWEST,
    NOT_ALIKE,
    T_DATA,
    T_DEVICE,
    T_DIMS,
    T_DTYPES,
    T_FUNCTION,
    T_IS_CONJ,
    T_IS_NEG,
    T_KIND,
    T_OFFSET,
    T_REFERENCE,
    T_STRIDES,
    T_TYPE,
    WHAT_BYTES,
    WHAT_FORMAT,
)
from nanokv.device.segment.layout import DTYPE_MASK, MAX_DIMS, NDIM_SHIFT, WORD_BYTES

HOST = tl.constexpr(1)  #: DLPack's device of ordinary host memory
LONGEST = tl.constexpr(1 << 24)  #: elements of a dimension, and of all: their product is far from overflowing
MOST_DIMS = tl.constexpr(MAX_DIMS)


@intrinsic
def fill(typing: Any, function: Any, tensor: Any, out: Any) -> tuple[Any, Callable[..., Any]]:
    """Call torch's function: int (*)(PyObject *tensor, DLTensor *out). Not 0: Python has an error."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, status = ir.IntType(64), ir.IntType(32)
        callee = builder.inttoptr(args[0], ir.FunctionType(status, [word, word]).as_pointer())
        return builder.sext(builder.call(callee, args[1:]), word)

    return types.int64(types.int64, types.int64, types.int64), emit


@intrinsic
def is_lazy(typing: Any, function: Any, reference: Any) -> tuple[Any, Callable[..., Any]]:
    """Call a C++ function of torch: bool (*)(const at::Tensor &). 1 or 0."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte = ir.IntType(64), ir.IntType(8)
        callee = builder.inttoptr(args[0], ir.FunctionType(byte, [word]).as_pointer())
        return builder.zext(builder.and_(builder.call(callee, args[1:]), byte(1)), word)

    return types.int64(types.int64, types.int64), emit


@triton.jit
def dtype_word(kind: tl.int64, tensor: tl.int64) -> Any:
    """What TENSOR.dtypes says of DLPack's dtype in the upper half of `kind`; 0: nothing."""
    code, bits, lanes = (kind >> 32) & 0xFF, (kind >> 40) & 0xFF, (kind >> 48) & 0xFFFF
    place = (code << 5) | (bits >> 3)
    known = (code < 32) & ((bits & 7) == 0) & (lanes == 1)
    return load64(load64(tensor + T_DTYPES, "relaxed") + select(known, place, word(0)) * WORD_BYTES, "relaxed")


@triton.jit
def dimension(at: tl.int64, i: tl.int64, ndim: tl.int64) -> Any:
    """The size of a dimension; 0 if there is none of that number."""
    size = word(0)
    if i < ndim:
        size = load64(at + i * WORD_BYTES, "relaxed")
    return size


@triton.jit
def described(tensor: tl.int64, record: tl.int64) -> Any:
    """What a tensor is, by a TENSOR record: (address, bytes, Descriptor).

    The address is NOT_ALIKE where the values are not the bytes in host memory, in order, of a dtype that can be stored;
    or torch cannot say, or it may have no memory of its own. No other thread runs meanwhile.
    """
    none = word(NOT_ALIKE)
    if type_of(tensor) != load64(record + T_TYPE, "relaxed"):
        return none, word(0), raw_bytes()
    if fill(load64(record + T_FUNCTION, "relaxed"), tensor, record) != 0:
        return none, word(0), raw_bytes()
    kind = load64(record + T_KIND, "relaxed")
    ndim = kind & 0xFFFFFFFF
    dtype = dtype_word(kind, record)
    if (dtype == 0) | (load64(record + T_DEVICE, "relaxed") != HOST) | (ndim > MOST_DIMS):
        return none, word(0), raw_bytes()
    dims, strides = load64(record + T_DIMS, "relaxed"), load64(record + T_STRIDES, "relaxed")
    address = load64(record + T_DATA, "relaxed") + load64(record + T_OFFSET, "relaxed")
    i = ndim - 1
    items = word(1)  # in the dimensions after this one: the stride that makes it contiguous
    while i >= 0:
        here = load64(dims + i * WORD_BYTES, "relaxed")
        dense = (here == 1) | (load64(strides + i * WORD_BYTES, "relaxed") == items)
        if (not dense) | (here > LONGEST) | (items > LONGEST):
            return none, word(0), raw_bytes()
        items = items * here
        i -= 1
    if (address < LOWEST) & (items != 0):
        return none, word(0), raw_bytes()
    descriptor = Descriptor(
        (dtype & DTYPE_MASK) | (ndim << NDIM_SHIFT),
        dimension(dims, word(0), ndim),
        dimension(dims, word(1), ndim),
        dimension(dims, word(2), ndim),
        dimension(dims, word(3), ndim),
        dimension(dims, word(4), ndim),
        dimension(dims, word(5), ndim),
        dimension(dims, word(6), ndim),
    )
    if (dtype & DTYPE_NEGATED) != 0:
        if is_lazy(load64(record + T_IS_NEG, "relaxed"), tensor + load64(record + T_REFERENCE, "relaxed")) != 0:
            address = none
    if (dtype & DTYPE_CONJUGATED) != 0:
        if is_lazy(load64(record + T_IS_CONJ, "relaxed"), tensor + load64(record + T_REFERENCE, "relaxed")) != 0:
            address = none
    return address, items * ((dtype >> DTYPE_BYTES_SHIFT) & DTYPE_MASK), descriptor


@triton.jit
def look(tensor: tl.int64, record: tl.int64, what: tl.int64) -> Any:
    """`described`, with size, dtype and shape left in a WHAT record: the address, or NOT_ALIKE."""
    address, nbytes, descriptor = described(tensor, record)
    store64(what + WHAT_BYTES, nbytes, "relaxed")
    store_descriptor(what + WHAT_FORMAT, descriptor)
    return address


@triton.jit
def look_each(tensors: tl.int64, record: tl.int64, what: tl.int64, out: tl.int64) -> Any:
    """`look` at the tensors in a list, of which the first fills `what`; their addresses go to `out`.

    Returns how many are alike: up to the first that differs from the first one, or is NOT_ALIKE.
    """
    count = size_of_list(tensors)
    i = word(0)
    alike = True
    while alike & (i < count):
        tensor = list_item(tensors, i)
        alike = tensor != 0
        address = word(NOT_ALIKE)
        if alike:
            if i == 0:
                address = look(tensor, record, what)
            else:
                address, nbytes, descriptor = described(tensor, record)
                differs = load64(what + WHAT_BYTES, "relaxed") ^ nbytes
                if (differs | unlike(load_descriptor(what + WHAT_FORMAT), descriptor)) != 0:
                    address = word(NOT_ALIKE)
            alike = address != NOT_ALIKE
        if alike:
            store64(out + i * WORD_BYTES, address, "relaxed")
            i += 1
    return i
