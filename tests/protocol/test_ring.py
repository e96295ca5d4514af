"""The announce ring, natively compiled: a hint is taken at most once, and missed hints are counted."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, word
from nanokv.device.protocol.ring import announce, drain, ring_slot
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ANN_HEAD, COUNT_MISSED, STORED, WORD_BYTES, unpack
from nanokv.device.segment.world_table import World
from tests.support.plain_world import PAGE, PlainWorld, address, aligned_words, in_threads, native

SLOTS = 16
BATCH = 64
HINTS = 40_000
PATIENCE = tl.constexpr(2000)  #: polls that let the consumer have its turn on a loaded machine


@triton.jit
def announce_many(world: World, seg: tl.int64, header: tl.int64, count: tl.int64) -> Any:
    """Leave hints about one slot, in epochs from 0 on; wait a moment where the ring is full, but not for long."""
    epoch = word(0)
    while epoch < count:
        slot = ring_slot(world, seg, load64(seg + ANN_HEAD, "acquire"))
        polls = word(0)
        while (load64(slot, "acquire") != 0) & (polls < PATIENCE):
            polls += 1
        announce(world, seg, STORED, header, epoch)
        epoch += 1
    return epoch


@triton.jit
def drain_all(world: World, seg: tl.int64, out: tl.int64, total: tl.int64, tries: tl.int64) -> Any:
    """Take hints until `total` are taken or counted as missed, coming back to holes. Returns how many were taken."""
    taken = word(0)
    missed = word(0)
    tail = word(0)
    i = word(0)
    while (taken + missed < total) & (i < tries):
        came, _, hole = drain(world, word(0), tail, out + taken * WORD_BYTES, total - taken)
        taken += came
        tail = hole
        missed = load64(seg + COUNT_MISSED, "acquire")
        i += 1
    return taken


class Ring:
    """A ring of 16 slots and its one consumer."""

    def __init__(self) -> None:
        self.plain = PlainWorld(Geometry.plan(PAGE, PAGE, 1, ring_slots=SLOTS))
        self.at = self.plain.worlds[0], self.plain.bases[0]
        self.view = self.plain.views[0]
        self.tail = 0

    def announce(self, *epochs: int, header: int = 3) -> None:
        for epoch in epochs:
            native(announce)(*self.at, STORED.value, header, epoch)

    def drain(self, room: int = BATCH, *, wait_for_holes: bool = True) -> list[int]:
        """Take words, and move on: to the first empty slot, or past it."""
        out = aligned_words(room)
        taken, head, hole = native(drain)(self.at[0], 0, self.tail, address(out), room)
        self.tail = hole if wait_for_holes else head
        return out[:taken].tolist()

    def epochs(self, **how: Any) -> list[int]:
        return [int(unpack("RING", "epoch", hint)) for hint in self.drain(**how)]

    @property
    def missed(self) -> int:
        return int(self.view.ctl["missed"][0])

    @property
    def head(self) -> int:
        return int(self.view.ctl["ann_head"][0])


@pytest.fixture
def ring() -> Iterator[Ring]:
    yield Ring()


def test_smoke(ring: Ring) -> None:
    ring.announce(7, 8)
    (one, two) = ring.drain()
    assert [int(unpack("RING", name, one)) for name in ("kind", "header", "epoch")] == [STORED.value, 3, 7]
    assert int(unpack("RING", "epoch", two)) == 8
    assert ring.drain() == []


@pytest.mark.parametrize("header, epoch", [(0, 0), ((1 << 26) - 1, 0xFFFFFFFF), (1, 0x80000000)])
def test_extremes_of_a_word(ring: Ring, header: int, epoch: int) -> None:
    ring.announce(epoch, header=header)
    (hint,) = ring.drain()
    assert (unpack("RING", "header", hint), unpack("RING", "epoch", hint)) == (header, epoch)


def test_capacity(ring: Ring) -> None:
    ring.announce(*range(SLOTS + 5))
    assert ring.missed == 5
    assert sorted(ring.epochs()) == list(range(SLOTS)), "the first ones stay: a hint is never written over"
    assert ring.tail == ring.head == SLOTS + 5


def test_len_empty_full(ring: Ring) -> None:
    for lap in range(5):
        assert ring.drain() == []
        ring.announce(*range(lap * SLOTS, (lap + 1) * SLOTS))
        assert ring.epochs() == list(range(lap * SLOTS, (lap + 1) * SLOTS))
    assert ring.missed == 0 and not ring.view.ring.any()


def test_no_more_than_there_is_room_for(ring: Ring) -> None:
    ring.announce(*range(5))
    assert [ring.epochs(room=2) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_word_that_turns_up_late_is_taken_on_the_next_lap(ring: Ring) -> None:
    ring.announce(1)
    ring.view.ctl["ann_head"] += 1  # a ticket is taken, its slot not yet filled
    ring.announce(2)
    assert ring.epochs() == [1, 2]
    assert ring.tail == 1, "the consumer knows where the hole is"
    assert ring.epochs(wait_for_holes=False) == []
    ring.view.ring[1] = STORED.value | 9 << 32
    ring.announce(*range(3, 3 + SLOTS))
    assert sorted(ring.epochs()) == [*range(3, 9), 9, *range(9, 17), 18]
    assert ring.missed == 1, "the announcement that found the late word in its slot"


def test_spsc(ring: Ring) -> None:
    assert_taken_at_most_once(ring, 1)


def test_mpsc(ring: Ring) -> None:
    assert_taken_at_most_once(ring, 3)


def assert_taken_at_most_once(ring: Ring, producers: int) -> None:
    total = producers * HINTS
    out = aligned_words(total)
    consume = partial(native(drain_all), *ring.at, address(out), total, 1 << 28)
    produce = native(announce_many)
    taken, *_ = in_threads(consume, *[partial(produce, *ring.at, header, HINTS) for header in range(producers)])
    assert (taken + ring.missed, ring.head) == (total, total)
    assert taken > SLOTS, "the consumer was at work meanwhile"
    words = out[:taken]
    assert len(np.unique(words)) == taken, "no hint is taken twice"
    assert (unpack("RING", "header", words) < producers).all() and (unpack("RING", "epoch", words) < HINTS).all()
    assert not ring.view.ring.any()
