"""The terms of objects: priorities, kept objects, times to live, groups, and quotas of identities."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv import Hold
from nanokv.errors import InvalidArgument, OutOfMemory
from tests.support.until import until
from tests.support.worlds import MakeWorld, World

PAGE = 4096
PAGES = 16


@pytest.fixture
def world(make_world: MakeWorld) -> Iterator[World]:
    yield make_world(n=2, heap_bytes=PAGES * PAGE, page_bytes=PAGE, namespace="mine", water=(100, 100))


def page(value: int = 0) -> torch.Tensor:
    return torch.full((PAGE,), value, dtype=torch.uint8)


def there(world: World, keys: list[str]) -> list[str]:
    return [key for key in keys if key in world[0]]


def fill(world: World, name: str, count: int, hold: Any = None) -> list[str]:
    keys = [f"{name}{i}" for i in range(count)]
    for key in keys:
        world[0].put(key, page(), preferred_segment=1, hold=hold)
    return keys


# --- priorities -------------------------------------------------------------------------------
def test_kept_objects_are_never_evicted(world: World) -> None:
    kept = fill(world, "kept", 4, Hold(priority="kept"))
    for key in kept:
        world[0].get(key)  # ends no keeping
    fill(world, "other", 3 * PAGES)
    world[1].evict_until_below(0.0)
    assert there(world, kept) == kept


def test_a_segment_of_kept_objects_refuses(world: World) -> None:
    kept = fill(world, "kept", PAGES, Hold(priority="kept"))
    with pytest.raises(OutOfMemory):
        world[0].put("one", page(), preferred_segment=1)
    assert world[0].hold(kept[:1], Hold(priority="normal")) == [True]
    world[0].put("one", page(), preferred_segment=1)
    assert there(world, kept) == kept[1:]


def test_a_kept_object_can_be_removed(world: World) -> None:
    (key,) = fill(world, "kept", 1, Hold(priority="kept"))
    world[0].remove(key)
    assert key not in world[0]


def test_high_goes_after_normal_after_low(world: World) -> None:
    """Of objects of one age, those of low priority go first, and those of high priority last."""
    high = fill(world, "high", 4, Hold(priority="high"))
    low = fill(world, "low", 4, Hold(priority="low"))
    normal = fill(world, "normal", 4)
    time.sleep(0.05)
    for left in (high + normal, high):
        world[1].evict_until_below(len(left) / PAGES)
        assert there(world, high + normal + low) == left


@pytest.mark.parametrize("policy", ["clock", "fifo"])
def test_the_hand_passes_high_objects(new_world: MakeWorld, policy: str) -> None:
    world = new_world(heap="local", alloc="device", n=2, heap_bytes=PAGES * PAGE, page_bytes=PAGE, policy=policy)
    high = fill(world, "high", 4, Hold(priority="high"))
    fill(world, "other", PAGES)
    assert there(world, high) == high


def test_a_use_leaves_the_priority_and_a_lease_too(world: World) -> None:
    (key,) = fill(world, "kept", 1, Hold(3600.0, "kept"))
    world[0].get(key)
    world[0].hold([key], 3600.0)
    world[0].get(key)
    fill(world, "other", 2 * PAGES)
    assert key in world[0]


# --- time to live -----------------------------------------------------------------------------
def test_an_object_goes_when_its_time_is_over(world: World) -> None:
    began = time.monotonic()
    short = fill(world, "short", 3, Hold(ttl=0.5, priority="kept"))
    long = fill(world, "long", 3, Hold(ttl=3600.0))
    assert there(world, short) == short or time.monotonic() - began > 0.5
    until(lambda: there(world, short) == [])
    assert time.monotonic() - began >= 0.5
    assert there(world, long) == long
    until(lambda: world[1].stats()["sweeper_expired"] == 3)


def test_the_next_object_of_the_slot_stays(world: World) -> None:
    """A time to live ends with its object: the same slot may hold one without."""
    for _ in range(PAGES):
        (key,) = fill(world, "k", 1, Hold(ttl=0.3))
        world[0].remove(key)
    keys = fill(world, "k", PAGES)
    time.sleep(0.3)
    for cache in world:
        cache.flush()
    assert there(world, keys) == keys


def test_a_pin_puts_the_end_off(world: World) -> None:
    (key,) = fill(world, "k", 1, Hold(ttl=0.2))
    with world[0].pin(key) as tensor:
        time.sleep(0.3)
        world[1].flush()
        assert torch.equal(tensor, page())
        assert key in world[0]
    until(lambda: key not in world[0])


def test_times_of_objects_that_exist(world: World) -> None:
    keys = fill(world, "k", 3)
    assert world[0].hold([keys[0], "absent"], Hold(ttl=0.1)) == [True, False]
    until(lambda: there(world, keys) == keys[1:])
    assert world[0].hold([keys[1]], Hold(ttl=3600.0)) == [True]
    assert world[0].hold([keys[1]], Hold(ttl=0.1)) == [True]
    until(lambda: there(world, keys) == keys[2:])


# --- groups -----------------------------------------------------------------------------------
def test_a_group_is_dropped_from_all_segments(world: World) -> None:
    one, two = Hold(group="one"), Hold(group="two", priority="kept")
    for rank in range(2):
        for number in range(3):
            world[0].put(f"one{rank}{number}", page(), preferred_segment=rank, hold=one)
        world[0].put(f"two{rank}", page(), preferred_segment=rank, hold=two)
        world[0].put(f"none{rank}", page(), preferred_segment=rank)
    assert world[1].drop_group("one") == 6
    assert world[1].drop_group("one") == 0
    assert world[1].drop_group("absent") == 0
    left = [f"{name}{rank}" for rank in range(2) for name in ("two", "none")]
    assert all(key in world[0] for key in left)
    assert not any(f"one{rank}{number}" in world[0] for rank in range(2) for number in range(3))
    assert world[0].drop_group("two") == 2


def test_the_next_object_of_the_slot_is_of_no_group(world: World) -> None:
    for _ in range(PAGES):
        (key,) = fill(world, "k", 1, Hold(group="g"))
        world[0].remove(key)
    keys = fill(world, "k", PAGES)
    assert world[0].drop_group("g") == 0
    assert there(world, keys) == keys


def test_groups_of_objects_that_exist(world: World) -> None:
    keys = fill(world, "k", 3)
    assert world[0].hold(keys[:2], Hold(group="g", ttl=3600.0)) == [True, True]
    assert world[0].hold(keys[:1], Hold(group="h")) == [True]  # the time stays as it was
    assert world[0].drop_group("g") == 1
    assert there(world, keys) == [keys[0], keys[2]]
    assert world[0].drop_group("h") == 1


def test_a_pinned_object_of_a_group_stays(world: World) -> None:
    keys = fill(world, "k", 2, Hold(group="g"))
    with world[0].pin(keys[0]):
        assert world[0].drop_group("g") == 1
    assert world[0].drop_group("g") == 1


def test_groups_of_two_namespaces(shm_prefix: str) -> None:
    """The same name is another group in another namespace."""
    name = f"{shm_prefix}-groups"

    def attach(rank: int) -> nanokv.NanoKVCache:
        return nanokv.NanoKVCache(
            PAGES * PAGE, name=name, rank=rank, world_size=2, page_bytes=PAGE, namespace=f"tenant{rank}"
        )

    with ThreadPoolExecutor(2) as pool:
        caches = list(pool.map(attach, range(2)))
    try:
        for cache in caches:
            cache.put("k", page(), hold=Hold(group="g"))
        assert caches[0].drop_group("g") == 1
        assert "k" not in caches[0] and "k" in caches[1]
    finally:
        for cache in caches:
            cache.close()


def test_every_way_to_put_takes_terms(world: World) -> None:
    cache, hold = world[0], Hold(priority="high", group="g", ttl=3600.0)
    assert cache.put_many(["a", "b"], [page(), page()], preferred_segment=1, hold=hold) == [None, None]
    cache.put_async("c", page(), preferred_segment=1, hold=hold).wait(10.0)
    cache.open_for_write("d", PAGE, preferred_segment=1, hold=hold)
    cache.commit("d")
    layers = [torch.zeros(2, 2, 8, 2, 16)]
    paged = cache.paged_kv(layers, kv_dim=1)
    assert paged.put(["e", "f"], [0, 1], preferred_segment=1, hold=hold) == [None, None]
    begun = paged.begin_put(["g"], [1], preferred_segment=1, hold=hold)
    begun.write(range(1))
    assert begun.commit() == [None]
    assert cache.drop_group("g") == 7


# --- quotas -----------------------------------------------------------------------------------
def test_an_identity_over_its_quota_loses_its_oldest_objects(make_world: MakeWorld) -> None:
    world = make_world(
        n=2, heap_bytes=PAGES * PAGE, page_bytes=PAGE, namespace="mine", quota_bytes=6 * PAGE, water=(100, 100)
    )
    keys = fill(world, "k", 12)
    until(lambda: len(there(world, keys)) == 6)
    assert there(world, keys) == keys[6:]
    world[1].flush()
    assert len(there(world, keys)) == 6


def test_what_is_held_stays_over_a_quota(make_world: MakeWorld) -> None:
    world = make_world(
        n=2, heap_bytes=PAGES * PAGE, page_bytes=PAGE, namespace="mine", quota_bytes=3 * PAGE, water=(100, 100)
    )
    kept, leased = fill(world, "kept", 2, Hold(priority="kept")), fill(world, "leased", 2, 3600.0)
    others = fill(world, "k", 3)
    until(lambda: there(world, others) == [])
    assert there(world, kept + leased) == kept + leased


def test_a_quota_is_of_one_namespace(shm_prefix: str) -> None:
    def attach(rank: int) -> nanokv.NanoKVCache:
        quota = {"quota_bytes": 2 * PAGE} if rank == 0 else {}
        return nanokv.NanoKVCache(
            PAGES * PAGE,
            name=f"{shm_prefix}-quota",
            rank=rank,
            world_size=2,
            page_bytes=PAGE,
            namespace=f"tenant{rank}",
            **quota,  # type: ignore[arg-type]
        )

    with ThreadPoolExecutor(2) as pool:
        caches = list(pool.map(attach, range(2)))
    try:
        for number in range(5):
            for cache in caches:
                cache.put(f"k{number}", page(), preferred_segment=1)
        until(lambda: sum(f"k{number}" in caches[0] for number in range(5)) == 2)
        assert all(f"k{number}" in caches[1] for number in range(5))
    finally:
        for cache in caches:
            cache.close()


def test_more_identities_than_rows(shm_prefix: str) -> None:
    """A segment has places for sixteen quotas per rank; the seventeenth identity is refused, and says why."""
    world = nanokv.local_world(1, PAGES * PAGE, page_bytes=PAGE, namespace="mine", quota_bytes=PAGE)
    with world[0] as cache:
        machine = cache.engine.machine
        for tag in range(1, 17):
            assert machine.set_quota(0, tag, 1) == 0
        with pytest.raises(OutOfMemory, match="no place for a further quota"):
            cache.put("k", page())
        assert "k" not in cache


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"quota_bytes": PAGE}, "needs an identity or a namespace"),
        ({"quota_bytes": 0, "namespace": "n"}, "quota_bytes must be"),
        ({"quota_bytes": "1", "namespace": "n"}, "quota_bytes must be"),
        ({"quota_bytes": PAGE, "namespace": "n", "evict": False}, "needs evict=True"),
    ],
)
def test_quotas_that_cannot_be(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        nanokv.NanoKVCache(PAGES * PAGE, page_bytes=PAGE, **wrong)


# --- files ------------------------------------------------------------------------------------
def test_terms_are_saved_and_loaded(world: World, tmp_path: Path) -> None:
    fill(world, "kept", 2, Hold(priority="kept"))
    fill(world, "group", 2, Hold(group="g"))
    fill(world, "short", 1, Hold(ttl=0.5))
    world[1].save(tmp_path / "file")
    for cache in world:
        cache.clear()
    assert world[0].load(tmp_path / "file").objects == 5
    until(lambda: "short0" not in world[0])
    assert world[0].drop_group("g") == 2
    world[1].evict_until_below(0.0)
    assert there(world, ["kept0", "kept1"]) == ["kept0", "kept1"]


# --- wrong calls ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0},
        {"seconds": -1.0},
        {"seconds": "1"},
        {"ttl": 0},
        {"ttl": float("nan")},
        {"ttl": True},
        {"priority": "urgent"},
        {"priority": 3},
        {"group": ""},
        {"group": 7},
    ],
)
def test_holds_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Hold(**wrong)


def test_no_group_to_drop(world: World) -> None:
    for wrong in ("", 7, None, b"g"):
        with pytest.raises(InvalidArgument, match="group must be"):
            world[0].drop_group(wrong)  # type: ignore[arg-type]
