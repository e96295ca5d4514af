"""Views without a copy in both layouts; and that the specification's own layout has none."""

from typing import Any, get_args

import pytest
import torch

from nanokv.sequences import KVCache
from nanokv.sequences.arena import Layout
from tests.sequences.contents import BLOCK, DIM, HEADS, LAYERS, add, expected, holds, small_cache

NAME = "CortexStream KV cache"
LAYOUTS = get_args(Layout)


def test_the_layout_of_the_specification_has_no_view_over_several_blocks() -> None:
    arena = torch.zeros(LAYERS, 8, HEADS, BLOCK, DIM)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        arena[0, 2:5].transpose(0, 1).view(HEADS, 3 * BLOCK, DIM)
    assert arena[0, 2:3].transpose(0, 1).view(HEADS, BLOCK, DIM).data_ptr() == arena[0, 2].data_ptr()  # of one it has


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.surface(NAME, "KVCache.get_k_view", differs="strided: the specification's layout has no such view")
@pytest.mark.surface(NAME, "KVCache.get_v_view", differs="strided: the specification's layout has no such view")
@pytest.mark.surface(NAME, "KVCache.k_block")
@pytest.mark.surface(NAME, "KVCache.v_block")
def test_views_and_blocks_are_the_same_memory(layout: Layout) -> None:
    cache = small_cache(16, layout=layout)
    add(cache, "other", [99])
    add(cache, "a", list(range(10)))
    first = cache.get_handle("a").start_block_index
    for layer, values in enumerate(expected(list(range(10)))):
        k, v = cache.get_k_view("a", layer), cache.get_v_view("a", layer)
        assert k.shape == v.shape == (HEADS, 10, DIM)
        assert (k.stride(2), k.data_ptr()) == (1, cache.k_block(layer, first).data_ptr())
        assert v.data_ptr() == cache.v_block(layer, first).data_ptr() != k.data_ptr()
        for token in range(10):  # K[layer][block][head][token in block]
            block = first + token // BLOCK
            assert torch.equal(cache.k_block(layer, block)[:, token % BLOCK], values[:, token])
            assert torch.equal(cache.v_block(layer, block)[:, token % BLOCK], -values[:, token])
    cache.k_block(1, first + 2)[2, 1, 3] = 1234.5
    assert cache.get_k_view("a", 1)[2, 9, 3] == 1234.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_strides_are_those_of_the_layout(layout: Layout) -> None:
    cache = small_cache(16, layout=layout)
    add(cache, "a", list(range(10)))
    token, head = (HEADS * DIM, DIM) if layout == "token_major" else (DIM, LAYERS * 16 * BLOCK * DIM)
    assert cache.get_k_view("a", 1).stride() == (head, token, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_every_dtype_goes_through_all_moves(layout: Layout, dtype: torch.dtype) -> None:
    cache = small_cache(8, layout=layout, dtype=dtype)
    assert cache.allocate_for("a", 11)
    values = torch.arange(LAYERS * HEADS * 11 * DIM).remainder(16).view(LAYERS, HEADS, 11, DIM).to(dtype)
    for layer in range(LAYERS):
        cache.get_k_view("a", layer).copy_(values[layer])
        cache.get_v_view("a", layer).copy_(values[layer].flip(1))
    assert cache.evict_to_host("a") and cache.restore("a")
    cache.resize(128)
    kept = cache.retain("a", 6, protect_first=2, protect_last=2)
    assert kept == [0, 1, 7, 8, 9, 10]
    for layer in range(LAYERS):
        assert cache.get_k_view("a", layer).dtype == dtype
        as_bytes: Any = lambda tensor: tensor.contiguous().view(torch.uint8)  # noqa: E731
        assert torch.equal(as_bytes(cache.get_k_view("a", layer)), as_bytes(values[layer][:, kept]))
        assert torch.equal(as_bytes(cache.get_v_view("a", layer)), as_bytes(values[layer].flip(1)[:, kept]))
    assert cache.get_total_allocated() == 2 * 2 * LAYERS * HEADS * BLOCK * DIM * dtype.itemsize


def test_attention_takes_the_views_as_they_are() -> None:
    cache = KVCache(1, HEADS, DIM, block_size=BLOCK, max_total_tokens=64)
    assert cache.allocate_for("a", 9)
    k, v, query = torch.randn(HEADS, 9, DIM), torch.randn(HEADS, 9, DIM), torch.randn(HEADS, 1, DIM)
    cache.get_k_view("a", 0).copy_(k)
    cache.get_v_view("a", 0).copy_(v)
    attend = torch.nn.functional.scaled_dot_product_attention
    with cache.pin("a"):
        found = attend(query, cache.get_k_view("a", 0), cache.get_v_view("a", 0))
    torch.testing.assert_close(found, attend(query, k, v))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_a_gpu_host_memory_is_pinned_and_contents_come_back(layout: Layout) -> None:
    cache = small_cache(8, layout=layout, device="cuda", evict=True)
    marks = list(range(20))
    assert cache.allocate_for("a", 20)
    for layer, values in enumerate(expected(marks)):
        cache.get_k_view("a", layer).copy_(values)
        cache.get_v_view("a", layer).copy_(-values)
    assert cache.allocate_for("b", 20)  # evicts a
    copy = cache.table.listed()[0].host
    assert copy is not None and copy.k.is_pinned() and copy.v.is_pinned()
    cache.free_for("b")
    kept = cache.retain("a", 10)
    for layer, values in enumerate(expected(marks)):
        assert torch.equal(cache.get_k_view("a", layer).cpu(), values[:, kept])
        assert torch.equal(cache.get_v_view("a", layer).cpu(), -values[:, kept])
    small = small_cache(8, layout=layout)
    add(small, "a", marks)
    assert holds(small, "a", marks)
