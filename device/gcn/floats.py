"""The steps of a division of float32, by AMD, "CDNA3 Instruction Set Architecture"; and fused sums."""

from typing import Any

import numpy as np

from nanokv.device.emulation.floats import fma


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return fma(a, b, c).astype(np.float32)


def exponent(a: Any) -> Any:
    """The biased exponent."""
    return (np.abs(a).view(np.uint32) >> np.uint32(23)).astype(np.int32)


def is_denormal(a: Any) -> Any:
    """Not zero, and below the smallest normal number."""
    return (np.abs(a) < np.finfo(np.float32).tiny) & (a != 0)


def scaled(which: Any, denominator: Any, numerator: Any) -> tuple[Any, Any]:
    """v_div_scale_f32: the numerator or the denominator, scaled so that the steps between do not over- or underflow.

    Returns:
        The scaled number, and the lanes whose quotient v_div_fmas must scale back.
    """
    up, down = np.float32(2.0**64), np.float32(2.0**-64)
    quotient = numerator / denominator
    inverse = np.float32(1) / denominator
    far = exponent(numerator) - exponent(denominator) >= 96
    both = is_denormal(inverse) & is_denormal(quotient)
    chosen = [
        ((numerator == 0) | (denominator == 0), np.float32(np.nan), False),
        (far, np.where(which == denominator, which * up, which), True),
        (is_denormal(denominator), which * up, False),
        (both, np.where(which == denominator, which * up, which), True),
        (is_denormal(inverse), which * down, False),
        (is_denormal(quotient), np.where(which == numerator, which * up, which), True),
        (exponent(numerator) <= 23, which * up, False),
    ]
    result, marks, open_ = which, np.zeros(np.shape(far), bool), np.ones(np.shape(far), bool)
    for condition, value, mark in chosen:
        here = open_ & condition
        result, marks, open_ = np.where(here, value, result), marks | (here & mark), open_ & ~here
    return result.astype(np.float32), marks


def fixed_up(quotient: Any, denominator: Any, numerator: Any) -> Any:
    """v_div_fixup_f32: the special cases of a division, and the sign."""
    negative = np.signbit(denominator) ^ np.signbit(numerator)
    infinite, nothing = np.isinf(numerator) | (denominator == 0), np.isinf(denominator) | (numerator == 0)
    value = np.abs(quotient)
    value = np.where(exponent(numerator) - exponent(denominator) < -150, np.float32(0), value)
    value = np.where(nothing, np.float32(0), np.where(infinite, np.float32(np.inf), value))
    value = np.where(nothing & infinite, np.float32(np.nan), np.where(negative, -value, value))
    return np.where(np.isnan(numerator), numerator, np.where(np.isnan(denominator), denominator, value))
