"""How a tensor is laid out over the ranks of a model: what programs say of it, and under which keys its shards lie.

A layout is a list of axes, each kind at most once: data, tensor, expert and pipeline parallelism. Only the tensor axis
divides values: its shards are equal parts of one dimension. The others tell which copy, expert or stage a tensor is of.
Keys and checks are those of Mooncake Store, so each of the two finds what the other has stored.

A manifest of 96 bytes under a key of its own tells how a whole was divided:

| bytes | what |
|---|---|
| 0 | u32 magic, "NAMW"; u16 version, 1; u16 size; i32 dtype; i32 dimensions |
| 16 | i32 dimension that was divided; i32 number of shards; 8 bytes 0 |
| 32 | 8 x i64 shape of the whole, -1 behind the last dimension |
"""

import copy
import struct
from collections.abc import Iterable
from enum import IntEnum
from itertools import repeat
from typing import Any, NamedTuple

import torch

from nanokv.integrations.mooncake.arguments import checked, config_of_each, int32, text
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.tensor_bytes import (
    DTYPES,
    MAX_AXES,
    MAX_DIMS,
    NUMBERS,
    SHAPE,
    Header,
    Shape,
    StoredAxis,
    packed_shape,
    parsed_shape,
)

_MODES = ("as_stored", "shard", "full")


# --- what programs say; as in the real store, setting `axes` or `parallelism` keeps a copy, and that is read ---
def _text(name: str, given: object) -> str:
    try:
        return text(given)
    except RuntimeError:
        raise TypeError(f"incompatible function arguments: {name} must be a str, not {given!r}") from None


def _optional(name: str, given: object) -> int | None:
    return None if given is None else int32(name, given)


_CHECKS = {
    "kind": _text,
    "rank": int32,
    "size": int32,
    "split_dim": _optional,
    "expert_id": _optional,
    "stage_id": _optional,
}


class ParallelAxis:
    """One axis of a layout: `kind` is "dp", "tp", "ep" or "pp".

    "tp" needs `split_dim`, "ep" `expert_id` and "pp" `stage_id`. Setting a field raises TypeError for a value of
    another type, and AttributeError if there is no such field.
    """

    __slots__ = tuple(_CHECKS)

    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None

    def __init__(self) -> None:
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim = self.expert_id = self.stage_id = None

    def __setattr__(self, name: str, value: object) -> None:
        check = _CHECKS.get(name)
        object.__setattr__(self, name, value if check is None else check(name, value))


class TensorParallelism:
    """A layout: its axes, of different kinds, at most four."""

    __slots__ = ("_axes",)

    def __init__(self) -> None:
        self._axes: list[ParallelAxis] = []

    @property
    def axes(self) -> list[ParallelAxis]:
        """A list of the axes. Appending to it changes nothing here: set `axes`."""
        return list(self._axes)

    @axes.setter
    def axes(self, given: list[ParallelAxis]) -> None:
        if not isinstance(given, list | tuple) or not all(isinstance(axis, ParallelAxis) for axis in given):
            raise TypeError(f"incompatible function arguments: axes must be a list of ParallelAxis, not {given!r}")
        self._axes = [copy.copy(axis) for axis in given]


class ReadTarget:
    """What to read: "as_stored" the object of the key, "shard" one shard, "full" the whole of all shards."""

    __slots__ = ("_mode", "_parallelism")

    def __init__(self) -> None:
        self._mode = _MODES[0]
        self._parallelism: TensorParallelism | None = None

    @property
    def mode(self) -> str:
        """One of the three, in lower case. Raises RuntimeError for another one."""
        return self._mode

    @mode.setter
    def mode(self, given: str) -> None:
        mode = _text("mode", given).lower()
        if mode not in _MODES:
            raise RuntimeError("Unsupported ReadTarget mode")
        self._mode = mode

    @property
    def parallelism(self) -> TensorParallelism | None:
        """The layout to read in."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, given: TensorParallelism | None) -> None:
        if given is not None and not isinstance(given, TensorParallelism):
            raise TypeError(f"incompatible function arguments: parallelism must be a TensorParallelism, not {given!r}")
        self._parallelism = copy.deepcopy(given)


# --- layouts and keys ---
class Kind(IntEnum):
    """The kinds of axes, by their numbers in a header; keys name them in this order."""

    DP = 0
    TP = 1
    EP = 2
    PP = 3


class Axis(NamedTuple):
    """One axis: this rank, of how many. `split_dim`: the dimension that a tensor axis divides."""

    kind: Kind
    rank: int
    size: int
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None

    def stored(self, shape: Shape) -> StoredAxis:
        """The axis as a header of a shard of this shape has it."""
        extent = 0 if self.split_dim is None else shape[self.split_dim]
        ident = {Kind.EP: self.expert_id, Kind.PP: self.stage_id}.get(self.kind)
        split_dim = -1 if self.split_dim is None else self.split_dim
        return StoredAxis(self.kind, self.rank, self.size, split_dim, ident or 0, extent)

    def suffix(self) -> bytes:
        """What the axis adds to a key."""
        ids = ("sd", self.split_dim), ("eid", self.expert_id), ("sid", self.stage_id)
        ends = "".join(f"_{name}{value}" for name, value in ids if value is not None)
        return f"__{self.kind.name.lower()}_{self.rank}of{self.size}{ends}".encode()


Layout = tuple[Axis, ...]


def kind_named(name: str) -> Kind | None:
    """The kind with a name, in upper or lower case."""
    return Kind.__members__.get(name.upper())


def tp_axis(layout: Layout) -> Axis | None:
    """The axis that divides values; None without one."""
    return next((axis for axis in layout if axis.kind == Kind.TP), None)


def with_tp(layout: Layout, axis: Axis) -> Layout:
    """The layout with another tensor axis in the place of its own."""
    return tuple(axis if own.kind == Kind.TP else own for own in layout)


def in_order(layout: Layout) -> Layout:
    """The layout with its axes in the order of keys."""
    return tuple(sorted(layout, key=lambda axis: axis.kind))


def key_of(name: bytes, layout: Layout) -> bytes:
    """The key of the shard that a layout tells of."""
    if len(layout) == 1 and layout[0].kind == Kind.TP:
        return name + b"_tp_%d" % layout[0].rank
    return name + b"".join(axis.suffix() for axis in in_order(layout))


def shard_key(name: bytes, rank: int, count: int) -> bytes:
    """The key of a rank's shard of tensor parallelism; one that is the only shard is the tensor itself."""
    return name + b"_tp_%d" % rank if count > 1 else name


def layout_in(header: Header) -> Layout | None:
    """The layout of which a header tells, in the order of keys; None if it tells of none."""
    if not header.is_shard or any(axis.kind not in list(Kind) for axis in header.axes):
        return None
    return in_order(tuple(_axis_in(axis) for axis in header.axes))


def _axis_in(stored: StoredAxis) -> Axis:
    kind = Kind(stored.kind)
    return Axis(
        kind,
        stored.rank,
        stored.size,
        None if stored.split_dim < 0 else stored.split_dim,
        stored.ident if kind == Kind.EP else None,
        stored.ident if kind == Kind.PP else None,
    )


def divides(whole: Shape, axis: Axis) -> bool:
    """Whether the axis divides a shape into equal parts."""
    dim = axis.split_dim
    return dim is not None and 0 <= dim < len(whole) and not whole[dim] % axis.size


def shard_shape(whole: Shape, axis: Axis) -> Shape:
    """The shape of each shard of a tensor that the axis divides."""
    return tuple(size // axis.size if dim == axis.split_dim else size for dim, size in enumerate(whole))


def shard_of(tensor: torch.Tensor, axis: Axis) -> torch.Tensor | None:
    """The contiguous shard of a whole tensor; None if the axis does not divide it evenly."""
    if axis.split_dim is None or not divides(tuple(tensor.shape), axis):
        return None
    extent = tensor.shape[axis.split_dim] // axis.size
    return tensor.narrow(axis.split_dim, axis.rank * extent, extent).contiguous()


def shard_header(whole: Shape, shard: torch.Tensor, layout: Layout) -> Header:
    """The header of a shard of a tensor with the shape `whole`."""
    shape = tuple(shard.shape)
    return Header(shard.dtype, shape, whole, tuple(axis.stored(shape) for axis in layout), is_shard=True)


# --- manifests ---
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


# --- what a call was given ---
class Placement(NamedTuple):
    """How a call wants a tensor stored: in a layout, as a writer's part, divided in equal shards, or else whole.

    Attributes:
        split: number of shards and the dimension, of the calls with `tp` in their names.
    """

    config: ReplicateConfig
    layout: Layout | None = None
    part: Axis | None = None
    split: tuple[int, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is stored as it is, under its key."""
        return self.layout is None and self.part is None and self.split is None


def placement(
    config: object,
    parallelism: object = None,
    writer_partition: object = None,
    split: tuple[int, int] | None = None,
) -> Placement | None:
    """What a call asks for; None if that cannot be.

    Raises:
        AttributeError, RuntimeError, TypeError: a field is missing, or of another type.
    """
    config = checked(config)
    layout = None if parallelism is None else layout_given(parallelism)
    part = None if writer_partition is None else partition_given(writer_partition)
    if parallelism is not None and writer_partition is not None:
        return None
    wrong = layout is None and part is None and (parallelism is not None or writer_partition is not None)
    return None if wrong else Placement(config, layout, part, split)


def placements(
    count: int,
    config: object,
    parallelisms: object = None,
    writer_partitions: object = None,
    split: tuple[int, int] | None = None,
) -> Iterable[Placement | None] | None:
    """What a call asks for each of some keys, in one of two lists, or alike for all.

    None: both lists were given, or what is no list, or one of another length than the keys; or as many groups.
    """
    single = config_of_each(checked(config), count)
    if single is None:
        return None
    if parallelisms is None and writer_partitions is None:
        return repeat(Placement(single, split=split), count)
    if parallelisms is not None and writer_partitions is not None:
        return None
    given = parallelisms if writer_partitions is None else writer_partitions
    if not isinstance(given, list) or len(given) != count:
        return None
    if writer_partitions is None:
        return (placement(single, parallelism=each) for each in given)
    return (placement(single, writer_partition=each) for each in given)


def shard_given(tp_rank: object, tp_size: object, split_dim: object = 0) -> tuple[int, int]:
    """Rank and number of shards for a call that reads the shard of a rank.

    Raises:
        TypeError: one of the three is no integer.
    """
    int32("split_dim", split_dim)
    return int32("tp_rank", tp_rank), int32("tp_size", tp_size)


def split_given(tp_rank: object, tp_size: object, split_dim: object) -> tuple[int, int] | None:
    """Number of shards and the dimension for a call that stores the shards of all ranks; None: nothing is divided.

    Raises:
        TypeError: one of the three is no integer.
    """
    int32("tp_rank", tp_rank)
    count, dim = int32("tp_size", tp_size), int32("split_dim", split_dim)
    return (count, dim) if count > 1 else None


def target_given(given: Any) -> tuple[str, Layout | None] | None:
    """Mode and layout of what a call wants to read; None if that cannot be.

    Raises:
        AttributeError, RuntimeError: a field is missing, or of another type.
    """
    if given is None:
        return _MODES[0], None
    if not hasattr(given, "mode") or not hasattr(given, "parallelism"):
        return None
    mode = text(given.mode).lower()
    if mode not in _MODES:
        return None
    if given.parallelism is None:
        return mode, None
    layout = layout_given(given.parallelism)
    return None if layout is None else (mode, layout)


def targets_given(given: Any, count: int) -> list[Any] | None:
    """A target for each of some keys; None if what was given is no list of that length."""
    if given is None:
        return [None] * count
    return given if isinstance(given, list) and len(given) == count else None


def layout_given(given: Any) -> Layout | None:
    """The layout that an object with `axes` describes; None if it has none, or one that cannot be.

    Raises:
        AttributeError, RuntimeError: an axis lacks a field, or has a value of another type in one.
    """
    if not hasattr(given, "axes"):
        return None
    axes = [_axis_given(axis) for axis in _listed(given.axes)]
    layout = tuple(axis for axis in axes if axis is not None)
    kinds = {axis.kind for axis in layout}
    if len(layout) < len(axes) or not 0 < len(layout) <= MAX_AXES or len(kinds) < len(layout):
        return None
    return layout if all(_possible(axis) for axis in layout) else None


def _possible(axis: Axis) -> bool:
    needed = {Kind.TP: axis.split_dim, Kind.EP: axis.expert_id, Kind.PP: axis.stage_id}.get(axis.kind, 0)
    divided = axis.kind == Kind.TP or axis.split_dim is None
    return 0 <= axis.rank < axis.size and needed is not None and divided


def _axis_given(given: Any) -> Axis | None:
    if not all(hasattr(given, name) for name in ("kind", "rank", "size")):
        return None
    kind = kind_named(text(given.kind))
    if kind is None:
        return None
    rest = (
        None if value is None else _int_given(value) for value in (given.split_dim, given.expert_id, given.stage_id)
    )
    return Axis(kind, _int_given(given.rank), _int_given(given.size), *rest)


def partition_given(given: Any) -> Axis | None:
    """The part of a tensor that an object with `rank`, `size` and `split_dim` names; None if it names none.

    Raises:
        RuntimeError: one of them is no integer.
    """
    if not all(hasattr(given, name) for name in ("rank", "size", "split_dim")):
        return None
    axis = Axis(Kind.TP, _int_given(given.rank), _int_given(given.size), _int_given(given.split_dim))
    return axis if 0 <= axis.rank < axis.size else None


def _int_given(given: Any) -> int:
    try:
        return int32("", given)
    except TypeError:
        raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to an integer") from None


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Iterable):
        return list(given)
    raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to a list")
