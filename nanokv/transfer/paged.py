"""An engine's paged KV cache, whose blocks are put into objects and got from them without a staging buffer.

An object holds one block of some layers, without gaps (`engine_layers`). So an engine with another layout can get the
blocks that one engine put. An object of another shape or dtype is refused, not reinterpreted; the raw bytes of
`open_for_write` have any.

A reader can also take slices: some layers of objects that hold more, or its part of the objects of a writer with
another layout (`reshard`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from nanokv.allocation.base import Allocation
from nanokv.allocation.terms import Hold
from nanokv.arguments import listed
from nanokv.background import Handle, Worker
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Request, Terms
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.keys.hashing import Hasher
from nanokv.keys.identity import Identity
from nanokv.keys.kv_layout import KVLayout
from nanokv.transfer.engine_layers import EngineLayers
from nanokv.transfer.growing_batch import GrowingBatch
from nanokv.transfer.layerwise import LayerTarget, LayerwisePut
from nanokv.transfer.reshard import Plan, SliceReader, check_readable, misfit, plan, sources_of
from nanokv.transfer.single import SingleTransfer
from nanokv.types import Key, KeyDigest

# --- the layout of a `PagedKV`'s objects, and those of other layouts that it can read ---------
# The tensors say what an object looks like; the identity of the cache says which heads of the model these are, and
# whose objects may be read at all: those of the same identity but for the layout.
Digest = Callable[[Key], KeyDigest]
_SEVERAL = "layers of several shapes have no layout, as the identity of their cache must have none"


class Layouts:
    """The layouts of one PagedKV.

    Args:
        own: the layout of its objects, of all layers, as the tensors have it; None: layers of several shapes.
        digest: of a key of this cache.
        whose: namespace and identity of the cache.
    """

    def __init__(self, own: KVLayout | None, digest: Digest, whose: tuple[str, Identity | None]) -> None:
        self._own, self._digest = own, digest
        self._namespace, self._identity = whose
        stated = None if self._identity is None else self._identity.layout
        self._misfit = None
        if stated is not None and not stated.form:
            self._misfit = _SEVERAL if own is None else misfit(own, stated, of_objects=True)

    def check(self) -> None:
        """Refuse to move whole objects if they are not as the cache's identity says: InvalidArgument."""
        if self._misfit:
            raise InvalidArgument(self._misfit)

    def of_own(
        self, keys: Sequence[Key], blocks: Sequence[int], held: range, layers: range
    ) -> tuple[Plan, list[list[KeyDigest]]]:
        """What to take for some layers out of own objects that hold more, and the digest of each key."""
        own = self._of_one_shape()
        whole = replace(own, first_layer=held.start, layers=len(held))
        return plan(own, whole, layers, len(keys), blocks), [[self._digest(key) for key in keys]]

    def of_other(
        self, source: object, keys: Sequence[Key], blocks: Sequence[int], held: range | None, layers: range
    ) -> tuple[Plan, list[list[KeyDigest]]]:
        """What to take from the objects of a writer with another layout, and per writer the digest of each key.

        Args:
            held: the layers of each object, of an engine that puts some layers under a key of their own; None: all.

        Raises:
            InvalidArgument: such objects cannot be read.
        """
        wants, writer = self._wanted(source)
        objects = writer
        if held is not None:
            objects = replace(writer, first_layer=wants.first_layer + held.start, layers=len(held))
        wanted = plan(wants, objects, layers, len(keys), blocks)
        digests = self._digests([replace(writer, tp_rank=each.tp_rank) for each in wanted.sources])
        return wanted, [[digest(key) for key in keys] for digest in digests]

    def of_prefix(self, source: object) -> list[Digest]:
        """The digests of all objects that a key stands for: of own ones, or of those of a writer with another layout.

        Raises:
            InvalidArgument: such objects cannot be read.
        """
        if source is None:
            return [self._digest]
        wants, writer = self._wanted(source)
        check_readable(wants, writer)
        return self._digests(sources_of(wants, writer)[0])

    def _wanted(self, source: object) -> tuple[KVLayout, KVLayout]:
        """The layout in the cache's identity, which says which heads are wanted; and the writer's."""
        if not isinstance(source, KVLayout):
            raise InvalidArgument(f"source must be a KVLayout, not {source!r}")
        if self._identity is None or self._identity.layout is None:
            raise InvalidArgument("source needs a cache whose identity has a layout: it says which heads are wanted")
        why = misfit(self._of_one_shape(), self._identity.layout, of_objects=False)
        if why:
            raise InvalidArgument(why)
        return self._identity.layout, source

    def _of_one_shape(self) -> KVLayout:
        if self._own is None:
            raise InvalidArgument(_SEVERAL)
        return self._own

    def _digests(self, layouts: Sequence[KVLayout]) -> list[Digest]:
        assert self._identity is not None
        return [Hasher(self._namespace, self._identity.with_layout(layout)) for layout in layouts]


# --- an engine's paged cache ------------------------------------------------------------------
class Hooks(NamedTuple):
    """The checks and counters of a cache, around each call."""

    digest: Callable[[Key], KeyDigest]
    terms: Callable[[float | Hold | None], Terms]  #: of new objects, as `hold` states them
    checked_segment: Callable[[int | None], int | None]  #: the preferred segment, if the cache is open and it is valid
    judge_put: Callable[[int, Key, int, int | None], NanoKVError | None]  #: counts a status, and makes it an error
    judge_get: Callable[[int, Key, int], NanoKVError | None]
    worker: Worker  #: for asynchronous operations
    machine: Machine
    whose: tuple[str, Identity | None] = ("", None)  #: namespace and identity of the cache


class PagedKV:
    """Moves blocks between a cache and the tensors of an engine. Made by `NanoKVCache.paged_kv`.

    On a GPU with `alloc="device"`, all keys of a call take one launch, which allocates, copies and publishes. Else, or
    where rows of the engine's tensors are not multiples of 16 bytes, torch copies block by block.
    """

    def __init__(
        self,
        single: SingleTransfer,
        allocation: Allocation,
        hooks: Hooks,
        layers: Sequence[torch.Tensor],
        kv_dim: int | None,
    ) -> None:
        self._single = single
        self._allocation = allocation
        self._hooks = hooks
        self._engine = EngineLayers(layers, kv_dim, single.device)
        pages = self._engine.pages()
        self._batch = GrowingBatch(allocation, pages) if pages is not None else None
        self._slices = SliceReader(single, allocation, self._engine.planes, self._engine.per_layer)
        self._layouts = Layouts(self._engine.layout(), hooks.digest, hooks.whose)

    def put(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> list[NanoKVError | None]:
        """Store a block under each key; returns per key an error or None.

        Args:
            keys, blocks: one block number per key.
            layers: the layers that the objects hold, a range with step 1. Default: all. An engine that publishes each
                layer as soon as it is done puts each under a key of its own.
            preferred_segment, hold: as for `NanoKVCache.put`.

        Raises:
            InvalidArgument: invalid blocks or layers, or not as many keys as blocks; or the tensors contradict the
                layout in the cache's identity.
        """
        self._layouts.check()
        preferred_segment = self._hooks.checked_segment(preferred_segment)
        keys, blocks, chosen = self._checked(keys, blocks, layers)
        terms = self._hooks.terms(hold)
        descriptor, nbytes = self._engine.descriptor(chosen), self._engine.nbytes(chosen)
        digests = [self._hooks.digest(key) for key in keys]
        owners = [self._allocation.owner_of(digest, preferred_segment) for digest in digests]
        statuses: list[int] = [Status.BUSY] * len(keys)
        if self._batch is not None and self._batch.launches and len(set(digests)) == len(digests):
            plane = self._engine.first_plane(chosen)
            rows = zip(digests, owners, blocks, strict=True)
            statuses = self._batch.run(
                lambda batch: batch.put(),
                [Request(d, 0, nbytes, o, descriptor, 0, b, plane, terms) for d, o, b in rows],
            )
        for i, (digest, block) in enumerate(zip(digests, blocks, strict=True)):
            if statuses[i] in (Status.BUSY, Status.FULL):
                statuses[i] = self._put_one(digest, block, chosen, preferred_segment, terms)
        return [
            self._hooks.judge_put(status, key, nbytes, preferred_segment)
            for key, status in zip(keys, statuses, strict=True)
        ]

    def get(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> list[NanoKVError | None]:
        """Read the object of each key into a block; returns per key an error or None.

        The contents of a block whose object could not be read are undefined, unless there was no such object. The
        first read ends the lease of an object, also one of a part: pin what is to be read in parts.

        Args:
            keys, blocks, layers: as for `put`; all blocks are different.
            held: the layers of these tensors that each object holds, a range with step 1 in which `layers` lies; the
                default of `layers`. Without it an object holds exactly `layers`, or what `source` says.
            source: the layout of the writer, if it is not this cache's: of a writer whose identity differs only in the
                layout (`NanoKVCache.layouts`). Its `tp_rank` does not matter; the objects of all of its ranks that hold
                heads of this one are read. Keys (no digests) and blocks both name the same run of tokens, in order: if
                the writer's blocks are smaller, several keys fill a block; if they are larger, a key fills several.

        Raises:
            InvalidArgument: invalid blocks or layers, or not as many keys as blocks; or the objects cannot be read into
                these tensors: the message names the difference.
        """
        self._hooks.checked_segment(None)
        if held is not None or source is not None:
            return self._get_slices(keys, blocks, layers, held, source)
        self._layouts.check()
        self._single.check_planes(self._engine.planes)
        keys, blocks, chosen = self._checked(keys, blocks, layers, filled=True)
        descriptor, nbytes = self._engine.descriptor(chosen), self._engine.nbytes(chosen)
        digests = [self._hooks.digest(key) for key in keys]
        statuses: list[int] = [Status.BUSY] * len(keys)
        if self._batch is not None and self._batch.launches:
            plane = self._engine.first_plane(chosen)
            rows = zip(digests, blocks, strict=True)
            statuses = self._batch.run(
                lambda batch: batch.get(), [Request(d, 0, nbytes, 0, descriptor, 0, b, plane) for d, b in rows]
            )
        for i, (digest, block) in enumerate(zip(digests, blocks, strict=True)):
            if statuses[i] in (Status.BUSY, Status.TORN):
                statuses[i] = self._get_one(digest, block, chosen)
        return [self._hooks.judge_get(status, key, nbytes) for key, status in zip(keys, statuses, strict=True)]

    def put_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """`put` in the background, in the order of the calls; the blocks must not change before the handle is done."""
        self._hooks.checked_segment(preferred_segment)
        return self._hooks.worker.submit(
            lambda: self.put(keys, blocks, layers=layers, preferred_segment=preferred_segment, hold=hold)
        )

    def get_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """`get` in the background, in the order of the calls; the blocks are undefined until the handle is done."""
        self._hooks.checked_segment(None)
        return self._hooks.worker.submit(lambda: self.get(keys, blocks, layers=layers, held=held, source=source))

    def prefix_length(self, keys: Sequence[Key], *, source: KVLayout | None = None) -> int:
        """How many of the first keys have all their objects now: the longest prefix that `get` could read.

        Args:
            source: as for `get`, of the same block size.

        Raises:
            InvalidArgument: objects of that layout cannot be read into these tensors.
        """
        self._hooks.checked_segment(None)
        keys = listed("keys", keys)
        digests = self._layouts.of_prefix(source)
        for count, key in enumerate(keys):
            if any(self._allocation.exists(digest(key)) != Status.OK for digest in digests):
                return count
        return len(keys)

    def begin_put(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> LayerwisePut:
        """Begin to store a block under each key, layer by layer: as `put`, but the blocks are not read before
        `LayerwisePut.write`, and not readable before its `commit`. Torch copies, also on a GPU.

        Raises:
            InvalidArgument: as `put`; or a key is named twice.
        """
        self._layouts.check()
        preferred_segment = self._hooks.checked_segment(preferred_segment)
        keys, blocks, chosen = self._checked(keys, blocks, layers)
        named = [(key, self._hooks.digest(key)) for key in keys]
        if len({digest for _, digest in named}) < len(named):
            raise InvalidArgument("a key is named twice")
        planes, each = self._engine.chosen(chosen), self._engine.per_layer
        nbytes = self._engine.nbytes(chosen)
        return LayerwisePut(
            (self._single, self._allocation, self._hooks.machine),
            named,
            blocks,
            [planes[i : i + each] for i in range(0, len(planes), each)],
            LayerTarget(preferred_segment, self._hooks.terms(hold), nbytes, self._engine.descriptor(chosen)),
            partial(self._engine.parts, chosen),
            lambda status, key: self._hooks.judge_put(status, key, nbytes, preferred_segment),
        )

    # --- slices ---
    def _get_slices(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        layers: range | None,
        held: range | None,
        source: KVLayout | None,
    ) -> list[NanoKVError | None]:
        self._single.check_planes(self._engine.planes)
        keys, blocks = listed("keys", keys), self._engine.checked_blocks(blocks, filled=True)
        whole = self._engine.checked_range("held", held)
        chosen = whole if layers is None else self._engine.checked_range("layers", layers)
        if source is None:
            wanted, digests = self._layouts.of_own(keys, blocks, whole, chosen)
        else:
            parts = None if held is None else whole
            wanted, digests = self._layouts.of_other(source, keys, blocks, parts, chosen)
        moved, whole_bytes = len(blocks) * self._engine.nbytes(chosen) // max(len(keys), 1), wanted.sources[0].nbytes
        return [
            self._hooks.judge_get(status, key, whole_bytes if status else moved)
            for key, status in zip(keys, self._slices.get(wanted, digests), strict=True)
        ]

    # --- by torch ---
    def _put_one(self, key: KeyDigest, block: int, layers: range, preferred: int | None, terms: Terms) -> int:
        fill = partial(self._engine.copy_out, layers, block)
        nbytes, what = self._engine.nbytes(layers), self._engine.descriptor(layers)
        return self._single.put_filled(key, nbytes, preferred, what, fill, terms)

    def _get_one(self, key: KeyDigest, block: int, layers: range) -> int:
        take = partial(self._engine.copy_in, layers, block)
        return self._single.get_taken(key, self._engine.nbytes(layers), self._engine.descriptor(layers), take)

    def _checked(
        self, keys: Sequence[Key], blocks: Sequence[int], layers: range | None, *, filled: bool = False
    ) -> tuple[list[Key], list[int], range]:
        chosen = self._engine.checked_range("layers", layers)
        keys, blocks = listed("keys", keys), self._engine.checked_blocks(blocks, filled=filled)
        if len(keys) != len(blocks):
            raise InvalidArgument(f"{len(keys)} keys and {len(blocks)} blocks")
        return keys, blocks, chosen
