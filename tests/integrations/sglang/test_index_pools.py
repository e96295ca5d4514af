"""Pools of sparse attention's index keys: they have pages of their own, beside those of KV and with its indices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKOnlyPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, LAYERS, MLA_LAYOUTS, PAGE, filled, keys_of

Start = Callable[..., Any]
INDEXER = PoolName.INDEXER
DSA_PAGE, PAGES = 64, 4


def beside_latents(layout: str) -> tuple[Any, Any, torch.Tensor]:
    """Host pools of DeepSeek's sparse attention: latents, their index keys, and the memory of these."""
    with get_parallel().override(attn_dcp_size=1):
        device = DSATokenToKVPool(
            size=8 * DSA_PAGE,
            page_size=DSA_PAGE,
            kv_lora_rank=48,
            dtype=torch.bfloat16,
            qk_rope_head_dim=16,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=64,
        )
        latents = MLATokenToKVPoolHost(
            device.get_device_pool_infos()[0].buffer_info,
            1.0,
            0,
            DSA_PAGE,
            layout,
            pin_memory=False,
            device="cpu",
            device_capacity_tokens=device.size,
            start_layer=0,
            end_layer=LAYERS,
            target_layer_num=LAYERS,
        )
        index = DSAIndexerPoolHost(make_dsa_indexer_pool_decl(device), filled(latents), pin_memory=False)
    return latents, index, index.index_k_with_scale_buffer


def beside_keys_and_values(layout: str) -> tuple[Any, Any, torch.Tensor]:
    """Host pools of MiniMax's sparse attention: K and V, and index keys without values."""
    device = MHATokenToKOnlyPool(8 * PAGE, PAGE, torch.bfloat16, 1, 32, LAYERS, "cpu", False)
    anchor = parts.mha(layout)
    index = MHATokenToKOnlyPoolHost(device, anchor, layout, pin_memory=False)
    return anchor, index, index.k_buffer


def bytes_of(pool: Any, first: int) -> torch.Tensor:
    """A copy of the page that begins with a token."""
    page: torch.Tensor = pool.get_data_page(first)
    return page.clone().view(torch.uint8)


@pytest.mark.surface(INTERFACE, "batch_set_v2")
@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.surface(INTERFACE, "batch_exists_v2")
@pytest.mark.parametrize("made", [beside_latents, beside_keys_and_values])
@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_index_keys_come_back_bit_by_bit(start: Start, made: Any, layout: str) -> None:
    """SGLang names their memory in the layouts with the page first; in the other one it copies each page."""
    anchor, index, memory = made(layout)
    flat = memory.view(-1).view(torch.uint8)
    flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)))
    backend = start(anchor, is_mla_model=made is beside_latents)
    backend.register_mem_host_pool_v2(index, INDEXER)
    assert backend.pools.get(INDEXER).pages.direct is (layout != "layer_first")
    keys, size = keys_of(PAGES), index.page_size
    pages = torch.tensor([3, 0, 5, 2]).repeat_interleave(size) * size + torch.arange(size).repeat(PAGES)
    move = [PoolTransfer(name=INDEXER, keys=keys, host_indices=pages)]
    assert all(backend.batch_set_v1(keys, pages))
    assert backend.batch_exists_v2(keys, move).kv_hit_pages == 0  # of KV alone a prefix cannot be restored
    assert backend.batch_set_v2(move) == {INDEXER: [True] * PAGES}
    assert backend.batch_exists_v2(keys, move).kv_hit_pages == PAGES
    wanted = [bytes_of(index, int(first)) for first in pages[::size]]
    memory.zero_()
    assert backend.batch_get_v2(move) == {INDEXER: [True] * PAGES}
    assert all(torch.equal(bytes_of(index, int(at)), page) for at, page in zip(pages[::size], wanted, strict=True))
    assert not bytes_of(index, size).any() and not bytes_of(index, 4 * size).any()  # others stay as they were


@pytest.mark.surface(INTERFACE, "batch_get_v2")
def test_index_keys_of_latents_are_shared_by_ranks(start: Start) -> None:
    anchor, index, memory = beside_latents("page_first")
    memory.fill_(7)
    backends = [start(anchor, is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    for backend in backends:
        backend.register_mem_host_pool_v2(index, INDEXER)
    move = [PoolTransfer(name=INDEXER, keys=keys_of(PAGES), host_indices=torch.arange(PAGES * DSA_PAGE))]
    assert all(backends[0].batch_set_v2(move)[INDEXER])
    memory.zero_()
    assert all(backends[1].batch_get_v2(move)[INDEXER]) and bool((memory[:PAGES] == 7).all())
