"""The memory vocabulary for a CPU: numba intrinsics over raw 64-bit addresses, each one LLVM instruction.

The same names, arguments and orderings as `memory`. A data race between `copy_bytes` and a writer is part of the
protocol: the reader validates the header afterwards and throws the bytes away.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_FAILURE = {"relaxed": "monotonic", "acquire": "acquire", "release": "monotonic", "acq_rel": "acquire"}
_WORD_BYTES = 8


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@numba.njit(inline="always")
def word(value: Any) -> Any:
    return numba.int64(value)


@numba.njit(inline="always")
def select(condition: Any, yes: Any, no: Any) -> Any:
    return yes if condition else no


@intrinsic
def table64(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0]))

    return types.int64(types.int64), emit


@intrinsic(prefer_literal=True)
def load64(typing: Any, address: Any, sem: Any) -> tuple[Any, Callable[..., Any]]:
    order = _ORDER[sem.literal_value]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), order, _WORD_BYTES)

    return types.int64(types.int64, sem), emit


@intrinsic(prefer_literal=True)
def store64(typing: Any, address: Any, value: Any, sem: Any) -> tuple[Any, Callable[..., Any]]:
    order = _ORDER[sem.literal_value]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), order, _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sem), emit


@intrinsic(prefer_literal=True)
def cas64(typing: Any, address: Any, expected: Any, new: Any, sem: Any) -> tuple[Any, Callable[..., Any]]:
    success, failure = _ORDER[sem.literal_value], _FAILURE[sem.literal_value]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], success, failure)
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64, sem), emit


def _rmw(operation: str) -> Callable[..., Any]:
    @intrinsic(prefer_literal=True)
    def rmw64(typing: Any, address: Any, value: Any, sem: Any) -> tuple[Any, Callable[..., Any]]:
        order = _ORDER[sem.literal_value]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw(operation, _pointer(builder, args[0]), args[1], order)

        return types.int64(types.int64, types.int64, sem), emit

    return rmw64


add64 = _rmw("add")
xchg64 = _rmw("xchg")


@intrinsic
def copy_bytes(typing: Any, dst: Any, src: Any, nbytes: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, of = builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit
