"""Matching registered blocks by their sequence hashes.

A match is a pin on the object of the hash, in whatever segment of the world it lies: so the block stays, and other
processes see that it is in use. Every handle of this process shares one pin. All hashes of a call are looked up under
one lock of the pool; other processes may register and evict meanwhile, and then a match finds each block or does not.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from nanokv.arguments import listed
from nanokv.blocks.handles import ImmutableBlock
from nanokv.blocks.hashes import SequenceHash
from nanokv.blocks.leases import Held
from nanokv.blocks.pool import BlockPool
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import InvalidArgument, KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.types import KeyDigest


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
