"""What a device function knows of its CTA while it is compiled: constants, which make no instruction.

The interpreter runs a CTA as a whole: there it has one warp, whatever the launch says.
"""

from typing import Any

from triton.language import core


def _constant(function: Any) -> Any:
    """Let device functions call `function`: what `core.builtin` does, but the interpreter brings no `_semantic`."""
    setattr(function, core.TRITON_BUILTIN, True)
    return function


@_constant
def threads(_semantic: Any = None) -> Any:
    """The threads of the CTA."""
    if _semantic is None:
        return core.constexpr(1)
    options = _semantic.builder.options
    return core.constexpr(options.num_warps * options.warp_size)


@_constant
def several_warps(_semantic: Any = None) -> Any:
    """True in a CTA of more than one warp."""
    return core.constexpr(_semantic is not None and _semantic.builder.options.num_warps > 1)


@_constant
def several_waves(_semantic: Any = None) -> Any:
    """`several_warps`, on an AMD GPU."""
    if _semantic is None:
        return core.constexpr(False)
    options = _semantic.builder.options
    return core.constexpr(options.num_warps > 1 and options.backend_name == "hip")
