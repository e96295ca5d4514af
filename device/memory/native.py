"""The memory vocabulary for a CPU: numba intrinsics over raw 64-bit addresses, each one LLVM instruction.

The names, arguments and orderings are those of `memory.triton`. A data race between `copy_bytes` and a writer is part
of the protocol: the reader validates the header afterwards and discards the bytes.

In code that numba compiles, the overflow of a signed `+`, `-` or `*` is undefined. So protocol functions compare a word
from shared memory before they add to it, and arithmetic that must wrap is in this vocabulary (`mixed`,
`checksum_bytes`).
"""

import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nanokv.device.memory.native_copy import copy_in
from nanokv.device.memory.triton import GOLDEN, MIX_ONE, MIX_TWO

_ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_FAILURE = {"relaxed": "monotonic", "acquire": "acquire", "release": "monotonic", "acq_rel": "acquire"}
_WORD_BYTES = 8
# numba tells LLVM that signed words never overflow: arithmetic that must wrap is unsigned
_ONE, _GOLDEN, _MIX_ONE, _MIX_TWO = (np.uint64(c % 2**64) for c in (1, GOLDEN.value, MIX_ONE.value, MIX_TWO.value))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@numba.njit(inline="always")
def word(value: Any) -> Any:
    return numba.int64(value)


@numba.njit(inline="always")
def open_world(table: Any) -> Any:
    return table


@numba.njit(inline="always")
def select(condition: Any, yes: Any, no: Any) -> Any:
    return yes if condition else no


@intrinsic
def table64(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0]))

    return types.int64(types.int64), emit


@numba.njit(inline="always")
def count_below(address: Any, count: Any, value: Any) -> Any:
    found = numba.int64(0)
    while found < count and table64(address + found * _WORD_BYTES) < value:
        found += 1
    return found


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
copy_bytes = copy_in  #: of all but readers, who have `copy_out`


def _loader(bits: int) -> Callable[..., Any]:
    @intrinsic
    def load(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), emit

    return load


_word_at, _byte_at = _loader(64), _loader(8)


@numba.njit(inline="always")
def look_lines(one: Any, two: Any, count: Any, mask: Any, want: Any) -> Any:
    same = numba.int64(0)
    empty = numba.int64(0)
    for i in range(2 * count):
        line = one if i < count else two
        seen = load64(line + i % count * _WORD_BYTES, "relaxed")
        if seen == 0:
            empty |= 1 << i
        elif (seen & mask) == want:
            same |= 1 << i
    return same, empty


@numba.njit(inline="always")
def look_rows(address: Any, rows: Any, columns: Any, start: Any, after: Any, mask: Any, high: Any, wide: Any) -> Any:
    found = numba.int64(-1)
    row = numba.int64(0)
    while found < 0 and row < rows:
        turned = numba.int64(0)
        more = True
        while more:
            column = (start + turned) & columns
            if row * wide + turned > after:
                seen = load64(address + (row * wide + column) * _WORD_BYTES, "relaxed")
                if seen & mask:
                    found = row * wide + turned
            turned = (turned - columns) & columns  # the next number that has only bits of `columns`
            more = found < 0 and turned != 0
        row += 1
    return found


if sys.platform == "linux":
    _processor = types.ExternalFunction("sched_getcpu", types.int32())

    @numba.njit(inline="always")
    def near(number: Any, step: Any) -> Any:
        return _processor() * step if step > 1 else number

else:

    @numba.njit(inline="always")
    def near(number: Any, step: Any) -> Any:
        return number


@numba.njit(inline="always")
def count_up(address: Any, count: Any, shift: Any, mask: Any, keep: Any) -> None:
    for i in range(count):
        old = load64(address + i * _WORD_BYTES, "relaxed")
        store64(address + i * _WORD_BYTES, ((((old >> shift) + 1) & mask) << shift) | (old & keep), "relaxed")


@numba.njit(inline="always")
def _mixed(value: Any, place: Any) -> Any:
    x = value + (place + _ONE) * _GOLDEN
    x = (x ^ (x >> _SHIFTS[0])) * _MIX_ONE
    x = (x ^ (x >> _SHIFTS[1])) * _MIX_TWO
    return x ^ (x >> _SHIFTS[2])


@numba.njit(nogil=True)
def mixed(value: Any, place: Any) -> Any:
    return numba.int64(_mixed(numba.uint64(value), numba.uint64(place)))


@numba.njit(nogil=True)
def checksum_bytes(address: Any, nbytes: Any, first: Any) -> Any:
    whole = nbytes >> 3
    total = numba.uint64(0)
    for i in range(whole):
        total += _mixed(numba.uint64(_word_at(address + i * _WORD_BYTES)), numba.uint64(first + i))
    if nbytes & 7:
        last = numba.int64(0)
        for k in range(nbytes & 7):
            last |= _byte_at(address + whole * _WORD_BYTES + k) << (8 * k)
        total += _mixed(numba.uint64(last), numba.uint64(first + whole))
    return numba.int64(total)
