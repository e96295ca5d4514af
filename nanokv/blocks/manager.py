"""KVBM's block manager over NanoKV: a pool of blocks, and what their contents add: registration, matching, events.

Registering. A block is filled under a private key, for its sequence hash is known only when its last token is. To
register it is one put of its bytes under the key of its sequence hash: READY, visible to every process, or, if the hash
is registered already, refused by the protocol's claim of keys. So two processes never register one hash twice, and
one that dies in between leaves either nothing or a registered block. The cost is a copy within the segment.
Between the put and the pin of the new handle a lease keeps other processes from evicting the block; if the lease is
over by then, and the block gone, it is put again.
"""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, get_args

import torch

from nanokv.arguments import integer, listed, seconds
from nanokv.blocks.errors import BlockState
from nanokv.blocks.events import EventPublisher
from nanokv.blocks.handles import CompleteBlock, ImmutableBlock, MutableBlock
from nanokv.blocks.hashes import SequenceHash, TokenBlock
from nanokv.blocks.layout import FullyContiguous, LayoutConfig, MemoryDescriptor
from nanokv.blocks.leases import Held, Lease
from nanokv.blocks.metrics import BlockMetrics
from nanokv.blocks.pool import BlockPool
from nanokv.cache import NanoKVCache
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
from nanokv.terms import PRIORITIES, Hold, Priority
from nanokv.types import KeyDigest


# --- matching registered blocks by their sequence hashes --------------------------------------
# A match is a pin on the object of the hash, in whatever segment of the world it lies: so the block stays, and other
# processes see that it is in use. Every handle of this process shares one pin. All hashes of a call are looked up
# under one lock of the pool; other processes may register and evict meanwhile, and then a match finds each block or
# does not.
class MatchingPool(BlockPool):
    """A pool whose registered blocks are found by what is in them."""

    def match_blocks(self, sequence_hashes: Sequence[SequenceHash]) -> list[ImmutableBlock]:
        """Handles of the registered blocks of the longest prefix: up to the first hash that no block has.

        Raises:
            OutOfMemory: the pin ledger is full; InvalidArgument: no such hash, or a block of another layout. None is
                held.
        """
        hashes = listed("sequence_hashes", sequence_hashes)
        found = self._match(hashes, stop=True)
        blocks = [block for block in found if block is not None]
        self._counts.add(match_hashes_requested=len(hashes), match_blocks_returned=len(blocks))
        return blocks

    match_sequence_hashes = match_blocks  #: the name of Dynamo's older crate

    def match_blocks_scattered(self, sequence_hashes: Sequence[SequenceHash]) -> list[ImmutableBlock | None]:
        """Per hash a handle of its block, or None. Raises as `match_blocks`."""
        found = self._match(listed("sequence_hashes", sequence_hashes), stop=False)
        there = sum(block is not None for block in found)
        self._counts.add(scan_hashes_requested=len(found), scan_blocks_returned=there)
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
        self._counts.add(scan_hashes_requested=len(hashes), scan_blocks_returned=len(blocks))
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
            for key in [self._keys.of(each) for each in listed("sequence_hashes", sequence_hashes)]:
                found = self._cache.engine.allocation.locate(key)
                if found.status == Status.OK:
                    self._cache.engine.machine.touch(found.place, now_ns())
                    touched += 1
        return touched

    def _matched(self, sequence_hash: SequenceHash) -> ImmutableBlock | None:
        return self._match([sequence_hash], stop=False)[0]

    def _match(self, hashes: Sequence[SequenceHash], *, stop: bool) -> list[ImmutableBlock | None]:
        """Per hash a handle or None; with `stop` up to the first None."""
        keys = [self._keys.of(each) for each in hashes]
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
            self._counts.add(damaged=1)
            self._seldom.warn("damaged", f"NanoKV: a damaged block is dropped: {error}")
            with suppress(NanoKVError):
                self._cache.remove(key)  # else it would be found again
            return None

    @abstractmethod
    def _immutable(self, held: Held) -> ImmutableBlock:
        """A handle, which was counted. Under the lock."""


# --- the manager ------------------------------------------------------------------------------
Duplication = Literal["allow", "reject"]
_ON_ITS_WAY = 5.0  #: seconds of lease between a put and its pin
_REST = 0.001  #: seconds between two tries to register


class BlockManager(MatchingPool):
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
        super().__init__(cache, layout, segment, total_blocks, eviction)
        self.duplication_policy: Duplication = duplication
        self._patience = seconds("patience", patience)
        self._events = events
        self._location = f"nanokv:{cache.engine.heap.name}:{segment}" if storage_location is None else storage_location
        self._pool, self._metrics = pool, metrics
        if metrics is not None:
            metrics.add(pool, self._counts, self._gauges)
        self._forget = None if events is None else events.before_flush(self.note_removed)
        self._stay = cache.engine.before_close(self.close)

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
        self._counts.add(registrations=1)
        return self._immutable(held)

    def _registered(self, block: CompleteBlock, priority: Priority, deadline: float) -> Held:
        """The block of a hash, new or not, for one more handle."""
        sequence = block.sequence_hash
        key = self._keys.of(sequence)
        try:
            self._copy(block, key, priority, deadline)
        except DuplicateKey:
            first = self._active.acquire(key, sequence)
        else:
            return self._announced(block, self._taken(key, sequence, None))
        if self.duplication_policy == "reject":
            self._counts.add(registration_dedup=1)
            return first
        try:
            private = self._keys.private()
            self._copy(block, private, priority, deadline)
            held = self._taken(private, sequence, first)
        except BaseException:
            self._active.release(first, now_ns())
            raise
        self._counts.add(duplicate_blocks=1)
        return held

    def _copy(self, block: CompleteBlock, key: KeyDigest, priority: Priority, deadline: float) -> None:
        """Put the bytes of a block under a key, where there is room, or will be before the deadline."""
        hold = Hold(seconds=_ON_ITS_WAY, priority=priority, group=self._group)
        while True:
            try:
                return self._cache.put(key, block.tensor, preferred_segment=self.segment, hold=hold)
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
                self._cache.remove(key)
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
        self._counts.add(stagings=1)
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

    def close(self) -> None:
        super().close()
        if self._forget is not None:
            self._forget()
        if self._metrics is not None:
            self._metrics.remove(self._pool)
            self._metrics = None
        if not self._cache.closed:
            self._stay()
