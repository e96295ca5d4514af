"""Eviction of neighbours: an extent that is larger than each object in its way."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.last_access import lease_until
from nanokv.device.segment.layout import READY, STATE_MASK, WANTED, unpack
from nanokv.fsck import check_segments
from tests.support.plain_world import PlainWorld

PAGE = 64
RAW = (0,) * 8
CLASSES = (1, 2, 4, 8)


class Segment:
    """One segment of `pages` pages. Objects are numbers, and hold as many bytes of their number as fit."""

    def __init__(self, pages: int, slots: int = 64) -> None:
        geometry = Geometry.plan(pages * PAGE, PAGE, 1, size_classes=CLASSES, max_objects=slots, shards=1)
        world = PlainWorld(geometry, may_evict=True)
        self.machine = NativeMachine(geometry, world.tables[0], world.views, lambda rank: None)
        self.view = world.views[0]
        self.now = 1000

    def put(self, number: int, pages: int) -> int:
        """Put an object of `pages` pages."""
        self.now += 1000
        words = np.full(pages * PAGE // 8, number, np.int64)
        return self.machine.put(0, key(number), int(words.ctypes.data), words.nbytes, RAW, self.now)

    def get(self, number: int, pages: int) -> bool:
        """Whether an object is there; its bytes must be its own."""
        self.now += 1000
        words = np.empty(pages * PAGE // 8, np.int64)
        status = self.machine.get(key(number), int(words.ctypes.data), words.nbytes, RAW, self.now)
        assert status in (Status.OK, Status.MISS)
        assert status == Status.MISS or (words == number).all()
        return status == Status.OK

    def place(self, number: int) -> Place:
        """Where an object is."""
        found = self.machine.lookup(key(number))
        assert found.status == Status.OK
        return found.place

    @property
    def there(self) -> set[int]:
        """The objects that are READY."""
        headers = self.view.headers[(self.view.headers["state"] & STATE_MASK.value) == READY.value]
        return {int(half) for half in headers["key_hash"]}

    @property
    def wanted(self) -> list[int]:
        """The size classes of the WANTED hints."""
        hints = self.machine.drain(0, 0, 1000).hints
        return unpack("RING", "header", hints[unpack("RING", "kind", hints) == WANTED.value]).tolist()

    def check(self) -> None:
        """At rest, nothing is broken or leaked."""
        assert check_segments([self.view], mode="device").findings == ()


def key(number: int) -> tuple[int, int]:
    return number, number * 7919 + 1


@pytest.fixture
def full() -> Segment:
    """Sixteen objects of one page, 1 to 16 in the order of their pages, in a heap of sixteen."""
    segment = Segment(16)
    assert [segment.put(number, 1) for number in range(1, 17)] == [Status.OK] * 16
    return segment


@pytest.mark.parametrize("pages", [2, 3, 4, 8])
def test_as_many_go_as_the_extent_has_pages(full: Segment, pages: int) -> None:
    assert full.put(100, pages) == Status.OK
    gone = {*range(1, 17)} - full.there
    extent = min(n for n in CLASSES if n >= pages)
    assert gone == {*range(min(gone), min(gone) + extent)}
    assert full.view.ctl["evicted"][0] == extent
    assert full.get(100, pages)
    assert all(full.get(number, 1) for number in full.there - {100})
    full.check()


def test_objects_of_other_sizes_go_and_what_they_had_too_much_is_free() -> None:
    segment = Segment(16)
    for number, pages in enumerate((1, 2, 4, 1, 8), 1):
        assert segment.put(number, pages) == Status.OK
    assert segment.put(100, 8) == Status.OK  # one object is as large: it goes alone
    assert segment.there == {1, 2, 3, 4, 100}
    assert segment.machine.remove(key(100)) == Status.OK
    assert segment.put(100, 4) == Status.OK and segment.put(101, 4) == Status.OK
    for number in (3, 100, 101):  # no object of four pages may go: 1 and 2 have three together, and 4 is apart
        assert segment.machine.pin(segment.place(number))[0] == Status.OK
    assert segment.put(102, 4) == Status.FULL
    assert segment.wanted == [2]
    assert segment.there == {1, 2, 3, 4, 100, 101}
    assert segment.put(103, 2) == Status.OK  # 2 goes alone
    assert segment.there == {1, 3, 4, 100, 101, 103}
    segment.check()


def test_the_rest_of_a_run_is_given_back() -> None:
    segment = Segment(8)
    for number, pages in enumerate((1, 2, 1, 4), 1):
        assert segment.put(number, pages) == Status.OK
    assert segment.machine.pin(segment.place(4))[0] == Status.OK
    assert segment.machine.pin(segment.place(3))[0] == Status.OK
    assert segment.machine.remove(key(2)) == Status.OK
    assert segment.put(5, 1) == Status.OK and segment.put(6, 1) == Status.OK  # the pages of 2
    assert segment.put(100, 2) == Status.OK
    assert len(segment.there & {1, 5, 6}) == 1  # of three neighbours two go
    assert {3, 4, 100} <= segment.there
    segment.check()


def pin(segment: Segment, number: int) -> None:
    assert segment.machine.pin(segment.place(number))[0] == Status.OK


def lease(segment: Segment, number: int) -> None:
    assert segment.machine.renew(segment.place(number), *lease_until(segment.now + 10**9))


@pytest.mark.parametrize("keep", [pin, lease])
def test_what_must_stay_stays(full: Segment, keep: Callable[[Segment, int], None]) -> None:
    for number in (4, 8, 12, 16):
        keep(full, number)
    assert full.put(100, 4) == Status.FULL
    assert full.there == {*range(1, 17)}  # nothing goes for a run that cannot be had
    assert full.wanted == [2]
    assert full.put(101, 2) == Status.OK
    assert {4, 8, 12, 16, 101} <= full.there and len(full.there) == 15
    full.check()


def test_old_neighbours_go_before_used_ones(full: Segment) -> None:
    for number in (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14):  # 15 and 16 are the only neighbours not used since
        assert full.get(number, 1)
    assert full.put(100, 2) == Status.OK
    assert {*range(1, 17)} - full.there == {15, 16}


def test_a_large_object_that_is_young_stays_while_small_ones_have_lived_long_enough(full: Segment) -> None:
    """Else each large object would go for the next one, while the small ones stay for ever."""
    assert full.put(17, 1) == Status.OK  # from now on the segment knows how long objects live
    assert full.put(100, 8) == Status.OK
    small = full.there - {100}
    assert len(small) == 8
    assert full.put(101, 4) == Status.OK
    assert {100, 101} <= full.there and len(full.there & small) == 4
    full.check()


def test_a_large_object_goes_where_its_neighbours_may_not(full: Segment) -> None:
    assert full.put(17, 1) == Status.OK
    assert full.put(100, 8) == Status.OK
    for number in full.there - {100}:
        pin(full, number)
    assert full.put(101, 4) == Status.OK
    assert 100 not in full.there and 101 in full.there
    full.check()


def test_objects_without_pages_and_a_large_one() -> None:
    segment = Segment(8)
    assert segment.put(1, 0) == Status.OK
    for number in range(2, 10):
        assert segment.put(number, 1) == Status.OK
    assert segment.put(100, 8) == Status.OK
    assert segment.there == {1, 100}
    segment.check()


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "put", "get", "remove", "pin", "unpin"]), st.integers(1, 20)), max_size=150
    )
)
def test_any_history_leaves_a_sound_heap(steps: list[tuple[str, int]]) -> None:
    segment, pages_of, pins = Segment(24), {n: 1 + n * 5 % 8 for n in range(1, 21)}, dict[int, tuple[Place, int]]()
    for what, number in steps:
        if what == "put":
            pinned = sorted(pins)
            status = segment.put(number, pages_of[number])
            assert status in (Status.OK, Status.DUPLICATE, Status.FULL)
            assert {*pinned} <= segment.there
            assert status != Status.FULL or pins or segment.wanted, (
                "a refused put leaves a hint, or a pin is in its way"
            )
        elif what == "get":
            segment.get(number, pages_of[number])
        elif what == "remove" and number not in pins:
            segment.machine.remove(key(number))
        elif what == "pin" and number in segment.there and number not in pins:
            place = segment.place(number)
            pins[number] = (place, segment.machine.pin(place)[1])
        elif what == "unpin" and number in pins:
            assert segment.machine.unpin(*pins.pop(number)) == Status.OK
    for place, line in pins.values():
        assert segment.machine.unpin(place, line) == Status.OK
    for number in segment.there:
        assert segment.get(number, pages_of[number])
    segment.check()
