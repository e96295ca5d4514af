"""Arithmetic of float32 that NumPy does not have.

Fused multiply-add and conversions are exact in the sense of IEEE 754. The steps of a division follow AMD, "CDNA3
Instruction Set Architecture".
"""

from typing import Any

import numpy as np


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once.

    The product of two float32 is exact in float64. Their sum is rounded to odd there (Boldo and Melquiond, "Emulation
    of FMA and correctly rounded sums", 2008), so that the second rounding, to float32, is the only one that counts.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = np.atleast_1d(total).view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (np.atleast_1d(total).view(np.int64) & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)  # the magnitude of a float grows with its bits
    return np.where(inexact, bits + toward, bits).view(np.float64).astype(np.float32)


def to_u32(a: Any) -> Any:
    """Toward zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    return np.clip(np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0), 0, 2**32 - 1).astype(np.uint32)


def to_i32(a: Any) -> Any:
    """Toward zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    wide = np.clip(np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0), -(2**31), 2**31 - 1)
    return wide.astype(np.int32)


def from_bf16(a: Any) -> Any:
    """The float32 of the lower 16 bits."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


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
