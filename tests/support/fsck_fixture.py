"""A world of two segments in plain memory, for the tests of fsck: no poller, no heap provider."""

import random
from typing import Any, NamedTuple

import numpy as np

from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import (
    FLAG_PLAN,
    POSITIVE,
    unpack,
)
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import Report, check_segments

PAGE = 4096
RANKS = 2
RAW = (0,) * 8
WORLD_ID = 77


class Pin(NamedTuple):
    """A held pin: the arguments of `unpin`."""

    place: Place
    line: int


class World:
    """Two segments in plain memory, and a machine for each rank. Rank r is in its incarnation 1."""

    def __init__(self, mode: str = "device", *, may_evict: bool = True, n_pages: int = 64) -> None:
        self.mode = mode
        self.geometry = Geometry.plan(n_pages * PAGE, PAGE, RANKS, max_objects=48, ring_slots=64, pin_slots=16)
        self.views = [SegmentView(self._memory(), self.geometry) for _ in range(RANKS)]
        for rank, view in enumerate(self.views):
            view.ctl[:] = self.geometry.control_block(rank, WORLD_ID, mode, may_evict=may_evict, water=(85, 95))
            view.activity["incarnation"] = 1
        bases = [int(view.raw.ctypes.data) for view in self.views]
        tables = [self.geometry.world_table(rank, 1, bases) for rank in range(RANKS)]
        self.machines = [NativeMachine(self.geometry, table, self.views, lambda rank: None) for table in tables]
        self.dead: set[int] = set()

    def _memory(self) -> Any:
        raw = np.zeros(self.geometry.segment_bytes + PAGE, np.uint8)
        start = -raw.ctypes.data % PAGE
        return raw[start : start + self.geometry.segment_bytes]

    def check(self, quiescent: bool | None = True) -> Report:
        return check_segments(
            self.views, mode=self.mode, quiescent=quiescent, alive=lambda rank, incarnation: rank not in self.dead
        )

    def put(self, owner: int, key: int, nbytes: int = 5000, by: int = 0) -> int:
        data = np.full(max(nbytes, 1), key % 251, np.uint8)
        return self.machines[by].put(owner, digest(key), int(data.ctypes.data), nbytes, RAW, key)

    def put_summed(self, owner: int, key: int, nbytes: int = 5000, by: int = 0) -> Place:
        """Put an object with a checksum; returns its place."""
        begun = self.begin(owner, key, nbytes, by)
        assert begun.status == Status.OK
        self.machines[by].seal(digest(key), begun.place, RAW)
        assert self.machines[by].commit(begun.place) == Status.OK
        return begun.place

    def begin(self, owner: int, key: int, nbytes: int = 5000, by: int = 0) -> Begun:
        """Begin an object as a plan, whose kernel no activity word counts."""
        begun = self.machines[by].begin(owner, digest(key), nbytes, FLAG_PLAN.value, RAW, key)
        if begun.status == Status.OK:
            self.machines[by].leave(owner, begun.phase)
        return begun

    def pin(self, key: int, by: int = 0) -> Pin:
        found = self.machines[by].lookup(digest(key))
        status, line = self.machines[by].pin(found.place)
        assert status == Status.OK
        return Pin(found.place, line)

    def slot(self, key: int) -> tuple[int, int]:
        """(rank, header slot) of a READY object."""
        found = self.machines[0].lookup(digest(key))
        assert found.status == Status.OK
        return found.place.owner, found.place.slot

    def header(self, key: int) -> Any:
        rank, index = self.slot(key)
        return self.views[rank].headers[index]

    def entry(self, key: int) -> tuple[SegmentView, int]:
        """The directory entry of a READY object: (rank of its segment, number of the entry)."""
        rank, index = self.slot(key)
        home = self.views[home_of(key)]
        words = home.directory
        hit = (unpack("ENTRY", "rank", words) == rank) & (unpack("ENTRY", "header", words) == index) & (words != 0)
        assert np.count_nonzero(hit) == 1
        return home, int(np.flatnonzero(hit)[0])


def digest(key: int) -> tuple[int, int]:
    mixed = random.Random(key)
    return mixed.getrandbits(64) - (1 << 63), mixed.getrandbits(64) - (1 << 63)


def home_of(key: int) -> int:
    return int(digest(key)[1] & POSITIVE.value) % RANKS


def ten_objects() -> World:
    """Ten objects of two pages, five in each segment: key k lies with rank k % 2."""
    world = World()
    for key in range(10):
        assert world.put(key % RANKS, key) == Status.OK
    assert world.check().clean
    return world
