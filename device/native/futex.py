"""Sleeping on a word that another process clears, for native code (`nanokv.heap.futex` has the protocol of the bell).

The number of the system call comes from the caller, which knows whether the system has it.
"""

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_WAIT, _WAKE = 0, 1  # without the private flag: sleepers and producers may be processes that share the page


@intrinsic
def set_flag(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Let the word of 32 bits be 1. A full fence."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = ir.IntType(32)
        builder.atomic_rmw("xchg", builder.inttoptr(args[0], flag.as_pointer()), flag(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def clear_flag(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Let the word of 32 bits be 0: what it was. A full fence."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = ir.IntType(32)
        old = builder.atomic_rmw("xchg", builder.inttoptr(args[0], flag.as_pointer()), flag(0), "seq_cst")
        return builder.zext(old, ir.IntType(64))

    return types.int64(types.int64), emit


@intrinsic
def wake_all(typing: Any, number: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Wake all that sleep on the word of 32 bits, by the system call futex, which has this number."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(long, [long], var_arg=True), "syscall"
        )
        none = long(0)
        builder.call(function, [args[0], args[1], long(_WAKE), long((1 << 31) - 1), none, none, none])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def relax(typing: Any) -> tuple[Any, Callable[..., Any]]:
    """Tell the processor that this thread looks at a word again and again; nothing where that has no instruction."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def sleep_while_set(typing: Any, number: Any, address: Any, ns: Any) -> tuple[Any, Callable[..., Any]]:
    """Sleep while the word of 32 bits is 1, for less than a second, by the system call futex, which has this number."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(long, [long], var_arg=True), "syscall"
        )
        room = cgutils.alloca_once(builder, ir.ArrayType(long, 2))  # struct timespec
        builder.store(long(0), cgutils.gep_inbounds(builder, room, 0, 0))
        builder.store(args[2], cgutils.gep_inbounds(builder, room, 0, 1))
        wait, is_set, none = long(_WAIT), long(1), long(0)
        builder.call(function, [args[0], args[1], wait, is_set, builder.ptrtoint(room, long), none, none])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit
