"""The system's clocks, and its sleep, for native code: each call is one call of the C library.

numba has neither. The names that protocol code may use are those of `memory.native`; these are for code of the host.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nanokv.device.segment.clock import NUMBER
from nanokv.device.segment.host_records import SECOND

_MONOTONIC, _COARSE = 1, 6  # Linux' numbers of the clock of `time.monotonic_ns`, and of the same at the last tick


def _words() -> Any:
    return ir.ArrayType(ir.IntType(64), 2)  # struct timespec, where C's long has 64 bits


def _word_of(builder: Any, room: Any, index: int) -> Any:
    return cgutils.gep_inbounds(builder, room, 0, index)


def _clock(number: int) -> Callable[..., Any]:
    @intrinsic
    def now(typing: Any) -> tuple[Any, Callable[..., Any]]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), _words().as_pointer()])
            function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
            room = cgutils.alloca_once(builder, _words())
            builder.call(function, [ir.IntType(32)(number), room])
            seconds, ns = (builder.load(_word_of(builder, room, index)) for index in (0, 1))
            return builder.add(builder.mul(seconds, ir.IntType(64)(SECOND)), ns)

        return types.int64(), emit

    return now


now_ns: Any = _clock(NUMBER)  #: as `device.segment.clock.now_ns`
monotonic_ns: Any = _clock(_MONOTONIC)  #: as `time.monotonic_ns`
coarse_ns: Any = _clock(_COARSE)  #: the same, up to 10 ms ago: it takes a third of the time


@intrinsic
def nap(typing: Any, ns: Any) -> tuple[Any, Callable[..., Any]]:
    """Sleep for less than a second."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_words().as_pointer(), _words().as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "nanosleep")
        room = cgutils.alloca_once(builder, _words())
        builder.store(ir.IntType(64)(0), _word_of(builder, room, 0))
        builder.store(args[0], _word_of(builder, room, 1))
        builder.call(function, [room, ir.Constant(_words().as_pointer(), None)])
        return context.get_dummy_value()

    return types.void(types.int64), emit
