"""What eviction leaves alone, and what it tells: leases, free neighbours, counters, events."""

import time
from collections.abc import Callable

import pytest
import torch

import nanokv
from nanokv.errors import InvalidArgument, OutOfMemory, WaitTimeout
from tests.support.until import until

PAGE = 4096
World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Eight pages per rank; v1's master evicts only when a segment is full."""
    return make_world(n=2, heap_bytes=8 * PAGE, page_bytes=PAGE, water=(100, 100))


def pages(count: int, value: int = 0) -> torch.Tensor:
    return torch.full((count * PAGE,), value, dtype=torch.uint8)


def fill(world: World, hold: float | None) -> list[str]:
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        world[0].put(key, pages(1), preferred_segment=1, hold=hold)
    return keys


def test_without_a_lease_unread_objects_are_evicted(world: World) -> None:
    keys = fill(world, None)
    world[0].put("more", pages(1), preferred_segment=1)
    assert sum(world[1].exists_many(keys)) == 7


def test_leased_objects_are_not_evicted_before_they_are_read(world: World) -> None:
    keys = fill(world, 3600.0)
    with pytest.raises(OutOfMemory):
        world[0].put("more", pages(1), preferred_segment=1)
    assert all(world[1].exists_many(keys))
    world[1].get("k5")
    world[0].put("more", pages(1), preferred_segment=1)
    assert world[1].exists_many(keys) == [key != "k5" for key in keys]
    with pytest.raises(OutOfMemory):
        world[0].put("again", pages(8), preferred_segment=1)


def test_a_read_into_a_tensor_and_a_pin_end_a_lease(world: World) -> None:
    keys = fill(world, 3600.0)
    world[0].get("k1", dst=pages(1))
    with world[1].pin("k2"):
        pass
    world[0].put("one", pages(1), preferred_segment=1, hold=3600.0)
    world[0].put("two", pages(1), preferred_segment=1, hold=3600.0)
    assert world[1].exists_many(keys) == [key not in ("k1", "k2") for key in keys]


def test_objects_that_exist_are_leased(world: World) -> None:
    keys = fill(world, None)
    world[0].get("k3")
    assert world[0].hold(["k3", "absent", "k4"], 3600.0) == [True, False, True]
    for i in range(8):
        world[0].put(f"more{i}", pages(1), preferred_segment=1)
    assert world[1].exists_many(keys) == [key in ("k3", "k4") for key in keys]
    world[1].get("k3")  # its first read since then
    for i in range(40):
        world[0].put(f"again{i}", pages(1), preferred_segment=1)
    assert world[1].exists_many(keys) == [key == "k4" for key in keys]
    for wrong in (None, 0, -1.0, True, "1"):
        with pytest.raises(InvalidArgument):
            world[0].hold(["k4"], wrong)  # type: ignore[arg-type]


def test_a_lease_ends_with_its_time(world: World) -> None:
    keys = fill(world, 0.05)
    time.sleep(0.1)
    world[0].put("more", pages(1), preferred_segment=1)
    assert sum(world[1].exists_many(keys)) == 7


def test_exists_does_not_end_a_lease(world: World) -> None:
    keys = fill(world, 3600.0)
    assert all(world[1].exists_many(keys)) and world[1].exists("k0") and world[1].get_location("k0").n_pages == 1
    with pytest.raises(OutOfMemory):
        world[0].put("more", pages(1), preferred_segment=1)


def test_a_leased_object_can_be_removed(world: World) -> None:
    fill(world, 3600.0)
    world[1].remove("k3")
    world[0].put("more", pages(1), preferred_segment=1)


def test_every_way_to_put_takes_a_lease(world: World) -> None:
    cache = world[0]
    assert cache.put_many(["a", "b"], [pages(1), pages(1)], preferred_segment=1, hold=3600.0) == [None, None]
    cache.put_async("c", pages(1), preferred_segment=1, hold=3600.0).wait(10.0)
    cache.open_for_write("d", PAGE, preferred_segment=1, hold=3600.0)
    cache.commit("d")
    layers = [torch.zeros(4, 2, 2, 1, PAGE // 8, dtype=torch.uint8) for _ in range(2)]
    assert cache.paged_kv(layers, kv_dim=1).put(["e", "f"], [0, 1], preferred_segment=1, hold=3600.0) == [None, None]
    for i in range(4):
        cache.put(f"other{i}", pages(1), preferred_segment=1)
    assert all(world[1].exists_many(["a", "b", "c", "d", "e", "f"]))
    assert sum(world[1].exists_many([f"other{i}" for i in range(4)])) == 2


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "1", True])
def test_a_lease_of_no_time_is_refused(world: World, wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="hold must be positive seconds"):
        world[0].put("k", pages(1), hold=wrong)  # type: ignore[arg-type]
    assert not world[0].exists("k")


def test_an_endless_lease(world: World) -> None:
    world[0].put("k", pages(1), preferred_segment=1, hold=float("inf"))
    assert torch.equal(world[1].get("k"), pages(1))


def test_the_owner_evicts_no_leased_objects(world: World) -> None:
    keys = fill(world, 3600.0)
    world[1].get("k0")
    world[1].evict_until_below(0.0)
    assert world[1].exists_many(keys) == [False] + [True] * 7
    assert world[1].clear() == 7


# --- free neighbours --------------------------------------------------------------------------
def test_nothing_is_evicted_from_a_half_empty_heap(make_world: MakeWorld) -> None:
    """Small objects were put and removed: their free extents are joined before a live object goes."""
    world = make_world(n=2, heap_bytes=512 * PAGE, page_bytes=PAGE)
    small = [f"small{i}" for i in range(256)]
    for key in small:
        world[0].put(key, pages(1), preferred_segment=1)
    assert all(world[0].remove_many(small))
    large = [f"large{i}" for i in range(48)]
    for i, key in enumerate(large):
        world[0].put(key, pages(8, i), preferred_segment=1)
    assert all(world[1].exists_many(large))
    assert world[1].stats()["evicted"] == 0


@pytest.mark.parametrize("heap", ["local", "shm"])
def test_large_puts_after_small_ones_are_not_refused_once(new_world: MakeWorld, heap: str) -> None:
    """The owner's poller joins what the small objects left, while a large one lives; nobody asks it to."""
    world = new_world(heap=heap, alloc="device", heap_bytes=512 * PAGE, page_bytes=PAGE)
    small = [f"small{i}" for i in range(256)]
    for key in small:
        world[0].put(key, pages(1), preferred_segment=1)
    world[0].put("large", pages(8), preferred_segment=1)
    assert all(world[0].remove_many(small))
    until(lambda: world[1].stats()["sweeper_joined_ahead"] == 1)
    for i in range(63):
        world[0].put(f"large{i}", pages(8), preferred_segment=1)
    stats = world[1].stats()
    assert (stats["ready"], stats["refused"], stats["evicted"], stats["sweeper_joined"]) == (64, 0, 0, 1)


def test_pages_that_lie_apart_are_no_reason_to_refuse(make_world: MakeWorld) -> None:
    """Every second page is free: only an eviction makes room for two pages."""
    world = make_world(n=2, heap_bytes=8 * PAGE, page_bytes=PAGE, water=(100, 100))
    for i in range(8):
        world[0].put(f"k{i}", pages(1), preferred_segment=1)
    world[0].remove_many([f"k{i}" for i in range(0, 8, 2)])
    world[0].put("large", pages(2), preferred_segment=1)
    assert world[1].exists("large")
    assert sum(world[1].exists_many([f"k{i}" for i in range(1, 8, 2)])) == 3


# --- what is told -----------------------------------------------------------------------------
def test_a_producer_sees_what_its_puts_evicted(world: World) -> None:
    fill(world, None)
    for i in range(3):
        world[0].put(f"more{i}", pages(1), preferred_segment=1)
    assert (world[0].stats()["evictions"], world[1].stats()["evictions"]) == (3, 0)
    assert (world[0].stats()["evicted"], world[1].stats()["evicted"]) == (0, 3)


def test_an_eviction_is_an_event_of_its_own(world: World) -> None:
    events: list[tuple[str, nanokv.KeyDigest | None]] = []
    world[1].subscribe(lambda batch: events.extend((event.kind.value, event.key) for event in batch))
    fill(world, None)
    world[1].flush()
    world[0].remove("k7")
    world[0].put("one", pages(1), preferred_segment=1)
    world[1].flush()
    world[0].put("two", pages(1), preferred_segment=1)
    world[1].flush()
    gone = [(kind, key) for kind, key in events if kind != "stored"]
    assert gone == [("removed", world[0].digest("k7")), ("evicted", world[0].digest("k0"))]
    world[1].evict_until_below(0.9)
    assert events[-1][0] == "evicted"


# --- counters ---------------------------------------------------------------------------------
def test_calls_are_timed_per_page_and_timeouts_are_counted(world: World) -> None:
    cache = world[0]
    assert (cache.stats()["put_us_per_page"], cache.stats()["get_us_per_page"]) == (0.0, 0.0)
    for i in range(3):
        cache.put(f"k{i}", pages(1), preferred_segment=1)
        cache.get(f"k{i}")
    assert 0 < cache.stats()["put_us_per_page"] < 1e6 and 0 < cache.stats()["get_us_per_page"] < 1e6
    with pytest.raises(WaitTimeout):
        cache.wait("none", timeout=0.01)
    assert cache.stats()["timeouts"] == 1


def test_removals_and_evictions_are_counted_apart(world: World) -> None:
    fill(world, None)
    world[1].remove("k0")
    world[1].evict_until_below(0.5)
    world[1].flush()
    stats = world[1].stats()
    assert (stats["removed"], stats["evicted"]) == (1, 3)
