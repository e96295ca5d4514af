"""SGLang's cache controller itself, with its threads: latents have one writer, prefetches end early, nothing leaks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.utils import get_storage_hash_str

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, PAGE, emptied, extra, is_empty, same
from tests.integrations.sglang.tree import PATIENCE, Engine, without_cuda

TOKENS = list(range(1, 1 + 4 * PAGE))


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """control(rank) -> a HiCacheController of latents, of one of two ranks, detached after the test."""
    with ExitStack() as stack:

        def started(rank: int) -> Any:
            device, pool = parts.mla_device(), parts.mla()
            allocator = PagedTokenToKVPoolAllocator(
                device.size, page_size=PAGE, dtype=torch.bfloat16, device="cpu", kvcache=device, need_sort=False
            )
            with without_cuda(monkeypatch, rank, 2):
                made = HiCacheController(
                    allocator,
                    pool,
                    PAGE,
                    None,
                    threading.Event(),
                    io_backend="direct",
                    storage_backend="dynamic",
                    prefetch_threshold=PAGE,
                    model_name="a-model",
                    storage_backend_extra_config=extra(),
                )
            stack.callback(made.detach_storage_backend)
            return made

        yield started


def back_up(control: Any) -> int:
    """Back up the first pages of the host pool: tokens that are stored."""
    indices = control.mem_pool_host.alloc(len(TOKENS))
    control.write_storage(indices, TOKENS, get_storage_hash_str(TOKENS, None, page_size=PAGE))
    return int(control.ack_backup_queue.get(timeout=PATIENCE).completed_tokens)


def prefetch(control: Any) -> int:
    """Prefetch them as SGLang's scheduler does: ask, make room for what is there, and have it read."""
    operation = control.prefetch("request", TOKENS)
    control.prefetch_hit_queue.get(timeout=PATIENCE)
    if operation.storage_hit_count:
        operation.host_indices = control.mem_pool_host.alloc(operation.storage_hit_count)
    control.prefetch_buffer.put(operation)
    tokens = 0
    while True:
        ack = control.ack_prefetch_queue.get(timeout=PATIENCE)
        if ack.completed_req:
            return tokens
        tokens = int(ack.completed_tokens)


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_one_rank_writes_latents_and_all_read_them(control: Callable[..., Any]) -> None:
    writer, reader = control(0), control(1)
    assert reader.backup_skip and back_up(reader) == 0 and prefetch(reader) == 0
    assert reader.storage_backend.cache.stats()["puts"] == 0
    reader.reset()
    reader.mem_pool_host.clear()
    assert not writer.backup_skip and back_up(writer) == len(TOKENS)
    stored = emptied(reader.mem_pool_host)
    assert prefetch(reader) == len(TOKENS) and not is_empty(reader.mem_pool_host)
    wanted = [each.clone() for each in stored]
    for each in wanted:
        each[len(TOKENS) :] = 0
    assert same(reader.mem_pool_host, wanted)


@pytest.mark.surface(INTERFACE, "batch_exists")
def test_a_hit_below_the_threshold_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_cuda(monkeypatch), ExitStack() as stack:
        one, other = Engine(prefetch_threshold=4 * PAGE), Engine(prefetch_threshold=4 * PAGE)
        stack.callback(one.close)
        stack.callback(other.close)
        one.compute(TOKENS[: 2 * PAGE])
        one.back_up(lambda: one.storage.cache.stats()["puts"] == 2 and not one.tree.ongoing_backup)
        assert other.prefetch(TOKENS) == 0
        more = [*TOKENS, *TOKENS]
        one.compute(more)
        one.back_up(lambda: one.storage.cache.stats()["puts"] >= 8 and not one.tree.ongoing_backup)
        assert other.prefetch(more) == len(more)


@pytest.mark.surface(INTERFACE, "batch_get_v1")
def test_a_prefetch_that_is_ended_early_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.05")
    with without_cuda(monkeypatch), ExitStack() as stack:
        one, other = Engine(), Engine(policy="best_effort")
        stack.callback(one.close)
        stack.callback(other.close)
        one.compute(TOKENS)
        one.back_up(lambda: one.storage._backend.cache.stats()["puts"] >= 4 and not one.tree.ongoing_backup)
        pool = other.control.mem_pool_host
        whole = pool.available_size()
        for number in range(20):
            tokens = [*TOKENS, *range(1000 + number, 1000 + number + PAGE)]
            request = CacheRequestHandle(f"ended-{number}", 0)
            other.begin_prefetch(request, tokens)
            assert other.tree.check_prefetch_progress(request)  # ends it, whatever it does just now
        other.prefetch(range(5000, 5000 + PAGE))  # all others have been looked up before this one
        other.until(lambda: pool.available_size() == whole - other.hit(TOKENS))
        there = other.hit(TOKENS)
        if there:
            assert other.load(TOKENS[:there])
