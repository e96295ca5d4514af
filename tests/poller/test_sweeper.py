"""The poller and the sweeper, stepped by hand on a local world: no thread, no sleep."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import (
    DEAD,
    FLAGS_EPOCH_SHIFT,
    PIN_HELD,
    RING_HEADER_MASK,
    RING_HEADER_SHIFT,
    STATE_MASK,
    STORED,
    WRITING,
    unpack,
)
from nanokv.device.segment.views import SegmentView
from nanokv.heap.local import LocalHeap, LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.intake import BATCH, HOLE_PATIENCE
from nanokv.host_poller.poller import Poller
from nanokv.space.coalesce import carve_runs, join_free_extents
from nanokv.space.make_room import make_room
from tests.support.faults import Calls

PAGE = 4096
RAW = (0,) * 8


class Rank:
    """One virtual rank with its machine; a rank can be declared dead."""

    def __init__(self, heap: LocalHeap) -> None:
        table = heap.geometry.world_table(heap.rank, heap.incarnation, heap.bases)
        views = []
        for rank in range(heap.world_size):
            raw = heap.host_view(rank)
            assert raw is not None
            views.append(SegmentView(raw, heap.geometry))
        self.heap, self.views = heap, views
        self.machine = NativeMachine(heap.geometry, table, views, lambda rank: None)

    def poller(self, write_timeout: float = 10.0) -> Poller:
        return Poller(self.machine, self.heap, write_timeout=write_timeout, reclaims=True)

    def put(self, owner: int, key: int, nbytes: int = 100) -> int:
        data = np.full(max(nbytes, 1), key % 251, np.uint8)
        return self.machine.put(owner, (key, key * 7919), int(data.ctypes.data), nbytes, RAW, key)

    def begin(self, owner: int, key: int, nbytes: int = 100, flags: int = 0) -> Begun:
        begun = self.machine.begin(owner, (key, key * 7919), nbytes, flags, RAW, 0)
        assert begun.status == Status.OK
        return begun


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    geometry = Geometry.plan(64 * PAGE, PAGE, 2, ring_slots=16)
    world = LocalWorld(WorldSpec(geometry, mode="device", may_evict=False, water=(85, 95)))
    heaps = [world.heap(rank) for rank in range(2)]
    yield [Rank(heap) for heap in heaps]
    for heap in heaps:
        heap.close()


def settle(poller: Poller, now: float, steps: int = 12) -> None:
    for i in range(steps):
        poller.drain(now + i)
        poller.sweep(now + i)


def test_hints_become_rows(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    for key in range(5):
        assert ranks[0].put(1, key) == Status.OK
    assert poller.drain(0.0) == 5
    assert {k.key_hash for k in poller.index.digests()} == set(range(5))
    ranks[0].machine.remove((3, 3 * 7919))
    assert poller.drain(0.0) == 1
    assert {k.key_hash for k in poller.index.digests()} == {0, 1, 2, 4}


def test_a_full_ring_loses_hints_but_no_object(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    for key in range(40):
        assert ranks[0].put(1, key) == Status.OK
    assert ranks[1].views[1].ctl["missed"][0] == 40 - 16
    poller.drain(0.0)
    assert len(poller.index) == 16
    poller.sweep(0.0)
    assert len(poller.index) == 40
    assert poller.sweeper.counts.found == 24


def test_a_producer_that_dies_with_a_ticket_does_not_stop_the_ring(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    ranks[0].put(1, 1)
    ranks[1].views[1].ctl["ann_head"] += 1  # a ticket is taken, and never filled
    ranks[0].put(1, 2)
    assert poller.drain(0.0) == 2
    assert len(poller.index) == 2
    assert ranks[1].views[1].ctl["ann_tail"] == 1, "it comes back to the hole for a while"
    poller.drain(HOLE_PATIENCE * 2)
    assert ranks[1].views[1].ctl["ann_tail"] == 3
    for key in range(3, 60):
        ranks[0].put(1, key)
        poller.drain(100.0)
    assert len(poller.index) == 59


def test_a_corrupt_hint_is_counted(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    view = ranks[1].views[1]
    view.ring[0] = STORED.value | RING_HEADER_MASK.value << RING_HEADER_SHIFT.value
    view.ring[1] = 7
    view.ctl["ann_head"] = 2
    ranks[0].put(1, 5)
    assert poller.drain(0.0) == 3
    assert poller.intake.corrupt == 2
    assert len(poller.index) == 1


def test_an_object_that_takes_too_long_is_given_up_and_its_pages_come_back(ranks: list[Rank]) -> None:
    poller = ranks[1].poller(write_timeout=5.0)
    begun = ranks[0].begin(1, 7, 3 * PAGE)
    poller.sweep(0.0)
    poller.sweep(4.0)
    assert poller.sweeper.counts.given_up == 0
    poller.sweep(6.0)
    assert poller.sweeper.counts.given_up == 1
    settle(poller, 7.0)
    assert poller.sweeper.counts.released == 0, "the producer is still at work: its pages stay in quarantine"
    assert ranks[0].machine.finish(begun.place, begun.phase) == Status.LOST
    settle(poller, 30.0)
    assert poller.sweeper.counts.released == 1
    assert ranks[1].machine.page_marks(1).any()
    assert ranks[0].put(1, 7) == Status.OK, "the key is free again"


def test_a_plan_waits_for_its_producers_word(ranks: list[Rank]) -> None:
    poller = ranks[1].poller(write_timeout=5.0)
    begun = ranks[0].begin(1, 7, PAGE, flags=1)
    ranks[0].machine.leave(1, begun.phase)
    poller.sweep(0.0)
    settle(poller, 6.0)
    assert (poller.sweeper.counts.given_up, poller.sweeper.counts.released) == (1, 0)
    assert ranks[0].machine.commit(begun.place) == Status.LOST
    settle(poller, 30.0)
    assert poller.sweeper.counts.released == 1


def test_a_producer_is_not_taken_for_the_dead_one_of_another_epoch(ranks: list[Rank]) -> None:
    """The sweeper sees the new epoch beside flags and producer of the last one. A put that stays so takes too long."""
    poller = ranks[1].poller(write_timeout=5.0)
    begun = ranks[0].begin(1, 7)
    ranks[0].heap.close()
    header = ranks[1].views[1].headers[begun.place.slot : begun.place.slot + 1]
    header["flags"] ^= np.uint32(1 << FLAGS_EPOCH_SHIFT.value)
    poller.sweep(0.0)
    poller.sweep(4.0)
    assert poller.sweeper.counts.given_up == 0
    settle(poller, 6.0)
    counts = poller.sweeper.counts
    assert (counts.given_up, counts.orphaned, counts.released) == (1, 0, 1)


def test_what_a_dead_producer_left_is_reclaimed(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    poller.sweep(0.0)
    ranks[0].begin(1, 7, 3 * PAGE)  # WRITING
    plan = ranks[0].begin(1, 8, PAGE, flags=1)
    ranks[0].put(1, 9)
    slot = int(ranks[1].views[1].ctl["hdr_head"][0])
    ranks[1].views[1].ctl["hdr_head"] += 1  # the producer took a slot, and died before it marked it
    ranks[1].views[1].ctl["bump_ptr"] += 5 * PAGE  # the producer took pages, and died before a header named them
    ranks[0].heap.close()
    settle(poller, 1.0, steps=30)
    counts = poller.sweeper.counts
    assert (counts.given_up, counts.released) == (2, 2)
    assert (counts.leaked_pages, counts.leaked_slots) == (5, 1)
    assert ranks[1].machine.slot_marks(1)[slot] == 1
    assert plan.place.payload
    assert unpack("JOINING", "producer", ranks[1].views[1].ctl["joining"]) == 0
    assert len(poller.index) == 1
    stored = [ranks[1].put(1, key) for key in range(100, 163)]
    assert stored == [Status.OK] * 63, "all pages but the one of key 9 are there again"
    assert ranks[1].put(1, 999) == Status.FULL


def test_deaths_are_counted_once_a_sweep(ranks: list[Rank], calls: Calls) -> None:
    sweeper, heap = ranks[1].poller().sweeper, ranks[1].heap
    sweeper.step(0.0)
    ranks[0].heap.close()
    asked = calls.noted(heap, "alive")
    assert sweeper.somebody_died() and sweeper.somebody_died()
    assert [rank for rank, _ in asked] == [0, 1]
    sweeper.step(1.0)
    assert sweeper.pending, "an audit has begun"
    assert not sweeper.somebody_died()


def test_a_remover_that_died_half_way(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    ranks[0].put(1, 7, 2 * PAGE)
    found = ranks[0].machine.lookup((7, 7 * 7919))
    ranks[0].machine.kill(1, found.place.slot, 2, found.place.epoch)
    settle(poller, 0.0)
    assert poller.sweeper.counts.released == 1
    assert not ranks[1].views[1].directory.any() and not ranks[0].views[0].directory.any()
    settle(poller, 20.0)
    assert poller.sweeper.counts.released == 1, "a slot on the free list is not freed again"


def test_a_remover_of_an_object_without_bytes_that_died_half_way(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    poller.sweep(0.0)
    ranks[0].put(1, 7, 0)
    found = ranks[0].machine.lookup((7, 7 * 7919))
    ranks[0].machine.kill(1, found.place.slot, 2, found.place.epoch)
    ranks[0].heap.close()
    settle(poller, 1.0, steps=30)
    assert poller.sweeper.counts.leaked_slots == 1
    assert not ranks[1].views[1].directory.any() and not ranks[1].views[0].directory.any()


def test_the_pins_of_the_dead_are_taken_away(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    ranks[1].put(1, 7)
    found = ranks[0].machine.lookup((7, 7 * 7919))
    assert ranks[0].machine.pin(found.place)[0] == Status.OK
    status, line = ranks[1].machine.pin(found.place)
    assert status == Status.OK
    assert ranks[1].views[1].pins[line] & 3 == PIN_HELD.value
    poller.sweep(0.0)
    assert ranks[1].machine.remove((7, 7 * 7919)) == Status.PINNED
    ranks[0].heap.close()
    poller.sweep(1.0)
    assert poller.sweeper.counts.pins_dropped == 1
    assert ranks[1].machine.remove((7, 7 * 7919)) == Status.PINNED, "the living one still holds it"
    assert ranks[1].machine.unpin(found.place, line) == Status.OK
    assert ranks[1].machine.remove((7, 7 * 7919)) == Status.OK
    assert not ranks[1].views[1].pins.any()


def test_grace_waits_for_operations_of_both_phases(ranks: list[Rank]) -> None:
    grace = Grace(ranks[1].machine, ranks[1].heap)
    grace.poll()
    assert grace.completed == 0, "nobody asked"
    old = ranks[0].machine.enter(1)
    ticket = grace.request()
    for _ in range(5):
        grace.poll()
    assert grace.completed < ticket
    young = ranks[0].machine.enter(1)
    assert young != old, "the phase was flipped"
    ranks[0].machine.leave(1, old)
    grace.poll()
    assert grace.completed == ticket, "operations that began later are not waited for"
    second = grace.request()
    for _ in range(5):
        grace.poll()
    assert grace.completed < second
    ranks[0].machine.leave(1, young)
    for _ in range(2):
        grace.poll()
    assert grace.completed == second


def test_a_request_during_a_period_waits_for_the_next(ranks: list[Rank]) -> None:
    grace = Grace(ranks[1].machine, ranks[1].heap)
    phase = ranks[0].machine.enter(1)
    first = grace.request()
    grace.poll()
    second = grace.request()
    assert second == first + 1
    ranks[0].machine.leave(1, phase)
    grace.poll()
    assert grace.completed == first
    grace.poll()
    assert grace.completed == second


def test_carve_runs_covers_every_page_once() -> None:
    geometry = Geometry.plan(256 * PAGE, PAGE, 1)
    rng = np.random.default_rng(5)
    for _ in range(50):
        pages = np.flatnonzero(rng.random(256) < rng.random())
        if not len(pages):
            continue
        firsts, kinds = carve_runs(geometry, pages)
        covered = [p for f, k in zip(firsts, kinds, strict=True) for p in range(f, f + geometry.class_pages[k])]
        assert sorted(covered) == pages.tolist()


def test_neighbours_are_joined(ranks: list[Rank]) -> None:
    free_pieces(ranks)
    assert ranks[0].put(1, 100, 64 * PAGE) == Status.FULL
    assert join_free_extents(ranks[0].machine, 1) == 64
    assert ranks[0].put(1, 100, 64 * PAGE) == Status.OK
    assert unpack("JOINING", "producer", ranks[1].views[1].ctl["joining"]) == 0
    assert not ranks[1].views[1].activity["in_flight0"].any()


def free_pieces(ranks: list[Rank]) -> None:
    """64 free pages of one segment, each an extent of its own."""
    for key in range(64):
        assert ranks[0].put(1, key) == Status.OK
    for key in range(64):
        assert ranks[0].machine.remove((key, key * 7919)) == Status.OK


def test_two_hosts_do_not_tear_the_free_pages_between_them(ranks: list[Rank]) -> None:
    free_pieces(ranks)
    first = ranks[1].machine.begin_join(1)
    assert len(ranks[1].machine.detach(1, 0)) == 64
    assert join_free_extents(ranks[0].machine, 1) == -1
    assert not ranks[1].views[1].activity["in_flight0"].any()
    assert ranks[0].put(1, 100) == Status.FULL  # the first host holds all of them
    assert join_free_extents(ranks[0].machine, 1, over=first) == 0


def test_room_is_made_although_another_host_joins(ranks: list[Rank], calls: Calls) -> None:
    """The owner's host begins after the producer's host has looked, and ends while the latter waits."""
    free_pieces(ranks)
    producer, owner = ranks[0].machine, ranks[1].machine
    started: list[tuple[int, np.ndarray]] = []

    def join(*_: int) -> None:
        started.append((owner.begin_join(1), owner.detach(1, 0)))

    def end(seconds: float) -> None:
        mark, pages = started.pop()
        owner.push_extents(1, *carve_runs(owner.geometry, np.sort(pages)))
        owner.end_join(1, mark)

    calls.before(producer, "begin_join", join)
    calls.before(time, "sleep", end)
    assert make_room(producer, 1, 64 * PAGE)
    assert ranks[0].put(1, 100, 64 * PAGE) == Status.OK


def test_a_hint_that_comes_late_evicts_nothing(ranks: list[Rank]) -> None:
    """A producer was refused, made room itself, and put an object that fills the heap: it stays."""
    ranks[1].views[1].ctl["may_evict"] = 1
    poller = ranks[1].poller()
    free_pieces(ranks)
    poller.drain(0.0)
    assert ranks[0].put(1, 100, 64 * PAGE) == Status.FULL  # and leaves a hint
    assert make_room(ranks[0].machine, 1, 64 * PAGE)
    assert ranks[0].put(1, 100, 64 * PAGE) == Status.OK
    poller.drain(0.0)
    poller.sweep(0.0)
    assert ranks[1].views[1].ctl["evicted"][0] == 0
    assert ranks[0].machine.find((100, 100 * 7919)) == Status.OK


def test_given_up_slots_are_dead_not_free(ranks: list[Rank]) -> None:
    begun = ranks[0].begin(1, 7)
    assert ranks[1].machine.state(1, begun.place.slot) & STATE_MASK.value == WRITING.value
    assert ranks[1].machine.give_up(1, begun.place.slot, begun.place.epoch)
    assert not ranks[1].machine.give_up(1, begun.place.slot, begun.place.epoch)
    assert ranks[1].machine.state(1, begun.place.slot) & STATE_MASK.value == DEAD.value
    assert ranks[0].machine.abort(begun.place) == Status.LOST
    assert ranks[1].machine.slot_marks(1)[begun.place.slot] == 0


def test_batches_are_bounded(ranks: list[Rank]) -> None:
    drained = ranks[1].machine.drain(1, 0, 3)
    assert len(drained.hints) == 0
    for key in range(8):
        ranks[0].put(1, key)
    drained = ranks[1].machine.drain(1, 0, 3)
    assert (len(drained.hints), drained.head, drained.hole) == (3, 3, 3)
    assert BATCH >= 16
