"""Calls of C functions by their address, for native code: of a library that is found when the program runs.

Each argument is a word: a pointer, a size, or an integer of fewer bits, of which C's function takes the lower ones. The
answer is an int.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def _emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    word, function, given = ir.IntType(64), args[0], args[1:]
    kind = ir.FunctionType(ir.IntType(32), [word] * len(given))
    answer = builder.call(builder.inttoptr(function, kind.as_pointer()), list(given))
    return builder.sext(answer, word)


def _signature(count: int) -> Any:
    return types.int64(*[types.int64] * (1 + count))


@intrinsic
def call1(typing: Any, function: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a)`."""
    return _signature(1), _emit


@intrinsic
def call2(typing: Any, function: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b)`."""
    return _signature(2), _emit


@intrinsic
def call3(typing: Any, function: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b, c)`."""
    return _signature(3), _emit


@intrinsic
def call4(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b, c, d)`."""
    return _signature(4), _emit


@intrinsic
def call5(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b, c, d, e)`."""
    return _signature(5), _emit


@intrinsic
def call6(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b, c, d, e, f)`."""
    return _signature(6), _emit


@intrinsic
def call7(
    typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any
) -> tuple[Any, Callable[..., Any]]:
    """`function(a, b, c, d, e, f, g)`."""
    return _signature(7), _emit


@intrinsic
def give_way(typing: Any) -> tuple[Any, Callable[..., Any]]:
    """Let another thread that is ready run on this processor first."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        name = "sched_yield"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def erase(typing: Any, at: Any, nbytes: Any) -> tuple[Any, Callable[..., Any]]:
    """Zero bytes, though nobody reads them any more: explicit_bzero."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word, word])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "explicit_bzero"), list(args))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit
