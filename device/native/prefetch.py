"""Asking the processor for a cache line before it is needed: a loop over many objects waits less for memory.

A prefetch changes nothing that can be seen, needs no order, and may be of any address: that of memory that is not there
is ignored.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_READ, _KEEP, _DATA = 0, 3, 1  # the arguments of LLVM's `llvm.prefetch`


@intrinsic
def prefetch(typing: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Ask for the line of a byte."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.inttoptr(args[0], byte), word(_READ), word(_KEEP), word(_DATA)])
        return context.get_dummy_value()

    return types.void(types.int64), emit
