"""The events of a manager: Store when it registers, Remove when the registration has ended, by whatever process."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from nanokv.blocks import BlockManager, EventPublisher, KvEvent, PowerOfTwo, SequenceHash, token_blocks
from tests.blocks.conftest import LAYOUT, NewPool, block_of, chain, completed, registered, taken
from tests.blocks.heard import REMOVE, SHUTDOWN, STORE, Heard

KVBM = "KVBM block manager"


@pytest.fixture
def heard_pool(new_pool: NewPool) -> Callable[..., tuple[BlockManager, Heard, EventPublisher]]:
    def make(blocks: int = 4, **options: Any) -> tuple[BlockManager, Heard, EventPublisher]:
        publisher = EventPublisher()
        return new_pool(blocks, events=publisher, **options), Heard(publisher), publisher

    return make


Make = Callable[..., tuple[BlockManager, Heard, EventPublisher]]


@pytest.mark.surface(KVBM, "StoreEvent")
def test_a_registration_sends_store_with_kvbms_fields(heard_pool: Make) -> None:
    pool, heard, publisher = heard_pool()
    first, second = chain(2)
    blocks = [registered(pool, tokens) for tokens in (first, second)]
    publisher.flush()
    (batch,) = heard.batches
    location = f"nanokv:{pool.cache.engine.heap.name}:0"
    assert batch.events == (
        KvEvent(first.sequence_hash, None, 512, location, STORE, {}),
        KvEvent(second.sequence_hash, first.sequence_hash, 512, location, STORE, {}),
    )
    del blocks


@pytest.mark.surface(KVBM, "RemoveEvent")
def test_an_eviction_sends_remove_and_a_drop_does_not(heard_pool: Make) -> None:
    pool, heard, publisher = heard_pool(2)
    blocks = chain(2)
    for tokens in blocks:
        registered(pool, tokens).drop()
    publisher.flush()
    assert heard.short == [(STORE, [0, 1])]
    held = taken(pool, 2)
    assert pool.note_removed() == 0  # its own evictions are told at once
    publisher.flush()
    assert heard.short == [(STORE, [0, 1]), (REMOVE, [1, 0])]
    assert heard.batches[1].events[0].prefix_hash == blocks[0].sequence_hash
    del held


def test_a_registration_of_what_is_registered_sends_nothing(heard_pool: Make) -> None:
    for policy in ("allow", "reject"):
        pool, heard, publisher = heard_pool(duplication=policy)
        blocks = [registered(pool, block_of(0)), registered(pool, block_of(0))]
        publisher.flush()
        assert heard.short == [(STORE, [0])]
        for block in blocks:
            block.drop()
        publisher.flush()
        assert len(heard.batches) == 1
        pool.reset_inactive_pool()
        publisher.flush()
        assert heard.short == [(STORE, [0]), (REMOVE, [0])]


def test_an_eviction_by_others_is_noticed(heard_pool: Make) -> None:
    pool, heard, publisher = heard_pool(2)
    registered(pool, block_of(0)).drop()
    registered(pool, block_of(1)).drop()
    with BlockManager(pool.cache, LAYOUT) as other:
        held = taken(other, 1)
    assert pool.note_removed() == 1 and pool.note_removed() == 0
    pool.cache.remove(pool.keys.of(block_of(1).sequence_hash))
    publisher.flush()  # notices by itself
    expected = [(kind, block_of(number).sequence_hash) for kind in (STORE, REMOVE) for number in (0, 1)]
    assert heard.hashes == expected
    del held


@pytest.mark.parametrize("by_others", [True, False])
def test_a_hash_that_comes_back_is_stored_again(heard_pool: Make, by_others: bool) -> None:
    pool, heard, publisher = heard_pool()
    registered(pool, block_of(0)).drop()
    if by_others:
        pool.cache.remove(pool.keys.of(block_of(0).sequence_hash))
    else:
        pool.reset_inactive_pool()
    registered(pool, block_of(0)).drop()
    publisher.flush()
    assert heard.short == [(STORE, [0]), (REMOVE, [0]), (STORE, [0])]


def test_closing_the_manager_sends_remove(heard_pool: Make) -> None:
    pool, heard, publisher = heard_pool()
    block = registered(pool, block_of(0))
    pool.close()
    publisher.flush()
    assert heard.short == [(STORE, [0]), (REMOVE, [0])]
    del block


def test_a_registration_after_the_publisher_was_closed_tells_nobody(heard_pool: Make) -> None:
    pool, heard, publisher = heard_pool()
    publisher.close()
    registered(pool, block_of(0)).drop()
    pool.reset_inactive_pool()
    assert publisher.flush() == 0 and heard.short == [(SHUTDOWN, [])]


def test_a_policy_that_raises_leaves_the_block_complete(new_pool: NewPool) -> None:
    def policy(_: SequenceHash) -> bool:
        raise RuntimeError("of the policy")

    pool = new_pool(4, events=EventPublisher(policy=policy))
    complete = completed(pool, block_of(0))
    with pytest.raises(RuntimeError, match="of the policy"):
        complete.register()
    assert complete.valid and pool.status().active == 0
    complete.register().drop()  # it is registered, as a duplicate
    assert pool.status().inactive == 1


def test_after_an_error_those_before_it_are_registered(new_pool: NewPool) -> None:
    def policy(found: SequenceHash) -> bool:
        if found == block_of(1).sequence_hash:
            raise RuntimeError("of the policy")
        return True

    pool = new_pool(4, events=EventPublisher(policy=policy))
    blocks = [completed(pool, block_of(number)) for number in range(3)]
    with pytest.raises(RuntimeError, match="of the policy"):
        pool.register_blocks(blocks)
    gc.collect()
    assert [block.valid for block in blocks] == [False, True, True]
    assert (pool.status().inactive, pool.status().filling) == (2, 2)
    pool.register_blocks(blocks[1:])


def test_the_filter_works_for_a_sequence(new_pool: NewPool) -> None:
    publisher = EventPublisher(policy=PowerOfTwo(1, 8))
    heard, pool = Heard(publisher), new_pool(8, events=publisher)
    for tokens in token_blocks(range(7 * 4), 4, 1):
        registered(pool, tokens).drop()
    pool.reset_inactive_pool()
    publisher.flush()
    assert heard.short == [(STORE, [1, 2, 4]), (REMOVE, [4, 2, 1])]
