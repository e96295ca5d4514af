"""Matching, pins, weak blocks."""

from typing import Any

import pytest
import torch

from nanokv.blocks import BlockManager, LayoutConfig, SequenceHash
from nanokv.errors import InvalidArgument, KeyNotFound, OutOfMemory
from tests.blocks.conftest import (
    NewPool,
    block_of,
    cached,
    chain,
    completed,
    hash_of,
    hashes,
    registered,
    taken,
    there,
)

KVBM = "KVBM block manager"


# --- matching ---
@pytest.mark.surface(KVBM, "match_blocks")
@pytest.mark.surface(KVBM, "match_sequence_hashes")
def test_match_blocks_stops_at_the_first_miss(new_pool: NewPool) -> None:
    pool, blocks = new_pool(8), chain(5)
    for number, tokens in enumerate(blocks):
        registered(pool, tokens, number).drop()
    pool.cache.remove(pool.keys.of(blocks[3].sequence_hash))
    for match in (pool.match_blocks, pool.match_sequence_hashes):
        found = match(hashes(blocks))
        assert [float(block.tensor.mean()) for block in found] == [0, 1, 2]
        assert [block.sequence_hash for block in found] == hashes(blocks)[:3]
        assert pool.status().active == 3
        for block in found:
            block.drop()
    assert pool.match_blocks([]) == [] and pool.status().active == 0


def test_a_damaged_block_is_no_match_and_is_dropped(new_pool: NewPool, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing raises on the thread that matches: the block is computed again, and registered again."""
    pool = new_pool(8, world={"checksum": True})
    cached(pool, 0, 1, 2)
    cache = pool.cache
    place = cache.get_location(pool.keys.of(hash_of(1)))
    cache.engine.heap.segment(place.owner_rank)[place.payload_off + 5] ^= 1
    found = pool.match_blocks_scattered([hash_of(number) for number in range(3)])
    assert [block and float(block.tensor.mean()) for block in found] == [0, None, 2]
    assert pool.counts.as_dict()["damaged"] == 1 and there(pool, 0, 1, 2) == [0, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    cached(pool, 1)
    assert there(pool, 0, 1, 2) == [0, 1, 2]


@pytest.mark.surface(KVBM, "match_blocks_scattered")
def test_match_blocks_scattered_goes_on(new_pool: NewPool) -> None:
    pool = new_pool(8)
    cached(pool, 0, 2)
    found = pool.match_blocks_scattered([hash_of(number) for number in (0, 1, 2, 0)])
    assert [block and float(block.tensor.mean()) for block in found] == [0, None, 2, 0]
    assert pool.status().active == 2


@pytest.mark.surface(KVBM, "scan_matches", differs="touch changes nothing: the manager keeps no count of uses")
def test_scan_matches_finds_all_that_are_there(new_pool: NewPool) -> None:
    pool = new_pool(8)
    cached(pool, 0, 2)
    found = pool.scan_matches([hash_of(number) for number in (1, 0, 2, 0)], touch=False)
    assert {key: float(block.tensor.mean()) for key, block in found.items()} == {hash_of(0): 0, hash_of(2): 2}


@pytest.mark.surface(KVBM, "pin")
@pytest.mark.surface(KVBM, "touch_blocks")
def test_pin_holds_a_block(new_pool: NewPool) -> None:
    pool = new_pool(2)
    cached(pool, 0, 1)
    with pool.pin(hash_of(0)) as pinned:
        taken(pool, 1)
        assert there(pool, 0, 1) == [0] and pinned.valid
    with pytest.raises(KeyNotFound):
        pool.pin(hash_of(1))


def test_matching_without_a_line_in_the_pin_ledger_holds_nothing(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0, 1)
    lines = [pool.cache.pin(pool.keys.of(hash_of(0))) for _ in range(pool.geometry.pin_slots - 1)]
    with pytest.raises(OutOfMemory, match="pin ledger"):
        pool.match_blocks([hash_of(1), hash_of(0)])
    assert pool._active.handles == 0
    complete = completed(pool, block_of(2))
    lines.append(pool.cache.pin(pool.keys.of(hash_of(0))))
    with pytest.raises(OutOfMemory, match="pin ledger"):
        complete.register()
    assert complete.valid and there(pool, 0, 1, 2) == [0, 1]  # nothing was evicted for it
    for line in lines:
        line.release()
    complete.register().drop()


@pytest.mark.surface(KVBM, "WeakBlock.upgrade")
@pytest.mark.surface(KVBM, "ImmutableBlock.downgrade")
def test_a_weak_block_upgrades_while_the_block_is_there(new_pool: NewPool) -> None:
    pool = new_pool(2)
    block = registered(pool, block_of(0), 3.0)
    weak = block.downgrade()
    block.drop()
    again = weak.upgrade()
    assert again is not None and float(again.tensor.mean()) == 3.0
    again.drop()
    taken(pool, 2)
    assert weak.upgrade() is None


@pytest.mark.parametrize(
    "wrong", [7, None, (1, 2, 3), "hash", SequenceHash(1, (1 << 20) - 1, 0), SequenceHash(-1, 0, 0)]
)
def test_matching_takes_sequence_hashes(new_pool: NewPool, wrong: Any) -> None:
    pool = new_pool(2)
    for call in (pool.match_blocks, pool.match_blocks_scattered, pool.scan_matches, pool.touch_blocks):
        with pytest.raises(InvalidArgument):
            call([wrong])


def test_a_block_of_another_layout_is_refused(new_pool: NewPool) -> None:
    pool = new_pool(4)
    cached(pool, 0)
    wide = LayoutConfig(num_layers=2, outer_dim=2, page_size=4, inner_dim=16, dtype=torch.float32)
    with BlockManager(pool.cache, wide) as other, pytest.raises(InvalidArgument, match="another layout"):
        other.match_blocks([hash_of(0)])
    assert there(pool, 0) == [0] and pool.status().inactive == 1
