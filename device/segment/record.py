"""How a stored struct is written down: its fields, from which come offsets and numpy dtypes."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import triton.language as tl

LINE = 128  #: bytes: words that many producers change stand this far apart


class Field(NamedTuple):
    """One field of a record: name, numpy type, meaning, how many of it in a row, and whether it starts a line."""

    name: str
    kind: str
    doc: str
    repeat: int = 1
    own_line: bool = False


class Record:
    """A stored struct. Its fields determine the offsets, the numpy dtype and the table in docs/layout.md."""

    def __init__(self, name: str, align: int, fields: list[Field]) -> None:
        self.name = name
        self.fields = fields
        self.offsets: dict[str, int] = {}
        at = 0
        for field in fields:
            size = np.dtype(field.kind).itemsize
            unit = LINE if field.own_line else size
            at = -(-at // unit) * unit
            self.offsets[field.name] = at
            at += size * field.repeat
        self.size = -(-at // align) * align
        self.dtype = np.dtype(
            {
                "names": [f.name for f in fields],
                "formats": [(f.kind, f.repeat) if f.repeat > 1 else f.kind for f in fields],
                "offsets": [self.offsets[f.name] for f in fields],
                "itemsize": self.size,
            }
        )

    def at(self, name: str) -> Any:
        """The byte offset of a field, as a constant for device code."""
        return tl.constexpr(self.offsets[name])

    def size_constant(self) -> Any:
        """The record's size, as a constant for device code."""
        return tl.constexpr(self.size)


def words_of(records: npt.NDArray[Any]) -> memoryview:
    """Records as signed words, which Python reads and writes three times as fast as through numpy."""
    return records.view(np.int64).data.cast("B").cast("q")
