"""Device functions that linger after each load: a process that runs them is nearly always between two steps.

At full speed a step takes nanoseconds, and a kill hits the steps that take long: copies. Here it hits one step as often
as another. To linger is to sleep, so that the time does not depend on how busy the machine is; to give way lets threads
overlap that would run one after the other.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nanokv.device.machines.native_code import native_function
from nanokv.device.machines.native_compiler import CPU_VOCABULARY

# mypy: disallow-untyped-decorators=false

_SOURCE = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=4).hexdigest()  # what the digest of device/ lacks


def _load64_then(name: str, *numbers: int) -> Any:
    """`load64`, followed by a call of the C library with 32-bit numbers: the word is old when it is used."""
    kinds = [ir.IntType(32)] * len(numbers)

    @intrinsic(prefer_literal=True)
    def load64(typing: Any, address: Any, sem: Any) -> tuple[Any, Callable[..., Any]]:
        order = {"relaxed": "monotonic", "acquire": "acquire"}[sem.literal_value]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
            value = builder.load_atomic(pointer, order, 8)
            call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), kinds), name)
            builder.call(call, [ir.Constant(kind, number) for kind, number in zip(kinds, numbers, strict=True)])
            return value

        return types.int64(types.int64, sem), emit

    return load64


_PAUSES = {
    "linger": _load64_then("usleep", 1),  # in all some 60 us, in which others go on
    "give way": _load64_then("sched_yield"),
}


@cache
def slow_function(function: Any, pause: str = "linger") -> Any:
    """One device function with this `load64`, compiled and cached on disk. Called by one thread at a time.

    Args:
        pause: "linger", or "give way".
    """
    vocabulary = CPU_VOCABULARY | {"load64": _PAUSES[pause]}
    return native_function(function, vocabulary=vocabulary, variant=f"{pause.replace(' ', '-')}-{_SOURCE}")
