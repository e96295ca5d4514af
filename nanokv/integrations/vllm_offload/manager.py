"""The scheduler's side of `NanoKVOffloadingSpec`: which blocks are there, asked of NanoKV itself each time.

The manager keeps no list of what is stored. A block is there when NanoKV has the objects of all workers: so what was
evicted, refused or lost is missing by itself, and what another engine of the same configuration stored is found. New
objects go to the segment of the manager's rank, whose evictions it can tell.

`reset_cache` counts a generation that is part of every name: nothing that was stored before, or is being stored, can be
found again, and loads under way still end with the bytes that they were promised.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.cache.cache import NanoKVCache
from nanokv.errors import KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.integrations.joining import JoinedStore
from nanokv.integrations.vllm_offload.announcing import Announcer
from nanokv.integrations.vllm_offload.chunks import ChunkSpec, object_name
from nanokv.integrations.vllm_offload.counts import OffloadCounts
from nanokv.keys.hashing import tag_of
from nanokv.seldom import Seldom
from nanokv.transfer.pinned import Pinned

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

# --- the blocks that requests have found, held in place from the look-up until they are loaded ---
# vLLM 0.32 ends the engine if a load fails. So a look-up answers HIT only when it has pinned the parts of all
# workers: NanoKV neither evicts nor removes what is pinned, and its owner's end leaves it readable. The pins of a
# request end when its load has ended, or when the request ends without one.
Held = dict[OffloadKey, list[Pinned]]


class Pins:
    """The pins of one manager.

    Args:
        names: of the objects of a block, one per worker.
        refused: called with why a block that is there cannot be held: it is damaged, or no pin is left.
    """

    def __init__(
        self,
        world: NanoKVCache,
        names: Callable[[OffloadKey], Sequence[bytes]],
        refused: Callable[[NanoKVError], None],
    ) -> None:
        self.world, self._names, self._refused = world, names, refused
        self.found: dict[str, Held] = {}  #: per request
        self.loading: dict[str, Held] = {}

    def find(self, request: str, key: OffloadKey) -> bool:
        """Whether a block can be loaded now: then it is pinned for the request."""
        held = self.found.setdefault(request, {})
        if key in held:
            return True
        with ExitStack() as stack:
            pinned = []
            for name in self._names(key):
                try:
                    pinned.append(self.world.pin(name))
                except (KeyNotFound, NotReady):
                    return False  # gone; or not finished, by a process that may be dead
                except NanoKVError as error:
                    self._refused(error)
                    if isinstance(error, SegmentCorrupt):
                        self.world.remove_many([name])
                    return False
                stack.callback(pinned[-1].release)
            stack.pop_all()
        held[key] = pinned
        return True

    def begin_load(self, request: str, keys: Collection[OffloadKey]) -> None:
        """These blocks are going to be loaded, and no others that the request has found.

        Raises:
            KeyNotFound: the request has not found one of them.
        """
        for key in keys:
            if not self.find(request, key):
                raise KeyNotFound(f"request {request} loads block {key.hex()} without having found it")
        found = self.found.pop(request, {})
        self.loading.setdefault(request, {}).update({key: found.pop(key) for key in dict.fromkeys(keys)})
        _release(found)

    def end_load(self, request: str, keys: Collection[OffloadKey]) -> int:
        """These blocks have been loaded; returns how many."""
        loading = self.loading.get(request, {})
        ended = {key: loading.pop(key) for key in keys if key in loading}
        if not loading:
            self.loading.pop(request, None)
        _release(ended)
        return len(ended)

    def end_request(self, request: str) -> None:
        """The request finds nothing more. A load under way goes on."""
        _release(self.found.pop(request, {}))

    def take_all(self) -> list[Pinned]:
        """Forget all requests: the pins of loads under way are the caller's, all others end."""
        for found in self.found.values():
            _release(found)
        left = [pinned for held in self.loading.values() for each in held.values() for pinned in each]
        self.found, self.loading = {}, {}
        return left


def _release(held: Held) -> None:
    for each in held.values():
        for pinned in each:
            pinned.release()


# --- the manager ------------------------------------------------------------------------------
logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

GROUP = "vllm-offload"  #: of all objects: `reset_cache` drops it
LEAVE = 60.0  #: seconds after which loads that were under way at a reset have ended


class NanoKVOffloadingManager(OffloadingManager):
    """Blocks in a NanoKV world of this host.

    Args:
        joined: the world, which the manager closes.
        workers: whose parts make a block.
        events: whether vLLM publishes events.
    """

    def __init__(self, joined: JoinedStore, workers: int, *, events: bool) -> None:
        self.joined, self.world, self._workers = joined, joined.world, workers
        self._tag = tag_of(self.world.digest(b""))
        self._seldom = Seldom(logger)
        self.pins = Pins(self.world, self.objects, self._not_held)
        self.storing: set[OffloadKey] = set()
        self._generation = 0
        self._leaving: list[tuple[float, list[Pinned], list[bytes]]] = []  #: until when, pins, names
        self._counts = OffloadCounts("NanoKV")
        self._announcing = Announcer(self.world, Locality.LOCAL) if events else None
        self._open = True

    def _chunk(self, key: OffloadKey) -> bytes:
        return bytes(key) + self._generation.to_bytes(4, "big")

    def objects(self, key: OffloadKey) -> list[bytes]:
        """The names of a block's objects, one of each worker."""
        chunk = self._chunk(key)
        return [object_name(chunk, worker) for worker in range(self._workers)]

    def _spec(self, keys: Iterable[OffloadKey]) -> ChunkSpec:
        return ChunkSpec(tuple(self._chunk(key) for key in keys), self.world.rank, self._tag)

    def _are_there(self, keys: Sequence[OffloadKey]) -> list[bool]:
        found = self.world.exists_many([name for key in keys for name in self.objects(key)])
        return [all(found[i : i + self._workers]) for i in range(0, len(found), self._workers)]

    # --- requests ---
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """New blocks are offloaded as they come."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """What the request has found, and does not load, may be evicted."""
        self.pins.end_request(req_context.req_id)

    # --- loads ---
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT: the block is held for the request. HIT_PENDING: this engine is storing it. Or MISS."""
        if key in self.storing:
            return LookupResult.HIT_PENDING
        return LookupResult.HIT if self.pins.find(req_context.req_id, key) else LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """HOST."""
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> ChunkSpec:
        """Hold blocks until `complete_load`.

        Raises:
            KeyNotFound: the request has not found one of them, and it is not there.
        """
        self.pins.begin_load(req_context.req_id, keys)
        return self._spec(keys)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """The blocks may be evicted."""
        self._counts.add(loaded=self.pins.end_load(req_context.req_id, keys))

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """The blocks count as used now; what is not there stays so."""
        for key in keys:
            self.pins.find(f"touch {req_context.req_id}", key)
        self.pins.end_request(f"touch {req_context.req_id}")

    def _not_held(self, error: NanoKVError) -> None:
        """A block that is there cannot be loaded."""
        damaged = isinstance(error, SegmentCorrupt)
        self._counts.add(lost=1, damaged=int(damaged))
        what = "a damaged block was dropped" if damaged else "a block that is there cannot be held, and is missing"
        self._seldom.warn(type(error).__name__, f"NanoKV: {what}: {error}")

    # --- stores ---
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        """The blocks that are neither there nor being stored. NanoKV evicts as they are written: none is named here."""
        wanted = list(dict.fromkeys(keys))
        new = [
            key
            for key, there in zip(wanted, self._are_there(wanted), strict=True)
            if not there and key not in self.storing
        ]
        self._counts.add(known=len(wanted) - len(new))
        self.storing.update(new)
        if self._announcing is not None:
            self._announcing.expect({key: self.objects(key) for key in new})
        return PrepareStoreOutput(new, self._spec(new), [])

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """The workers have ended. What they could not store is not there; without `success` nothing is."""
        ended = [key for key in keys if key in self.storing]
        self.storing.difference_update(ended)
        if not success:
            self.world.remove_many([name for key in ended for name in self.objects(key)])
        stored = [key for key, there in zip(ended, self._are_there(ended), strict=True) if there]
        refused = len(ended) - len(stored)
        self._counts.add(stored=len(stored), refused=refused)
        if refused:  # the workers' logs say why
            self._seldom.warn("refused", f"NanoKV: {refused} of {len(ended)} blocks were not stored")
        if self._announcing is not None:
            self._announcing.ended(ended, stored)

    # --- the whole ---
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Let go of what a reset has left."""
        while self._leaving and self._leaving[0][0] <= time.monotonic():
            self._let_go(*self._leaving.pop(0)[1:])

    def _let_go(self, pins: list[Pinned], names: list[bytes]) -> None:
        for pinned in pins:
            pinned.release()
        self.world.remove_many(names)

    def reset_cache(self) -> None:
        """Drop what engines of this identity have stored, in all segments of the world, but for loads under way."""
        pins = self.pins.take_all()
        names = [name for key in self.storing for name in self.objects(key)]
        self.world.drop_group(GROUP)
        held = [pinned.meta.digest for pinned in pins]
        self._leaving.append((time.monotonic() + LEAVE, pins, [*names, *held]))  # type: ignore[list-item]
        self.storing.clear()
        self._generation += 1

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Blocks that this engine stored, and those of them that were evicted or removed."""
        return () if self._announcing is None else self._announcing.take()

    def get_stats(self) -> "OffloadingConnectorStats | None":
        """Counts since the last call, or None."""
        return self._counts.take()

    def shutdown(self) -> None:
        """Let go of everything, and leave the world. Idempotent."""
        if not self._open:
            return
        self._open = False
        for pinned in self.pins.take_all():
            pinned.release()
        for _, pins, names in self._leaving:
            self._let_go(pins, names)
        if self._announcing is not None:
            self._announcing.close()
        self.joined.close()
