"""KVBM's block manager over NanoKV: a pool of blocks in a segment, their handles, and what their contents add.

A pool is allocation, eviction, status; contents add registration, matching, events.

Who shares it: every process with a pool over the same segment, for the blocks and their states are in its headers
(`segment_table`). A pool object keeps only what this process holds.

What it guarantees
- `allocate_blocks` gives all blocks or none. It takes reset blocks first; then it evicts registered blocks that no
  process uses. Nothing that is pinned, leased or kept goes: the protocol refuses it, however old the look was.
- One extent of the segment stays free of blocks: a registration copies into it. So a full pool can register.
- Calls from several threads take turns. Of several processes that allocate the last blocks at once, each gives back
  what is too much, and tries again: then None may be an accident, too many blocks are never the answer.

Registering. A block is filled under a private key, for its sequence hash is known only when its last token is. To
register it is one put of its bytes under the key of its sequence hash: READY, visible to every process, or, if the hash
is registered already, refused by the protocol's claim of keys. So two processes never register one hash twice, and
one that dies in between leaves either nothing or a registered block. The cost is a copy within the segment.
Between the put and the pin of the new handle a lease keeps other processes from evicting the block; if the lease is
over by then, and the block gone, it is put again.
"""

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, Self, get_args

import numpy as np
import torch

from nanokv.allocation.terms import PRIORITIES, Hold, Priority
from nanokv.arguments import integer, listed, seconds
from nanokv.blocks.errors import BlockFull, BlockNotFull, BlockState, InvalidState, NoSuchAction, PoolInUse
from nanokv.blocks.events import EventPublisher, PublishHandle
from nanokv.blocks.hashes import (
    Keys,
    SequenceHash,
    TokenBlock,
    checked_parent,
    checked_salt,
    checked_tokens,
    sequence_of,
    token_block,
)
from nanokv.blocks.layout import FullyContiguous, LayoutConfig, MemoryDescriptor
from nanokv.blocks.leases import ActivePool, Held, Lease, Slot, Slots
from nanokv.blocks.metrics import BlockMetrics, ManagerCounts
from nanokv.blocks.segment_table import FirstInFirstOut, FoundBlock, Table, order_named
from nanokv.blocks.views import BlockView
from nanokv.cache.cache import NanoKVCache
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import (
    CacheClosed,
    DuplicateKey,
    InvalidArgument,
    KeyNotFound,
    NanoKVError,
    NotReady,
    OutOfMemory,
    SegmentCorrupt,
)
from nanokv.seldom import Seldom
from nanokv.types import KeyDigest

logger = logging.getLogger(__name__)

_TRIES = 8  #: of an allocation, if other processes take what it was to get
_LONGEST_REST = 0.002  #: seconds between two tries, so that two processes do not give back in step
Duplication = Literal["allow", "reject"]
_ON_ITS_WAY = 5.0  #: seconds of lease between a put and its pin
_REST = 0.001  #: seconds between two tries to register


class PoolStatus(NamedTuple):
    """The blocks of a pool by state, in all processes. Those missing in the sum are leased, kept or foreign."""

    total: int
    reset: int  #: can be allocated without an eviction
    filling: int  #: held by their creators, or by nobody and waiting for a grace period
    active: int  #: registered, in use
    inactive: int  #: registered, used by nobody: can be evicted


# --- handles -----------------------------------------------------------------------------------
# The handles of blocks, a type per state; each is the only one of its block until a call takes the block from it.
#
#     MutableBlock    Reset, and Partial after `init_sequence`
#     CompleteBlock   Complete
#     ImmutableBlock  Registered; a block may have several
#     WeakBlock       Registered, or gone: holds nothing
#
# What it guarantees: the transitions of KVBM's table, and no other. A call that is not possible raises InvalidState,
# with the state that the block is in, or was when this handle lost it, and changes nothing. Transitions run under the
# lock of the manager, so of two threads that commit one block, one does and the other is refused.
#
# A handle that was dropped, by `drop`, a `with` block or by nobody referring to it, gives its block back: a mutable or
# complete one to the reset pool, the last one of a registered block to the inactive pool. After `drop` no view of the
# bytes may be used.
ACTIONS = ("init_sequence", "add_token", "add_tokens", "commit", "register", "reset", "downgrade")


class BlockHandle(BlockView):
    """What all handles have in common. As a sequence, a block has its layers."""

    _state: BlockState

    def __init__(self, manager: "BlockManager", lease: Lease) -> None:
        self._manager, self._lease = manager, lease
        self._ended_by: str | None = None

    @property
    def state(self) -> BlockState:
        """The state of the block; once the handle has lost it, the last one."""
        return self._state

    @property
    def valid(self) -> bool:
        """Whether the handle still has its block."""
        return self._ended_by is None

    @property
    def tensor(self) -> torch.Tensor:
        """The elements in place: [1, layers, outer, page_size, inner_dim]."""
        self._check("tensor")
        self._manager._check_open()
        return self._lease.tensor(self._manager.layout)

    @property
    def block_id(self) -> int:
        """The number of the block's header in the segment."""
        return self._lease.holds.place.slot

    def drop(self) -> None:
        """Give the block back. Idempotent; nothing if another call has taken the block, or the manager is closed."""
        if self._manager.cache.closed:  # or this is a fork: the block is its parent's
            self._ended_by = self._ended_by or "drop"
            return
        with self._manager._lock:
            if self._ended_by is None:
                self._ended_by = "drop"
                self._manager._drop(self._lease)

    def __enter__(self) -> Self:
        self._check("with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def __repr__(self) -> str:
        ended = "" if self._ended_by is None else f", ended by {self._ended_by}"
        return f"<{type(self).__name__} {self.block_id}, {self._state.value}{ended}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            "the handle of a block cannot be copied or sent: clone an ImmutableBlock, or match its hash"
        )

    if not TYPE_CHECKING:  # a type checker is to see the actions of each type only

        def __getattr__(self, name: str) -> NoReturn:
            if name in ACTIONS and "_manager" in self.__dict__:
                raise NoSuchAction(name, self._state, self._ended_by)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check(self, action: str, *states: BlockState) -> None:
        """Raises InvalidState unless the handle has its block, in one of `states`; none: in any."""
        if self._ended_by is not None or (states and self._state not in states):
            raise InvalidState(action, self._state, self._ended_by)

    def _take(self, action: str) -> Lease:
        """The block goes to another handle. The caller has checked, under the lock."""
        self._ended_by = action
        return self._lease


class MutableBlock(BlockHandle):
    """A block that its holder fills with tokens, and writes the elements of, as it likes."""

    def __init__(self, manager: "BlockManager", lease: Lease) -> None:
        super().__init__(manager, lease)
        self._state = BlockState.RESET
        self._tokens: list[int] = []
        self._salt_hash = 0
        self._parent: SequenceHash | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens added so far."""
        return tuple(self._tokens)

    @property
    def remaining(self) -> int:
        """How many more tokens it takes."""
        return self._manager.block_size - len(self._tokens)

    @property
    def is_full(self) -> bool:
        """Whether it can be committed."""
        return not self.remaining

    def init_sequence(self, salt_hash: int, parent: SequenceHash | None = None) -> None:
        """Reset to Partial.

        Args:
            salt_hash: u64, of the request.
            parent: of the block before this one in the sequence; None: this is the first one.

        Raises:
            InvalidState, InvalidArgument: nothing was changed.
        """
        salt_hash, parent = checked_salt(salt_hash), checked_parent(parent)
        with self._manager._entered():
            self._check("init_sequence", BlockState.RESET)
            self._salt_hash, self._parent, self._state = salt_hash, parent, BlockState.PARTIAL

    def add_token(self, token: int) -> None:
        """Add a token, u32, to a Partial block: as `add_tokens`."""
        self._add("add_token", [token])

    def add_tokens(self, tokens: Iterable[int]) -> None:
        """Add tokens, u32 each, to a Partial block.

        Raises:
            BlockFull: there is not room for all: none was added.
            InvalidState, InvalidArgument: none was added.
        """
        self._add("add_tokens", tokens)

    def _add(self, action: str, tokens: Iterable[int]) -> None:
        checked = checked_tokens(tokens)
        with self._manager._entered():
            self._check(action, BlockState.PARTIAL)
            if len(checked) > self.remaining:
                raise BlockFull(f"{len(checked)} tokens were to be added to a block that takes {self.remaining} more")
            self._tokens += checked

    def commit(self) -> "CompleteBlock":
        """Partial to Complete; this handle ends.

        Raises:
            BlockNotFull: tokens are missing.
            InvalidState: nothing was changed.
        """
        with self._manager._entered():
            self._check("commit", BlockState.PARTIAL)
            if self.remaining:
                raise BlockNotFull(f"a block lacks {self.remaining} of {self._manager.block_size} tokens")
            block = token_block(self._tokens, self._salt_hash, self._parent)
            return self._manager._completed(self._take("commit"), block)

    def reset(self) -> None:
        """Partial to Reset: the tokens go. The handle keeps the block; the elements are as they are.

        Raises:
            InvalidState: it has no sequence.
        """
        with self._manager._entered():
            self._check("reset", BlockState.PARTIAL)
            self._tokens, self._parent, self._state = [], None, BlockState.RESET


class CompleteBlock(BlockHandle):
    """A block with all its tokens, which nobody else sees. Its elements are complete when it is registered."""

    _state = BlockState.COMPLETE

    def __init__(self, manager: "BlockManager", lease: Lease, block: TokenBlock) -> None:
        super().__init__(manager, lease)
        self.token_block = block

    @property
    def sequence_hash(self) -> SequenceHash:
        """The hash of the block's tokens and all before them."""
        return self.token_block.sequence_hash

    def register(self) -> "ImmutableBlock":
        """Complete to Registered: `BlockManager.register_block`."""
        return self._manager.register_block(self)

    def reset(self) -> MutableBlock:
        """Complete to Reset: the tokens go. This handle ends, the new one has the block.

        Raises:
            InvalidState: this handle has ended.
        """
        with self._manager._entered():
            self._check("reset")
            return self._manager._mutable(self._take("reset"))

    @property
    def _slot(self) -> Slot:
        assert isinstance(self._lease.holds, Slot)
        return self._lease.holds


class ImmutableBlock(BlockHandle):
    """A registered block. While a handle of any process holds it, it stays. Do not write to its elements."""

    _state = BlockState.REGISTERED

    @property
    def sequence_hash(self) -> SequenceHash:
        """What is in it."""
        return self._held.sequence

    @property
    def is_duplicate(self) -> bool:
        """Whether matching finds another block of this sequence hash."""
        return self._held.primary is not None

    def clone(self) -> "ImmutableBlock":
        """A further handle of the same block.

        Raises:
            InvalidState: this handle has ended.
        """
        with self._manager._entered():
            self._check("clone")
            self._held.handles += 1
            return self._manager._immutable(self._held)

    def downgrade(self) -> "WeakBlock":
        """A reference that holds nothing; this handle stays as it is.

        Raises:
            InvalidState: this handle has ended.
        """
        self._check("downgrade")
        return WeakBlock(self._manager, self.sequence_hash)

    @property
    def _held(self) -> Held:
        assert isinstance(self._lease.holds, Held)
        return self._lease.holds


class WeakBlock:
    """A sequence hash that was registered once, and may be still."""

    def __init__(self, manager: "BlockManager", sequence_hash: SequenceHash) -> None:
        self._manager, self.sequence_hash = manager, sequence_hash

    def upgrade(self) -> ImmutableBlock | None:
        """A handle of the block of this sequence hash, active or inactive; None if it is gone."""
        return self._manager._matched(self.sequence_hash)


# --- the manager -------------------------------------------------------------------------------
class BlockManager:
    """A pool of blocks in a segment of a world, shared with all processes that have one over it.

    Args:
        cache: a rank of a world with `alloc="device"` and `evict=False`, and with an identity if models share it.
        layout: of one block; the same in all managers of the pool.
        segment: the rank in whose segment the pool lies; default: the cache's own. It should have no other objects.
        total_blocks: default: as many as the segment holds, but for the one that registrations copy into.
        eviction: "lru": by the last use in any process; "fifo": by registration, as this process has seen it;
            "priority": by the priority of the registration, then as "lru".
        duplication: what registering a hash does that is registered: "allow": the block is kept as a further one, which
            matching does not find; "reject": it is reset, and the handle is of the one that was registered.
        events: takes Store and Remove of the blocks that this manager registers.
        metrics: shows this pool under the name `pool`.
        storage_location: of the events; default: names world and segment.
        patience: seconds for which a registration waits for room, or for another process that registers the same.

    Raises:
        InvalidArgument: a value cannot be, or the world cannot have such a pool.

    Use it from any thread. `close` it, or use it in a `with` block; closing its cache closes it first.
    """

    def __init__(
        self,
        cache: NanoKVCache,
        layout: LayoutConfig,
        *,
        segment: int | None = None,
        total_blocks: int | None = None,
        eviction: str = "lru",
        duplication: Duplication = "allow",
        events: EventPublisher | None = None,
        metrics: BlockMetrics | None = None,
        pool: str = "nanokv",
        storage_location: str | None = None,
        patience: float = 1.0,
    ) -> None:
        segment = integer("segment", cache.rank if segment is None else segment, 0, cache.world_size - 1)
        if duplication not in get_args(Duplication):
            raise InvalidArgument(f"duplication must be one of {get_args(Duplication)}, not {duplication!r}")
        cache.engine.check_open()
        order = order_named(eviction) if isinstance(eviction, str) else None
        if order is None:
            raise InvalidArgument(f'eviction must be "lru", "fifo" or "priority", not {eviction!r}')
        self.cache, self.layout, self.segment = cache, layout, segment
        self.geometry, self._order = cache.engine.geometry, order
        _check_world(cache, layout, segment)
        pages = np.array([self.geometry.pages_of(layout.natural_block_stride)])
        self._pages = int(self.geometry.extent_pages(pages)[0])
        most = self.geometry.n_pages // self._pages - 1  # one extent is what registrations copy into
        if most < 1:
            raise InvalidArgument(f"a segment of {self.geometry.n_pages} pages needs room for two blocks of {pages[0]}")
        self._total = most if total_blocks is None else integer("total_blocks", total_blocks, 1, most)
        self.keys = Keys(cache.digest("").key_check >> 32)
        self._group = f"nanokv.blocks {layout.block_shape} {layout.dtype}"
        self._group_word = cache.engine.hasher.group(self._group)
        self._slots = Slots(cache, segment, layout.natural_block_stride, Hold(group=self._group))
        self._active = ActivePool(cache, layout)
        self._dropped: deque[Slot | Held] = deque()
        self._published: dict[KeyDigest, PublishHandle] = {}
        self.counts, self._seldom = ManagerCounts(), Seldom(logger)
        self._lock = threading.RLock()
        self._open = True
        self._order(self._look())  # first in, first out needs to know what is there
        self.duplication_policy: Duplication = duplication
        self._patience = seconds("patience", patience)
        self._events = events
        self._location = f"nanokv:{cache.engine.heap.name}:{segment}" if storage_location is None else storage_location
        self._pool, self._metrics = pool, metrics
        if metrics is not None:
            metrics.add(pool, self.counts, self._gauges)
        self._forget = None if events is None else events.before_flush(self.note_removed)
        self._stay = cache.engine.before_close(self.close)

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
        """Allocate as `allocate_blocks`; also tell the sequence hashes of the blocks that were evicted for it."""
        count, evicted = integer("count", count, 0), list[SequenceHash]()
        with self._entered():
            for _ in range(_TRIES):
                slots = self._slots_for(count, evicted)
                if slots is None:
                    break
                if len(slots) == count:
                    return [self._mutable(self._lease(slot)) for slot in slots], evicted
                time.sleep(random.uniform(0, _LONGEST_REST))
        self.counts.add(refused=1)
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
        slots = self._slots.open([self.keys.private() for _ in range(count)])
        if slots is None or (self.cache.world_size > 1 and self._look().used > self._total):
            for slot in slots or ():
                self._slots.close(slot)
            return []
        self.counts.add(allocations=count, allocations_from_reset=count - len(gone))
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

    def _evict(self, table: Table, count: int) -> list[FoundBlock]:
        """Evict up to so many inactive blocks, in the order of the policy."""
        gone: list[FoundBlock] = []
        if count <= 0:
            return gone
        candidates = np.flatnonzero(table.inactive)
        for at in candidates[np.argsort(self._order(table)[candidates], kind="stable")].tolist():
            row = table.row(at)
            if self.cache.engine.allocation.evict_slot(self.segment, row.slot, row.epoch) == Status.OK:
                gone.append(row)
                self._unpublish(row.key)
                if len(gone) == count:
                    break
        self.counts.add(evictions=len(gone))
        return gone

    # --- what this process holds ---
    def _lease(self, holds: Slot | Held) -> Lease:
        return Lease(self.cache, holds, self._dropped)

    def _drop(self, lease: Lease) -> None:
        """A call has dropped a handle. Under the lock."""
        if lease.end() and self._open and not self.cache.closed:
            self._give_back(lease.holds)

    def _give_back(self, holds: Slot | Held) -> None:
        if isinstance(holds, Slot):
            self._slots.close(holds)
        else:
            self._active.release(holds, now_ns())

    def _look(self) -> Table:
        return Table(self.cache.engine.machine, self.segment, self._group_word)

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

    # --- matching ---
    def match_blocks(self, sequence_hashes: Sequence[SequenceHash]) -> list[ImmutableBlock]:
        """Handles of the registered blocks of the longest prefix: up to the first hash that no block has.

        Raises:
            OutOfMemory: the pin ledger is full; InvalidArgument: no such hash, or a block of another layout. None is
                held.
        """
        hashes = listed("sequence_hashes", sequence_hashes)
        found = self._match(hashes, stop=True)
        blocks = [block for block in found if block is not None]
        self.counts.add(match_hashes_requested=len(hashes), match_blocks_returned=len(blocks))
        return blocks

    match_sequence_hashes = match_blocks  #: the name of Dynamo's older crate

    def match_blocks_scattered(self, sequence_hashes: Sequence[SequenceHash]) -> list[ImmutableBlock | None]:
        """Per hash a handle of its block, or None. Raises as `match_blocks`."""
        found = self._match(listed("sequence_hashes", sequence_hashes), stop=False)
        there = sum(block is not None for block in found)
        self.counts.add(scan_hashes_requested=len(found), scan_blocks_returned=there)
        return found

    def scan_matches(
        self, sequence_hashes: Sequence[SequenceHash], touch: bool = True
    ) -> dict[SequenceHash, ImmutableBlock]:
        """Handles of the blocks of those hashes that have one. Raises as `match_blocks`.

        Args:
            touch: is for KVBM's count of uses, which this manager does not keep. A handle is a use either way.
        """
        if not isinstance(touch, bool):
            raise InvalidArgument(f"touch must be True or False, not {touch!r}")
        hashes = listed("sequence_hashes", sequence_hashes)
        once = list(dict.fromkeys(hashes))
        found = self._match(once, stop=False)
        blocks = {each: block for each, block in zip(once, found, strict=True) if block is not None}
        self.counts.add(scan_hashes_requested=len(hashes), scan_blocks_returned=len(blocks))
        return blocks

    def pin(self, sequence_hash: SequenceHash) -> ImmutableBlock:
        """A handle of the block of a hash: until it is dropped, the block stays.

        Raises:
            KeyNotFound: no block has it. Else as `match_blocks`.
        """
        block = self._matched(sequence_hash)
        if block is None:
            raise KeyNotFound(f"no registered block has {sequence_hash}")
        return block

    def touch_blocks(self, sequence_hashes: Sequence[SequenceHash]) -> int:
        """Note a use of the registered blocks of these hashes, for eviction; returns how many there are."""
        touched = 0
        with self._entered():
            for key in [self.keys.of(each) for each in listed("sequence_hashes", sequence_hashes)]:
                found = self.cache.engine.allocation.locate(key)
                if found.status == Status.OK:
                    self.cache.engine.machine.touch(found.place, now_ns())
                    touched += 1
        return touched

    def _matched(self, sequence_hash: SequenceHash) -> ImmutableBlock | None:
        return self._match([sequence_hash], stop=False)[0]

    def _match(self, hashes: Sequence[SequenceHash], *, stop: bool) -> list[ImmutableBlock | None]:
        """Per hash a handle or None; with `stop` up to the first None."""
        keys = [self.keys.of(each) for each in hashes]
        held: list[Held | None] = []
        with self._entered():
            try:
                for key, sequence in zip(keys, hashes, strict=True):
                    held.append(self._find(key, sequence))
                    if stop and held[-1] is None:
                        break
            except BaseException:
                for each in filter(None, held):
                    self._active.release(each, now_ns())
                raise
            return [None if each is None else self._immutable(each) for each in held]

    def _find(self, key: KeyDigest, sequence: SequenceHash) -> Held | None:
        try:
            return self._active.acquire(key, sequence)
        except (KeyNotFound, NotReady):
            return None
        except SegmentCorrupt as error:
            self.counts.add(damaged=1)
            self._seldom.warn("damaged", f"NanoKV: a damaged block is dropped: {error}")
            with suppress(NanoKVError):
                self.cache.remove(key)  # else it would be found again
            return None

    # --- registering ---
    def register_block(self, block: CompleteBlock, *, priority: Priority = "normal") -> ImmutableBlock:
        """Complete to Registered; the handle of the complete block ends.

        Args:
            priority: "low" goes first with eviction="priority"; "kept": is never evicted.

        Raises:
            InvalidState: the handle has ended.
            OutOfMemory, NotReady: there was no room for a copy, or another process did not finish to register the same
                hash, for `patience` seconds. The block is as it was: try again.
            InvalidArgument: no such block of this manager, no such priority, or the hash was registered with another
                layout. The block is as it was.
        """
        return self.register_blocks([block], priority=priority)[0]

    def register_blocks(
        self, blocks: Iterable[CompleteBlock], *, priority: Priority = "normal"
    ) -> list[ImmutableBlock]:
        """`register_block` for each. After an error those before it are registered, and in the inactive pool."""
        given = listed("blocks", blocks)
        if priority not in PRIORITIES:
            raise InvalidArgument(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
        with self._entered():
            for block in given:
                if not isinstance(block, CompleteBlock) or block._manager is not self:
                    raise InvalidArgument(f"a CompleteBlock of this manager is registered, not {block!r}")
                block._check("register", BlockState.COMPLETE)
            if len(set(map(id, given))) != len(given):
                raise InvalidArgument("a block is registered once, not twice in one call")
            return [self._register(block, priority) for block in given]

    def _register(self, block: CompleteBlock, priority: Priority) -> ImmutableBlock:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                held = self._registered(block, priority, deadline)
                break
            except (NotReady, KeyNotFound):  # another process is about to register it, or has just removed it
                if time.monotonic() > deadline:
                    raise NotReady(f"another process does not finish to register {block.sequence_hash}") from None
            time.sleep(_REST)
        self._drop(block._take("register"))
        self.counts.add(registrations=1)
        return self._immutable(held)

    def _registered(self, block: CompleteBlock, priority: Priority, deadline: float) -> Held:
        """The block of a hash, new or not, for one more handle."""
        sequence = block.sequence_hash
        key = self.keys.of(sequence)
        try:
            self._copy(block, key, priority, deadline)
        except DuplicateKey:
            first = self._active.acquire(key, sequence)
        else:
            return self._announced(block, self._taken(key, sequence, None))
        if self.duplication_policy == "reject":
            self.counts.add(registration_dedup=1)
            return first
        try:
            private = self.keys.private()
            self._copy(block, private, priority, deadline)
            held = self._taken(private, sequence, first)
        except BaseException:
            self._active.release(first, now_ns())
            raise
        self.counts.add(duplicate_blocks=1)
        return held

    def _copy(self, block: CompleteBlock, key: KeyDigest, priority: Priority, deadline: float) -> None:
        """Put the bytes of a block under a key, where there is room, or will be before the deadline."""
        hold = Hold(seconds=_ON_ITS_WAY, priority=priority, group=self._group)
        while True:
            try:
                return self.cache.put(key, block.tensor, preferred_segment=self.segment, hold=hold)
            except OutOfMemory:
                if not self._evict(self._look(), 1):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_REST)

    def _taken(self, key: KeyDigest, sequence: SequenceHash, primary: Held | None) -> Held:
        """The block that was just put, pinned; without a pin it is removed again."""
        try:
            held = self._active.acquire(key, sequence, primary)
        except BaseException:
            with contextlib.suppress(KeyNotFound):
                self.cache.remove(key)
            raise
        self._note_registered(held)
        return held

    def _announced(self, block: CompleteBlock, held: Held) -> Held:
        """Send Store. If the policy of the events raises, the block is registered, but not held, and not announced."""
        if self._events is None:
            return held
        self._unpublish(held.key)  # an earlier registration of the hash, which another process has ended
        sequence, parent = block.sequence_hash, block.token_block.parent
        try:
            handle = self._events.store(sequence, parent, self.layout.natural_block_stride, self._location)
        except BaseException:
            self._active.release(held, now_ns())
            raise
        if handle is not None:
            self._published[held.key] = handle
        return held

    def _completed(self, lease: Lease, block: TokenBlock) -> CompleteBlock:
        """A handle in state Complete. Under the lock."""
        self._slots.mutable[lease.holds.key] = False
        self.counts.add(stagings=1)
        return CompleteBlock(self, lease, block)

    def _mutable(self, lease: Lease) -> MutableBlock:
        self._slots.mutable[lease.holds.key] = True
        return MutableBlock(self, lease)

    def _immutable(self, held: Held) -> ImmutableBlock:
        return ImmutableBlock(self, self._lease(held))

    # --- events, memory, end ---
    def note_removed(self) -> int:
        """Send Remove for blocks that this manager has registered and another process has evicted; returns how many.

        The publisher calls it before each delivery.
        """
        try:
            with self._entered():
                table = self._look()
                there = {row.key for row in table.rows(table.ready)}
                gone = [key for key in self._published if key not in there]
                for key in gone:
                    self._unpublish(key)
                return len(gone)
        except CacheClosed:
            return 0

    def layout_of(self, block: MutableBlock | CompleteBlock | ImmutableBlock) -> FullyContiguous:
        """Where the bytes of a block are, for `serialize` and `gather_scatter`. They move when it is registered."""
        tensor: torch.Tensor = block.tensor
        return FullyContiguous(self.layout, [MemoryDescriptor.of(tensor)])

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
        self.cache.engine.check_open()

    def close(self) -> None:
        """Give back all blocks that this process holds, and send Remove for those it has registered. Idempotent.

        Registered blocks stay in the segment. Closing the cache does this first.
        """
        with self._lock:
            if not self._open:
                return
            if not self.cache.closed:
                while self._dropped:
                    self._give_back(self._dropped.popleft())
                self._slots.close_all()
                self._active.release_all(now_ns())
            self._open = False
            for key in list(self._published):
                self._unpublish(key)
        if self._forget is not None:
            self._forget()
        if self._metrics is not None:
            self._metrics.remove(self._pool)
            self._metrics = None
        if not self.cache.closed:
            self._stay()

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
