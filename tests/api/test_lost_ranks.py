"""Ranks that have closed or died: where new objects go, what their peers are told, and waits for what they owed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

import nanokv
from nanokv.config import make_options
from nanokv.device.segment.layout import DEAD, STATE_MASK
from nanokv.errors import DuplicateKey, NanoKVError, PeerLost, WaitTimeout
from nanokv.heap.shm import ShmHeap
from tests.support.faults import Calls
from tests.support.heap_ranks import HeapRank, small_world
from tests.support.rank_processes import Start, new_folder, starter
from tests.support.until import until

PAGE = 4096
PATIENCE = 60.0
World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]


def at_home(cache: nanokv.NanoKVCache, home: int, count: int, what: str = "k") -> list[str]:
    """Keys whose home is the rank `home`."""
    names = (f"{what}{i}" for i in range(10_000))
    found = [name for name in names if cache.engine.geometry.home_rank(cache.digest(name).key_check) == home]
    return found[:count]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(n=3, heap_bytes=256 * PAGE, page_bytes=PAGE, evict=False)


# --- where new objects go ---
def test_objects_without_a_preferred_segment_go_to_ranks_that_live(world: World) -> None:
    here, gone, other = world
    keys = at_home(here, 1, 30)
    gone.close()
    tensor = torch.arange(10)
    for key in keys[:20]:
        here.put(key, tensor)
    assert here.put_many(keys[20:24], [tensor] * 4) == [None] * 4
    here.put_async(keys[24], tensor).wait(PATIENCE)
    assert here.open_for_write(keys[25], 100).dst_rank != 1
    here.commit(keys[25])
    layer = torch.arange(2 * 2 * 4 * 2 * 8, dtype=torch.float32).view(2, 2, 4, 2, 8)
    assert here.paged_kv([layer], kv_dim=1).put(keys[26:28], [0, 1]) == [None, None]
    owners = [other.get_location(key).owner_rank for key in keys[:28]]
    assert set(owners) == {0, 2}, "the ranks that live share them"
    assert all(torch.equal(other.get(key), tensor) for key in keys[:25])
    for key in keys[:28]:
        other.remove(key)


def test_every_rank_chooses_the_same_segment(world: World) -> None:
    keys = at_home(world[0], 1, 20)
    world[1].close()
    chosen = [
        [cache.engine.allocation.owner_of(cache.digest(key), None) for key in keys] for cache in (world[0], world[2])
    ]
    assert chosen[0] == chosen[1]
    assert [world[0].engine.allocation.owner_of(world[0].digest(key), 1) for key in keys[:1]] == [1]


def test_a_preferred_segment_whose_rank_has_gone_is_refused(world: World) -> None:
    here, gone, _ = world
    gone.close()
    key, tensor = at_home(here, 1, 1)[0], torch.ones(3)
    for call in (
        lambda: here.put(key, tensor, preferred_segment=1),
        lambda: here.put_many([key], [tensor], preferred_segment=1),
        lambda: here.open_for_write(key, 3, preferred_segment=1),
    ):
        with pytest.raises(PeerLost, match=r"rank 1 of .* has ended"):
            call()
    assert not here.exists(key)


# --- ranks in processes of their own ---
@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with new_folder(monkeypatch), starter(partial(HeapRank, name="w")) as begin:
        yield begin


def join(rank: int, n: int, alloc: str) -> nanokv.NanoKVCache:
    """A rank of the world in this process."""
    heap = ShmHeap.attach(small_world(n, name="w", mode=alloc), rank)
    return nanokv.NanoKVCache.on_heap(heap, 0, make_options({"alloc": alloc}))


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_a_rank_that_was_killed(start: Start, alloc: str) -> None:
    child = start(1, 2, mode=alloc)
    cache = join(0, 2, alloc)
    child.arrive()
    child.ask("open_cache", alloc=alloc)
    old, new = at_home(cache, 1, 2)
    child.ask("put", old, [1, 2, 3], None)
    assert cache.alive(0) and cache.alive(1)
    child.kill()
    until(lambda: not cache.alive(1))
    cache.put(new, torch.ones(3))
    assert cache.get_location(new).owner_rank == 0
    assert cache.get(old).tolist() == [1, 2, 3], "the memory of a dead rank stays mapped, and its directory works"
    assert cache.get_location(old).owner_rank == 1
    with pytest.raises(PeerLost):
        cache.put("other", torch.ones(3), preferred_segment=1)
    cache.close()


@pytest.mark.parametrize("owner", [0, 1])
def test_a_key_that_a_killed_rank_was_writing_is_free_again(start: Start, owner: int) -> None:
    """Also in its own segment, which nobody sweeps any more. If it comes back, it takes the pages back."""
    child = start(1, 2, mode="device")
    cache = join(0, 2, "device")
    child.arrive()
    child.ask("open_cache", alloc="device")
    key = at_home(cache, 1, 1)[0]
    child.ask("put", "whole", [7], 1)
    child.ask("open_for_write", key, 100, owner)
    with pytest.raises(DuplicateKey):
        cache.put(key, torch.ones(3))
    child.kill()
    until(lambda: cache.stats()["orphans" if owner == 1 else "sweeper_orphaned"] == 1)
    cache.put(key, torch.arange(5))
    assert cache.get(key).tolist() == [0, 1, 2, 3, 4] and cache.get("whole").tolist() == [7]
    again = start(1, 2, mode="device")
    again.arrive()
    again.ask("open_cache", alloc="device")
    until(lambda: not holds_pages_of_the_dead(cache, owner))
    cache.close()


def holds_pages_of_the_dead(cache: nanokv.NanoKVCache, owner: int) -> bool:
    headers = cache.engine.machine.headers(owner, 0, cache.engine.geometry.hdr_count)
    return bool((headers["n_pages"][headers["state"] & STATE_MASK.value == DEAD.value] > 0).any())


@pytest.mark.parametrize("alloc", ["device", "host"])
@pytest.mark.parametrize("owner", [0, 1])
def test_a_wait_for_what_a_killed_rank_owed_ends(start: Start, calls: Calls, alloc: str, owner: int) -> None:
    child = start(1, 2, mode=alloc)
    cache = join(0, 2, alloc)
    child.arrive()
    child.ask("open_cache", alloc=alloc)
    cache.put("there", torch.ones(1))
    child.ask("open_for_write", "owed", 100, owner)
    with pytest.raises(WaitTimeout, match=r"1 of 2 objects are not READY after 0.05 s"):
        cache.wait(["there", "owed"], timeout=0.05)
    asked = threading.Event()
    calls.after(cache.engine.allocation, "writer_of", lambda _: asked.set())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.wait, ["never", "owed"], timeout=None)
        assert asked.wait(PATIENCE)
        child.kill()
        with pytest.raises(PeerLost, match="rank 1 of 'w' has ended while it wrote an object waited for"):
            waiting.result(PATIENCE)
    cache.close()


@pytest.mark.parametrize("alloc", ["device", "host"])
@pytest.mark.parametrize("owner", [0, 1])
def test_a_hint_in_any_segment_ends_the_sleep_of_a_waiting_rank(start: Start, alloc: str, owner: int) -> None:
    child = start(1, 2, mode=alloc)
    cache = join(0, 2, alloc)
    child.arrive()
    child.ask("open_cache", alloc=alloc)
    armed = threading.Event()

    def still() -> bool:
        armed.set()
        return True

    sleeper = threading.Thread(target=cache.engine.heap.wait_for_any_hint, args=(600.0, still))
    sleeper.start()
    assert armed.wait(PATIENCE)
    child.ask("put", "k", [1], owner)
    sleeper.join(PATIENCE)
    assert not sleeper.is_alive()
    cache.wait("k", timeout=PATIENCE)
    cache.close()


def test_alive(world: World) -> None:
    assert [world[0].alive(rank) for rank in range(3)] == [True, True, True]
    world[2].close()
    assert [world[0].alive(rank) for rank in range(3)] == [True, True, False]
    for wrong in (3, -1):
        with pytest.raises(NanoKVError, match="rank must be 0 to 2"):
            world[0].alive(wrong)


# --- events ---
def told_of_ranks(cache: nanokv.NanoKVCache) -> list[tuple[str, int]]:
    """The events about ranks that a listener of the cache gets from now on."""
    told: list[tuple[str, int]] = []
    cache.subscribe(lambda events: told.extend((e.kind.value, e.rank) for e in events if e.key is None))
    return told


def test_listeners_are_told_when_a_rank_closes(world: World) -> None:
    told = told_of_ranks(world[0])
    world[0].flush()  # its poller has seen all ranks
    world[2].close()
    until(lambda: told == [("rank left", 2)])


def test_listeners_are_told_when_a_process_dies_and_comes_back(start: Start) -> None:
    child = start(1, 2)
    cache = join(0, 2, "device")
    child.arrive()
    told = told_of_ranks(cache)
    cache.flush()
    child.kill()
    until(lambda: told == [("rank left", 1)])
    again = start(1, 2)
    again.arrive()
    until(lambda: told == [("rank left", 1), ("rank joined", 1)])
    again.ask("open_cache")
    again.ask("put", "k", [1], 0)
    cache.flush()
    cache.close()
    assert len(told) == 2, "events about objects are others"
