"""Slices of other ranks' objects: what a reader of another layout takes from which object, and where it goes.

The writer's ranks of tensor parallelism, the order of its dimensions, its layers and its block size may differ from the
reader's. What is the same in both (heads of the model, head size, dtype, K and V) makes them comparable; where it is
not the same, the reader is refused.

On a GPU with `alloc="device"` all pieces of a call take one launch (`device/kernels/slices.py`); else torch copies them
object by object. Either way an object's pieces count only if the object was valid after they were copied.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import NamedTuple

import torch

from nanokv.allocation.base import Allocation
from nanokv.device.machines.records import Request
from nanokv.device.machines.slices import Box, ObjectStrides, Slices
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument
from nanokv.keys.kv_layout import KVLayout
from nanokv.transfer.descriptors import descriptor_of
from nanokv.transfer.growing_batch import GrowingBatch
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest

CANONICAL = "L2NHD"  #: the order in which boxes are named; an object that lacks a dimension has one of it
_ALIKE = ("kv_heads", "head_size", "dtype", "halves")


class Piece(NamedTuple):
    """A box of one object."""

    key: int  #: the number of the caller's key
    source: int  #: the number of the layout in `Plan.sources`
    box: Box


class Plan(NamedTuple):
    """What one call takes from where."""

    sources: list[KVLayout]  #: of the writer's ranks that hold what the reader needs; alike but for `tp_rank`
    pieces: list[Piece]


def refused(mine: KVLayout, source: KVLayout) -> str | None:
    """Why a reader with the layout `mine` cannot get slices of objects with the layout `source`; None if it can."""
    for whose, layout in (("the writer's", source), ("this cache's", mine)):
        if layout.form:
            return f"{whose} objects have the opaque form {layout.form!r}"
    for name in _ALIKE:
        theirs, own = getattr(source, name), getattr(mine, name)
        if theirs != own:
            return f"{name} is {theirs} in the writer's layout, and {own} in this cache's"
    if lcm(source.block_size, mine.block_size) != max(source.block_size, mine.block_size):
        return f"block sizes {source.block_size} (the writer's) and {mine.block_size} do not divide each other"
    return None


def check_readable(mine: KVLayout, source: KVLayout) -> None:
    """Refuse objects that cannot be converted: InvalidArgument, naming the difference."""
    why = refused(mine, source)
    if why:
        raise InvalidArgument(f"objects of this layout cannot be read: {why}")


def layout_of(plane: torch.Tensor, layers: int, shape: Sequence[int], halves: int) -> KVLayout:
    """The layout of the objects of an engine's planes, each [blocks, tokens, heads, dim], without gaps.

    `shape`: of a layer in an object.
    """
    _, tokens, heads, dim = plane.shape
    order = CANONICAL if halves == 2 else "LNHD" if len(shape) == 3 else "LND"
    dtype = str(plane.dtype).removeprefix("torch.")
    return KVLayout(layers=layers, kv_heads=heads, head_size=dim, block_size=tokens, dtype=dtype, order=order)


def misfit(own: KVLayout, layout: KVLayout, *, of_objects: bool) -> str | None:
    """How an engine's planes, whose own layout is `own`, contradict a layout; None if they do not.

    `of_objects`: whether the objects that are moved whole must be of that layout too, so that the order counts.
    """
    for name in ("block_size", "head_size", "dtype", "halves", *(("order",) if of_objects else ())):
        theirs, mine = getattr(layout, name), getattr(own, name)
        if theirs != mine:
            return f"{name} is {mine} in these tensors' objects, and {theirs} in the layout of this cache's identity"
    heads = len(layout.heads)
    return None if own.kv_heads == heads else f"the tensors have {own.kv_heads} heads, a rank of this layout {heads}"


def plan(mine: KVLayout, source: KVLayout, layers: range, keys: int, blocks: Sequence[int]) -> Plan:
    """The pieces for a run of tokens, which `keys` objects of each rank of the writer and `blocks` hold.

    Args:
        mine: of the engine's cache that is filled.
        source: of the objects; its `tp_rank` does not matter.
        layers: those of `mine` that are wanted, counted from its first one.

    Raises:
        InvalidArgument: the layouts cannot be converted, or keys and blocks are not equally many tokens.
    """
    check_readable(mine, source)
    first = mine.first_layer + layers.start - source.first_layer  # of the object
    if first < 0 or first + len(layers) > source.layers:
        asked = range(mine.first_layer + layers.start, mine.first_layer + layers.stop)
        held = range(source.first_layer, source.first_layer + source.layers)
        raise InvalidArgument(f"layers {asked} of the model are asked for, the objects hold {held}")
    if keys * source.block_size != len(blocks) * mine.block_size:
        raise InvalidArgument(
            f"{keys} keys of {source.block_size} tokens and {len(blocks)} blocks of {mine.block_size} do not agree"
        )
    sources, shares = sources_of(mine, source)
    step = min(source.block_size, mine.block_size)
    pieces = []
    for token in range(0, keys * source.block_size, step):
        key, block = token // source.block_size, blocks[token // mine.block_size]
        for number, heads in enumerate(shares):
            of_head, to_head = heads.start - sources[number].heads.start, heads.start - mine.heads.start
            of, to = (
                (first, token % source.block_size, of_head),
                (block, layers.start, token % mine.block_size, to_head),
            )
            pieces.append(Piece(key, number, Box(*of, *to, len(layers), step, len(heads))))
    return Plan(sources, pieces)


def sources_of(mine: KVLayout, source: KVLayout) -> tuple[list[KVLayout], list[range]]:
    """The writer's ranks that hold a reader's heads, one for each head, and the heads to take from each."""
    sources, shares = [], []
    head = mine.heads.start
    while head < mine.heads.stop:
        ranks = (replace(source, tp_rank=rank) for rank in range(source.tp_size))
        found = next(layout for layout in ranks if head in layout.heads)
        sources.append(found)
        shares.append(range(head, min(found.heads.stop, mine.heads.stop)))
        head = shares[-1].stop
    return sources, shares


def object_strides(layout: KVLayout) -> ObjectStrides:
    """Bytes between the items of an object in each dimension."""
    of = dict(zip(layout.order, torch.empty(layout.shape, device="meta").stride(), strict=True))
    size = _dtype(layout).itemsize
    return ObjectStrides(*(of.get(letter, 0) * size for letter in CANONICAL[:-1]))


def in_canonical_order(payload: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """The bytes of an object (uint8) as [layers, halves, tokens, heads, dim], shared."""
    lacking = [letter for letter in CANONICAL if letter not in layout.order]
    named = [*layout.order, *lacking]
    whole = payload.view(_dtype(layout)).view(*layout.shape, *[1] * len(lacking))
    return whole.permute([named.index(letter) for letter in CANONICAL])


def _dtype(layout: KVLayout) -> torch.dtype:
    found = getattr(torch, layout.dtype)
    assert isinstance(found, torch.dtype)
    return found


class SliceReader:
    """Gets slices of objects into an engine's planes.

    Args:
        planes: [blocks, tokens, heads, dim] each: K and V of each layer, `halves` per layer.
    """

    def __init__(
        self, single: SingleTransfer, allocation: Allocation, planes: Sequence[torch.Tensor], halves: int
    ) -> None:
        self._single = single
        self._planes = planes
        self._halves = halves
        self._batch = GrowingBatch(allocation)

    def get(self, plan: Plan, digests: Sequence[Sequence[KeyDigest]]) -> list[int]:
        """A status per key: OK if all of its objects were, else that of the first that was not.

        Args:
            digests: per source the digest of each key.
        """
        objects: dict[tuple[int, int], list[Box]] = {}
        for key, source, box in plan.pieces:
            objects.setdefault((key, source), []).append(box)
        settled = self._launched(plan, digests)
        statuses = [int(Status.OK)] * max((len(each) for each in digests), default=0)
        for (key, source), boxes in objects.items():
            status = settled.get((key, source), Status.BUSY)
            if status in (Status.BUSY, Status.TORN):
                status = self._copied(digests[source][key], plan.sources[source], boxes)
            statuses[key] = statuses[key] or int(status)
        return statuses

    def _launched(self, plan: Plan, digests: Sequence[Sequence[KeyDigest]]) -> dict[tuple[int, int], int]:
        """The statuses of objects, by key and source, that one launch could settle."""
        if not self._batch.launches or not plan.pieces:
            return {}
        layout = plan.sources[0]
        try:
            boxes = [piece.box for piece in plan.pieces]
            slices = Slices(self._planes, self._halves, object_strides(layout), boxes)
        except ValueError:
            return {}  # not made of multiples of 16 bytes: torch copies
        nbytes, what = descriptor_of(_dtype(layout), torch.Size(layout.shape))
        requests = [Request(digests[source][key], 0, nbytes, what=what) for key, source, _ in plan.pieces]
        found: dict[tuple[int, int], int] = {}
        answers = self._batch.run(lambda batch: batch.get_slices(slices), requests)
        for (key, source, _), status in zip(plan.pieces, answers, strict=True):
            found[key, source] = found.get((key, source), Status.OK) or status
        return found

    def _copied(self, digest: KeyDigest, layout: KVLayout, boxes: Sequence[Box]) -> int:
        """Copy boxes of one object by torch."""

        def take(payload: torch.Tensor) -> None:
            whole = in_canonical_order(payload, layout)
            for box in boxes:
                self._take(whole, box)

        return self._single.get_taken(digest, *descriptor_of(_dtype(layout), torch.Size(layout.shape)), take)

    def _take(self, whole: torch.Tensor, box: Box) -> None:
        tokens = slice(box.token, box.token + box.tokens)
        heads = slice(box.head, box.head + box.heads)
        to_tokens = slice(box.to_token, box.to_token + box.tokens)
        to_heads = slice(box.to_head, box.to_head + box.heads)
        for layer in range(box.layers):
            for half in range(self._halves):
                plane = self._planes[(box.to_layer + layer) * self._halves + half]
                plane[box.to_block, to_tokens, to_heads].copy_(whole[box.layer + layer, half, tokens, heads])
