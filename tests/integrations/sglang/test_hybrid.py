"""The calls of v2: several pools, each with its pages under the same keys, and how much of a prefix they allow."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, all_of, emptied, keys_of, same

Start = Callable[..., Any]
KV, MAMBA, SWA, INDEXER = PoolName.KV, PoolName.MAMBA, PoolName.SWA, PoolName.INDEXER


@pytest.mark.surface(INTERFACE, "register_mem_host_pool_v2")
@pytest.mark.surface(INTERFACE, "on_host_pools_registered")
@pytest.mark.surface(INTERFACE, "batch_set_v2")
@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_of_several_pools_are_moved(start: Start, layout: str) -> None:
    pools = {KV: parts.mha(layout), SWA: parts.mha(layout, heads=1), MAMBA: parts.mamba()}
    backend = start(pools[KV])
    for name, pool in pools.items():
        backend.register_mem_host_pool_v2(pool, name)
    backend.on_host_pools_registered()
    keys = keys_of(7)
    transfers = [
        PoolTransfer(name=name, keys=keys, host_indices=torch.arange(7 * pool.page_size))
        for name, pool in pools.items()
    ]
    assert backend.batch_set_v2(transfers) == {name: [True] * 7 for name in pools}
    stored = {name: emptied(pool) for name, pool in pools.items()}
    assert backend.batch_get_v2(transfers) == {name: [True] * 7 for name in pools}
    for name, pool in pools.items():
        cut = [torch.zeros_like(each) for each in stored[name]]
        for mine, whole, now in zip(cut, stored[name], parts.buffers(pool), strict=True):
            used = now.view(-1).view(torch.uint8) != 0  # pages behind the seventh were not read
            mine.view(-1).view(torch.uint8)[used] = whole.view(-1).view(torch.uint8)[used]
        assert same(pool, cut)
        assert sum(int((each.view(-1).view(torch.uint8) != 0).sum()) for each in cut) > 0


@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.parametrize("side", [False, True], ids=["in place", "copied by SGLang"])
def test_states_of_several_buffers_come_back_whole(start: Start, side: bool) -> None:
    pool = parts.mamba(side=side)
    backend = start(parts.mha())
    backend.register_mem_host_pool_v2(pool, MAMBA)
    pages = pool.size
    move = [PoolTransfer(name=MAMBA, keys=keys_of(pages), host_indices=torch.randperm(pages))]
    assert backend.batch_set_v2(move) == {MAMBA: [True] * pages}
    stored = emptied(pool)
    assert backend.batch_get_v2(move) == {MAMBA: [True] * pages}
    assert same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_set_v2")
@pytest.mark.parametrize("zero_copy", [0, 1])
def test_pages_of_kv_are_those_of_the_other_calls(start: Start, zero_copy: int) -> None:
    pool = parts.mha()
    backend = start(pool, more={"interface_v1": zero_copy})
    keys, indices = all_of(pool)
    backend.register_mem_host_pool_v2(pool, KV)
    backend.register_mem_host_pool_v2(parts.mha(), SWA)
    move = [PoolTransfer(name=name, keys=keys, host_indices=indices) for name in (KV, SWA)]
    assert all(map(all, backend.batch_set_v2(move).values()))
    assert backend.batch_exists(keys) == len(keys)
    stored = emptied(pool)
    assert all(backend.batch_get_v1(keys, indices)) and same(pool, stored)


@pytest.mark.surface(INTERFACE, "batch_set_v2")
@pytest.mark.surface(INTERFACE, "batch_get_v2")
def test_a_wrong_transfer_does_not_spoil_the_others(start: Start) -> None:
    pool = parts.mha()
    backend = start(pool)
    keys, indices = all_of(pool)
    move = [
        PoolTransfer(name=SWA, keys=keys, host_indices=indices),  # was not registered
        PoolTransfer(name=KV, keys=keys, host_indices=indices),
        PoolTransfer(name=INDEXER, keys=None, host_indices=None),
    ]
    wrong = {SWA: [False] * len(keys), INDEXER: []}
    assert backend.batch_set_v2(move) == wrong | {KV: [True] * len(keys)}
    assert backend.batch_get_v2(move) == wrong | {KV: [True] * len(keys)}
    move[1].host_indices = indices[:-1]
    assert backend.batch_get_v2(move) == wrong | {KV: [False] * len(keys)}


def with_states(start: Start, kv: int, states: Sequence[int]) -> tuple[Any, list[str]]:
    """A backend with so many pages of KV, and states of these pages."""
    pool, state = parts.mha(), parts.mamba()
    backend = start(pool)
    backend.register_mem_host_pool_v2(state, MAMBA)
    keys = keys_of(8)
    assert all(backend.batch_set_v1(keys[:kv], torch.arange(kv * parts.PAGE)))
    chosen = [keys[i] for i in states]
    move = PoolTransfer(name=MAMBA, keys=chosen, host_indices=torch.arange(len(chosen)))
    assert all(backend.batch_set_v2([move])[MAMBA])
    return backend, keys


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
@pytest.mark.parametrize(
    ("states", "pages"), [([0, 1, 3, 4], 2), ([1, 2, 3], 0), ([0, 1, 2, 3, 4, 5, 6, 7], 6), ([], 0)]
)
def test_all_pages_need_their_states(start: Start, states: list[int], pages: int) -> None:
    backend, keys = with_states(start, 6, states)
    found = backend.batch_exists_v2(keys, [PoolTransfer(name=MAMBA, keys=keys)])
    assert found.kv_hit_pages == pages and found.restorable_prefix_pages == list(range(1, pages + 1))
    assert found.extra_pool_hit_pages == {KV: 6} | ({MAMBA: pages} if pages else {})


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
@pytest.mark.parametrize(
    ("states", "window", "lengths"),
    [
        ([4], 1, [5]),
        ([1, 4, 7], 1, [2, 5]),
        ([0, 1, 3, 4], 2, [1, 2, 5]),
        ([1, 2, 3, 4, 5], 3, [4, 5, 6]),
        ([0, 1, 2], 9, [1, 2, 3]),
        ([6, 7], 1, []),
    ],
)
def test_only_the_last_pages_need_their_states(
    start: Start, states: list[int], window: int, lengths: list[int]
) -> None:
    backend, keys = with_states(start, 6, states)
    asked = PoolTransfer(
        name=MAMBA, keys=keys[-window:] if window < 9 else keys, hit_policy=PoolHitPolicy.TRAILING_PAGES
    )
    asked.keys = [""] * window
    found = backend.batch_exists_v2(keys, [asked])
    assert found.restorable_prefix_pages == lengths
    assert found.kv_hit_pages == max(lengths, default=0)
    assert found.extra_pool_hit_pages == {KV: 6} | ({MAMBA: max(lengths)} if lengths else {})


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_block_groups_have_a_verdict_and_change_nothing(start: Start) -> None:
    backend, keys = with_states(start, 6, [0, 1, 2, 3, 5])
    asked = PoolTransfer(name=MAMBA, keys=keys, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=3, group_pages=2)
    found = backend.batch_exists_v2(keys, [asked])
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (6, {KV: 6, MAMBA: 6})  # two whole groups
    asked.group_pages = 0
    assert backend.batch_exists_v2(keys, [asked]).kv_hit_pages == 0  # says nothing of groups: nothing can be told


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_without_pages_of_kv_nothing_is_there(start: Start) -> None:
    backend, keys = with_states(start, 0, [0, 1, 2])
    found = backend.batch_exists_v2(keys, [PoolTransfer(name=MAMBA, keys=keys)])
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {})


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_a_pool_that_was_not_registered_allows_nothing(start: Start) -> None:
    backend, keys = with_states(start, 6, [0, 1, 2])
    assert backend.batch_exists_v2(keys).kv_hit_pages == 6
    assert backend.batch_exists_v2(keys, [PoolTransfer(name=SWA, keys=keys)]).kv_hit_pages == 0


@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_a_pool_without_memory_is_there_as_far_as_the_others_are(start: Start) -> None:
    """The anchor of compressed pools: it only counts pages, their bytes are in the other pools."""
    backend = start(LogicalHostPool(8 * parts.PAGE, parts.PAGE))
    state = parts.mamba()
    backend.register_mem_host_pool_v2(state, MAMBA)
    keys = keys_of(8)
    assert backend.batch_set_v1(keys, torch.arange(8 * parts.PAGE)) == [True] * 8
    assert backend.batch_exists(keys) == 0
    assert all(backend.batch_set_v2([PoolTransfer(name=MAMBA, keys=keys[:3], host_indices=torch.arange(3))])[MAMBA])
    assert backend.batch_exists_v2(keys, [PoolTransfer(name=MAMBA, keys=keys)]).kv_hit_pages == 3
    assert backend.batch_get_v1(keys, torch.arange(8 * parts.PAGE)) == [True] * 8
