"""The heap of processes on one host. Ranks here are real processes, and those that crash are really killed."""

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nanokv.check.machine.rank_process import PATIENCE
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable, PeerLost
from nanokv.heap import open_heap
from nanokv.heap.locks import LockFile
from nanokv.heap.shm import ShmHeap, inspect, list_worlds, remove_world
from nanokv.heap.world_file import HEADER, RANK, WorldFile, path_of
from tests.support.heap_ranks import plan, small_world
from tests.support.rank_processes import Start
from tests.support.shm_ranks import attach, leave_stale, pair
from tests.support.until import until


# --- meeting ---
def test_two_processes_see_each_others_bytes(name: str, start: Start) -> None:
    other = start(1, 2)
    mine = attach(name, 0, 2)
    assert other.arrive() == (1, False) == (mine.incarnation, mine.recovered)
    other.ask("poke", 0, -1, 11)
    other.ask("poke", 1, -1, 12)
    mine.host_view(1)[-2] = 13
    assert [int(mine.segment(rank)[-1]) for rank in range(2)] == [11, 12]
    assert other.ask("peek", 1, -2) == 13
    for rank in range(2):
        view = SegmentView(mine.host_view(rank), mine.geometry)
        assert mine.geometry.mismatch(view.ctl) is None
        assert view.ctl["rank"][0] == rank
        assert view.activity["incarnation"].tolist() == [1, 1]
        assert mine.bases[rank] == mine.host_view(rank).ctypes.data == mine.segment(rank).data_ptr()
    other.ask("close")
    assert mine.peer_closed(1)
    assert list_worlds() == [name]
    mine.close()
    assert list_worlds() == []


def test_both_ranks_in_one_process(name: str) -> None:
    heaps = pair(name)
    heaps[0].host_view(1)[-1] = 5
    assert heaps[1].host_view(1)[-1] == 5
    assert heaps[0].bases != heaps[1].bases
    assert heaps[0].alive(1, 1) and heaps[1].alive(0, 1)
    with pytest.raises(HeapUnavailable, match=f"rank 1 of world '{name}' is taken by a living process"):
        attach(name, 1, 2)
    for heap in heaps:
        heap.close()
        heap.close()
    assert list_worlds() == []


def test_a_rank_that_does_not_come_is_named(name: str) -> None:
    with pytest.raises(PeerLost, match=rf"ranks \[0, 2\] of world '{name}' did not come within 0.05 s"):
        attach(name, 1, 3, timeout=0.05)
    assert list_worlds() == []


def test_a_rank_that_leaves_at_once_was_there_all_the_same(name: str, start: Start) -> None:
    for _ in range(5):
        other = start(1, 2)
        other.send("close")  # read as soon as it has arrived
        heap = attach(name, 0, 2)
        assert other.arrive()[0] >= 1
        heap.close()
        other.end()
        assert list_worlds() == []


def test_eight_ranks_race_for_making_the_world(name: str, start: Start) -> None:
    ranks = [start(rank, 8) for rank in range(8)]
    assert [rank.arrive() for rank in ranks] == [(1, False)] * 8
    assert inspect(name).alive == [True] * 8
    for rank in ranks:
        rank.ask("close")
    assert list_worlds() == []


# --- crashing ---
def test_a_rank_crashes_and_comes_back_to_its_bytes(name: str, start: Start) -> None:
    other = start(1, 2)
    mine = attach(name, 0, 2)
    other.arrive()
    other.ask("poke", 1, -1, 77)
    views = [SegmentView(mine.host_view(rank), mine.geometry) for rank in range(2)]
    for view in views:
        view.activity["in_flight1"][1] = 3  # operations that its death interrupts
        view.activity["in_flight0"][0] = 9
    assert mine.alive(1, 1) and not mine.peer_closed(1)
    other.kill()
    assert not mine.alive(1, 1)
    until(lambda: mine.peer_closed(1))  # LIVENESS_SECONDS later at the most
    again = start(1, 2)
    assert again.arrive() == (2, True)
    assert mine.alive(1, 2) and not mine.alive(1, 1) and not mine.peer_closed(1)
    for view in views:
        assert view.activity["in_flight1"].tolist() == [0, 0]
        assert view.activity["in_flight0"].tolist() == [9, 0]
        assert view.activity["incarnation"].tolist() == [1, 2]
    assert views[1].ctl["epoch"][0] == 2
    assert again.ask("peek", 1, -1) == 77
    mine.close()


def test_a_rank_that_closed_may_come_back(name: str) -> None:
    heaps = pair(name)
    heaps[1].close()
    assert heaps[0].peer_closed(1)
    again = attach(name, 1, 2)
    assert (again.incarnation, again.recovered) == (2, True)
    assert not heaps[0].peer_closed(1)
    for heap in (heaps[0], again):
        heap.close()


def test_a_child_of_a_fork_does_not_keep_a_dead_rank_alive(name: str, start: Start, tmp_path: Path) -> None:
    other = start(1, 2)
    mine = attach(name, 0, 2)
    other.arrive()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = other.ask("fork", str(fifo))
    try:
        assert mine.alive(1, 1)
        other.kill()
        os.kill(child, 0)  # the child lives, with the mapping and all other descriptors
        assert not mine.alive(1, 1)
        until(lambda: mine.peer_closed(1))
    finally:
        fifo.write_bytes(b"")
    mine.close()


def test_closing_in_a_child_of_a_fork_takes_nothing_from_the_parent(name: str) -> None:
    heap = attach(name, 0, 1)
    child = os.fork()
    if child == 0:
        heap.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert SegmentView(heap.host_view(0), heap.geometry).ctl["closed"][0] == 0
    assert inspect(name).alive == [True]
    heap.close()


def test_a_script_that_forgets_to_close_leaves_nothing(name: str, start: Start) -> None:
    heap = attach(name, 0, 1)
    del heap
    gc.collect()
    assert list_worlds() == []


def test_a_file_that_goes_while_somebody_waits_for_its_lock(name: str) -> None:
    path_of(name).touch()
    file = WorldFile.open_locked(name, time.monotonic() + PATIENCE, create=False)
    found: list[ShmHeap] = []
    waiter = threading.Thread(target=lambda: found.append(attach(name, 0, 1)))
    waiter.start()

    def opened() -> int:
        return [fd.resolve() for fd in Path("/proc/self/fd").iterdir()].count(path_of(name).resolve())

    until(lambda: opened() == 2)
    file.remove()
    file.locks.close()
    waiter.join(PATIENCE)
    assert list_worlds() == [name]
    assert inspect(name).alive == [True]
    found[0].close()


# --- stale names ---
def test_a_stale_name_is_an_error_that_names_the_remedies(name: str, start: Start) -> None:
    leave_stale(name, start)
    with pytest.raises(HeapUnavailable, match=f"nanokv rm {name}.*on_stale='recover'.*on_stale='replace'"):
        attach(name, 0, 1)
    assert list_worlds() == [name]


def test_a_stale_world_is_recovered(name: str, start: Start) -> None:
    leave_stale(name, start)
    heap = attach(name, 0, 1, on_stale="recover", may_evict=False, water=(10, 20))
    assert (heap.recovered, heap.incarnation, int(heap.host_view(0)[-1])) == (True, 2, 42)
    ctl = SegmentView(heap.host_view(0), heap.geometry).ctl[0]
    assert (ctl["may_evict"], ctl["water_lo"], ctl["water_hi"], ctl["closed"]) == (0, 10, 20, 0)
    heap.close()


def test_a_stale_world_is_replaced(name: str, start: Start) -> None:
    leave_stale(name, start)
    before = inspect(name).world_id
    heap = attach(name, 0, 1, on_stale="replace", geometry=plan(1, pages=99))
    assert (heap.recovered, heap.incarnation, int(heap.host_view(0)[-1])) == (False, 1, 0)
    assert inspect(name).world_id != before
    heap.close()


def test_a_world_of_two_is_recovered_by_both(name: str, start: Start) -> None:
    ranks = [start(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.arrive()
    ranks[0].ask("poke", 1, -1, 8)
    ranks[0].send("barrier", 600.0)
    raw = np.memmap(path_of(name), np.uint8, mode="r")
    until(lambda: raw[HEADER.size :][: RANK.size].view(RANK.dtype)["barrier"][0] == 1)
    for rank in ranks:
        rank.kill()
    with pytest.raises(PeerLost, match=r"\[1\]"):
        attach(name, 0, 2, on_stale="recover", timeout=0.05)
    assert list_worlds() == [name]  # it holds data, and the other rank may still come
    other = start(1, 2, on_stale="recover")
    mine = attach(name, 0, 2, on_stale="recover")
    assert other.arrive() == (2, True)
    assert (mine.incarnation, int(mine.host_view(1)[-1])) == (3, 8)
    other.send("barrier", PATIENCE)
    mine.barrier(PATIENCE)
    mine.close()


def is_there(name: str) -> bool:
    """Whether the creator of a world has finished it, and lives."""
    try:
        return inspect(name).alive[0]
    except HeapUnavailable:
        return False


def test_a_world_that_never_was_complete_is_no_obstacle(name: str, start: Start) -> None:
    lonely = start(0, 2)
    until(lambda: is_there(name))
    lonely.kill()
    for heap in pair(name):
        assert not heap.recovered
        heap.close()


def test_what_a_dead_creator_left_half_made_is_no_obstacle(name: str) -> None:
    path_of(name).write_bytes(bytes(100))
    heap = attach(name, 0, 1)
    assert heap.recovered is False
    heap.close()


# --- living together ---
def test_barrier(name: str, start: Start) -> None:
    other = start(1, 2)
    mine = attach(name, 0, 2)
    other.arrive()
    for turn in range(1, 20):
        other.ask("poke", 1, -1, turn)
        other.send("barrier", PATIENCE)
        mine.barrier(PATIENCE)
        assert other.answer() is None
    with pytest.raises(PeerLost, match=r"\[1\] did not come within 0.02 s"):
        mine.barrier(0.02)
    other.send("barrier", PATIENCE)
    mine.barrier(PATIENCE)  # the one that failed counts for nothing
    assert other.answer() is None
    other.kill()
    with pytest.raises(PeerLost, match=rf"\[1\] of world '{name}' have ended"):
        mine.barrier(PATIENCE)
    again = start(1, 2)
    again.arrive()
    again.send("barrier", PATIENCE)
    mine.barrier(PATIENCE)
    mine.close()


def test_a_bell_wakes_another_process(name: str, start: Start) -> None:
    other = start(1, 2)
    mine = attach(name, 0, 2)
    other.arrive()
    other.send("wait_for_hint", 600.0, 0)
    asleep = SegmentView(mine.host_view(1), mine.geometry).ctl["ann_asleep"]
    until(lambda: bool(asleep[0]))
    mine.wake(1)
    assert other.answer() is None
    assert asleep[0] == 0
    mine.close()


def test_after_close(name: str) -> None:
    heap = attach(name, 0, 1)
    tensor, raw = heap.segment(0), heap.host_view(0)
    heap.close()
    tensor[-1] = 9
    assert raw[-1] == 9
    assert heap.peer_closed(0) and not heap.alive(0, 1)
    for method in (heap.segment, heap.host_view, heap.barrier):
        with pytest.raises(HeapUnavailable, match="has left world"):
            method(0)
    del heap, tensor, method
    gc.collect()
    raw[:] = 1


@pytest.mark.parametrize(("rank", "incarnation"), [(-1, 1), (1, 1), (900, 1), (0, 0), (0, 2)])
def test_who_cannot_exist_is_not_alive(name: str, rank: int, incarnation: int) -> None:
    heap = attach(name, 0, 1)
    assert not heap.alive(rank, incarnation)
    heap.close()


# --- tools ---
def test_inspect_and_remove_a_living_world(name: str) -> None:
    heap = attach(name, 0, 1)
    info = inspect(name)
    assert (info.alive, info.initialised, info.mode, info.geometry) == ([True], [True], "device", heap.geometry)
    assert info.path == path_of(name)
    heap.host_view(0)[-1] = 3
    assert info.segments[0][-1] == 3
    assert info.segments[0].shape == (heap.geometry.segment_bytes,)
    with pytest.raises(ValueError, match="read-only"):
        info.segments[0][-1] = 4
    inspect(name, writable=True).segments[0][-1] = 4
    assert heap.host_view(0)[-1] == 4
    with pytest.raises(HeapUnavailable, match="is in use"):
        remove_world(name)
    remove_world(name, force=True)
    assert list_worlds() == []
    other = attach(name, 0, 1)  # a new world of the same name
    heap.close()  # must not take the new file with it
    assert list_worlds() == [name]
    other.close()
    assert list_worlds() == []


def test_inspect_and_remove_a_dead_world(name: str, start: Start) -> None:
    leave_stale(name, start)
    info = inspect(name)
    assert (info.alive, info.initialised) == ([False], [True])
    assert info.segments[0][-1] == 42
    remove_world(name)
    assert list_worlds() == []
    for look in (inspect, remove_world):
        with pytest.raises(HeapUnavailable, match=f"no world '{name}'"):
            look(name)


def test_open_heap_attaches(name: str) -> None:
    heap = open_heap("shm", small_world(1, name=name), 0)
    assert (heap.kind, heap.name) == ("shm", name)
    heap.close()


def test_locks_are_of_an_open_file_not_of_a_process(tmp_path: Path) -> None:
    flags = os.O_RDWR | os.O_CREAT
    one, two = (LockFile(os.open(tmp_path / "file", flags)) for _ in range(2))
    assert one.try_lock(3) and one.try_lock(3)
    assert not two.try_lock(3) and two.try_lock(4)
    assert two.held(3) and not one.held(3) and one.held(4) and one.held(0, 10) and not one.held(0, 4)
    assert not two.lock(3, time.monotonic() + 0.01)
    one.close()
    one.close()
    assert not two.held(3) and two.try_lock(3)
    assert one.held(4) and not one.try_lock(5)
    two.unlock(3)
    two.close()
