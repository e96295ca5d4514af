"""What goes wrong below the tier becomes a failed job, and the engine computes: no error, no wrong bytes."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import LookupResult

from tests.integrations.vllm_offload.other_node import OtherNode
from tests.integrations.vllm_offload.parts import Tiered, content, keys_of, right
from tests.integrations.vllm_offload.test_tier import counts
from tests.support.faults import Calls

Start = Callable[..., Tiered]
TIER = "vLLM SecondaryTierManager"


@pytest.mark.surface(TIER, "submit_load")
def test_blocks_that_vanish_between_look_up_and_load_are_missed(start: Start) -> None:
    tiered = start(chunks=8)
    keys = keys_of(range(6))
    tiered.compute(keys)
    tiered.forget()
    context = tiered.request()
    assert [tiered.manager.lookup(key, context) for key in keys] == [LookupResult.HIT_PENDING] * 6
    tiered.tier.joined.cache.remove_many([keys[1], keys[4]])
    there = right(tiered, keys, tiered.load(keys, context))
    assert there == [True, False, True, True, False, True]  # those that were loaded stay in the primary tier
    assert counts(tiered) == {"stored": 6, "loaded": 4, "lost": 2}


@pytest.mark.surface(TIER, "submit_load")
def test_a_damaged_block_is_missed_and_dropped(start: Start, told: list[str]) -> None:
    tiered = start(chunks=8, checksum=True)
    keys = keys_of(range(4))
    tiered.compute(keys)
    tiered.forget()
    counts(tiered)
    world = tiered.tier.joined.world
    place = world.get_location(keys[2])
    world.engine.heap.segment(place.owner_rank)[place.payload_off + 77] ^= 1
    assert right(tiered, keys, tiered.load(keys)) == [True, True, False, True]
    assert not world.exists(keys[2])
    assert counts(tiered) == {"loaded": 3, "lost": 1, "damaged": 1}
    assert len(told) == 1 and "a damaged block was dropped" in told[0]
    tiered.forget()
    tiered.compute(keys)  # computed again, stored again
    tiered.forget()
    assert all(right(tiered, keys, tiered.load(keys)))


@pytest.mark.surface(TIER, "submit_store")
def test_no_room_refuses_blocks_and_harms_none(start: Start, told: list[str]) -> None:
    tiered = start(chunks=8, size=4 * 8192, page_bytes=8192)
    keys, store = keys_of(range(8)), tiered.tier.joined.cache
    tiered.compute(keys[:4])
    with ExitStack() as pins:
        for key in keys[:4]:
            pins.enter_context(store.pin(key))  # a reader holds them: they cannot be evicted
        tiered.compute(keys[4:])
        assert counts(tiered) == {"stored": 4, "refused": 4}
        assert len(told) == 1 and "blocks were not stored" in told[0]  # once a minute
        tiered.forget()
        assert right(tiered, keys, tiered.load(keys)) == [True] * 4 + [False] * 4
    tiered.forget()
    tiered.compute(keys[4:])  # with room again
    tiered.forget()
    assert right(tiered, keys, tiered.load(keys)) == [False] * 4 + [True] * 4


@pytest.mark.surface(TIER, "lookup")
def test_a_process_that_dies_leaves_its_blocks_and_nothing_half_written(start: Start) -> None:
    tiered = start(chunks=8)
    identity, settings = tiered.tier.joined.cache.options.identity, {"name": "tier", "size": "8MiB"}
    settings |= {"page_bytes": 4096, "ranks": 4}  # type: ignore[dict-item]
    good, half = keys_of(range(3)), keys_of(range(10, 13))
    blocks = {key: content(key, tiered.row_bytes).tobytes() for key in good + half}
    with (
        OtherNode(settings, identity, {key: blocks[key] for key in good}) as whole,
        OtherNode(settings, identity, {key: blocks[key] for key in half}, unfinished=True) as writer,
    ):
        assert right(tiered, good, tiered.load(good)) == [True] * 3
        assert right(tiered, half, tiered.load(half)) == [False] * 3
        whole.kill()
        writer.kill()
        tiered.forget()
        assert right(tiered, good, tiered.load(good)) == [True] * 3
        assert right(tiered, half, tiered.load(half)) == [False] * 3
    tiered.compute(keys_of(range(20, 24)))
    tiered.forget()
    assert right(tiered, keys_of(range(20, 24)), tiered.load(keys_of(range(20, 24)))) == [True] * 4


def test_an_error_that_nobody_foresaw_fails_one_job_only(start: Start, calls: Calls) -> None:
    tiered = start(chunks=8)
    store = tiered.tier.joined.cache
    calls.fail(store, "put_many", RuntimeError("a bug"))
    tiered.compute(keys_of([1, 2]))
    assert counts(tiered) == {"refused": 2}
    calls.go_on()
    tiered.compute(keys_of([3]))
    tiered.forget()
    assert right(tiered, keys_of([1, 2, 3]), tiered.load(keys_of([1, 2, 3]))) == [False, False, True]
    calls.fail(store, "get_many", RuntimeError("a bug"))
    tiered.forget()
    assert right(tiered, keys_of([3]), tiered.load(keys_of([3]))) == [False]
    calls.go_on()
    tiered.forget()
    assert right(tiered, keys_of([3]), tiered.load(keys_of([3]))) == [True]
