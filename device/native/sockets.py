"""Calls of sockets and of epoll, for native code: functions of the C library, and constants of Linux.

Each argument and answer is a word; -1 is a failure, of which `error` tells, if no other call came in between.
"""

import platform
from collections.abc import Callable
from typing import Any

import triton.language as tl
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_Emit = Callable[..., Any]
_WORD, _INT = ir.IntType(64), ir.IntType(32)

DONT_WAIT, NO_SIGNAL, MORE_COMES = tl.constexpr(0x40), tl.constexpr(0x4000), tl.constexpr(0x8000)  #: flags of `send`
AGAIN, INTERRUPTED = tl.constexpr(11), tl.constexpr(4)  #: of `error`
CAN_READ, CAN_WRITE = tl.constexpr(1), tl.constexpr(4)  #: events of epoll
DELETE, MODIFY = tl.constexpr(2), tl.constexpr(3)  #: what `epoll_control` does
EVENT_DATA = tl.constexpr(4 if platform.machine() == "x86_64" else 8)  #: offset in struct epoll_event, there packed
EVENT_BYTES = tl.constexpr(EVENT_DATA.value + 8)
_NOT_NEEDED = 4  # MADV_DONTNEED
MESSAGE_WORDS = 7  #: of struct msghdr


def _caller(name: str, kinds: tuple[int, ...], answer: int) -> _Emit:
    """What emits a call of a C function. `kinds`: the bits of each argument; `answer`: those of what it returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(answer), [ir.IntType(bits) for bits in kinds])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        given = [arg if bits == 64 else builder.trunc(arg, _INT) for arg, bits in zip(args, kinds, strict=True)]
        found = builder.call(function, given)
        return found if answer == 64 else builder.sext(found, _WORD)

    return emit


@intrinsic
def receive(typing: Any, socket: Any, at: Any, nbytes: Any, flags: Any) -> tuple[Any, _Emit]:
    """recv."""
    return types.int64(*[types.int64] * 4), _caller("recv", (32, 64, 64, 32), 64)


@intrinsic
def send(typing: Any, socket: Any, at: Any, nbytes: Any, flags: Any) -> tuple[Any, _Emit]:
    """send."""
    return types.int64(*[types.int64] * 4), _caller("send", (32, 64, 64, 32), 64)


@intrinsic
def send_message(typing: Any, socket: Any, message: Any, flags: Any) -> tuple[Any, _Emit]:
    """sendmsg, of a struct msghdr at an address."""
    return types.int64(*[types.int64] * 3), _caller("sendmsg", (32, 64, 32), 64)


@intrinsic
def epoll_wait(typing: Any, epoll: Any, events: Any, most: Any, ms: Any) -> tuple[Any, _Emit]:
    """epoll_wait."""
    return types.int64(*[types.int64] * 4), _caller("epoll_wait", (32, 64, 32, 32), 32)


@intrinsic
def epoll_control(typing: Any, epoll: Any, operation: Any, socket: Any, event: Any) -> tuple[Any, _Emit]:
    """epoll_ctl."""
    return types.int64(*[types.int64] * 4), _caller("epoll_ctl", (32, 32, 32, 64), 32)


@intrinsic
def write(typing: Any, file: Any, at: Any, nbytes: Any) -> tuple[Any, _Emit]:
    """write."""
    return types.int64(*[types.int64] * 3), _caller("write", (32, 64, 64), 64)


@intrinsic
def give_back(typing: Any, at: Any, nbytes: Any) -> tuple[Any, _Emit]:
    """Give the memory of whole pages back to the system, which zeroes them when they are used again: madvise."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT, [_WORD, _WORD, _INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        return builder.sext(builder.call(function, [*args, _INT(_NOT_NEEDED)]), _WORD)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def error(typing: Any) -> tuple[Any, _Emit]:
    """Why the last call of this thread has failed: errno."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT.as_pointer(), [])
        function = cgutils.get_or_insert_function(builder.module, kind, "__errno_location")
        return builder.zext(builder.load(builder.call(function, [])), _WORD)

    return types.int64(), emit
