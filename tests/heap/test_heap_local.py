"""The heap of virtual ranks in one process, and the bell that wakes a poller."""

import gc
import mmap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import nanokv
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable, InvalidArgument, PeerLost
from nanokv.heap import futex
from nanokv.heap.gpu_peer_access import without_access
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.tools.doctor import peer_access

PAGE = 4096
GEOMETRY = Geometry.plan(16 * PAGE, PAGE, 2, max_objects=8, ring_slots=16, pin_slots=8)
PATIENCE = 60.0


def spec(geometry: Geometry = GEOMETRY) -> WorldSpec:
    return WorldSpec(geometry, mode="device", may_evict=False, water=(80, 90))


def new_world(geometry: Geometry = GEOMETRY) -> LocalWorld:
    return LocalWorld(spec(geometry))


def view_of(world: LocalWorld, rank: int) -> SegmentView:
    raw = world.heap(rank).host_view(rank)
    assert raw is not None
    return SegmentView(raw, world.spec.geometry)


def test_segments_are_new_and_say_whose_they_are() -> None:
    world = new_world()
    worlds = set()
    for rank in range(2):
        view = view_of(world, rank)
        assert GEOMETRY.mismatch(view.ctl) is None
        assert (view.ctl["rank"][0], view.ctl["water_lo"][0], view.ctl["water_hi"][0]) == (rank, 80, 90)
        assert view.ctl["epoch"][0] == 1
        assert view.activity["incarnation"].tolist() == [1, 1]
        assert not view.headers.view(np.uint8).any()
        worlds.add(int(view.ctl["world_id"][0]))
    assert len(worlds) == 1
    assert not worlds & {0, int(view_of(new_world(), 0).ctl["world_id"][0])}


def test_tensor_array_and_base_are_the_same_bytes() -> None:
    world = new_world()
    for rank in range(2):
        mine, other = world.heap(rank), world.heap(1 - rank)
        raw = mine.host_view(rank)
        assert raw is not None
        assert raw.ctypes.data == mine.bases[rank] == other.bases[rank] == mine.segment(rank).data_ptr()
        assert mine.bases[rank] % PAGE == 0
        assert mine.segment(rank).shape == (GEOMETRY.segment_bytes,)
        other.segment(rank)[-1] = 7 + rank
        assert raw[-1] == 7 + rank


def test_a_view_outlives_its_world() -> None:
    world = new_world()
    tensor, raw = world.heap(0).segment(0), world.heap(1).host_view(1)
    for rank in range(2):
        world.heap(rank).close()
    del world
    gc.collect()
    tensor.fill_(3)
    assert raw is not None
    raw[:] = 4
    assert int(tensor.sum()) == 3 * GEOMETRY.segment_bytes


def test_close() -> None:
    world = new_world()
    heaps = [world.heap(rank) for rank in range(2)]
    assert heaps[0].alive(1, 1)
    assert not heaps[0].peer_closed(1)
    heaps[1].close()
    heaps[1].close()
    raw = heaps[0].host_view(1)
    assert raw is not None
    assert SegmentView(raw, GEOMETRY).ctl["closed"][0] == 1
    assert heaps[0].peer_closed(1)
    assert not heaps[0].alive(1, 1)
    assert heaps[0].alive(0, 1)
    with pytest.raises(HeapUnavailable, match="rank 1"):
        heaps[1].segment(0)
    with pytest.raises(HeapUnavailable, match="rank 1"):
        world.heap(1)
    world.shared["master"] = object()
    heaps[0].close()
    assert not world.shared
    heaps[0].wake(1)
    heaps[0].wait_for_hint(0.0, 0)


@pytest.mark.parametrize(("rank", "incarnation"), [(-1, 1), (2, 1), (900, 1), (1, 0), (1, 2)])
def test_who_cannot_exist_is_not_alive(rank: int, incarnation: int) -> None:
    assert not new_world().heap(0).alive(rank, incarnation)


def test_barrier_lets_nobody_through_before_all_have_come() -> None:
    world = new_world(Geometry.plan(PAGE, PAGE, 3, max_objects=1))
    come = [0] * 3
    seen: list[int] = []

    def run(rank: int) -> None:
        for turn in range(1, 51):
            come[rank] = turn
            world.heap(rank).barrier(PATIENCE)
            seen.append(min(come) - turn)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(seen) == 150
    assert min(seen) >= 0


def test_barrier_names_who_is_missing_and_can_be_tried_again() -> None:
    world = new_world(Geometry.plan(PAGE, PAGE, 3, max_objects=1))
    for _ in range(2):
        with pytest.raises(PeerLost, match=r"\[1, 2\] did not come within 0.01 s"):
            world.heap(0).barrier(0.01)
    others = [threading.Thread(target=world.heap(rank).barrier, args=(PATIENCE,)) for rank in (1, 2)]
    for thread in others:
        thread.start()
    world.heap(0).barrier(PATIENCE)
    for thread in others:
        thread.join(PATIENCE)
    world.heap(2).close()
    with pytest.raises(PeerLost, match=r"\[2\] have closed"):
        world.heap(0).barrier(PATIENCE)


@pytest.mark.parametrize("native", [True, False], ids=["futex", "looking again"])
def test_a_bell_ends_the_wait(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    if native and not futex.supported():
        pytest.skip("this system has no futex")
    if not native:
        monkeypatch.setattr(futex, "_futex", None)
    world = new_world()
    asleep = view_of(world, 1).ctl["ann_asleep"]
    waiter = threading.Thread(target=world.heap(1).wait_for_hint, args=(600.0, 0))
    waiter.start()
    deadline = time.monotonic() + PATIENCE
    while not asleep[0]:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    world.heap(0).wake(1)
    waiter.join(PATIENCE)
    assert not waiter.is_alive()
    assert asleep[0] == 0


def test_a_hint_or_a_ring_before_the_wait_ends_it_at_once() -> None:
    world = new_world()
    heap, ctl = world.heap(0), view_of(world, 0).ctl
    began = time.monotonic()
    heap.wait_for_hint(600.0, 5)  # ann_head is 0: announcements have come
    heap.wake(0)
    heap.wait_for_hint(600.0, 0)
    assert time.monotonic() - began < 600.0
    heap.wait_for_hint(0.001, 0)  # the ring was used up: this one ends by its timeout
    assert ctl["ann_asleep"][0] == 1, "only a ring clears the word: others may wait for it"


@pytest.mark.parametrize("device", ["meta", "nonsense", "cuda:99999999999999999999"])
def test_a_device_that_cannot_hold_segments(device: str) -> None:
    with pytest.raises(InvalidArgument, match="device"):
        LocalWorld(spec(), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(HeapUnavailable, match="cuda"):
        LocalWorld(spec(), device="cuda")


def test_memory_that_is_not_there() -> None:
    geometry = Geometry.plan(1 << 60, 1 << 40, 1)
    with pytest.raises(HeapUnavailable, match=f"segment 0 needs {geometry.segment_bytes} bytes"):
        new_world(geometry)


def test_each_rank_of_several_devices_has_its_own() -> None:
    world = LocalWorld(spec(), device=["cpu"])
    assert [world.heap(rank).device for rank in range(2)] == [torch.device("cpu")] * 2
    world = LocalWorld(spec(), device=(torch.device("cpu"), "cpu"))
    assert world.heap(1).segment(1).device == world.heap(1).device


def test_no_device_at_all() -> None:
    with pytest.raises(InvalidArgument, match="device must name at least one device"):
        LocalWorld(spec(), device=[])


GPUS = [torch.device("cuda", i) for i in range(3)]


@pytest.mark.parametrize(
    ("devices", "refused", "pair"),
    [
        (GPUS, set(), None),
        (GPUS, {(0, 1), (1, 0)}, (0, 1)),
        (GPUS, {(2, 1)}, (2, 1)),  # access goes both ways or is of no use
        ([GPUS[0], GPUS[0]], {(0, 0)}, None),
        ([GPUS[2], GPUS[0], GPUS[2]], {(0, 1), (1, 2)}, None),
        ([torch.device("cpu")] * 2, set(), None),
    ],
)
def test_gpus_that_do_not_reach_each_other_are_found(
    devices: list[torch.device], refused: set[tuple[int, int]], pair: tuple[int, int] | None
) -> None:
    found = without_access(devices, lambda one, other: (one.index, other.index) not in refused)
    assert (found and (found[0].index, found[1].index)) == pair
    row = peer_access(list(dict.fromkeys(devices)), lambda one, other: (one.index, other.index) not in refused)
    assert row.state == ("ok" if pair is None else "warn")
    assert pair is None or f"cuda:{pair[0]} cannot access the memory of cuda:{pair[1]}" in row.detail


def test_a_private_segment_is_faulted_in_when_that_is_asked_for() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    nbytes = 64 << 20
    for prefault in (False, True):
        before = resident()
        cache = nanokv.NanoKVCache(nbytes, page_bytes=65536, heap="local", heap_options={"prefault": prefault})
        grown = resident() - before
        cache.close()
        assert (grown > nbytes * 3 // 4) is prefault, f"{grown} bytes"
    with pytest.raises(InvalidArgument, match="prefault must be True or False, not 'yes'"):
        nanokv.NanoKVCache(nbytes, heap="local", heap_options={"prefault": "yes"})
