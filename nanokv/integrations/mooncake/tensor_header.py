"""The header of a stored tensor: 304 bytes, and behind them the raw data. The bytes are those of Mooncake Store.

| bytes | what |
|---|---|
| 0 | u32 magic, "NOOM"; u16 version, 1; u16 size of the header |
| 8 | i32 dtype; i32 dimensions, at most 8; u32 0 for a whole tensor, 1 for a shard of one; u32 0 |
| 24 | u64 where the data begins; u64 bytes of the data |
| 40 | 8 x i64 shape of the whole tensor, then 8 x i64 shape of what is stored; -1 behind the last dimension |
| 168 | u32 number of axes, at most 4; u32 0 |
| 176 | 4 x (i32 kind, place, rank, size, split dimension or -1, id; i64 extent in the split dimension) |

An axis tells along what the whole was divided, and which shard this is. Everything is little-endian. Format:
`mooncake-integration/integration_utils.h` of Mooncake. A header is believed only if all of it agrees, so a value that
is no tensor is never read as one.
"""

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch

HEADER_BYTES = 304
MAX_DIMS = 8
MAX_AXES = 4
SHAPE = struct.Struct(f"<{MAX_DIMS}q")

_MAGIC = 0x4D4F4F4E
_VERSION = 1
_LAST_KIND = 4
_FIXED = struct.Struct("<IHHiiIIQQ")
_COUNT = struct.Struct("<II")
_AXIS = struct.Struct("<iiiiiiq")

#: the number of a dtype is its place
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}

Shape = tuple[int, ...]


class StoredAxis(NamedTuple):
    """One axis of a header. `split_dim`: -1 without one; `ident`: of an expert or a stage, else 0."""

    kind: int
    rank: int
    size: int
    split_dim: int
    ident: int
    extent: int


@dataclass(frozen=True, slots=True)
class Header:
    """What is stored: a whole tensor, or a shard of one.

    Attributes:
        shape: of what is stored.
        whole: the shape of the tensor that it is a shard of; else the same.
        offset: where the data begins, in bytes.
    """

    dtype: torch.dtype
    shape: Shape
    whole: Shape
    axes: tuple[StoredAxis, ...] = ()
    is_shard: bool = False
    offset: int = HEADER_BYTES

    @property
    def data_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def packed(self) -> bytes:
        """The header's 304 bytes."""
        fixed = _FIXED.pack(
            _MAGIC,
            _VERSION,
            HEADER_BYTES,
            NUMBERS[self.dtype],
            len(self.shape),
            int(self.is_shard),
            0,
            self.offset,
            self.data_bytes,
        )
        axes = b"".join(
            _AXIS.pack(axis.kind, place, axis.rank, axis.size, axis.split_dim, axis.ident, axis.extent)
            for place, axis in enumerate(self.axes)
        )
        shapes = packed_shape(self.whole) + packed_shape(self.shape)
        return (fixed + shapes + _COUNT.pack(len(self.axes), 0) + axes).ljust(HEADER_BYTES, b"\0")


def packed_shape(shape: Shape) -> bytes:
    """64 bytes: a shape of at most 8 dimensions."""
    return SHAPE.pack(*shape, *[-1] * (MAX_DIMS - len(shape)))


def parsed_shape(dims: Shape, ndim: int) -> Shape | None:
    """The shape in 8 numbers; None if they are none of `ndim` dimensions."""
    shape, behind = dims[:ndim], dims[ndim:]
    return shape if all(dim >= 0 for dim in shape) and all(dim == -1 for dim in behind) else None


def parsed(start: bytes, nbytes: int) -> Header | None:
    """The header at the beginning of a value; None if the value is no tensor.

    Args:
        start: the first 304 bytes of the value, or all that it has.
        nbytes: bytes of the value.
    """
    if len(start) < HEADER_BYTES:
        return None
    magic, version, size, number, ndim, kind, _, offset, data_bytes = _FIXED.unpack_from(start)
    if (magic, version, size) != (_MAGIC, _VERSION, HEADER_BYTES):
        return None
    if not (0 <= number < len(DTYPES) and 0 <= ndim <= MAX_DIMS and kind in (0, 1) and offset >= HEADER_BYTES):
        return None
    at = _FIXED.size
    whole = parsed_shape(SHAPE.unpack_from(start, at), ndim)
    shape = parsed_shape(SHAPE.unpack_from(start, at + SHAPE.size), ndim)
    axes = _parsed_axes(start, at + 2 * SHAPE.size, ndim)
    if whole is None or shape is None or axes is None:
        return None
    header = Header(DTYPES[number], shape, whole, axes, bool(kind), offset)
    return header if header.data_bytes == data_bytes == nbytes - offset else None


def _parsed_axes(start: bytes, at: int, ndim: int) -> tuple[StoredAxis, ...] | None:
    count, _ = _COUNT.unpack_from(start, at)
    if count > MAX_AXES:
        return None
    axes = []
    for place in range(count):
        kind, _, rank, size, split_dim, ident, extent = _AXIS.unpack_from(start, at + _COUNT.size + place * _AXIS.size)
        if not (0 <= kind <= _LAST_KIND and 0 <= rank < size and -1 <= split_dim < ndim):
            return None
        axes.append(StoredAxis(kind, rank, size, split_dim, ident, extent))
    return tuple(axes)
