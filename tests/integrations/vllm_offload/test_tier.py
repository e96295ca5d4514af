"""NanoKV below vLLM's own `TieringOffloadingManager`, made by its factories: what is stored comes back bit by bit."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadPolicy, TierFilter, TierMatcher
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.integrations.vllm_offload import NanoKVTier
from nanokv.integrations.vllm_offload.counts import PREFIX
from tests.integrations.vllm_offload.parts import Tiered, content, keys_of, right

Start = Callable[..., Tiered]
TIER = "vLLM SecondaryTierManager"


def job(number: int, tiered: Tiered, keys: list[int], chunks: list[int], *, load: bool = False) -> TransferJob:
    return TransferJob(number, keys_of(keys), np.array(chunks, np.int32), load, tiered.request())


def run(tiered: Tiered, one: TransferJob) -> tuple[bool, list[bytes]]:
    """Give the tier a job of its own; returns its success, and the keys that it names as successful."""
    (tiered.tier.submit_load if one.is_promotion else tiered.tier.submit_store)(one)
    tiered.tier.drain_jobs()
    (result,) = tiered.tier.get_finished_jobs()
    assert result.job_id == one.job_id and not list(tiered.tier.get_finished_jobs())
    return result.success, list(result.successful_keys or ())


@pytest.mark.surface(TIER, "submit_store")
@pytest.mark.surface(TIER, "submit_load")
@pytest.mark.surface(TIER, "get_finished_jobs")
@pytest.mark.surface(TIER, "lookup")
@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_come_back_after_the_primary_tier_evicted_them(start: Start, workers: int) -> None:
    tiered = start(chunks=4, workers=workers)
    assert isinstance(tiered.tier, NanoKVTier) and isinstance(tiered.tier, SecondaryTierManager)
    keys = keys_of(range(12))
    for i in range(0, 12, 4):
        assert tiered.compute(keys[i : i + 4]) == keys[i : i + 4]
    context = tiered.request()
    assert [tiered.primary.lookup(key, context) for key in keys[:8]] == [LookupResult.MISS] * 8
    for i in range(0, 12, 4):
        assert all(right(tiered, keys[i : i + 4], tiered.load(keys[i : i + 4])))
    assert right(tiered, keys_of([99]), tiered.load(keys_of([99]))) == [False]


@pytest.mark.surface(TIER, "submit_load")
def test_a_job_takes_rows_in_any_order_and_none(start: Start) -> None:
    tiered = start(chunks=8)
    for row, number in zip([7, 2, 5], range(3), strict=True):
        tiered.rows[row] = content(keys_of([number])[0], tiered.row_bytes)
    assert run(tiered, job(1, tiered, [0, 1, 2], [7, 2, 5])) == (True, [])
    tiered.rows[:] = 0
    assert run(tiered, job(2, tiered, [2, 0, 1], [0, 6, 3], load=True)) == (True, [])
    for number, row in ((2, 0), (0, 6), (1, 3)):
        assert np.array_equal(tiered.rows[row], content(keys_of([number])[0], tiered.row_bytes))
    assert not tiered.rows[[1, 2, 4, 5, 7]].any()
    assert run(tiered, job(3, tiered, [], [])) == run(tiered, job(4, tiered, [], [], load=True)) == (True, [])


def test_the_same_hash_in_two_groups_is_two_blocks(start: Start) -> None:
    tiered = start(chunks=4)
    both = keys_of([1], 0) + keys_of([1], 1)
    tiered.compute(both)
    tiered.forget()
    assert all(right(tiered, both, tiered.load(both)))


@pytest.mark.surface(TIER, "submit_store")
def test_a_block_that_is_there_is_not_stored_again(start: Start) -> None:
    tiered = start(chunks=4)
    tiered.compute(keys_of([1, 2]))
    tiered.forget()
    tiered.compute(keys_of([1, 2, 3]))
    assert counts(tiered) == {"stored": 3, "known": 2}
    tiered.forget()
    assert all(right(tiered, keys_of([1, 2, 3]), tiered.load(keys_of([1, 2, 3]))))


def counts(tiered: Tiered) -> dict[str, float]:
    stats = tiered.tier.get_stats()
    assert stats is not None
    values = {name.removeprefix(PREFIX): value for name, value in stats.reduce().items()}
    return {name.split(":")[0]: value for name, value in values.items()}


@pytest.mark.surface(TIER, "get_stats")
@pytest.mark.surface(TIER, "build_metric_definitions")
def test_counts_are_told_once_and_are_declared(start: Start) -> None:
    tiered = start(chunks=4)
    assert tiered.tier.get_stats() is None
    tiered.compute(keys_of([1, 2]))
    tiered.forget()
    tiered.load(keys_of([1]))
    reported = tiered.manager.get_stats()
    declared = type(tiered.tier).build_metric_definitions({})
    mine = {name: values for name, values in reported.data["data"].items() if name.startswith(PREFIX)}
    assert mine == {f"{PREFIX}stored": {("NanoKVTier",): 2}, f"{PREFIX}loaded": {("NanoKVTier",): 1}}
    assert mine.keys() <= declared.keys()
    assert all(each.labelnames == ("tier",) for each in declared.values())
    assert tiered.tier.get_stats() is None


@pytest.mark.surface(TIER, "lookup")
def test_two_engines_of_one_world_share_blocks(start: Start) -> None:
    first, second = start(chunks=4), start(chunks=4)
    first.compute(keys_of(range(4)))
    assert all(right(second, keys_of(range(4)), second.load(keys_of(range(4)))))
    first.close()  # the segment of one that has left stays, as long as the world does
    second.forget()
    assert all(right(second, keys_of(range(4)), second.load(keys_of(range(4)))))
    third = start(chunks=4)
    assert all(right(third, keys_of(range(4)), third.load(keys_of(range(4)))))


def test_a_spread_tier_uses_the_segments_of_others(start: Start) -> None:
    first, second = (start(chunks=16, spread=True) for _ in range(2))
    first.compute(keys_of(range(16)))
    world = second.tier.joined.world
    world.flush()
    assert 0 < world.segment_count() < 16
    assert all(right(second, keys_of(range(16)), second.load(keys_of(range(16)))))


@pytest.mark.surface(TIER, "on_new_request")
@pytest.mark.surface(TIER, "on_request_finished")
@pytest.mark.surface(TIER, "on_schedule_end")
def test_requests_leave_nothing_behind(start: Start) -> None:
    tiered = start(chunks=4)
    context = tiered.request()
    assert tiered.tier.on_new_request(context).policy is OffloadPolicy.CHUNK_LEVEL
    tiered.compute(keys_of([1, 2]), context)
    tiered.manager.on_request_finished(context)
    tiered.step()
    assert not tiered.tier._lookups._missed


@pytest.mark.surface(TIER, "touch", differs="only objects on this host; vLLM 0.32 itself never calls it")
def test_touched_blocks_outlive_others(start: Start) -> None:
    tiered = start(chunks=8, size=8 * 8192, page_bytes=8192, threads=1)
    tiered.compute(keys_of(range(8)))
    context, world = tiered.request(), tiered.tier.joined.world
    time.sleep(0.1)  # so that those that are touched are younger by far: which one goes is not decided by microseconds
    tiered.manager.touch(keys_of([0, 1, 2, 3, 99]), context)
    tiered.forget()
    for number in range(100, 104):
        tiered.compute(keys_of([number]))  # by the one thread that has touched before
    assert [world.exists(key) for key in keys_of(range(8))] == [True] * 4 + [False] * 4


@pytest.mark.surface(TIER, "drain_jobs")
@pytest.mark.surface(TIER, "shutdown")
def test_drain_waits_for_all_and_shutdown_loses_no_result(
    start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiered = start(chunks=8, threads=1)
    for number in range(8):
        tiered.tier.submit_store(job(number, tiered, [number], [number]))
    tiered.tier.drain_jobs()
    assert {result.job_id for result in tiered.tier.get_finished_jobs()} == set(range(8))
    for number in range(8):
        tiered.tier.submit_store(job(number, tiered, [number + 8], [number]))
    tiered.tier.shutdown()  # what has not begun is given up
    results = list(tiered.tier.get_finished_jobs())
    assert {result.job_id for result in results} == set(range(8))
    tiered.tier.shutdown()
    tiered.close()
    assert "Failed to close" not in caplog.text  # the primary tier gives its memory back: nobody refers to a row
    assert not list(folder.iterdir())  # the world went with its last process


@pytest.mark.surface(TIER, "medium, locality, cache_hit_source")
def test_requests_may_leave_the_tier_out(start: Start) -> None:
    tiered = start(chunks=4)
    tiered.compute(keys_of([1]))
    tiered.forget()
    context = tiered.request()
    context.load_tier_filter = TierFilter((TierMatcher(Medium.STORAGE),))
    assert tiered.manager.lookup(keys_of([1])[0], context) is LookupResult.MISS
    context.load_tier_filter = TierFilter((TierMatcher(Medium.CPU, Locality.REMOTE),))
    assert tiered.manager.lookup(keys_of([1])[0], context) is LookupResult.MISS
    context.load_tier_filter = TierFilter((TierMatcher(Medium.CPU, Locality.LOCAL),))
    assert tiered.find(keys_of([1]), context) == [LookupResult.HIT]
    assert tiered.manager.get_load_source(keys_of([1])[0], context) is CacheHitSource.HOST


def test_a_load_that_fails_is_not_offered_again_to_its_request(start: Start) -> None:
    tiered = start(chunks=4)
    tiered.compute(keys_of([1]))
    context = tiered.request()
    assert run(tiered, TransferJob(7, keys_of([5]), np.array([0], np.int32), True, context)) == (False, [])
    store = tiered.tier.joined.cache
    store.put_many(keys_of([5]), [store.get(keys_of([1])[0])])  # it comes after all
    assert tiered.tier.lookup(keys_of([5])[0], context) is LookupResult.MISS
    assert tiered.tier.lookup(keys_of([5])[0], tiered.request()) is LookupResult.HIT
