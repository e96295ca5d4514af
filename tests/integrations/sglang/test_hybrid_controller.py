"""SGLang's controller of hybrid models, with its threads: pages of KV, of a draft, and a state of the last page.

The draft's pages have the indices of KV's; the states have their own, and only the last page of a prefix needs one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.utils import get_storage_hash_str

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, LAYERS, PAGE, buffers, emptied, extra
from tests.integrations.sglang.tree import PATIENCE, without_cuda
from tests.support.faults import Calls

PAGES = 4
TOKENS = list(range(1, 1 + PAGES * PAGE))
KV, DRAFT, MAMBA = PoolName.KV, PoolName.DRAFT, PoolName.MAMBA


class Hybrid:
    """A controller, and its host pools by name."""

    def __init__(self) -> None:
        device = parts.mha_device()
        self.pools = {KV: parts.mha(), DRAFT: parts.mha(heads=1), MAMBA: parts.mamba()}
        mamba_device = SimpleNamespace(layer_num=LAYERS)  # asked for nothing: no state goes to a device here
        devices = {KV: device, DRAFT: parts.mha_device(heads=1), MAMBA: mamba_device}
        entries = [
            PoolEntry(name, pool, devices[name], lambda layer: layer, is_primary_index_anchor=name == KV)
            for name, pool in self.pools.items()
        ]
        allocator = PagedTokenToKVPoolAllocator(
            device.size, page_size=PAGE, dtype=torch.bfloat16, device="cpu", kvcache=device, need_sort=False
        )
        self.control = HybridCacheController(
            allocator,
            HostPoolGroup(entries),
            PAGE,
            None,
            threading.Event(),
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="a-model",
            storage_backend_extra_config=extra(),
        )

    def back_up(self, tokens: list[int]) -> Any:
        """Back up the first pages of the host pools, and the first state as that of the last page."""
        hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
        moves = self._moves([hashes[-1]], torch.arange(1))
        self.control.write_storage(torch.arange(len(tokens)), tokens, hashes, extra_pools=moves)
        return self.control.ack_backup_queue.get(timeout=PATIENCE)

    def prefetch(self, tokens: list[int], window: int = 1) -> Any:
        """Prefetch to the first pages and states, as the scheduler does: the operation, when it has ended."""
        moves = self._moves([""] * window, torch.arange(window))
        operation = self.control.prefetch(CacheRequestHandle("request", 0), tokens, extra_pools=moves)
        self.control.prefetch_hit_queue.get(timeout=PATIENCE)
        operation.host_indices = torch.arange(operation.storage_hit_count)
        for move in moves[:1]:  # that has the indices of KV
            move.host_indices = operation.host_indices
        self.control.prefetch_buffer.put(operation)
        while not (ack := self.control.ack_prefetch_queue.get(timeout=PATIENCE)).completed_req:
            operation.completed_tokens = ack.completed_tokens or operation.completed_tokens
            operation.pool_storage_result.update_extra_pool_hit_pages(ack.pool_hits or {})
        return operation

    def _moves(self, keys: list[str], states: torch.Tensor) -> list[PoolTransfer]:
        return [
            PoolTransfer(name=DRAFT, indices_from_pool=KV),
            PoolTransfer(name=MAMBA, keys=keys, host_indices=states, hit_policy=PoolHitPolicy.TRAILING_PAGES),
        ]


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Hybrid]]:
    """hybrid() -> a Hybrid, detached after the test."""
    with without_cuda(monkeypatch), ExitStack() as stack:

        def started() -> Hybrid:
            made = Hybrid()
            stack.callback(made.control.detach_storage_backend)
            return made

        yield started


def bytes_of(pool: Any, pages: int) -> list[torch.Tensor]:
    """The bytes of the first pages, or states."""
    if pool.page_size > 1:
        return [pool.get_data_page(page * PAGE).clone().view(torch.uint8) for page in range(pages)]
    return [torch.cat([each[:pages].reshape(-1).view(torch.uint8) for each in buffers(pool)])]


def same(pool: Any, pages: int, wanted: list[torch.Tensor]) -> bool:
    """Whether they have these bytes."""
    return all(map(torch.equal, bytes_of(pool, pages), wanted))


@pytest.mark.surface(INTERFACE, "batch_set_v2")
@pytest.mark.surface(INTERFACE, "batch_exists_v2")
@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.surface(INTERFACE, "register_mem_host_pool_v2")
@pytest.mark.surface(INTERFACE, "on_host_pools_registered")
def test_all_pools_of_a_hybrid_model_are_backed_up_and_prefetched(hybrid: Callable[[], Hybrid]) -> None:
    one, other = hybrid(), hybrid()
    wanted = {name: bytes_of(pool, 1 if name == MAMBA else PAGES) for name, pool in one.pools.items()}
    done = one.back_up(TOKENS)
    assert done.completed_tokens == len(TOKENS)
    assert done.pool_storage_result.extra_pool_hit_pages == {DRAFT: PAGES, MAMBA: 1}
    for pool in other.pools.values():
        emptied(pool)
    got = other.prefetch(TOKENS)
    assert got.completed_tokens == len(TOKENS)
    assert got.pool_storage_result.extra_pool_hit_pages[MAMBA] == 1
    for name, pool in other.pools.items():
        assert same(pool, 1 if name == MAMBA else PAGES, wanted[name])
    assert one.control.storage_backend.calls.failures() == other.control.storage_backend.calls.failures() == {}


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_a_prefix_ends_where_a_state_is(hybrid: Callable[[], Hybrid]) -> None:
    one, other = hybrid(), hybrid()
    one.back_up(TOKENS[: 2 * PAGE])
    one.control.write_storage(torch.arange(len(TOKENS)), TOKENS, get_storage_hash_str(TOKENS, None, page_size=PAGE))
    assert one.control.ack_backup_queue.get(timeout=PATIENCE).completed_tokens == len(TOKENS)
    storage = other.control.storage_backend
    hashes = get_storage_hash_str(TOKENS, None, page_size=PAGE)
    assert storage.batch_exists(hashes) == PAGES  # of KV, without the draft and the state of the last two
    state = bytes_of(one.pools[MAMBA], 1)
    emptied(other.pools[MAMBA])
    got = other.prefetch(TOKENS)
    assert got.completed_tokens == 2 * PAGE and same(other.pools[MAMBA], 1, state)


@pytest.mark.surface(INTERFACE, "batch_get_v2")
def test_a_draft_that_is_gone_shortens_the_prefetch(hybrid: Callable[[], Hybrid], calls: Calls) -> None:
    one, other = hybrid(), hybrid()
    one.back_up(TOKENS)
    backend = other.control.storage_backend
    hashes = get_storage_hash_str(TOKENS, None, page_size=PAGE)

    def evict(*_: Any) -> None:
        scope = backend.pools.get(DRAFT).scopes[0]
        assert backend.cache.remove_many([f"{scope}/{hashes[2]}"]) == [True]

    calls.after(backend, "batch_exists_v2", evict)
    emptied(other.pools[MAMBA])
    got = other.prefetch(TOKENS)
    assert got.completed_tokens == 2 * PAGE  # SGLang takes the shorter of both
    assert got.pool_storage_result.extra_pool_hit_pages.get(MAMBA, 0) == 0
    assert not any(each.view(-1).view(torch.uint8).any() for each in buffers(other.pools[MAMBA]))
