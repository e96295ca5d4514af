"""The eviction policies: decision by decision against a plain program, and what it is for."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native import NativeMachine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import POLICIES, Geometry, evicts_by
from nanokv.device.segment.layout import READY, STATE_MASK, unpack
from nanokv.tools.replay.policies import Fifo
from tests.support.lifetimes_model import Lifetimes
from tests.support.plain_world import PlainWorld

PAGE = 64
RAW = (0,) * 8
TICK = 4  #: ns: times are stored without their two lowest bits
LOW, HIGH = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9  # odd: distinct numbers have distinct products


class Segment:
    """One segment of `pages` pages. Objects are numbers, and the time is told."""

    def __init__(self, pages: int, slots: int, policy: str) -> None:
        self.geometry = Geometry.plan(pages * PAGE, PAGE, 1, size_classes=(1,), max_objects=slots, shards=1)
        world = PlainWorld(self.geometry, may_evict=True)
        world.views[0].ctl["may_evict"] = evicts_by(True, policy)
        self.machine = NativeMachine(self.geometry, world.tables[0], world.views, lambda rank: None)
        self.view = world.views[0]
        self.bytes = np.zeros(PAGE, np.uint8)

    def use(self, number: int, now: int) -> bool:
        """Read an object; put it if it is not there, and tell so."""
        address = int(self.bytes.ctypes.data)
        if self.machine.get(key(number), address, PAGE, RAW, now) == Status.OK:
            return False
        assert self.machine.put(0, key(number), address, PAGE, RAW, now) == Status.OK
        return True

    @property
    def keys(self) -> dict[int, int]:
        """Per object that is there, by the low half of its key, how often it was used again."""
        headers = self.view.headers[(self.view.headers["state"] & STATE_MASK.value) == READY.value]
        uses = unpack("ACCESS", "use", headers["last_access"])
        return dict(zip(headers["key_hash"].tolist(), uses.tolist(), strict=True))


def key(number: int) -> tuple[int, int]:
    halves = np.array([number * LOW % 2**64, number * HIGH % 2**64], np.uint64).view(np.int64)
    return int(halves[0]), int(halves[1])


def low_half(number: int) -> int:
    return number * LOW % 2**64


def compare(policy: str, uses: Iterator[tuple[int, int]], pages: int, slots: int) -> None:
    """Use objects at times, in both: the same must be there after each step."""
    segment, model, now = Segment(pages, slots, policy), Lifetimes(pages, slots, policy), 1000
    for number, later in uses:
        now += later * TICK
        if segment.use(number, now):
            model.put(low_half(number), now)
        else:
            model.get(low_half(number), now)
        assert segment.keys == model.keys
    control = segment.view.ctl[0]
    found = [int(control[name]) for name in ("clock_hand", "life", "gain", "gone_new", "gone_used")]
    assert found == [model.hand, model.life, model.gain, *model.gone]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5000)), max_size=120),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from(POLICIES),
)
def test_every_decision_is_the_models(uses: list[tuple[int, int]], pages: int, more: int, policy: str) -> None:
    compare(policy, iter(uses), pages, pages + more)


@pytest.mark.parametrize("pages", [40, 300])
@pytest.mark.parametrize("kind", ["zipf", "scan", "loop", "chats"])
@pytest.mark.parametrize("policy", POLICIES)
def test_also_over_long_histories(policy: str, kind: str, pages: int) -> None:
    compare(policy, history(kind, 3000), pages, pages + 64)


def history(kind: str, count: int) -> Iterator[tuple[int, int]]:
    draw = np.random.default_rng(7)
    for i in range(count):
        later = int(draw.integers(1, 10_000))
        if kind == "zipf":
            yield int(min(draw.zipf(1.2), 2000)), later
        elif kind == "scan":  # half of the uses are of one-time objects
            yield (10_000 + i if i % 2 else 1 + int(draw.integers(60))), later
        elif kind == "loop":
            yield 1 + i % 150, later
        else:  # a chain of ten, from one of eighty conversations
            yield 1 + 10 * int(np.random.default_rng(i // 10).integers(80)) + i % 10, later


def hits(uses: list[int], pages: int) -> int:
    segment, found = Segment(pages, pages + 64, "lifetimes"), 0
    for now, number in enumerate(uses, 1):
        found += not segment.use(number, 1000 * now)
    return found


def test_a_scan_does_not_take_what_is_used_again() -> None:
    """Sixty objects are used in turn, and after each a one-time object comes: an LRU of 100 keeps none of them."""
    uses = [n for i in range(6000) for n in (1 + i % 60, 10_000 + i)]
    assert hits(uses, 100) > 0.5 * 6000


def test_a_loop_that_is_too_large_is_kept_in_part() -> None:
    uses = [1 + i % 1200 for i in range(12_000)]
    assert hits(uses, 1000) > 0.04 * len(uses)  # LRU, FIFO and CLOCK: none


@given(st.lists(st.integers(1, 15), max_size=150), st.integers(1, 8))
def test_fifo_is_fifo(uses: list[int], pages: int) -> None:
    segment, queue = Segment(pages, pages + 3, "fifo"), Fifo(pages)
    for now, number in enumerate(uses):
        segment.use(number, now)
        queue.use(number)
        assert set(segment.keys) == {low_half(other) for other in range(16) if other in queue}


def test_a_heap_that_may_not_evict_refuses() -> None:
    assert [evicts_by(False, policy) for policy in POLICIES] == [0, 0, 0]
    segment = Segment(2, 8, "clock")
    segment.view.ctl["may_evict"] = 0
    assert segment.use(1, 1) and segment.use(2, 2)
    with pytest.raises(AssertionError):
        segment.use(3, 3)
    assert set(segment.keys) == {low_half(1), low_half(2)}
