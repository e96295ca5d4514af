"""Copies of objects in other segments: put along, asked for, made of what is read; and what outlives an owner."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import nanokv
from nanokv.device.segment.layout import MOST_COPIES
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, ObjectPinned, OutOfMemory, PeerLost
from nanokv.fsck import check_cache

PAGE = 4096
RANKS = 4
VALUE = torch.arange(3000, dtype=torch.int16).reshape(3, 1000)


@pytest.fixture(params=[False, True], ids=["plain", "checksum"])
def world(request: pytest.FixtureRequest) -> Iterator[list[nanokv.NanoKVCache]]:
    caches = nanokv.local_world(RANKS, 32 * PAGE, page_bytes=PAGE, checksum=request.param)
    yield caches
    report = check_cache(caches)
    assert not report.findings, report.findings
    for cache in caches:
        cache.close()


def used(caches: list[nanokv.NanoKVCache]) -> list[int]:
    for cache in caches:
        cache.flush()
    return [cache.stats()["used_pages"] for cache in caches]


# --- put --------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_put_with_copies(world: list[nanokv.NanoKVCache], count: int) -> None:
    world[0].put("k", VALUE, preferred_segment=2, replicas=count)
    have = {(2 + i) % RANKS for i in range(count + 1)}
    for cache in world:
        assert torch.equal(cache.get("k"), VALUE)
        found = cache.copies("k")
        assert set(found) == have and len(found) == len(have)
        assert found == sorted(found, key=lambda rank: (rank - cache.rank) % RANKS)
        assert cache.get_location("k").owner_rank == found[0]
    assert [pages > 0 for pages in used(world)] == [rank in have for rank in range(RANKS)]
    assert world[0].stats()["replicas"] == count and world[0].stats()["replicas_refused"] == 0
    with pytest.raises(DuplicateKey):
        world[1].put("k", VALUE)
    world[3].remove("k")
    for cache in world:
        assert cache.copies("k") == [] and "k" not in cache
    assert sum(used(world)) == 0
    world[1].put("k", VALUE + 1)
    assert torch.equal(world[0].get("k"), VALUE + 1)


def test_a_put_of_many_with_copies(world: list[nanokv.NanoKVCache]) -> None:
    keys, tensors = ["a", "b", "a"], [VALUE, VALUE.t(), VALUE]
    errors = world[1].put_many(keys, tensors, replicas=2)
    assert [type(error) for error in errors] == [type(None), type(None), DuplicateKey]
    assert [len(world[0].copies(key)) for key in ("a", "b")] == [3, 3]
    assert all(torch.equal(cache.get("b"), VALUE.t()) for cache in world)


def test_a_copy_without_room_is_left_out() -> None:
    caches = nanokv.local_world(3, 8 * PAGE, page_bytes=PAGE, evict=False)
    caches[0].put("filler", torch.zeros(8 * PAGE, dtype=torch.uint8), preferred_segment=1)
    caches[0].put("k", VALUE, preferred_segment=0, replicas=2)
    assert caches[0].copies("k") == [0, 2]
    assert (caches[0].stats()["replicas"], caches[0].stats()["replicas_refused"]) == (1, 1)
    with pytest.raises(OutOfMemory):
        caches[1].replicate("k")
    with pytest.raises(OutOfMemory):  # the primary decides
        caches[0].put("other", VALUE, preferred_segment=1, replicas=1)
    assert caches[0].copies("other") == []
    assert not check_cache(caches).findings
    for cache in caches:
        cache.close()


def test_a_leased_object_has_copies(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0, hold=100.0, replicas=1)
    world[0].evict_until_below(0.0)
    assert world[0].copies("k") == [0, 1]


def test_a_put_in_the_background_with_copies(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put_async("k", VALUE, preferred_segment=3, replicas=1).wait()
    assert set(world[2].copies("k")) == {3, 0}


@pytest.mark.parametrize("tensor", [VALUE.t(), torch.randn(9, dtype=torch.cfloat).conj(), torch.zeros(3, 5)[1:, ::2]])
def test_any_tensor_has_copies(world: list[nanokv.NanoKVCache], tensor: torch.Tensor) -> None:
    world[0].put("k", tensor, preferred_segment=0, replicas=1)
    assert torch.equal(world[0].get("k"), tensor) and torch.equal(world[1].get("k"), tensor)


def test_terms_change_for_all_copies(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0, replicas=2)
    assert world[1].hold(["k", "no key"], nanokv.Hold(ttl=0.1)) == [True, False]
    deadline = time.monotonic() + 20
    while world[0].copies("k") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert world[0].copies("k") == []


def test_a_group_is_dropped_with_its_copies(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put_many(["a", "b", "c"], [VALUE] * 3, hold=nanokv.Hold(group="one"), replicas=3)
    world[0].put("d", VALUE, replicas=1)
    assert world[2].replicate("d", 0) in (True, False)
    assert world[3].hold(["a", "d"], nanokv.Hold(group="two")) == [True, True]
    assert world[1].drop_group("one") == 2
    assert [world[0].exists(key) for key in "abcd"] == [True, False, False, True]
    assert world[1].drop_group("two") == 2
    assert sum(used(world)) == 0


@pytest.mark.parametrize("count", [-1, RANKS, MOST_COPIES + 1, 1.5, "1", None, True])
def test_wrong_numbers_of_copies(world: list[nanokv.NanoKVCache], count: Any) -> None:
    with pytest.raises(InvalidArgument, match="replicas"):
        world[0].put("k", VALUE, replicas=count)
    with pytest.raises(InvalidArgument, match="replicas"):
        world[0].put_many(["k"], [VALUE], replicas=count)
    assert "k" not in world[0]


def test_copies_go_to_ranks_that_live(world: list[nanokv.NanoKVCache]) -> None:
    world[2].close()
    world[0].put("k", VALUE, preferred_segment=1, replicas=2)
    assert set(world[0].copies("k")) == {1, 3, 0}
    with pytest.raises(PeerLost):
        world[0].replicate("k", 2)
    world.pop(2)


# --- replicate --------------------------------------------------------------------------------
def test_replicate(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0)
    assert world[1].replicate("k")
    assert not world[1].replicate("k") and not world[0].replicate("k")
    assert world[3].replicate("k", 2)
    assert set(world[3].copies("k")) == {0, 1, 2}
    with world[2].pin("k") as tensor:
        assert torch.equal(tensor, VALUE)
        with pytest.raises(ObjectPinned):
            world[0].remove("k")
        assert set(world[3].copies("k")) == {0, 1, 2}
    with pytest.raises(KeyNotFound):
        world[0].replicate("other")
    with pytest.raises(InvalidArgument):
        world[0].replicate("k", RANKS)
    world[0].put("empty", torch.zeros(0))
    with pytest.raises(InvalidArgument, match="no bytes"):
        world[(world[0].get_location("empty").owner_rank + 1) % RANKS].replicate("empty")


def test_a_copy_outlives_the_eviction_of_the_primary(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0, replicas=1)
    world[0].evict_until_below(0.0)
    assert world[0].copies("k") == [1]
    assert torch.equal(world[0].get("k"), VALUE)
    with pytest.raises(DuplicateKey):
        world[0].put("k", VALUE + 1)
    assert world[2].replicate("k")  # a copy of a copy
    world[3].remove("k")
    assert "k" not in world[0]


def test_all_parts_of_a_copy_are_those_of_the_object(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0)
    world[2].replicate("k")
    world[0].evict_until_below(0.0)
    found = world[1].get("k")
    assert found.dtype == VALUE.dtype and torch.equal(found, VALUE)
    assert torch.equal(world[1].get_part("k", 100, 50), VALUE.view(torch.uint8).flatten()[100:150])
    assert not check_cache(world).findings


# --- the nearest ------------------------------------------------------------------------------
def test_the_nearest_copy_is_read() -> None:
    caches = nanokv.local_world(RANKS, 32 * PAGE, page_bytes=PAGE, costs=[3, 2, 0.5, 1])
    caches[0].put("k", VALUE, preferred_segment=0, replicas=3)
    assert caches[0].copies("k") == [0, 2, 3, 1]
    assert caches[1].copies("k") == [1, 2, 3, 0]
    caches[1].evict_until_below(0.0)
    assert caches[1].get_location("k").owner_rank == 2
    caches[2].evict_until_below(0.0)
    assert caches[1].get_location("k").owner_rank == 3
    for cache in caches:
        cache.close()


@pytest.mark.parametrize("costs", [[1.0], [1, 2, 3], [1, -1], [1, float("nan")], [1, float("inf")], "ab", 3, [1, "x"]])
def test_wrong_costs(costs: Any) -> None:
    with pytest.raises(InvalidArgument, match="cost"):
        nanokv.local_world(2, 32 * PAGE, page_bytes=PAGE, costs=costs)


# --- promotion --------------------------------------------------------------------------------
def wait_for(copies: list[int], cache: nanokv.NanoKVCache, key: str) -> None:
    deadline = time.monotonic() + 30
    while cache.copies(key) != copies:
        assert time.monotonic() < deadline, cache.copies(key)
        time.sleep(0.002)


def test_what_is_read_often_is_copied() -> None:
    caches = nanokv.local_world(2, 32 * PAGE, page_bytes=PAGE, promote=3)
    for key in ("k", "cold", "near"):
        caches[0].put(key, VALUE, preferred_segment=int(key == "near"))
    for _ in range(2):
        caches[1].get("cold")
    for _ in range(5):
        caches[1].get("near")
    for read in (caches[1].get("k"), *caches[1].get_many(["k", "k"])):
        assert read is not None and torch.equal(read, VALUE)
    wait_for([1, 0], caches[1], "k")
    assert caches[1].copies("cold") == [0] and caches[1].copies("near") == [1]
    assert caches[0].stats()["promotions"] == 0
    caches[1].close()
    assert caches[1].closed and caches[0].get_location("k").owner_rank == 0
    caches[0].close()


def test_no_promotion_unless_asked_for(world: list[nanokv.NanoKVCache]) -> None:
    world[0].put("k", VALUE, preferred_segment=0)
    for _ in range(50):
        world[1].get("k")
    assert world[1].copies("k") == [0] and world[1].stats()["promotions"] == 0


# --- v1 ---------------------------------------------------------------------------------------
def test_v1_has_no_copies() -> None:
    caches = nanokv.local_world(2, 32 * PAGE, page_bytes=PAGE, alloc="host")
    caches[0].put("k", VALUE)
    for call in (
        lambda: caches[0].put("other", VALUE, replicas=1),
        lambda: caches[0].replicate("k"),
        lambda: caches[0].copies("k"),
        lambda: nanokv.local_world(2, 32 * PAGE, page_bytes=PAGE, alloc="host", promote=1),
    ):
        with pytest.raises(InvalidArgument, match='alloc="device"'):
            call()
    caches[0].put("zero", VALUE, replicas=0)
    for cache in caches:
        cache.close()
