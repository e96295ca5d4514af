"""The types of PTX (PTX ISA, "Types"): their widths, and how 32 lanes of them are held in NumPy arrays.

A register is held as unsigned words of its width, whatever its declared type; a predicate as booleans.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 32

Array = npt.NDArray[Any]  #: of LANES elements, if nothing else is said

UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  #: by bytes

_BY_WIDTH = {
    f"{letter}{8 * size}": np.dtype(f"{numpy_letter}{size}")
    for size in UNSIGNED
    for letter, numpy_letter in (("b", "u"), ("u", "u"), ("s", "i"))
}

#: kind -> dtype; bfloat16 and packed pairs are held as their bits
DTYPES: dict[str, np.dtype[Any]] = {
    **_BY_WIDTH,
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "bf16": np.dtype("u2"),
    "tf32": np.dtype("u4"),
    "f16x2": np.dtype("u4"),
    "bf16x2": np.dtype("u4"),
    "u16x2": np.dtype("u4"),
    "s16x2": np.dtype("u4"),
    "f32x2": np.dtype("u8"),
    "pred": np.dtype(bool),
}


def size_of(kind: str) -> int:
    """Bytes of a kind."""
    return DTYPES[kind].itemsize


def unsigned(kind: str) -> str:
    """The unsigned kind of the same width."""
    return f"u{8 * size_of(kind)}"


def is_float(kind: str) -> bool:
    """Whether NumPy computes with this kind as a floating-point number."""
    return DTYPES[kind].kind == "f"


def full(value: int, dtype: np.dtype[Any]) -> Array:
    """A word that is the same in all lanes, as bits: read-only."""
    made: Array = np.full(LANES, value % (1 << 8 * dtype.itemsize), UNSIGNED[dtype.itemsize]).view(dtype)
    made.flags.writeable = False
    return made
