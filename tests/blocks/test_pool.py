"""Allocation, eviction, duplicates; wrong calls."""

from typing import Any

import pytest
import torch

import nanokv
from nanokv.blocks import BlockManager, PoolInUse
from nanokv.blocks.manager import PoolStatus
from nanokv.errors import InvalidArgument
from tests.blocks.conftest import (
    LAYOUT,
    NewPool,
    block_of,
    cached,
    completed,
    hash_of,
    registered,
    taken,
    there,
)

KVBM = "KVBM block manager"


# --- allocation ---
@pytest.mark.surface(KVBM, "total_blocks")
@pytest.mark.surface(KVBM, "available_blocks")
@pytest.mark.surface(KVBM, "allocate_blocks")
@pytest.mark.surface(KVBM, "status")
def test_allocation_takes_reset_blocks_and_gives_all_or_none(new_pool: NewPool) -> None:
    pool = new_pool(8)
    assert pool.total_blocks == pool.available_blocks == 8 and pool.block_size == 4
    blocks = taken(pool, 5)
    assert len({block.block_id for block in blocks}) == 5
    assert pool.allocate_blocks(4) is None
    assert pool.status() == PoolStatus(8, 3, 5, 0, 0)
    assert taken(pool, 0) == []
    blocks += taken(pool, 3)
    assert pool.available_blocks == 0 and pool.allocate_blocks(1) is None
    for block in blocks:
        block.drop()
    assert pool.available_blocks == 8


@pytest.mark.surface(KVBM, "allocate_blocks_with_evictions")
def test_reset_blocks_go_first_then_inactive_ones(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0, 1, 2)
    first = pool.allocate_blocks_with_evictions(1)
    assert first is not None and first[1] == []
    second = pool.allocate_blocks_with_evictions(2)
    assert second is not None and second[1] == [hash_of(0), hash_of(1)]
    assert there(pool, 0, 1, 2) == [2]
    assert pool.allocate_blocks_with_evictions(2) is None and there(pool, 2) == [2]  # none: nothing was evicted


def test_blocks_in_use_are_not_evicted(new_pool: NewPool) -> None:
    pool = new_pool(3)
    used = registered(pool, block_of(0), 5.0)
    cached(pool, 1, 2)
    blocks = taken(pool, 2)
    assert pool.allocate_blocks(1) is None and float(used.tensor.mean()) == 5.0
    used.drop()
    blocks += taken(pool, 1)
    assert there(pool, 0) == []


def test_total_blocks_can_be_less_than_the_segment_holds(new_pool: NewPool) -> None:
    pool = new_pool(8, total_blocks=3)
    blocks = taken(pool, 3)
    assert pool.allocate_blocks(1) is None
    del blocks


def test_objects_of_others_take_room_and_stay(new_pool: NewPool) -> None:
    pool = new_pool(4)
    pool.cache.put("foreign", torch.ones(1))
    cached(pool, 0)
    assert pool.status() == PoolStatus(4, 2, 0, 0, 1) and pool.available_blocks == 3
    assert pool.allocate_blocks(4) is None
    complete = [completed(pool, block_of(number)) for number in (1, 2, 3)]  # the inactive one goes for the last
    assert [block.sequence_hash for block in pool.register_blocks(complete)] == [hash_of(1), hash_of(2), hash_of(3)]
    assert there(pool, 0) == [] and "foreign" in pool.cache


def test_a_registration_without_room_evicts(new_pool: NewPool) -> None:
    pool = new_pool(3, patience=0.0)
    cached(pool, 0)
    complete = completed(pool, block_of(1))
    for key in ("foreign", "foreign too"):
        pool.cache.put(key, torch.ones(1))
    complete.register()
    assert there(pool, 0, 1) == [1] and pool.counts.as_dict()["evictions"] == 1


@pytest.mark.parametrize(
    "world",
    [
        {"checksum": True},
        {"namespace": "n"},
        {"identity": nanokv.Identity("model", tenant="t")},
        {"heap": "shm"},
        {"heap": "shm", "elastic": True},
    ],
)
def test_a_pool_works_in_any_world(new_pool: NewPool, world: dict[str, Any]) -> None:
    pool = new_pool(4, world=world)
    cached(pool, 0, 1, 2)
    (block,) = pool.match_blocks([hash_of(1)])
    assert (block.tensor == 1).all() and pool.status() == PoolStatus(4, 1, 0, 1, 2)
    got = pool.allocate_blocks_with_evictions(3)
    assert got is not None and got[1] == [hash_of(0), hash_of(2)]


def test_a_full_pool_can_register(new_pool: NewPool) -> None:
    pool = new_pool(3)
    complete = [completed(pool, block_of(number), number) for number in range(3)]
    blocks = pool.register_blocks(complete)
    assert [float(block.tensor.mean()) for block in blocks] == [0, 1, 2]
    assert pool.status() == PoolStatus(3, 0, 0, 3, 0)


# --- the order of evictions ---
def test_lru_evicts_what_was_not_used_for_longest(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0, 1, 2, 3)
    pool.match_blocks([hash_of(0)])[0].drop()
    assert pool.touch_blocks([hash_of(1), hash_of(9)]) == 1
    got = pool.allocate_blocks_with_evictions(4)
    assert got is not None and got[1] == [hash_of(number) for number in (2, 3, 0, 1)]


def test_lru_counts_a_block_as_used_until_it_is_dropped(new_pool: NewPool) -> None:
    pool = new_pool(3)
    cached(pool, 0, 1, 2)
    first, second = pool.match_blocks([hash_of(0), hash_of(1)])
    second.drop()
    first.drop()
    got = pool.allocate_blocks_with_evictions(3)
    assert got is not None and got[1] == [hash_of(number) for number in (2, 1, 0)]


def test_fifo_evicts_what_was_registered_first(new_pool: NewPool) -> None:
    pool = new_pool(4, eviction="fifo")
    cached(pool, 0, 1, 2, 3)
    pool.match_blocks([hash_of(0)])[0].drop()
    pool.touch_blocks([hash_of(1)])
    got = pool.allocate_blocks_with_evictions(3)
    assert got is not None and got[1] == [hash_of(number) for number in (0, 1, 2)]


def test_fifo_goes_on_for_blocks_of_others(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0, 1)
    with BlockManager(pool.cache, LAYOUT, eviction="fifo") as other:
        cached(other, 2, 3)
        other.match_blocks([hash_of(0)])[0].drop()
        got = other.allocate_blocks_with_evictions(4)
        assert got is not None and got[1] == [hash_of(number) for number in range(4)]


def test_priority_evicts_low_first_and_kept_never(new_pool: NewPool) -> None:
    pool = new_pool(5, eviction="priority")
    for number, priority in enumerate(("high", "kept", "normal", "low", "normal")):
        pool.register_block(completed(pool, block_of(number)), priority=priority).drop()  # type: ignore[arg-type]
    assert pool.available_blocks == 4
    got = pool.allocate_blocks_with_evictions(4)
    assert got is not None and got[1] == [hash_of(number) for number in (3, 2, 4, 0)]
    assert there(pool, 1) == [1] and pool.allocate_blocks(1) is None


@pytest.mark.surface(KVBM, "reset_inactive_pool")
def test_reset_inactive_pool(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0, 1)
    assert pool.reset_inactive_pool() == 2
    assert pool.status() == PoolStatus(4, 4, 0, 0, 0) and there(pool, 0, 1) == []
    cached(pool, 2)
    used = registered(pool, block_of(3))
    with pytest.raises(PoolInUse) as refused:
        pool.reset_inactive_pool()
    assert (refused.value.expected, refused.value.actual) == (4, 3) and there(pool, 2, 3) == [3]
    used.drop()


# --- duplicates ---
@pytest.mark.surface(KVBM, "register_block")
@pytest.mark.surface(KVBM, "duplication_policy")
def test_reject_answers_with_the_registered_block(new_pool: NewPool) -> None:
    pool = new_pool(4, duplication="reject")
    first = registered(pool, block_of(0), 1.0)
    second = registered(pool, block_of(0), 2.0)
    assert second.block_id == first.block_id and not second.is_duplicate and float(second.tensor.mean()) == 1.0
    assert pool.status() == PoolStatus(4, 3, 0, 1, 0)
    first.drop()
    assert pool.status().active == 1
    second.drop()
    assert pool.status().inactive == 1


def test_allow_keeps_a_further_block_that_nothing_matches(new_pool: NewPool) -> None:
    pool = new_pool(4)
    first = registered(pool, block_of(0), 1.0)
    second = registered(pool, block_of(0), 2.0)
    assert second.is_duplicate and second.block_id != first.block_id and float(second.tensor.mean()) == 2.0
    first.drop()
    assert pool.status() == PoolStatus(4, 2, 0, 2, 0)  # the duplicate keeps the first one
    (matched,) = pool.match_blocks([hash_of(0)])
    assert float(matched.tensor.mean()) == 1.0
    matched.drop()
    second.drop()
    assert pool.status() == PoolStatus(4, 3, 0, 0, 1)


def test_a_block_that_is_inactive_is_registered_already(new_pool: NewPool) -> None:
    pool = new_pool(4, duplication="reject")
    cached(pool, 1)
    assert float(registered(pool, block_of(1), 7.0).tensor.mean()) == 1.0


@pytest.mark.surface(KVBM, "register_blocks")
def test_register_blocks_refuses_what_it_cannot_register_before_it_begins(new_pool: NewPool) -> None:
    pool, other = new_pool(4), new_pool(4)
    mine, foreign = completed(pool, block_of(0)), completed(other, block_of(0))
    for wrong in ([mine, foreign], [mine, mine], [mine, None], [mine, taken(pool, 1)[0]]):
        with pytest.raises(InvalidArgument):
            pool.register_blocks(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="priority"):
        pool.register_block(mine, priority="highest")  # type: ignore[arg-type]
    assert mine.valid and there(pool, 0) == []
    assert [block.sequence_hash for block in pool.register_blocks([mine])] == [hash_of(0)]
