"""The functions of the library run in CTAs of one warp, and a launch with more is refused (`memory.triton` says why).

Compiled, the check runs while Triton compiles the kernel and makes no instruction: the error names the line of the
call. Interpreted, it runs at each call. Triton's interpreter drops `num_warps` before it runs a kernel, so the check
looks for it in the frame of the launch, where it still stands.

This file is all of it: the functions call `one_warp`, and know nothing else of warps.
"""

import sys
from types import FrameType
from typing import Any

from triton.language import core
from triton.runtime.interpreter import InterpretedFunction

NUM_WARPS = 4  #: of a launch that does not say, as Triton's backends have it
_LAUNCH = InterpretedFunction.run.__code__


def one_warp(_semantic: Any = None) -> None:
    """Refuse a launch with `num_warps` or `num_ctas` other than 1. Called from device functions.

    Raises:
        ValueError: inside Triton's CompilationError, or the interpreter's InterpreterError.
    """
    if _semantic is None:
        options = _launch_options()
        warps, ctas = options.get("num_warps", NUM_WARPS), options.get("num_ctas", 1)
    else:
        options = _semantic.builder.options
        warps, ctas = options.num_warps, options.num_ctas
    if (warps, ctas) != (1, 1):
        raise ValueError(
            "nanokv's device functions run in CTAs of one warp: launch the kernel with num_warps=1 and num_ctas=1, "
            f"not {warps} and {ctas}"
        )


# what `core.builtin` does, except that it would refuse the interpreter's call, which brings no `_semantic`
setattr(one_warp, core.TRITON_BUILTIN, True)


def _launch_options() -> dict[str, Any]:
    """The keyword arguments of the interpreted launch that this call belongs to."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _LAUNCH:
        frame = frame.f_back
    if frame is None:
        raise ValueError("nanokv's device functions are called from a kernel only, and no launch of one is under way")
    options: dict[str, Any] = frame.f_locals["kwargs"]
    return options
