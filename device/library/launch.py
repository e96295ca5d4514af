"""The functions of the library run in CTAs of any number of warps, but not in clusters: a launch with `num_ctas` other
than 1 is refused. In a cluster one program of Triton has several CTAs, and a barrier joins the threads of only one.

Compiled, the check runs while Triton compiles the kernel and makes no instruction: the error names the line of the
call. Interpreted, it runs at each call. Triton's interpreter drops `num_ctas` before it runs a kernel, so the check
looks for it in the frame of the launch, where it still stands.

This file is all of it: the functions call `check_launch`, and know nothing else of launches.

`_refuse_cluster` is given a digest of this file, because Triton's cache key does not see it (`memory.warps`).
"""

import sys
from types import FrameType
from typing import Any

import triton
from triton.language import core
from triton.runtime.interpreter import InterpretedFunction

from nanokv.device.sources import file_digest

LAUNCH = core.constexpr(file_digest(__file__))
_LAUNCH_CODE = InterpretedFunction.run.__code__


@triton.jit
def check_launch() -> None:
    """Refuse a launch with `num_ctas` other than 1. Called from device functions.

    Raises:
        ValueError: inside Triton's CompilationError, or the interpreter's InterpreterError.
    """
    _refuse_cluster(LAUNCH)


def _refuse_cluster(source: Any, _semantic: Any = None) -> None:
    ctas = _launch_options().get("num_ctas", 1) if _semantic is None else _semantic.builder.options.num_ctas
    if ctas != 1:
        raise ValueError(f"nanokv's device functions do not run in clusters: launch with num_ctas=1, not {ctas}")


# what `core.builtin` does, except that it would refuse the interpreter's call, which brings no `_semantic`
setattr(_refuse_cluster, core.TRITON_BUILTIN, True)


def _launch_options() -> dict[str, Any]:
    """The keyword arguments of the interpreted launch that this call belongs to."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _LAUNCH_CODE:
        frame = frame.f_back
    if frame is None:
        raise ValueError("nanokv's device functions are called from a kernel only, and no launch of one is under way")
    options: dict[str, Any] = frame.f_locals["kwargs"]
    return options
