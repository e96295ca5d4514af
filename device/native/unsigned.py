"""Words as unsigned numbers, for hashes in native code: sums and products that wrap round, and shifts without a sign.

Words are bit patterns in int64. Numba's signed `+` and `*` must not overflow, and its `>>` copies the sign: here they
are intrinsics, of which each is one or two instructions of the processor.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic

_Emit = Callable[..., Any]


@intrinsic
def word_at(typing: Any, address: Any) -> tuple[Any, _Emit]:
    """The word that stands at an address of any alignment, its lowest byte first."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64), emit


@intrinsic
def plus(typing: Any, a: Any, b: Any) -> tuple[Any, _Emit]:
    """The lower word of a sum."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.add(*args)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def times(typing: Any, a: Any, b: Any) -> tuple[Any, _Emit]:
    """The lower word of a product."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.mul(*args)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def product(typing: Any, a: Any, b: Any) -> tuple[Any, _Emit]:
    """Both words of the product of unsigned words, the lower one first."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one, two = ir.IntType(64), ir.IntType(128)
        whole = builder.mul(*(builder.zext(value, two) for value in args))
        halves = [builder.trunc(half, one) for half in (whole, builder.lshr(whole, two(64)))]
        return context.make_tuple(builder, signature.return_type, halves)

    return UniTuple(types.int64, 2)(types.int64, types.int64), emit


@intrinsic
def shifted(typing: Any, value: Any, bits: Any) -> tuple[Any, _Emit]:
    """An unsigned word without its lowest bits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(*args)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def swapped(typing: Any, value: Any) -> tuple[Any, _Emit]:
    """A word with its bytes in the opposite order."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.int64(types.int64), emit


@intrinsic
def rotated(typing: Any, value: Any, bits: Any) -> tuple[Any, _Emit]:
    """A word whose bits went to the left, and those that left it on that side came in on the other; 0 < bits < 64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, bits = args
        rest = builder.sub(ir.IntType(64)(64), bits)
        return builder.or_(builder.shl(value, bits), builder.lshr(value, rest))

    return types.int64(types.int64, types.int64), emit


@intrinsic
def store_word(typing: Any, address: Any, value: Any) -> tuple[Any, _Emit]:
    """Set the word at an address of any alignment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit
