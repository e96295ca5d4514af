"""Floating-point numbers of all kinds in NumPy: narrow ones, rounding, fused sums, minima.

bfloat16 and pairs in a register are computed with as float64, whose products of narrow numbers are exact, and rounded
once: a sum that float64 cannot hold is rounded to odd (Boldo and Melquiond, 2008), so that rounding it again is right.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from nanokv.device.emulation.floats import fma, from_bf16, to_integers
from nanokv.device.ptx.kinds import Array
from nanokv.device.ptx.writer import helper

HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_CANONICAL = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}  #: NaN by width in bytes

helper(fma)
helper(from_bf16)
helper(to_integers)


def to_odd_f32(values: Array) -> Array:
    """float64 to float32, rounded to odd: rounded once more, to fewer bits, it is what one rounding gives."""
    near = values.astype(np.float32)
    lower = np.where(np.abs(near.astype(np.float64)) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    inexact = np.isfinite(values) & (lower.astype(np.float64) != values)
    return (lower.view(np.uint32) | inexact).view(np.float32)


@helper
def to_bf16(values: Array) -> Array:
    """float32 or float64 to the bits of bfloat16: to the nearest, ties to even."""
    bits = (to_odd_f32(values) if values.dtype == np.float64 else values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(_CANONICAL[2]), rounded).astype(np.uint16)


@helper
def to_f16(values: Array) -> Array:
    """float32 or float64 to the bits of float16: to the nearest, ties to even."""
    return np.where(np.isnan(values), np.uint16(_CANONICAL[2]), values.astype(np.float16).view(np.uint16))


FP8 = {"e4m3x2": (3, -6, 448.0), "e5m2x2": (2, -14, 57344.0)}  #: bits of a mantissa, least exponent, largest number


@helper
def to_fp8(values: Array, kind: str) -> Array:
    """float32 to the bits of e4m3 or e5m2: to the nearest, ties to even, or the largest number (.satfinite)."""
    mantissa, least, largest = FP8[kind]
    size = np.minimum(np.abs(values.astype(np.float64)), 2 * largest)
    exponent = np.maximum(np.frexp(size)[1] - 1, least)
    rounded = np.minimum(np.rint(np.ldexp(size, mantissa - exponent)) * np.ldexp(1.0, exponent - mantissa), largest)
    exponent = np.maximum(np.frexp(rounded)[1] - 1, least)  # rounding may have raised it
    bits = ((exponent - least) << mantissa) + np.ldexp(rounded, mantissa - exponent)
    bits = np.where(rounded > 0, bits, 0) + 0x80 * np.signbit(values)  # 0 has no exponent
    bits = np.where(np.isnan(values), 0x7F, bits)
    return bits.astype(np.uint16)


@helper
def toward_zero(values: Array, dtype: Any) -> Array:
    """Rounded towards zero."""
    near = values.astype(dtype)
    down = np.nextafter(near, dtype.type(0))
    return np.where(np.abs(near.astype(np.float64)) > np.abs(values), down, near)


@helper
def numbers(words: Array, kind: str) -> Array:
    """Narrow numbers or pairs as float64 (f32x2: as float32); a pair is two elements, the lower half first."""
    if kind == "f32x2":
        return np.ascontiguousarray(words).view(np.float32)
    halves = np.ascontiguousarray(words).view(np.uint16)
    return (halves.view(np.float16) if kind.startswith("f16") else from_bf16(halves)).astype(np.float64)


@helper
def words(values: Array, kind: str) -> Array:
    """The reverse of `numbers`."""
    if kind == "f32x2":
        return values.astype(np.float32).view(np.uint64)
    halves = to_f16(values) if kind.startswith("f16") else to_bf16(values)
    if kind == "f16":
        return halves.view(np.float16)
    return halves if kind == "bf16" else halves.view(np.uint32)


@helper
def flushed(values: Array) -> Array:
    """.ftz: subnormal numbers are zeros of their sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


@helper
def saturated(values: Array) -> Array:
    """.sat: within 0 and 1; NaN is 0."""
    return np.where(np.isnan(values), values.dtype.type(0), np.clip(values, 0, 1)).astype(values.dtype)


@helper
def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    plain = a * b + c
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for lane in np.flatnonzero(finite):
        exact = Fraction(float(a[lane])) * Fraction(float(b[lane])) + Fraction(float(c[lane]))
        if exact:
            try:
                plain[lane] = float(exact)
            except OverflowError:
                plain[lane] = np.inf if exact > 0 else -np.inf
    return plain


@helper
def least_or_most(values: Sequence[Array], least: bool, nan: bool, xorsign: bool) -> Array:
    """min or max: -0 is below +0; of a number and a NaN the number, with .NaN the canonical NaN."""

    def of_two(a: Array, b: Array) -> Array:
        sign = np.signbit(a) ^ np.signbit(b)
        if xorsign:
            a, b = np.abs(a), np.abs(b)
        below = (a < b) | ((a == b) & np.signbit(a))
        made = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(below == least, a, b)))
        if xorsign:
            made = np.where(sign, -made, made)
        wrong = np.isnan(a) | np.isnan(b) if nan else np.isnan(a) & np.isnan(b)
        canonical = np.array(_CANONICAL[made.dtype.itemsize], f"u{made.dtype.itemsize}").view(made.dtype)
        return np.where(wrong, canonical, made)

    return reduce(of_two, values)
