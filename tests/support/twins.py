"""Random host calls on two equal worlds, one with a launching machine, one native: equal answers, equal bytes."""

import random
from typing import Any, NamedTuple

import numpy as np
import torch

from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun, Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FLAG_PLAN, SIZE_CLASSES
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import check_segments
from tests.gpu.bodies import PAGE, World, flat, key

OK = Status.OK
KEYS = 12
SIZES = (0, 1, 7, 8, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 8192, 8193, 20000)
SHIFTS = (0, 8, 3)  #: of a source from a multiple of 16
CALLS = {
    **{"put": 5, "get": 2, "end": 2, "remove": 2, "begin": 1, "look": 1, "find": 1, "read": 1, "pin": 1, "unpin": 1},
    **{"drain": 1, "evict": 1, "cycle": 1, "sweep": 1, "count": 1},
}  #: call -> its weight


class Kind(NamedTuple):
    """A configuration of a world."""

    pages: int
    slots: int
    shards: int | None
    may_evict: bool
    checksum: bool


class Twins:
    """Two worlds of equal segments, on which rank 0 makes the same calls.

    Args:
        seed: of the calls and their arguments.
    """

    def __init__(self, kind: Kind, seed: int) -> None:
        self._dice, self._seed, self._now = random.Random(seed), seed, 1000
        self.launching, self.other = (World(torch.device("cpu"), **kind._asdict()) for _ in range(2))
        self.native, _ = native_of(self.other, checksum=kind.checksum)
        self._begun: list[Begun] = []
        self._pins: list[tuple[Place, int]] = []
        self._tails = [0, 0]

    def run(self, calls: int) -> None:
        """Make random calls, and check after each; then end what was begun, and run fsck.

        Raises:
            AssertionError: an answer or a byte differs, or fsck has findings.
        """
        for which in self._dice.choices([*CALLS], [*CALLS.values()], k=calls):
            self._now += 1
            getattr(self, which)()
            self.check(which)
        for begun in self._begun:
            self.both("finish", begun.place, begun.phase)
        for pin in self._pins:
            self.both("unpin", *pin)
        self.check("the end")
        report = check_segments(self.launching.views(), mode="device")
        assert report.clean, [str(finding) for finding in report.findings]

    def both(self, name: str, *args: Any) -> Any:
        """Call both machines; their answer."""
        answers = [getattr(machine, name)(*args) for machine in (self.launching.machine, self.native)]
        assert same(*answers), (name, args, *answers)
        return answers[1]

    def check(self, what: str) -> None:
        """All bytes of both segments are equal."""
        for rank, pair in enumerate(zip(self.launching.segments, self.other.segments, strict=True)):
            if not torch.equal(*pair):
                at = int((pair[0] != pair[1]).nonzero()[0])
                offsets = self.launching.geometry.offsets.items()
                region = max((start, name) for name, start in offsets if start <= at and name != "heap_limit")
                raise AssertionError(
                    f"after {what}, call {self._now - 1000}: segment {rank} differs at {at:#x}, {region}"
                )

    # --- arguments ---
    def _owner(self) -> int:
        return self._dice.randrange(2)

    def _key(self) -> tuple[int, int]:
        return key(self._dice.randrange(KEYS))

    def _place(self) -> Place | None:
        """Of the object of some key, if it is READY."""
        found = self.both("lookup", self._key())
        return found.place if found.status == OK else None

    # --- objects ---
    def put(self) -> None:
        size = self._dice.choice(SIZES)
        data = self.other.bytes(size, self._now, shift=self._dice.choice(SHIFTS))
        self.both("put", self._owner(), self._key(), data.data_ptr(), size, flat(size), self._now)

    def get(self) -> None:
        """Into a room of the right size, or of another."""
        k = self._key()
        found = self.both("lookup", k)
        fits = found.status == OK and self._dice.random() < 0.8
        self._into_rooms("get", found.place.nbytes if fits else self._dice.choice(SIZES), k)

    def read(self) -> None:
        k = self._key()
        found = self.both("lookup", k)
        if found.status == OK:
            self._into_rooms("read", found.place.nbytes, k, found.place)

    def _into_rooms(self, name: str, nbytes: int, k: tuple[int, int], place: Place | None = None) -> None:
        rooms = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2)]
        answers = []
        for machine, room in zip((self.launching.machine, self.native), rooms, strict=True):
            if place is None:
                answers.append(machine.get(k, room.data_ptr(), nbytes, flat(nbytes), self._now))
            else:
                answers.append(machine.read(k, place, room.data_ptr(), self._now))
                assert machine.verify(k, place, room.data_ptr()) == OK
        assert answers[0] == answers[1], (name, k, answers)
        assert torch.equal(*rooms), (name, k)

    def find(self) -> None:
        self.both("find", self._key())

    def remove(self) -> None:
        if self._dice.random() < 0.7:
            self.both("remove", self._key())
        elif place := self._place():
            self.both("remove_slot", *place[:3])

    def evict(self) -> None:
        """One object; another one gets a later time."""
        if place := self._place():
            self.both("evict_slot", *place[:3], self._now)
        if place := self._place():
            self.both("touch", place, self._now + 50)

    def begin(self) -> None:
        """Fill it; in a world with checksums mostly seal it."""
        owner, size = self._owner(), self._dice.choice(SIZES)
        k, what = self._key(), flat(size)
        flags = FLAG_PLAN.value if self._dice.random() < 0.3 else 0
        begun = self.both("begin", owner, k, size, flags, what, self._now)
        if begun.status == OK:
            data = self.other.bytes(size, self._now)
            for world in (self.launching, self.other):
                world.segments[owner][begun.place.payload : begun.place.payload + size] = data
            self.both("seal", k, begun.place, what)
            if self._dice.random() < 0.3:
                self.both("set_terms", begun.place, Terms(self._now + 20, self._dice.randrange(2), self._now + 90))
            self._begun.append(begun)

    def end(self) -> None:
        """Of an object that was begun: in each way."""
        if not self._begun:
            return
        place, phase = self._begun.pop(self._dice.randrange(len(self._begun)))[1:3]
        how = self._dice.random()
        if how < 0.5:
            self.both("finish", place, phase)
        elif how < 0.8:
            self.both("commit" if how < 0.65 else "abort", place)
            self.both("leave", place.owner, phase)
        else:  # as a sweeper does with what a dead producer left
            self.both("kill", *place[:2], int(self.both("state", *place[:2])) & 0xFF, place.epoch)
            self.both("leave", place.owner, phase)
            self.both("release", *place[:3])

    def pin(self) -> None:
        if place := self._place():
            status, line = self.both("pin", place)
            if status == OK:
                self._pins.append((place, line))

    def unpin(self) -> None:
        if self._pins:
            self.both("unpin", *self._pins.pop(self._dice.randrange(len(self._pins))))

    # --- the owner's host ---
    def drain(self) -> None:
        owner, room = self._owner(), self._dice.choice((1, 5, 200))
        drained = [machine.drain(owner, self._tails[owner], room) for machine in (self.launching.machine, self.native)]
        one, other = (d._replace(records=d.records[d.good]) for d in drained)  # what is gone has no header
        assert same(one, other), (one, other)
        self._tails[owner] = one.head

    def look(self) -> None:
        """At everything that the host reads."""
        owner = self._owner()
        for name in ("page_marks", "slot_marks", "page_stamps", "pin_ledger", "activity", "joining"):
            self.both(name, owner)
        self.both("headers", owner, 0, 100)
        self.both("outlook", owner, self._dice.randrange(3))
        if place := self._place():
            self.both("validate", place)
            if all(pinned != place for pinned, _ in self._pins):
                self.both("recount", *place[:2], 0)

    def cycle(self) -> None:
        """All free extents through the host, and back."""
        owner = self._owner()
        mark = self.both("begin_join", owner)
        taken = [self.both("detach", owner, size_class) for size_class in range(SIZE_CLASSES)]
        for size_class, pages in enumerate(taken):
            self.both("push_extents", owner, pages, np.full(len(pages), size_class, np.int64))
        self.both("end_join", owner, mark)

    def sweep(self) -> None:
        """A hint, and a control word."""
        owner = self._owner()
        self.both("set_control", owner, "ann_tail", self._tails[owner])

    def count(self) -> None:
        owner = self._owner()
        phase = self.both("enter", owner)
        self.both("in_flight", owner, 0, phase)
        self.both("leave", owner, phase)


def native_of(world: World, *, checksum: bool = False) -> tuple[NativeMachine, torch.Tensor]:
    """A native machine of rank 0 on the segments of a world on the CPU, and its world table."""
    bases = [segment.data_ptr() for segment in world.segments]
    table = world.geometry.world_table(0, 1, bases, checksum=checksum)
    views = [SegmentView(segment.numpy(), world.geometry) for segment in world.segments]
    return NativeMachine(world.geometry, table, views, lambda rank: None), torch.from_numpy(table)


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal: numbers, arrays, or tuples of them."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
