"""Passes over the headers in slices: rounds by hand on a local world, no thread, no sleep."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import DEAD, EPOCH_SHIFT, OBJ_HEADER, PINS_SHIFT, READY, RESERVED, STATE_MASK, WRITING
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.host_poller import poller as poller_module
from nanokv.host_poller import sweeper as sweeper_module
from nanokv.host_poller.header_pass import HeaderPass, Life, Slice
from nanokv.host_poller.index import NO_ROW
from nanokv.host_poller.poller import QUIET_SWEEP_SECONDS, SWEEP_SECONDS, Poller
from tests.poller.test_sweeper import PAGE, Rank
from tests.support.faults import Limits

OBJECTS = 40
PART = 7  #: slots in a slice here
GEOMETRY = Geometry.plan(64 * PAGE, PAGE, 2, size_classes=(1, 2, 4, 8))


@pytest.fixture
def ranks(limits: Limits) -> Iterator[list[Rank]]:
    limits(sweeper_module, SLICE=PART)
    geometry = Geometry.plan(64 * PAGE, PAGE, 2, ring_slots=16)
    world = LocalWorld(WorldSpec(geometry, mode="device", may_evict=False, water=(85, 95)))
    heaps = [world.heap(rank) for rank in range(2)]
    yield [Rank(heap) for heap in heaps]
    for heap in heaps:
        heap.close()


def rounds_of_a_pass(poller: Poller, now: float) -> int:
    """Rounds at one moment until no pass is under way."""
    poller.step(now)
    rounds = 1
    while poller.sweeper.passing:
        poller.step(now)
        rounds += 1
    return rounds


def test_a_round_looks_at_a_slice_and_the_ring_does_not_wait(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    assert [ranks[0].put(1, key) for key in range(OBJECTS)] == [Status.OK] * OBJECTS
    found = []
    while len(poller.index) < OBJECTS:
        poller.step(0.0)
        found.append(poller.sweeper.counts.found)
        assert len(found) < OBJECTS
    assert len(found) == -(-OBJECTS // PART), "the 16 that the ring has are known at once, the rest by slices"
    assert found[-1] == OBJECTS - 16
    assert poller.sweeper.counts.sweeps == 1
    key = 1000
    poller._swept = poller._pass_began = -1.0
    poller.step(0.0)
    assert poller.sweeper.passing
    ranks[0].put(1, key)
    poller.step(0.0)
    assert poller.sweeper.passing and len(poller.index) == OBJECTS + 1


def test_a_whole_sweep_looks_anew_at_what_a_pass_has_seen(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    for key in range(OBJECTS):
        ranks[0].put(1, key)
    poller.sweep(0.0)
    poller.step(1.0)
    assert poller.sweeper.passing
    at = ranks[0].machine.lookup((0, 0)).place.slot
    assert at < PART, "in the first slice, which the pass under way has seen"
    ranks[0].machine.remove((0, 0))
    poller.sweeper.step(1.0)
    assert len(poller.index) == OBJECTS - 1, "though its hint was not taken"
    assert not poller.sweeper.passing


def test_what_is_unfinished_in_any_slice_is_given_up_and_comes_back(ranks: list[Rank]) -> None:
    poller = ranks[1].poller(write_timeout=5.0)
    begun = [ranks[0].begin(1, key, PAGE) for key in range(OBJECTS)]
    for now in (0.0, 4.0):
        rounds_of_a_pass(poller, now)
        assert poller.sweeper.pending
    assert poller.sweeper.counts.given_up == 0
    rounds_of_a_pass(poller, 6.0)
    assert poller.sweeper.counts.given_up == OBJECTS
    assert [ranks[0].machine.finish(each.place, each.phase) for each in begun] == [Status.LOST] * OBJECTS
    for now in range(7, 20):
        rounds_of_a_pass(poller, float(now))
    assert poller.sweeper.counts.released == OBJECTS
    assert not poller.sweeper.pending


def test_dead_headers_of_all_slices_go_into_quarantine_at_the_end_of_the_pass(ranks: list[Rank]) -> None:
    poller = ranks[1].poller()
    for key in range(OBJECTS):
        ranks[0].put(1, key)
        place = ranks[0].machine.lookup((key, key * 7919)).place
        ranks[0].machine.kill(1, place.slot, READY.value, place.epoch)  # the remover died here
    poller.step(0.0)
    while poller.sweeper.passing:
        assert poller.sweeper.counts.released == 0
        poller.step(0.0)
    assert poller.sweeper.counts.released == OBJECTS, "nobody is at work: taken in and freed with the last slice"


def test_a_pass_over_many_slots_comes_less_often_and_the_rest_does_not_wait(ranks: list[Rank], limits: Limits) -> None:
    limits(poller_module, SLOT_REST=1.0)
    poller = ranks[1].poller()
    for key in range(OBJECTS):
        ranks[0].put(1, key)
    rounds_of_a_pass(poller, 0.0)
    sweeps = poller.sweeper.counts.sweeps
    place = ranks[0].machine.lookup((3, 3 * 7919)).place
    assert ranks[0].machine.pin(place)[0] == Status.OK
    assert np.count_nonzero(ranks[1].machine.pin_ledger(1)) == 1
    ranks[0].heap.close()
    now = 0.0
    while now < OBJECTS - QUIET_SWEEP_SECONDS:
        now += QUIET_SWEEP_SECONDS
        poller.step(now)
        assert poller.sweeper.counts.pins_dropped == 1
        assert poller.sweeper.counts.sweeps == sweeps
    ranks[1].put(1, 1000)
    poller.step(OBJECTS - 1.0)
    assert not poller.sweeper.passing, "it is due, and waits"
    assert rounds_of_a_pass(poller, float(OBJECTS)) > 1
    assert poller.sweeper.counts.sweeps == sweeps + 1
    for _ in range(2 * OBJECTS):
        now += SWEEP_SECONDS
        poller.step(now)
    assert poller.sweeper.counts.sweeps == sweeps + 1


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [0, RESERVED.value, WRITING.value, READY.value, DEAD.value, READY.value | 3 << PINS_SHIFT.value, 7]
        ),
        st.integers(0, 3) | st.just(2**32 - 1),
        st.integers(0, 8) | st.just(2**32 - 1),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(HEADERS, st.integers(1, 40))
def test_slices_find_what_a_plain_loop_finds(rows: list[tuple[int, int, int, int]], part: int) -> None:
    headers = np.zeros(len(rows), OBJ_HEADER.dtype)
    for header, row in zip(headers, rows, strict=True):
        header["state"], header["epoch"], header["n_pages"] = row[:3]
    this = HeaderPass(GEOMETRY, len(rows))
    indexed = np.array([(row[3] << EPOCH_SHIFT.value | READY.value) if row[3] else NO_ROW for row in rows], np.int64)
    unfinished, gone, missed = [], [], []
    while not this.ended:
        some = headers[this.at : this.at + part]
        piece = Slice.of(this.at, some, indexed[this.at : this.at + part])
        gone += [piece.first + at for at in piece.gone.tolist()]
        missed += [piece.first + at for at in piece.missed.tolist()]
        unfinished += [piece.life(at) for at in piece.unfinished.tolist()]
        this.add(piece)
    totals = this.totals()
    kinds = [(row[0] & STATE_MASK.value, Life(slot, row[1]), row[2]) for slot, row in enumerate(rows)]
    extents = [next((size for size in (0, 1, 2, 4, 8) if size >= pages), 8) for _, _, pages in kinds]
    assert totals.held_pages == sum(extents)
    assert totals.largest == min(max((pages for _, _, pages in kinds), default=0), 8)
    assert set(totals.holding) == {life for state, life, pages in kinds if state == DEAD.value and pages}
    assert all(totals.holding[life]["n_pages"] == rows[life.slot][2] for life in totals.holding)
    assert unfinished == [
        life for state, life, _ in kinds if state == WRITING.value or (state == RESERVED.value and life.epoch)
    ]
    ready = [life.epoch if state == READY.value else None for state, life, _ in kinds]
    assert gone == [slot for slot, row in enumerate(rows) if row[3] and ready[slot] != row[3]]
    assert missed == [
        slot for slot, row in enumerate(rows) if ready[slot] is not None and ready[slot] != (row[3] or None)
    ]
