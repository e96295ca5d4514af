"""Times in segments, and in files: of a clock that nobody sets, whatever the wall clock shows."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import nanokv
from nanokv import Hold
from nanokv.cluster.relative_terms import absolute, relative
from nanokv.device.machines.records import Terms
from nanokv.device.segment import clock as segment_clock
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import NS, move_times, time_of
from nanokv.device.segment.layout import ACCESS_TIME, TERMS_PRIORITY_SHIFT
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable
from nanokv.heap import shm, world_entry
from nanokv.heap.process_heap import ProcessHeap
from nanokv.saved import times
from nanokv.saved.mapped_segment import MappedSegment
from nanokv.saved.save import save
from tests.support.faults import Calls, Clock, Limits
from tests.support.worlds import MakeWorld, World

PAGE = 4096
HOUR = 3600 * NS


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(n=2, heap_bytes=32 * PAGE, page_bytes=PAGE)


def one() -> torch.Tensor:
    return torch.ones(8)


def plan(cache: nanokv.NanoKVCache) -> None:
    cache.open_for_write("k", 32, preferred_segment=1)
    cache.commit("k")


def load(cache: nanokv.NanoKVCache, path: Path) -> None:
    cache.put("k", one(), preferred_segment=cache.rank)
    cache.save(path)
    cache.clear()
    cache.load(path, preferred_segment=1)


PUTS: dict[str, Callable[[nanokv.NanoKVCache], object]] = {
    "put": lambda cache: cache.put("k", one(), preferred_segment=1),
    "put, in steps": lambda cache: cache.put("k", torch.ones(2, 8)[:, ::2], preferred_segment=1),
    "put, kept": lambda cache: cache.put("k", one(), preferred_segment=1, hold=Hold(priority="kept")),
    "put_many": lambda cache: cache.put_many(["k"], torch.ones(1, 8), preferred_segment=1),
    "put_async": lambda cache: cache.put_async("k", one(), preferred_segment=1).result(),
    "a plan": plan,
}
USES: dict[str, Callable[[nanokv.NanoKVCache], object]] = {
    "get": lambda cache: cache.get("k"),
    "get, into": lambda cache: cache.get("k", dst=torch.empty(8)),
    "get_many": lambda cache: cache.get_many(["k"]),
    "get_part": lambda cache: cache.get_part("k", 0, 8),
    "pin": lambda cache: cache.pin("k").release(),
}


def last_access(cache: nanokv.NanoKVCache) -> int:
    place = cache.engine.allocation.locate(cache.digest("k")).place
    return int(time_of(cache.engine.machine.headers(place.owner, place.slot, 1)["last_access"])[0])


@pytest.mark.parametrize("name", PUTS)
def test_an_object_begins_at_the_time_of_the_clock_of_segments(world: World, name: str) -> None:
    before = now_ns()
    PUTS[name](world[0])
    assert before - 4 < last_access(world[1]) <= now_ns()


@pytest.mark.parametrize("name", USES)
def test_a_use_is_noted_by_the_clock_of_segments(world: World, name: str) -> None:
    world[0].put("k", one(), preferred_segment=1, hold=1000.0)  # the use ends the lease, and leaves its own time
    before = now_ns()
    USES[name](world[0])
    assert before - 4 < last_access(world[1]) <= now_ns()


def test_a_lease_and_a_lifetime_end_by_the_clock_of_segments(world: World) -> None:
    before = now_ns()
    world[0].put("k", one(), preferred_segment=1, hold=Hold(10.0, ttl=20.0))
    after = now_ns()
    place = world[0].engine.allocation.locate(world[0].digest("k")).place
    until = int(world[0].engine.machine.labels(1, place.slot, 1)["until"][0])
    assert before + 10 * NS - 4 < last_access(world[1]) <= after + 10 * NS
    assert before + 20 * NS - 4 < until <= after + 20 * NS


@pytest.mark.parametrize("seconds", [1e9, 1e18, float("inf")])
def test_far_times_are_the_last_ones_and_do_not_wrap(world: World, seconds: float) -> None:
    world[0].put("k", one(), preferred_segment=1, hold=Hold(seconds, ttl=seconds))
    world[0].put("h", one(), preferred_segment=1)
    world[0].hold(["h"], seconds)
    for number in range(64):
        world[0].put(f"fill{number}", torch.zeros(PAGE, dtype=torch.uint8), preferred_segment=1)
    world[1].flush()
    assert world[0].exists("k") and world[0].exists("h")


@pytest.mark.parametrize("until", [1000 * NS, ACCESS_TIME.value])
def test_times_on_their_way_to_another_host_stay_what_they_are(until: int) -> None:
    """Wherever the two clocks stand."""
    kept = 3 << TERMS_PRIORITY_SHIFT.value
    for here, there in ((5 * HOUR, 1000 * HOUR), (1000 * HOUR, 5 * HOUR)):
        at = min(here + until, ACCESS_TIME.value)
        moved = absolute(relative(Terms(kept | at, 7, at), here), there)
        expected = at if at == ACCESS_TIME.value else there + at - here  # the last time there is stands for ever
        assert moved == Terms(kept | expected, 7, expected)


# --- files ----------------------------------------------------------------------------------------
def saved_with_ttl(world: World, path: Path, ttl: float) -> None:
    world[0].put("k", one(), preferred_segment=0, hold=Hold(ttl=ttl))
    world[0].save(path)
    world[0].clear()


def seconds_left(cache: nanokv.NanoKVCache) -> float:
    place = cache.engine.allocation.locate(cache.digest("k")).place
    return float(int(cache.engine.machine.labels(place.owner, place.slot, 1)["until"][0]) - now_ns()) / NS


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_step_of_the_wall_clock_between_save_and_load_changes_no_lifetime(
    world: World, tmp_path: Path, clock: Clock, hours: int
) -> None:
    saved_with_ttl(world, tmp_path / "file", 1000.0)
    clock.jumps(hours * 3600)
    world[0].load(tmp_path / "file")
    assert 900 < seconds_left(world[0]) <= 1000


def test_a_file_of_another_start_of_the_machine_ages_by_the_wall_clock(
    world: World, tmp_path: Path, clock: Clock, calls: Calls
) -> None:
    saved_with_ttl(world, tmp_path / "file", 3.0 * 3600)
    clock.jumps(3600)
    calls.answer(times, "_boot", 12345)
    world[0].load(tmp_path / "file")
    assert 2 * 3600 - 100 < seconds_left(world[0]) <= 2 * 3600


def test_a_segment_of_another_start_of_the_machine_is_saved_by_its_own_clock(world: World, tmp_path: Path) -> None:
    world[0].put("k", one(), preferred_segment=0, hold=Hold(ttl=100.0))
    host = world[0].engine.heap.host_view(0)
    assert host is not None
    view = SegmentView(host.copy(), world[0].engine.geometry)
    view.ctl["swept_at"] = now_ns() + HOUR  # what the clock showed before
    move_times(view, HOUR)
    save(tmp_path / "file", [MappedSegment(view, 0)], world[0].engine.geometry, {})
    world[0].clear()
    assert world[0].load(tmp_path / "file").objects == 1
    assert 90 < seconds_left(world[0]) <= 100


def test_a_file_without_a_moment_has_times_of_the_wall_clock() -> None:
    """One of a build before."""
    before = now_ns()
    at = times.Moment(0, 0, 0).from_wall(time.time_ns() + 10 * NS)
    assert before + 9 * NS < at <= now_ns() + 10 * NS
    assert times.Moment(0, 0, 0).from_wall(0) == 0


# --- another start of the machine, another time namespace -----------------------------------------
def left_behind(prefix: str, hold: Hold) -> None:
    """A world without living ranks, with one object."""
    cache = nanokv.NanoKVCache(32 * PAGE, page_bytes=PAGE, name=prefix, rank=0, world_size=1)
    cache.put("k", one(), hold=hold)
    cache.flush()
    assert isinstance(cache.engine.heap, ProcessHeap)
    cache.engine.heap.leaves_its_world = True
    cache.close()


def test_a_segment_that_outlived_its_machine_has_its_times_moved(shm_name: str, calls: Calls) -> None:
    """The clock begins anew: else leases of the old days would last until it comes there."""
    left_behind(shm_name, Hold(100.0, ttl=200.0))
    ago = now_ns() // 2
    calls.answer(shm, "now_ns", ago)
    options = {"page_bytes": PAGE, "name": shm_name, "rank": 0, "world_size": 1, "on_stale": "recover"}
    with nanokv.NanoKVCache(32 * PAGE, **options) as cache:  # type: ignore[arg-type]
        host = cache.engine.heap.host_view(0)
        assert host is not None
        view, place = SegmentView(host, cache.engine.geometry), cache.engine.allocation.locate(cache.digest("k")).place
        lease, until = int(time_of(view.headers["last_access"])[place.slot]), int(view.labels["until"][place.slot])
    assert ago + 90 * NS < lease < ago + 110 * NS and ago + 190 * NS < until < ago + 210 * NS


def test_times_of_one_start_of_the_machine_stay(shm_name: str) -> None:
    left_behind(shm_name, Hold(100.0))
    before = now_ns()
    options = {"page_bytes": PAGE, "name": shm_name, "rank": 0, "world_size": 1, "on_stale": "recover"}
    with nanokv.NanoKVCache(32 * PAGE, **options) as cache:  # type: ignore[arg-type]
        assert last_access(cache) < before + 100 * NS


def test_ranks_of_another_time_namespace_are_refused(shm_name: str, calls: Calls) -> None:
    options = {"page_bytes": PAGE, "name": shm_name, "world_size": 2, "elastic": True}
    with nanokv.NanoKVCache(32 * PAGE, rank=0, **options):  # type: ignore[arg-type]
        calls.answer(world_entry, "offset_ns", 3600 * NS)
        with pytest.raises(HeapUnavailable, match=r"rank 1 is in another time namespace.*\+3600 s"):
            nanokv.NanoKVCache(32 * PAGE, rank=1, **options)  # type: ignore[arg-type]
        calls.go_on()
        nanokv.NanoKVCache(32 * PAGE, rank=1, **options).close()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ns"), [("monotonic 5 0\nboottime 3600 7\n", 3600 * NS + 7), ("boottime -2 5", -2 * NS + 5), ("", 0)]
)
def test_the_offset_of_a_time_namespace(tmp_path: Path, limits: Limits, text: str, ns: int) -> None:
    (tmp_path / "offsets").write_text(text)
    limits(segment_clock, _OFFSETS=tmp_path / "offsets")
    assert segment_clock.offset_ns() == ns
    limits(segment_clock, _OFFSETS=tmp_path / "none")
    assert segment_clock.offset_ns() == 0


def test_moved_times_keep_their_order_and_end_at_the_last_ones(world: World) -> None:
    host = world[1].engine.heap.host_view(1)
    assert host is not None
    view = SegmentView(host.copy(), world[1].engine.geometry)
    view.headers["last_access"][:4] = np.array([4, 400, ACCESS_TIME.value, 8 | 3], np.uint64)  # the last one KEPT
    view.labels["until"][:3] = [0, 5, 2**64 - 1]
    move_times(view, -100)
    assert view.headers["last_access"][:4].tolist() == [0, 300, ACCESS_TIME.value - 100, 3]
    assert view.labels["until"][:3].tolist() == [0, 1, ACCESS_TIME.value - 100]
