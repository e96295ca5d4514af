"""A tensor as the bytes of a value: a header of 304 bytes, and behind it the raw data. Both are Mooncake Store's.

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

Data is copied as integers of the element's size: no bit changes, whatever it means.
"""

import ctypes
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.integrations.mooncake.memory import part_of

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

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Shape = tuple[int, ...]


# --- the header ---
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


# --- the data ---
def storable(given: object) -> torch.Tensor | None:
    """A contiguous tensor with the values of what a call was given; None for what cannot be stored.

    Those are: other objects, complex and other dtypes that the header has no number for, more than 8 dimensions, sparse
    tensors, and tensors without memory of their own, such as those of classes that wrap others.
    """
    try:
        plain = plain_tensor(given)
    except InvalidArgument:
        return None
    if plain.dtype not in NUMBERS or plain.ndim > MAX_DIMS:
        return None
    return plain.detach().resolve_neg().contiguous()


def whole_header(tensor: torch.Tensor) -> Header:
    """The header of a tensor that is stored whole."""
    shape = tuple(tensor.shape)
    return Header(tensor.dtype, shape, shape)


def over(address: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory, which the caller keeps alive. Without dimensions it gets one of size 1."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape or (1,))


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as integers of the same size."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def header_at(address: int, nbytes: int) -> Header | None:
    """The header of the tensor in a value that lies at an address; None if it is no tensor."""
    if not address:
        return None
    return parsed(ctypes.string_at(address, min(nbytes, HEADER_BYTES)), nbytes)


def tensor_at(address: int, nbytes: int) -> torch.Tensor | None:
    """A tensor over the data of a value that lies at an address; None if it is no tensor."""
    header = header_at(address, nbytes)
    return None if header is None else over(address + header.offset, header.shape, header.dtype)


def copied(address: int, nbytes: int) -> torch.Tensor | None:
    """A copy of the tensor in a value that lies at an address; None if it is no tensor."""
    header = header_at(address, nbytes)
    if header is None:
        return None
    made = torch.empty(header.shape or (1,), dtype=header.dtype, device="cpu")
    ctypes.memmove(made.data_ptr(), address + header.offset, header.data_bytes)
    return made


def copied_into(target: int, room: int) -> Callable[[int, int], int]:
    """What copies a value to an address, and tells its bytes; 0, and no copy: it is no tensor, or there is no room."""

    def copy(address: int, nbytes: int) -> int:
        if nbytes > room or header_at(address, nbytes) is None:
            return 0
        ctypes.memmove(target, address, nbytes)
        return nbytes

    return copy


# --- both, for programs: the names are Mooncake's ---
def _serialize_tensor(tensor: object, /) -> tuple[bytes, int, int, torch.Tensor]:
    """What a tensor is stored as: its header, the address and bytes of its data, and the tensor that owns them.

    Raises:
        ValueError: it cannot be stored.
    """
    owner = storable(tensor)
    if owner is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    return whole_header(owner).packed(), owner.data_ptr(), owner.nbytes, owner


def _deserialize_tensor(payload: bytes, /) -> torch.Tensor:
    """A copy of the tensor in what is stored: a header, and the data behind it.

    Raises:
        TypeError: it is no bytes.
        ValueError: it is no tensor.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"incompatible function arguments: bytes are needed, not {type(payload)}")
    part, alive = part_of(payload)
    tensor = copied(*part)
    del alive
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor


def _tensor_metadata_size() -> int:
    """Bytes of the header."""
    return HEADER_BYTES
