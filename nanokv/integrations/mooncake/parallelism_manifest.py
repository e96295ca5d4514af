"""The manifest of a tensor's shards: 96 bytes under a key of their own, which tell how the whole was divided.

| bytes | what |
|---|---|
| 0 | u32 magic, "NAMW"; u16 version, 1; u16 size; i32 dtype; i32 dimensions |
| 16 | i32 dimension that was divided; i32 number of shards; 8 bytes 0 |
| 32 | 8 x i64 shape of the whole, -1 behind the last dimension |
"""

import struct
from typing import NamedTuple

import torch

from nanokv.integrations.mooncake.parallelism_layout import Axis, Kind
from nanokv.integrations.mooncake.tensor_header import (
    DTYPES,
    MAX_DIMS,
    NUMBERS,
    SHAPE,
    Shape,
    packed_shape,
    parsed_shape,
)

_MAGIC = 0x574D414E
_VERSION = 1
_FIXED = struct.Struct("<IHHiiii8x")
MANIFEST_BYTES = _FIXED.size + SHAPE.size


def manifest_key(name: bytes) -> bytes:
    """Where the manifest of shards lies that ranks have put."""
    return name + b"__parallelism_manifest"


def writer_manifest_key(name: bytes) -> bytes:
    """Where the manifest of shards lies that writers have put."""
    return name + b"__writer_manifest"


def writer_key(name: bytes, part: Axis) -> bytes:
    """Where the shard of a writer lies."""
    return name + b"__writer_%dof%d_sd%d" % (part.rank, part.size, part.split_dim or 0)


class Manifest(NamedTuple):
    """A whole tensor: so many equal shards along `split_dim`."""

    dtype: torch.dtype
    shape: Shape
    split_dim: int
    shards: int

    def axis(self, rank: int) -> Axis:
        """The tensor axis of one of its shards."""
        return Axis(Kind.TP, rank, self.shards, self.split_dim)

    def packed(self) -> bytes:
        """The manifest's 96 bytes."""
        fixed = (_MAGIC, _VERSION, MANIFEST_BYTES, NUMBERS[self.dtype], len(self.shape), self.split_dim, self.shards)
        return _FIXED.pack(*fixed) + packed_shape(self.shape)


def parsed_manifest(value: bytes) -> Manifest | None:
    """The manifest in a value; None if it is none."""
    if len(value) < MANIFEST_BYTES:
        return None
    magic, version, size, number, ndim, split_dim, count = _FIXED.unpack_from(value)
    if (magic, version, size) != (_MAGIC, _VERSION, MANIFEST_BYTES):
        return None
    if not (0 <= number < len(DTYPES) and 0 <= split_dim < ndim <= MAX_DIMS and count > 0):
        return None
    shape = parsed_shape(SHAPE.unpack_from(value, _FIXED.size), ndim)
    return None if shape is None else Manifest(DTYPES[number], shape, split_dim, count)
