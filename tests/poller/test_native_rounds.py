"""Native rounds do to the index what numpy does; they end when somebody asks; and they are the ones that run."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nanokv
from nanokv.device.machines import ring_rounds
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.ring_rounds import RingRounds
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import OBJ_HEADER, WANTED
from nanokv.device.segment.views import SegmentView
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.host_poller.events import Event, Listeners
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.intake import HOLE_PATIENCE, Intake
from tests.support.faults import Limits

PAGE = 4096
RAW = (0,) * 8
ACCESS = OBJ_HEADER.offsets["last_access"] // 8  # the time of the call
CALLS = st.sampled_from(("put", "put", "put", "remove", "evict", "hole", "nonsense", "beyond", "wanted", "take"))


class Segment:
    """A rank with a small segment, the calls that leave hints there, and an intake."""

    def __init__(self, machine: NativeMachine, view: SegmentView) -> None:
        self.machine, self.view = machine, view
        self.index = HeaderIndex(machine.geometry, 0)
        self.events: list[Event] = []
        listeners = Listeners[Event]()
        self.silence = listeners.add(self.events.extend)
        self.intake = Intake(machine, 0, self.index, listeners)

    def do(self, call: str, key: int) -> object:
        data = np.full(100, key, np.uint8)
        if call == "put":
            return self.machine.put(0, (key, key * 7919), int(data.ctypes.data), 100, RAW, 1)
        if call == "remove":
            return self.machine.remove((key, key * 7919))
        if call == "evict":
            return self.machine.evict_pages(0, 1, 1, 1 << 40)
        if call == "hole":  # a ticket is taken, and never filled
            self.view.ctl["ann_head"] += 1
            return None
        said = {"nonsense": 7, "beyond": 1 | (1 << 28) << 3, "wanted": WANTED.value | (key % 3) << 3}[call]
        head = int(self.view.ctl["ann_head"][0])
        at = head % len(self.view.ring)
        if self.view.ring[at] == 0:
            self.view.ring[at] = said
            self.view.ctl["ann_head"] += 1
        return None

    def state(self) -> dict[str, Any]:
        slots, rows = self.index.rows()
        words = rows.view(np.int64).reshape(-1, OBJ_HEADER.size // 8).copy()
        words[:, ACCESS] = 0
        told = [(event.kind, event.key, event.meta) for event in self.events]
        counts = (self.intake.drained, self.intake.removed, self.intake.corrupt, self.intake.wanted, self.intake.waits)
        tail = int(self.view.ctl["ann_tail"][0])
        return {
            "slots": slots.tolist(),
            "rows": words.tolist(),
            # numpy tells of all removals of a kind at once
            "events": sorted(told, key=repr),
            "counts": counts,
            "tail": tail,
        }


@contextmanager
def segment() -> Iterator[Segment]:
    geometry = Geometry.plan(24 * PAGE, PAGE, 1, max_objects=12, ring_slots=16)
    world = LocalWorld(WorldSpec(geometry, mode="device", may_evict=True, water=(85, 95)))
    heap = world.heap(0)
    raw = heap.host_view(0)
    assert raw is not None
    view = SegmentView(raw, geometry)
    table = geometry.world_table(0, heap.incarnation, heap.bases)
    yield Segment(NativeMachine(geometry, table, [view], lambda rank: None), view)
    heap.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CALLS, st.integers(1, 8)), max_size=60))
def test_native_rounds_do_what_numpy_does(calls: list[tuple[str, int]]) -> None:
    with segment() as plain, segment() as native:
        for call, key in [*calls, ("take", 0), ("take", 0)]:
            if call != "take":
                assert plain.do(call, key) == native.do(call, key)
                continue
            plain.intake.take(0.0)
            native.intake.stay(0.0)
            assert native.state() == plain.state()


def test_a_hole_is_waited_for_and_given_up() -> None:
    with segment() as here:
        assert here.do("put", 1) == Status.OK
        here.do("hole", 0)
        assert here.do("put", 2) == Status.OK
        here.intake.stay(0.0)
        assert len(here.index) == 2 and here.intake.waits
        assert here.view.ctl["ann_tail"] == 1, "it comes back to the hole for a while"
        time.sleep(HOLE_PATIENCE * 1.5)
        here.intake.stay(0.0)
        assert here.view.ctl["ann_tail"] == 3 and not here.intake.waits


def test_rounds_end_when_somebody_asks(limits: Limits) -> None:
    limits(ring_rounds, PATIENCE=10**15)  # ns: they do not end because no hint comes
    with segment() as here:
        ended = threading.Event()
        here.silence()

        def stay() -> None:
            while not ended.is_set():
                here.intake.stay(1e6)

        staying = threading.Thread(target=stay, daemon=True)
        staying.start()
        for key in range(1, 9):
            assert here.do("put", key) == Status.OK
            while key not in {one.key_hash for one in here.index.digests()}:
                time.sleep(0)
        with here.index.turn.asking():
            ended.set()
            staying.join(30)
        assert not staying.is_alive()


def test_a_poller_takes_its_hints_in_native_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    plain = RingRounds.run

    def counted(self: RingRounds, *args: Any, **keywords: Any) -> Any:
        done = plain(self, *args, **keywords)
        runs.append(done.taken)
        return done

    monkeypatch.setattr(RingRounds, "run", counted)
    monkeypatch.setattr(Intake, "take", lambda self, now: pytest.fail("a round of Python"))
    (cache,) = nanokv.local_world(1, 4 << 20, page_bytes=PAGE)
    with cache:
        for i in range(100):
            cache.put(f"{i}", torch.zeros(16))
        cache.flush()
        assert cache.segment_count() == 100
        assert sum(runs) == 100 and cache.stats()["poller_failures"] == 0
