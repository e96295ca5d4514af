"""`NanoKVOffloadingSpec` made by vLLM's factory: what its manager answers, and what its workers copy, bit by bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadPolicy,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.errors import InvalidArgument, KeyNotFound
from nanokv.integrations.vllm_offload import manager
from nanokv.integrations.vllm_offload.counts import PREFIX
from tests.integrations.vllm_offload.offloaded import Offloaded
from tests.integrations.vllm_offload.parts import MODULE, config, keys_of, step_of
from tests.support.faults import Limits

Start = Callable[..., Offloaded]
MANAGER = "vLLM OffloadingManager"
HIT, MISS, PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
BOTH = keys_of(range(4), 0) + keys_of(range(2), 1)


@pytest.mark.surface(MANAGER, "lookup")
@pytest.mark.surface(MANAGER, "prepare_store", differs="evicted_keys is empty: NanoKV evicts as workers write")
@pytest.mark.surface(MANAGER, "complete_store")
@pytest.mark.surface(MANAGER, "prepare_load")
@pytest.mark.surface(MANAGER, "complete_load")
@pytest.mark.surface(MANAGER, "worker: submit_store, submit_load, get_finished, wait")
@pytest.mark.surface(MANAGER, "spec: get_manager, get_worker, loading by spec_module_path")
@pytest.mark.parametrize(("workers", "per_chunk"), [(1, 1), (1, 3), (3, 1), (2, 4)])
def test_chunks_come_back_with_their_bytes(start_spec: Start, workers: int, per_chunk: int) -> None:
    engine = start_spec(workers=workers, per_chunk=per_chunk)
    assert isinstance(engine.manager, OffloadingManager) and isinstance(engine.workers[0], OffloadingWorker)
    assert engine.find(BOTH) == [MISS] * 6
    assert engine.compute(BOTH) == BOTH
    assert engine.load(BOTH) == [True] * 6
    assert engine.load([BOTH[5], BOTH[5]][:1] + keys_of([9])) == [True, False]
    assert engine.compute(BOTH + keys_of([7])) == keys_of([7])


@pytest.mark.surface(MANAGER, "lookup")
def test_a_block_is_pending_until_its_store_has_ended(start_spec: Start) -> None:
    engine = start_spec(workers=2)
    context = engine.request()
    new, job = engine.begin_store(BOTH, context)
    assert engine.find(BOTH) == [PENDING] * 6
    assert engine.manager.prepare_store(BOTH, engine.request()).keys_to_store == []  # nobody stores them twice
    engine.end([job])
    assert engine.find(BOTH) == [PENDING] * 6
    engine.manager.complete_store(new, context)
    assert engine.find(BOTH) == [HIT] * 6


@pytest.mark.surface(MANAGER, "complete_store")
def test_a_store_that_failed_leaves_nothing(start_spec: Start) -> None:
    engine = start_spec(workers=2)
    engine.compute(BOTH, success=False)
    assert engine.find(BOTH) == [MISS] * 6
    assert engine.compute(BOTH) == BOTH
    assert engine.load(BOTH) == [True] * 6


def test_a_block_needs_the_parts_of_all_workers(start_spec: Start) -> None:
    engine = start_spec(workers=3)
    engine.compute(BOTH)
    world = engine.manager.world
    assert world.remove_many([engine.manager.objects(BOTH[1])[2]]) == [True]
    assert engine.find(BOTH) == [HIT, MISS, HIT, HIT, HIT, HIT]
    assert engine.compute(BOTH) == [BOTH[1]]
    assert engine.load(BOTH) == [True] * 6


@pytest.mark.surface(MANAGER, "prepare_load")
@pytest.mark.surface(MANAGER, "on_request_finished")
def test_what_was_found_stays_until_it_is_loaded(start_spec: Start) -> None:
    engine = start_spec(size=8 * 1024)
    old = keys_of(range(8))
    engine.compute(old)
    context = engine.request()
    assert engine.find(old[:3], context) == [HIT] * 3
    world = engine.manager.world
    world.evict_until_below(0.0)  # everything that may go
    assert engine.find(old, context) == [HIT] * 3 + [MISS] * 5
    into, job = engine.begin_load(old[:2], context)  # the third is let go
    engine.manager.on_request_finished(context)
    assert engine.end([job]) == [True]
    for key, blocks in into.items():
        engine.check(key, blocks)
    world.evict_until_below(0.0)
    assert engine.find(old[:3]) == [HIT, HIT, MISS]
    engine.manager.complete_load(set(old[:2]), context)
    world.evict_until_below(0.0)
    assert engine.find(old) == [MISS] * 8


def test_a_load_that_nobody_looked_up_is_refused_if_the_block_is_gone(start_spec: Start) -> None:
    engine = start_spec()
    engine.compute(BOTH[:1])
    assert engine.begin_load(BOTH[:1], engine.request())  # it is there, and is held now
    with pytest.raises(KeyNotFound, match="without having found it"):
        engine.manager.prepare_load(keys_of([5]), engine.request())


@pytest.mark.surface(MANAGER, "worker: submit_store, submit_load, get_finished, wait")
def test_a_load_may_begin_and_end_within_chunks(start_spec: Start) -> None:
    engine = start_spec(per_chunk=4)
    keys = keys_of(range(3))
    engine.compute(keys)
    context = engine.request()
    engine.find(keys, context)
    blocks = [40, 41, 2, 3, 4, 5, 30]  # from the third block of the first chunk to the first of the last one
    spec = GPULoadStoreSpec(blocks, [7, 0], [2, 0])
    assert engine.workers[0].submit_load(1, engine.manager.prepare_load(keys, context), spec)
    assert engine.end([1]) == [True]
    for key, part, first in ((keys[0], blocks[:2], 2), (keys[1], blocks[2:6], 0), (keys[2], blocks[6:], 0)):
        engine.check(key, part, first)


def test_a_chunk_without_all_its_blocks_is_not_stored(start_spec: Start) -> None:
    engine = start_spec(per_chunk=4)
    context = engine.request()
    output = engine.manager.prepare_store(keys_of([0, 1]), context)
    engine.fill(keys_of([1])[0], [10, 11, 12, 13])
    spec = GPULoadStoreSpec([8, 9, 10, 11, 12, 13], [6, 0], [2, 0])  # of the first chunk two blocks left the window
    assert engine.workers[0].submit_store(1, spec, output.store_spec)
    engine.end([1])
    engine.manager.complete_store(keys_of([0, 1]), context)
    assert engine.load(keys_of([0, 1])) == [False, True]


@pytest.mark.surface(MANAGER, "reset_cache", differs="drops blocks of all engines of the same configuration")
def test_a_reset_forgets_all_but_loads_under_way(start_spec: Start, limits: Limits) -> None:
    limits(manager, LEAVE=0.0)
    engine = start_spec(workers=2)
    engine.compute(BOTH)
    loading, storing = engine.request(), engine.request()
    engine.find(BOTH[:2], loading)
    loads = engine.manager.prepare_load(BOTH[:2], loading)
    _, job = engine.begin_store(keys_of([50]), storing)
    engine.manager.reset_cache()
    assert engine.find(BOTH + keys_of([50])) == [MISS] * 7
    spec = GPULoadStoreSpec([0, 1], [2, 0], [0, 0])
    for worker in engine.workers:
        assert worker.submit_load(9, loads, spec)
    assert engine.end([9, job]) == [True] * 4
    engine.check(BOTH[0], [0])
    engine.check(BOTH[1], [1])
    assert engine.find(keys_of([50])) == [MISS]  # stored before the reset, ended after it
    assert engine.compute(BOTH) == BOTH
    step_of(engine.manager)
    world = engine.manager.world
    world.flush()
    assert world.segment_count() == 12  # the new ones alone
    assert engine.load(BOTH) == [True] * 6


@pytest.mark.surface(MANAGER, "touch")
def test_touched_blocks_outlive_others(start_spec: Start) -> None:
    engine = start_spec(size=8 * 1024)
    engine.compute(keys_of(range(8)))
    engine.manager.touch(keys_of([0, 1, 2, 3, 99]), engine.request())
    for number in range(100, 104):
        engine.compute(keys_of([number]))
    assert engine.find(keys_of(range(8))) == [HIT] * 4 + [MISS] * 4


@pytest.mark.surface(MANAGER, "on_new_request")
@pytest.mark.surface(MANAGER, "get_load_source")
@pytest.mark.surface(MANAGER, "on_schedule_end")
@pytest.mark.surface(MANAGER, "has_pending_work")
def test_requests_are_offloaded_by_chunks_and_leave_nothing(start_spec: Start) -> None:
    engine = start_spec()
    assert engine.manager.on_new_request(engine.request()).policy is OffloadPolicy.CHUNK_LEVEL
    engine.compute(BOTH)
    engine.load(BOTH)
    assert engine.manager.get_load_source(BOTH[0], engine.request()) is CacheHitSource.HOST
    assert not engine.manager.has_pending_work()
    assert not engine.manager.pins.found and not engine.manager.pins.loading and not engine.manager.storing


@pytest.mark.surface(MANAGER, "get_stats")
@pytest.mark.surface(MANAGER, "spec: build_metric_definitions")
def test_counts_are_told_once_and_are_declared(start_spec: Start) -> None:
    engine = start_spec()
    assert engine.manager.get_stats() is None
    engine.compute(BOTH)
    engine.compute(BOTH)
    engine.load(BOTH[:2])
    values = engine.manager.get_stats().data["data"]
    assert {name.removeprefix(PREFIX): value[("NanoKV",)] for name, value in values.items()} == {
        "stored": 6,
        "known": 6,
        "loaded": 2,
    }
    spec = OffloadingSpecFactory.get_spec_cls({"spec_name": "NanoKVOffloadingSpec", "spec_module_path": MODULE})
    assert issubclass(spec, OffloadingSpec) and values.keys() <= spec.build_metric_definitions({}).keys()
    assert engine.manager.get_stats() is None


@pytest.mark.surface(MANAGER, "shutdown")
@pytest.mark.surface(MANAGER, "worker: shutdown")
def test_shutdown_leaves_nothing(start_spec: Start, folder: Path) -> None:
    engine = start_spec()
    engine.compute(BOTH)
    engine.find(BOTH, engine.request())
    engine.manager.prepare_load(BOTH[:1], context := engine.request())
    engine.manager.on_request_finished(context)
    for each in (*engine.workers, engine.manager) * 2:
        each.shutdown()
    assert not list(folder.iterdir())


def test_engines_of_one_configuration_share_and_others_do_not(start_spec: Start) -> None:
    first, second = start_spec(), start_spec()
    other = start_spec(change={"kv_cache_layout": "BLHNC"})
    first.compute(BOTH)
    assert second.load(BOTH) == [True] * 6 and second.compute(BOTH) == []
    assert other.find(BOTH) == [MISS] * 6
    first.close()
    assert second.load(BOTH) == [True] * 6


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({}, {"nmae": "x"}, "there is no setting 'nmae'; the settings are name, .*, model, revision, threads"),
        ({}, {"spread": True}, "there is no setting 'spread'"),
        ({}, {"cluster": "file:///x"}, "a cluster needs the tier"),
        ({}, {"max_object": 100}, "max_object=100 is less than a block has: 208 bytes"),
        ({"canonical_layout": True}, {}, "canonical_layout is not supported"),
        ({"parallel": replace(config().parallel, pp_size=2)}, {}, "pipeline parallelism is not supported"),
    ],
)
@pytest.mark.surface(MANAGER, "spec: pipeline parallelism, canonical_layout", refused="InvalidArgument at start")
def test_what_is_not_supported_is_refused_at_the_start(
    start_spec: Start, change: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        start_spec(change=change, **settings)


def test_a_worker_of_another_configuration_refuses_the_jobs_of_a_manager(start_spec: Start) -> None:
    engine, other = start_spec(), start_spec(change={"kv_cache_layout": "BLHNC"})
    context = engine.request()
    output = engine.manager.prepare_store(BOTH[:1], context)
    with pytest.raises(InvalidArgument, match="the scheduler's configuration is not this worker's"):
        other.workers[0].submit_store(1, GPULoadStoreSpec([1], [1, 0], [0, 0]), output.store_spec)
    with pytest.raises(InvalidArgument, match="1 chunks were named, and the blocks make 2"):
        engine.workers[0].submit_store(1, GPULoadStoreSpec([1, 2], [2, 0], [0, 0]), output.store_spec)
    with pytest.raises(InvalidArgument, match="is no ChunkSpec"):
        engine.workers[0].submit_store(1, GPULoadStoreSpec([1], [1, 0], [0, 0]), object())


def test_pages_that_vllm_pads_or_interleaves_are_copied_as_they_are() -> None:
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

    from nanokv.integrations.vllm_offload.chunks import Chunk, Pages

    memory = torch.arange(120, dtype=torch.int8)
    layers = [memory.as_strided((5, 8), (24, 1), offset) for offset in (0, 8, 16)]  # layers within each block
    made = CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, 8) for layer in layers],
        [[CanonicalKVCacheRef(0, 8), CanonicalKVCacheRef(2, 5)]],
    )
    payload = torch.zeros(26, dtype=torch.int8)
    Pages(made, 2).store(Chunk(0, 0, [3, 1]), payload)
    assert payload.tolist() == [*range(72, 80), *range(88, 93), *range(24, 32), *range(40, 45)]
