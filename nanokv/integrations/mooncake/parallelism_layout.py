"""How a tensor is laid out over the ranks of a model, and under which keys its shards lie.

A layout is a list of axes, each kind at most once: data, tensor, expert and pipeline parallelism. Only the tensor axis
divides values: its shards are equal parts of one dimension. The others tell which copy, expert or stage a tensor is of.
Keys and checks are those of Mooncake Store, so each of the two finds what the other has stored.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from nanokv.integrations.mooncake.tensor_header import MAX_AXES, Header, Shape, StoredAxis
from nanokv.integrations.mooncake.tensor_values import int32


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


# --- what a call was given ---
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
    kind = kind_named(text_given(given.kind))
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


def text_given(given: object) -> str:
    """A text. Raises RuntimeError for anything else, as the real store does."""
    if isinstance(given, bytes):
        return given.decode(errors="replace")
    if isinstance(given, str):
        return given
    raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to a string")


def _int_given(given: Any) -> int:
    try:
        return int32("", given)
    except TypeError:
        raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to an integer") from None


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Iterable):
        return list(given)
    raise RuntimeError(f"Unable to cast Python instance of type {type(given)} to a list")
