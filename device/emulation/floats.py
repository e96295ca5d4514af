"""Arithmetic of floating-point numbers that NumPy does not have."""

from collections.abc import Callable
from typing import Any

import numpy as np


def from_bf16(words: Any) -> Any:
    """bfloat16 by its bits, as float32."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of numbers of at most 32 bits, as float64 rounded to odd: rounding it to float32 is exact.

    The product is exact in float64; for the sum see Boldo and Melquiond, "Emulation of FMA and correctly rounded sums",
    2008.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    if ((total.view(np.uint64) & np.uint64((1 << 28) - 1)) != 0).all():
        return total  # no narrower format has its midpoints here
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    move = np.isfinite(total) & np.isfinite(error) & (error != 0) & even
    return np.where(move, np.nextafter(total, np.copysign(np.inf, error)), total)


def to_integers(values: Any, dtype: Any, rounding: Callable[[Any], Any]) -> Any:
    """Numbers to integers, within the range of the type. NaN is 0, or with 64 bits on either side 1 << (bits - 1)."""
    bounds, bits = np.iinfo(dtype), 8 * dtype.itemsize
    wide = rounding(values).astype(np.float64)
    nan = np.isnan(wide)
    low, high = wide <= float(bounds.min), wide >= float(bounds.max)
    made = np.where(nan | low | high, 0.0, wide).astype(dtype)
    of_nan = 1 << (bits - 1) if values.dtype == np.float64 or bits == 64 else 0
    made = np.where(nan, np.array(of_nan, f"u{dtype.itemsize}").view(dtype), made)
    return np.where(low, dtype.type(bounds.min), np.where(high, dtype.type(bounds.max), made)).astype(dtype)
