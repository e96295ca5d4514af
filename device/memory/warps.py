"""What a device function knows of its CTA while it is compiled: constants, which make no instruction.

The interpreter runs a CTA as a whole: there it has one warp, whatever the launch says.

Triton's cache key leaves out functions marked TRITON_BUILTIN, as these are, but has the constants that a device
function names. So each call names WARPS, a digest of this file: a kernel that was compiled with other functions than
these is never taken from the cache.
"""

from typing import Any

from triton.language import core

from nanokv.device.sources import file_digest

WARPS = core.constexpr(file_digest(__file__))


def _constant(function: Any) -> Any:
    """Let device functions call `function`: what `core.builtin` does, but the interpreter brings no `_semantic`."""
    setattr(function, core.TRITON_BUILTIN, True)
    return function


@_constant
def threads(source: Any, _semantic: Any = None) -> Any:
    """The threads of the CTA. `source`: WARPS."""
    if _semantic is None:
        return core.constexpr(1)
    options = _semantic.builder.options
    return core.constexpr(options.num_warps * options.warp_size)


@_constant
def several_warps(source: Any, _semantic: Any = None) -> Any:
    """True in a CTA of more than one warp. `source`: WARPS."""
    return core.constexpr(_semantic is not None and _semantic.builder.options.num_warps > 1)


@_constant
def several_waves(source: Any, _semantic: Any = None) -> Any:
    """`several_warps`, on an AMD GPU. `source`: WARPS."""
    if _semantic is None:
        return core.constexpr(False)
    options = _semantic.builder.options
    return core.constexpr(options.num_warps > 1 and options.backend_name == "hip")
