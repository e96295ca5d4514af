"""What this process holds of a pool: blocks that it fills, and registered blocks that it uses.

A block that is being filled is an object of NanoKV under a private key, WRITING, with an open plan (`Slot`). A
registered block in use is an object that is pinned once, however many handles of this process use it (`Held`).

How they are given back: a call does it at once. What nobody dropped by a call is collected by the garbage collector, in
any thread, also in one that holds a lock which giving back needs. So a `Lease` only notes it, by an append to a deque,
which takes no lock; the next call of the pool gives back what was noted. A lease ends with the last view of its bytes,
not with the handle: `torch.from_dlpack(block)` stays valid. A process that dies gives back by the owner's sweeper.
"""

import contextlib
import weakref
from collections import deque
from typing import NamedTuple

import torch

from nanokv.allocation.terms import Hold
from nanokv.blocks.hashes import SequenceHash
from nanokv.blocks.layout import LayoutConfig
from nanokv.cache.cache import NanoKVCache
from nanokv.device.machines.records import Place
from nanokv.errors import InvalidArgument, KeyNotFound, OutOfMemory, WriteLost
from nanokv.transfer.pinned import Pinned
from nanokv.types import KeyDigest, ObjMeta, WritePlan


class Slot(NamedTuple):
    """A block that is being filled."""

    key: KeyDigest
    place: Place


class Held:
    """A registered block that this process uses.

    Args:
        pinned: its pin.
        sequence: what is in it.
        primary: of a duplicate, the block that matching finds; it is used as long as the duplicate is.
    """

    def __init__(
        self, key: KeyDigest, pinned: Pinned, place: Place, sequence: SequenceHash, primary: "Held | None"
    ) -> None:
        self.key, self.pinned, self.place, self.sequence, self.primary = key, pinned, place, sequence, primary
        self.handles = 0


class Lease:
    """The bytes of a block in the hands of one handle, and what to give back when they end.

    Args:
        dropped: where it is noted, if no call ends the lease.
    """

    def __init__(self, cache: NanoKVCache, holds: Slot | Held, dropped: "deque[Slot | Held]") -> None:
        self.holds = holds
        self.bytes, owner = cache.engine.pins.payload(holds.place)
        self._end = weakref.finalize(owner, dropped.append, holds)
        self._end.atexit = False  # the end of a process gives back all that it holds

    def end(self) -> bool:
        """True if this call ends the lease: the caller gives back what it holds."""
        return self._end.detach() is not None

    def tensor(self, config: LayoutConfig) -> torch.Tensor:
        """[1, layers, outer, page_size, inner_dim], in place."""
        return self.bytes.view(config.dtype).view(config.block_shape)


def place_of(cache: NanoKVCache, found: WritePlan | ObjMeta) -> Place:
    """The place of an object that a plan or a pin describes."""
    if isinstance(found, WritePlan):
        owner, payload = found.dst_rank, found.payload_base
    else:
        owner, payload = found.owner_rank, found.payload_off
    slot = (found.header_off - cache.engine.geometry.header_offset(0)) // (
        cache.engine.geometry.header_offset(1) - cache.engine.geometry.header_offset(0)
    )
    return Place(owner, slot, found.epoch, payload, found.bytes_total)


class Slots:
    """The blocks that this process fills, in one segment.

    Attributes:
        mutable: per open block whether it is still mutable, not complete.
    """

    def __init__(self, cache: NanoKVCache, segment: int, nbytes: int, terms: Hold) -> None:
        self._cache, self._segment, self._nbytes, self._terms = cache, segment, nbytes, terms
        self.mutable: dict[KeyDigest, bool] = {}

    def close_all(self) -> None:
        """Give all back."""
        for key in list(self.mutable):
            self._close(key)

    def open(self, keys: list[KeyDigest]) -> list[Slot] | None:
        """A block per key, or None, and no block, if there is no room for all.

        Raises:
            PeerLost: the segment's owner has ended.
        """
        opened: list[Slot] = []
        try:
            for key in keys:
                where, hold = self._segment, self._terms
                plan = self._cache.open_for_write(key, self._nbytes, preferred_segment=where, hold=hold)
                self.mutable[key] = True
                opened.append(Slot(key, place_of(self._cache, plan)))
        except BaseException as error:
            for slot in opened:
                self.close(slot)
            if isinstance(error, OutOfMemory):
                return None
            raise
        return opened

    def close(self, slot: Slot) -> None:
        """Give a block back. One that was given up, for it took too long, is given back all the same."""
        self._close(slot.key)

    def _close(self, key: KeyDigest) -> None:
        if self.mutable.pop(key, None) is not None:
            with contextlib.suppress(WriteLost):
                self._cache.abort(key)


class ActivePool:
    """The registered blocks that this process uses, each pinned once."""

    def __init__(self, cache: NanoKVCache, config: LayoutConfig) -> None:
        self._cache, self._config = cache, config
        self._held: dict[KeyDigest, Held] = {}

    @property
    def handles(self) -> int:
        """How many handles callers have. A duplicate's use of its primary is none."""
        return sum(held.handles - (held.primary is not None) for held in self._held.values())

    def acquire(self, key: KeyDigest, sequence: SequenceHash, primary: Held | None = None) -> Held:
        """Use a block once more.

        Raises:
            KeyNotFound, NotReady: there is none.
            OutOfMemory: the pin ledger is full.
            InvalidArgument: it was registered with another layout.
        """
        held = self._held.get(key)
        if held is None:
            pinned = self._cache.pin(key)
            shape, dtype = pinned.tensor.shape, pinned.tensor.dtype
            if (tuple(shape), dtype) != (self._config.block_shape, self._config.dtype):
                pinned.release()
                raise InvalidArgument(f"{sequence} was registered as {tuple(shape)} of {dtype}: in another layout")
            held = self._held[key] = Held(key, pinned, place_of(self._cache, pinned.meta), sequence, primary)
        held.handles += 1
        return held

    def release(self, held: Held, now: int) -> None:
        """Use a block once less: after the last time it goes to the inactive pool, or, a duplicate, to the reset pool.

        Args:
            now: ns.
        """
        held.handles -= 1
        if held.handles:
            return
        del self._held[held.key]
        self._cache.engine.machine.touch(held.place, now)
        held.pinned.release()
        if held.primary is not None:
            with contextlib.suppress(KeyNotFound):
                self._cache.remove(held.key)
            self.release(held.primary, now)

    def release_all(self, now: int) -> None:
        """Use none any more."""
        for held in list(self._held.values()):
            while held.handles and self._held.get(held.key) is held:
                self.release(held, now)
