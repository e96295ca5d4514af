"""What pollers write for those who tell other nodes: each row is what the header says, in order, each once; what there
is no room for is counted."""

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
from nanokv import NanoKVCache
from nanokv.device.machines.outbox import Outbox
from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import EVICTED, OBJ_HEADER, REMOVED, STORED
from nanokv.device.segment.location import EVICTED_NODE, GONE_NODE, LOCATION, STORED_NODE
from nanokv.heap.futex import system_call_number
from nanokv.host_poller.events import Event, EventKind
from nanokv.types import KeyDigest, ObjMeta

from .test_native_rounds import CALLS, PAGE, segment

ROOM, MOST = 1 << 12, 1 << 12
FUTEX = system_call_number()
NODES = {
    EventKind.STORED: STORED_NODE.value,
    EventKind.REMOVED: GONE_NODE.value,
    EventKind.EVICTED: EVICTED_NODE.value,
}
Row = tuple[int, ...]


def outbox(room: int = ROOM, most: int = MOST, rank: int = 0) -> Outbox:
    return Outbox(rank, room, most, FUTEX)


def rows(taken: Any) -> list[Row]:
    return [tuple(row) for row in taken.view(np.int64).reshape(-1, len(LOCATION.fields)).tolist()]


def all_rows(box: Outbox) -> list[Row]:
    """What waits there."""
    box.end()  # it need not be waited for
    return rows(box.take(0.0).rows)


def row_of(kind: EventKind, meta: ObjMeta, geometry: Geometry) -> Row:
    """The row that tells of an object, field by field."""
    slot = (meta.header_off - geometry.offsets["hdr_base"]) // OBJ_HEADER.size
    place = (meta.owner_rank, slot, meta.epoch, meta.payload_off, meta.bytes_total)
    return (meta.key_hash, meta.key_check, NODES[kind], *place, 0)


def rows_of(events: list[Event], geometry: Geometry) -> list[Row]:
    return [row_of(event.kind, event.meta, geometry) for event in events if event.meta is not None]


# --- what the rows say ------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CALLS, st.integers(1, 8)), max_size=60))
def test_rows_say_what_events_say_in_their_order(calls: list[tuple[str, int]]) -> None:
    """Of native rounds, and of those with numpy, where holes, nonsense and evictions come in between."""
    with segment() as native, segment() as plain:
        for here, take in ((native, native.intake.stay), (plain, plain.intake.take)):
            box = outbox()
            here.intake.tell_to(box)
            for call, key in [*calls, ("take", 0), ("take", 0)]:
                if call == "take":
                    take(0.0)
                else:
                    here.do(call, key)
            assert all_rows(box) == rows_of(here.events, here.machine.geometry)


def test_native_rounds_write_for_nobody_else() -> None:
    """No listener is there: what was an event of each object is rows alone."""
    with segment() as here:
        here.silence()
        one, two, late = outbox(), outbox(), outbox()
        drops = [here.intake.tell_to(each) for each in (one, two)]
        for key in (1, 2, 3):
            here.do("put", key)
        here.intake.stay(0.0)
        drops[1]()
        here.intake.tell_to(late)
        here.do("remove", 2)
        here.intake.stay(0.0)
        told = [all_rows(each) for each in (one, two, late)]
    assert [row[2] for row in told[0]] == [STORED_NODE.value] * 3 + [GONE_NODE.value]
    assert told[1] == told[0][:3] and told[2] == told[0][3:]
    assert here.events == [] and here.intake.made == 0


@contextmanager
def heard(cache: NanoKVCache) -> Iterator[Outbox]:
    box = outbox(rank=cache.rank)
    drop = cache.engine.poller.tell_to(box)
    yield box
    drop()


def test_every_field_is_the_header_s_in_each_rank() -> None:
    """Objects that are stored, removed and evicted in both segments of a world, by either rank."""
    worlds = nanokv.local_world(2, 1 << 20, page_bytes=PAGE)
    with worlds[0], worlds[1], heard(worlds[0]) as zero, heard(worlds[1]) as one:
        metas: dict[tuple[int, str], ObjMeta] = {}
        expected: dict[int, list[Row]] = {0: [], 1: []}
        for i in range(40):
            name, rank = f"{i}", i % 2
            worlds[i % 3 % 2].put(name, torch.zeros(16 + i, dtype=torch.uint8), preferred_segment=rank)
            found = worlds[0].get_location(name)
            assert found.owner_rank == rank and found.bytes_total == 16 + i
            metas[rank, name] = found
            expected[rank].append(row_of(EventKind.STORED, found, worlds[0].engine.geometry))
        for world in worlds:
            world.flush()
        for rank, name in list(metas)[::5]:
            worlds[1 - rank].remove(name)
            expected[rank].append(row_of(EventKind.REMOVED, metas.pop((rank, name)), worlds[0].engine.geometry))
        for world in worlds:
            world.flush()
            world.evict_until_below(0.0)
            world.flush()
        gone: dict[int, set[Row]] = {rank: set() for rank in (0, 1)}
        for (rank, _), meta in metas.items():
            gone[rank].add(row_of(EventKind.EVICTED, meta, worlds[0].engine.geometry))
        for rank, box in ((0, zero), (1, one)):
            told, known = all_rows(box), expected[rank]
            assert told[: len(known)] == known
            assert set(told[len(known) :]) == gone[rank] and len(told) == len(known) + len(gone[rank])
        assert [world.engine.poller.intake.made for world in worlds] == [0, 0]


def test_objects_that_a_sweep_finds_are_told() -> None:
    """Their hints were missed: the ring has fewer slots than were put while the poller stood."""
    (cache,) = nanokv.local_world(1, 4 << 20, page_bytes=PAGE)
    with cache:
        intake = cache.engine.poller.intake
        cache.put("before", torch.zeros(4))
        cache.flush()
        cache.engine.poller.stop()
        box = outbox()
        cache.engine.poller.tell_to(box)
        kept = cache.get_location("before")
        cache.remove("before")
        cache.put("after", torch.zeros(9))
        found = cache.get_location("after")
        cache.engine.poller.sweep(time.monotonic())
        told = [(EventKind.REMOVED, kept), (EventKind.STORED, found)]
        assert all_rows(box) == [row_of(*each, cache.engine.geometry) for each in told]
        assert intake.made == 0


def test_a_listener_beside_an_outbox_hears_the_same() -> None:
    (cache,) = nanokv.local_world(1, 4 << 20, page_bytes=PAGE)
    events: list[Event] = []
    with cache, heard(cache) as box:
        stop = cache.subscribe(lambda some: events.extend(event for event in some if event.meta is not None))
        for i in range(50):
            cache.put(f"{i}", torch.zeros(4))
            if i % 3 == 0:
                cache.remove(f"{i}")
        cache.flush()
        stop()
        assert events and all_rows(box) == rows_of(events, cache.engine.geometry)
        assert cache.engine.poller.intake.made == len(events)


# --- the queue --------------------------------------------------------------------------------
def headers(first: int, count: int) -> tuple[Words, Any]:
    """Slots, and headers whose key and size are their slot."""
    slots = np.arange(first, first + count)
    records = np.zeros(count, OBJ_HEADER.dtype)
    records["key_hash"], records["bytes_total"] = slots, slots
    return slots, records


def slots_of(told: Any) -> list[int]:
    assert (told["slot"] == told["key_hash"]).all() and (told["slot"] == told["nbytes"]).all(), "a torn row"
    found: list[int] = told["slot"].tolist()
    return found


def test_what_has_no_room_is_counted_and_the_rest_is_in_order() -> None:
    box = outbox(room=8, most=5)
    box.tell(STORED.value, *headers(0, 6))
    box.tell(REMOVED.value, *headers(6, 5))
    first = box.take(0.0)
    assert slots_of(first.rows) == [0, 1, 2, 3, 4] and first.lost == 0, "rows before the loss are still to come"
    box.tell(EVICTED.value, *headers(20, 9))
    taken = []
    for lost in (3, 4):
        told = box.take(0.0)
        taken.append(slots_of(told.rows))
        assert told.lost == lost
    assert taken == [[5, 6, 7, 20, 21], [22, 23, 24]]
    assert (box.told, box.lost) == (13, 7)


def test_a_loss_is_told_with_the_rows_before_it_and_once() -> None:
    """Nothing comes after what was lost, and the reader need not wait for it."""
    box = outbox(room=4, most=4)
    box.tell(STORED.value, *headers(0, 4))
    assert slots_of(box.take(0.0).rows) == [0, 1, 2, 3]
    box.tell(STORED.value, *headers(4, 5))
    told = box.take(0.0)
    assert slots_of(told.rows) == [4, 5, 6, 7] and told.lost == 1
    box.end()
    told = box.take(0.0)
    assert not len(told.rows) and told.lost == 0


@pytest.mark.parametrize("futex", [FUTEX, None])
def test_a_reader_beside_its_writer_takes_each_row_once(futex: int | None) -> None:
    box, count = Outbox(0, 64, 48, futex), 20_000
    taken: list[int] = []
    lost = [0]

    def read() -> None:
        while taken[-1:] != [count]:
            told = box.take(0.0)
            taken.extend(slots_of(told.rows))
            lost[0] += told.lost
        box.end()
        lost[0] += box.take(0.0).lost

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for first in range(0, count, 16):
        box.tell(STORED.value, *headers(first, 16))
        if first % 320 == 0:
            time.sleep(0)
    while reader.is_alive():
        box.tell(STORED.value, *headers(count, 1))  # until there is room
        reader.join(0.01)
    before = [slot for slot in taken if slot < count]
    assert before == sorted(set(before)) and len(before) + lost[0] >= count
    assert box.told >= len(taken) and box.lost >= lost[0]


def test_a_reader_that_sleeps_is_woken() -> None:
    (cache,) = nanokv.local_world(1, 4 << 20, page_bytes=PAGE)
    told: list[int] = []
    with cache, heard(cache) as box:

        def read() -> None:
            while not over.is_set():
                told.extend(box.take(0.0).rows["nbytes"].tolist())

        over = threading.Event()
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        for i in range(1, 6):
            cache.put(f"{i}", torch.zeros(i, dtype=torch.uint8))
            deadline = time.monotonic() + 60
            while told[-1:] != [i] and time.monotonic() < deadline:
                time.sleep(0.001)
            assert told == list(range(1, i + 1))
        over.set()
        box.end()
        reader.join(60)
        assert not reader.is_alive()


def test_a_poller_s_key_is_the_caller_s() -> None:
    """The stored half of a key is mixed with the epoch: a row has the key as it is, also in a slot's later lives."""
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    with cache, heard(cache) as box:
        for _ in range(5):
            cache.put("again", torch.zeros(4))
            cache.flush()
            cache.remove("again")
            cache.flush()
        told = all_rows(box)
        assert len({row[5] for row in told}) == 5, "the epochs of a slot's lives"
        assert {KeyDigest(*row[:2]) for row in told} == {cache.digest("again")}
