"""The state of every block of a pool, as the headers of its segment show it to any process.

    header                                       the block is
    no header has its pages                      Reset, in the reset pool
    WRITING, private key                         Reset, Partial or Complete, in the hands of a process
    WRITING, key of a sequence hash              the copy that a registration makes, for the time of a memcpy
    READY, key of a sequence hash, pins > 0      Registered, in use: in the active pool
    READY, key of a sequence hash, no pins       Registered, in the inactive pool; under a lease, on its way there
    READY, private key                           Registered as a duplicate
    DEAD, with pages                             of a process that died, or was too slow: Reset after a grace period

An object is a block of this pool only if its label names the pool's group: identity, layout and "nanokv.blocks".
Objects of others, also of the same identity, take room but are never touched.

What it guarantees: a process that dies changes no header, but the sweeper of the segment's owner makes its WRITING
headers DEAD and takes its pins out; so its blocks come back without anybody having to know which they were.

A look copies the headers by relaxed loads: each header's STATE word is consistent, several are not. Who acts on a row
names its slot and epoch, and the protocol refuses what has moved on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.blocks.hashes import CHECK_BITS, PRIVATE
from nanokv.device.machines.base import Machine
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import stays, time_of
from nanokv.device.segment.layout import (
    FLAG_LABEL,
    HIGH,
    KEPT,
    LOW,
    READY,
    STATE_MASK,
    key_checks,
    names_producer,
    unpack,
)
from nanokv.types import KeyDigest, known_digest

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
_RANKS = {LOW.value: 0, 0: 1, HIGH.value: 2, KEPT.value: 3}  # priorities, as they are evicted


class FoundBlock(NamedTuple):
    """A block, as a look has found it."""

    slot: int
    epoch: int
    key: KeyDigest


class Table:
    """One look at the headers of a segment that have pages.

    Args:
        group: the word of the pool's group, as `Hasher.group` has it.
    """

    def __init__(self, machine: Machine, owner: int, group: int) -> None:
        geometry = machine.geometry
        used = min(int(machine.control(owner)["hdr_head"][0]), geometry.hdr_count)
        headers = machine.headers(owner, 0, used)
        self._slots: Numbers = np.flatnonzero(headers["n_pages"])
        self._headers = headers[self._slots]
        labels = machine.labels(owner, 0, used)[self._slots]  # after the headers: see `device/protocol/label.py`
        labelled = (self._headers["flags"] & FLAG_LABEL.value != 0) & names_producer(self._headers)
        ours: Mask = labelled & (labels["group"].view(np.int64) == group)
        self._checks = key_checks(self._headers).astype(np.uint64)
        private: Mask = (self._checks >> np.uint64(CHECK_BITS) & np.uint64(PRIVATE)) == np.uint64(PRIVATE)
        self.ready: Mask = ours & ((self._headers["state"] & STATE_MASK.value) == READY.value)
        self.held: Mask = ours & private & ~self.ready  # by their creators, or waiting for a grace period
        self.copying: Mask = ours & ~private & ~self.ready
        pins = unpack("STATE", "pins", self._headers["state"].astype(np.int64))
        now = now_ns()
        self.active: Mask = self.ready & (pins > 0)
        self.inactive: Mask = self.ready & (pins == 0) & ~stays(self._headers["last_access"], now)
        self.free_pages = geometry.n_pages - int(geometry.extent_pages(self._headers["n_pages"]).sum())

    @property
    def used(self) -> int:
        """Blocks that are not in the reset pool; the copies of registrations under way do not count."""
        return int(self.held.sum() + self.ready.sum())

    @property
    def last_use(self) -> Numbers:
        """Per row the time of its last use in ns."""
        return time_of(self._headers["last_access"]).astype(np.int64)

    @property
    def priority(self) -> Numbers:
        """Per row 0 to 3: what is evicted first, to what is never."""
        found = unpack("ACCESS", "priority", self._headers["last_access"]).astype(np.int64)
        ranks: Numbers = np.array([_RANKS[value] for value in range(4)], np.int64)[found]
        return ranks

    def lives(self) -> list[tuple[int, int]]:
        """Per row (slot, epoch): no two blocks ever have the same."""
        return list(zip(self._slots.tolist(), self._headers["epoch"].tolist(), strict=True))

    def row(self, at: int) -> FoundBlock:
        """The row at a place."""
        header: Any = self._headers[at]
        key = known_digest(int(header["key_hash"].astype(np.int64)), int(self._checks[at].astype(np.int64)))
        return FoundBlock(int(self._slots[at]), int(header["epoch"]), key)

    def rows(self, mask: Mask) -> list[FoundBlock]:
        """The rows of a mask."""
        return [self.row(at) for at in np.flatnonzero(mask).tolist()]


Order = Callable[[Table], Numbers]  #: per row a key: the smallest is evicted first


def least_recently_used(table: Table) -> Numbers:
    """LRU: by the last use in any process."""
    return table.last_use


class FirstInFirstOut:
    """FIFO: by when this process has seen a block first; it sees those that it registers at once.

    A header tells the last use of a block, not when it was made.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}
        self._next = 0

    def note(self, slot: int, epoch: int) -> None:
        """A block was registered."""
        self._seen.setdefault((slot, epoch), self._next)
        self._next += 1

    def __call__(self, table: Table) -> Numbers:
        lives = table.lives()
        ready = table.ready.tolist()
        for at in np.argsort(table.last_use, kind="stable").tolist():
            if ready[at]:
                self.note(*lives[at])
        self._seen = {life: self._seen[life] for at, life in enumerate(lives) if ready[at]}
        return np.array([self._seen.get(life, self._next) for life in lives], np.int64)


def by_priority(table: Table) -> Numbers:
    """Sort by priority, low first; within one by the last use."""
    ranks = np.empty(len(table.last_use), np.int64)
    ranks[np.lexsort((table.last_use, table.priority))] = np.arange(len(ranks))
    return ranks


def order_named(name: str) -> Order | None:
    """The order of a policy: "lru", "fifo" or "priority"; None for any other name."""
    found: dict[str, Callable[[], Order]] = {
        "lru": lambda: least_recently_used,
        "fifo": FirstInFirstOut,
        "priority": lambda: by_priority,
    }
    return found[name]() if name in found else None
