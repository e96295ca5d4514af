"""The pool of blocks in a segment: allocation, eviction, status.

Who shares it: every process with a pool over the same segment, for the blocks and their states are in its headers
(`segment_table`). A pool object keeps only what this process holds.

What it guarantees
- `allocate_blocks` gives all blocks or none. It takes reset blocks first; then it evicts registered blocks that no
  process uses. Nothing that is pinned, leased or kept goes: the protocol refuses it, however old the look was.
- One extent of the segment stays free of blocks: a registration copies into it. So a full pool can register.
- Calls from several threads take turns. Of several processes that allocate the last blocks at once, each gives back
  what is too much, and tries again: then None may be an accident, too many blocks are never the answer.
"""

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from nanokv.arguments import integer
from nanokv.blocks.errors import PoolInUse
from nanokv.blocks.events import PublishHandle
from nanokv.blocks.handles import MutableBlock
from nanokv.blocks.hashes import Keys, SequenceHash, sequence_of
from nanokv.blocks.layout import LayoutConfig
from nanokv.blocks.leases import ActivePool, Held, Lease, Slot, Slots
from nanokv.blocks.metrics import Counts
from nanokv.blocks.segment_table import FirstInFirstOut, Row, Table, order_named
from nanokv.cache import NanoKVCache
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from nanokv.seldom import Seldom
from nanokv.terms import Hold
from nanokv.types import KeyDigest

logger = logging.getLogger(__name__)

_TRIES = 8  #: of an allocation, if other processes take what it was to get
_LONGEST_REST = 0.002  #: seconds between two tries, so that two processes do not give back in step


class PoolStatus(NamedTuple):
    """The blocks of a pool by state, in all processes. Those missing in the sum are leased, kept or foreign."""

    total: int
    reset: int  #: can be allocated without an eviction
    filling: int  #: held by their creators, or by nobody and waiting for a grace period
    active: int  #: registered, in use
    inactive: int  #: registered, used by nobody: can be evicted


class BlockPool(ABC):
    """What `BlockManager` does with blocks of any content: see there for the arguments."""

    def __init__(
        self, cache: NanoKVCache, layout: LayoutConfig, segment: int, total_blocks: int | None, eviction: str
    ) -> None:
        cache.engine.check_open()
        order = order_named(eviction) if isinstance(eviction, str) else None
        if order is None:
            raise InvalidArgument(f'eviction must be "lru", "fifo" or "priority", not {eviction!r}')
        self._cache, self.layout, self.segment = cache, layout, segment
        self._geometry, self._order = cache.engine.geometry, order
        _check_world(cache, layout, segment)
        pages = np.array([self._geometry.pages_of(layout.natural_block_stride)])
        self._pages = int(self._geometry.extent_pages(pages)[0])
        most = self._geometry.n_pages // self._pages - 1  # one extent is what registrations copy into
        if most < 1:
            raise InvalidArgument(
                f"a segment of {self._geometry.n_pages} pages needs room for two blocks of {pages[0]}"
            )
        self._total = most if total_blocks is None else integer("total_blocks", total_blocks, 1, most)
        self._keys = Keys(cache.digest("").key_check >> 32)
        self._group = f"nanokv.blocks {layout.block_shape} {layout.dtype}"
        self._group_word = cache.engine.hasher.group(self._group)
        self._slots = Slots(cache, segment, layout.natural_block_stride, Hold(group=self._group))
        self._active = ActivePool(cache, layout)
        self._dropped: deque[Slot | Held] = deque()
        self._published: dict[KeyDigest, PublishHandle] = {}
        self._counts, self._seldom = Counts(), Seldom(logger)
        self._lock = threading.RLock()
        self._open = True
        self._order(self._look())  # first in, first out needs to know what is there

    # --- what there is ---
    @property
    def total_blocks(self) -> int:
        """The blocks of this pool."""
        return self._total

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layout.page_size

    @property
    def available_blocks(self) -> int:
        """Blocks that can be allocated: reset and inactive ones."""
        found = self.status()
        return found.reset + found.inactive

    def status(self) -> PoolStatus:
        """The blocks by state, from one look at the headers."""
        with self._entered():
            table = self._look()
            counted = (int(mask.sum()) for mask in (table.held, table.active, table.inactive))
            return PoolStatus(self._total, self._reset_size(table), *counted)

    def _gauges(self) -> dict[str, float]:
        """The values of `metrics.GAUGES`; zeros once the pool is closed."""
        try:
            found = self.status()
        except NanoKVError:  # closed, or this is a fork
            return {"inflight_mutable": 0, "inflight_immutable": 0, "reset_pool_size": 0, "inactive_pool_size": 0}
        return {
            "inflight_mutable": sum(self._slots.mutable.values()),
            "inflight_immutable": self._active.handles,
            "reset_pool_size": found.reset,
            "inactive_pool_size": found.inactive,
        }

    # --- allocation ---
    def allocate_blocks(self, count: int) -> list[MutableBlock] | None:
        """That many blocks in state Reset, or None if there are not so many reset and inactive ones.

        Raises:
            PeerLost: the rank whose segment has the pool has ended.
        """
        found = self.allocate_blocks_with_evictions(count)
        return None if found is None else found[0]

    def allocate_blocks_with_evictions(self, count: int) -> tuple[list[MutableBlock], list[SequenceHash]] | None:
        """As `allocate_blocks`; also the sequence hashes of the registered blocks that were evicted for it."""
        count, evicted = integer("count", count, 0), list[SequenceHash]()
        with self._entered():
            for _ in range(_TRIES):
                slots = self._slots_for(count, evicted)
                if slots is None:
                    break
                if len(slots) == count:
                    return [self._mutable(self._lease(slot)) for slot in slots], evicted
                time.sleep(random.uniform(0, _LONGEST_REST))
        self._counts.add(refused=1)
        self._seldom.warn("refused", f"NanoKV: {count} blocks were asked for, and too few of {self._total} are free")
        return None

    def _slots_for(self, count: int, evicted: list[SequenceHash]) -> list[Slot] | None:
        """That many slots; none, if other processes were faster; None, and nothing was evicted, if there are too few.

        Args:
            evicted: takes the hashes of blocks that were evicted.
        """
        table = self._look()
        reset = self._reset_size(table)
        if reset + int(table.inactive.sum()) < count:
            return None
        gone = self._evict(table, count - reset)
        evicted += [found for row in gone if (found := sequence_of(row.key)) is not None]
        slots = self._slots.open([self._keys.private() for _ in range(count)])
        if slots is None or (self._cache.world_size > 1 and self._look().used > self._total):
            for slot in slots or ():
                self._slots.close(slot)
            return []
        self._counts.add(allocations=count, allocations_from_reset=count - len(gone))
        return slots

    def reset_inactive_pool(self) -> int:
        """Evict all inactive blocks; returns how many.

        Raises:
            PoolInUse: some blocks are still in use. All inactive ones were evicted.
        """
        with self._entered():
            gone = self._evict(table := self._look(), int(table.inactive.sum()))
            reset = self._reset_size(self._look())
        if reset != self._total:
            raise PoolInUse(self._total, reset)
        return len(gone)

    def _evict(self, table: Table, count: int) -> list[Row]:
        """Evict up to so many inactive blocks, in the order of the policy."""
        gone: list[Row] = []
        if count <= 0:
            return gone
        candidates = np.flatnonzero(table.inactive)
        for at in candidates[np.argsort(self._order(table)[candidates], kind="stable")].tolist():
            row = table.row(at)
            if self._cache.engine.allocation.evict_slot(self.segment, row.slot, row.epoch) == Status.OK:
                gone.append(row)
                self._unpublish(row.key)
                if len(gone) == count:
                    break
        self._counts.add(evictions=len(gone))
        return gone

    @abstractmethod
    def _mutable(self, lease: Lease) -> MutableBlock:
        """A handle in state Reset. Under the lock."""

    # --- what this process holds ---
    def _lease(self, holds: Slot | Held) -> Lease:
        return Lease(self._cache, holds, self._dropped)

    def _drop(self, lease: Lease) -> None:
        """A call has dropped a handle. Under the lock."""
        if lease.end() and self._open and not self._cache.closed:
            self._give_back(lease.holds)

    def _give_back(self, holds: Slot | Held) -> None:
        if isinstance(holds, Slot):
            self._slots.close(holds)
        else:
            self._active.release(holds, now_ns())

    def _look(self) -> Table:
        return Table(self._cache.engine.machine, self.segment, self._group_word)

    def _reset_size(self, table: Table) -> int:
        """Blocks that no object has, as far as the segment has room beside objects of others."""
        room = table.free_pages // self._pages + int(table.copying.sum()) - 1
        return max(min(self._total - table.used, room), 0)

    def _note_registered(self, held: Held) -> None:
        if isinstance(self._order, FirstInFirstOut):
            self._order.note(held.place.slot, held.place.epoch)

    def _unpublish(self, key: KeyDigest) -> None:
        handle = self._published.pop(key, None)
        if handle is not None:
            handle.close()

    # --- calls and their end ---
    @contextmanager
    def _entered(self) -> Iterator[None]:
        """A call: alone, on an open pool, after what was dropped has been given back."""
        self._check_open()  # before the lock, which a thread that a fork has left behind may hold
        with self._lock:
            self._check_open()
            while self._dropped:
                self._give_back(self._dropped.popleft())
            yield

    def _check_open(self) -> None:
        if not self._open:
            raise CacheClosed("this block manager was closed")
        self._cache.engine.check_open()

    def close(self) -> None:
        """Give back all blocks that this process holds, and send Remove for those it has registered. Idempotent.

        Registered blocks stay in the segment. Closing the cache does this first.
        """
        with self._lock:
            if not self._open:
                return
            if not self._cache.closed:
                while self._dropped:
                    self._give_back(self._dropped.popleft())
                self._slots.close_all()
                self._active.release_all(now_ns())
            self._open = False
            for key in list(self._published):
                self._unpublish(key)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_world(cache: NanoKVCache, layout: LayoutConfig, segment: int) -> None:
    """Raises InvalidArgument unless the pool can lie in that segment."""
    if cache.alloc != "device":
        raise InvalidArgument('a block pool needs a world with alloc="device"')
    if cache.options.evict:
        raise InvalidArgument("a block pool needs a world with evict=False: the pool evicts, and says what it evicted")
    if layout.num_blocks != 1:
        raise InvalidArgument("the layout of a pool is that of one block: num_blocks must be 1")
    geometry, first = cache.engine.geometry, cache.remote_ptr(segment, cache.engine.geometry.offsets["heap_base"])
    if first % layout.alignment or geometry.page_bytes % layout.alignment:
        raise InvalidArgument(f"an alignment of {layout.alignment} bytes needs pages that are multiples of it")
    if layout.natural_block_stride > geometry.max_object_bytes:
        most = geometry.max_object_bytes
        raise InvalidArgument(f"a block has {layout.natural_block_stride} bytes, an object at most {most}")
