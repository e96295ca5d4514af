"""The engine's cache as objects: on GPUs K and V apart, as vLLM's own kernels see them."""

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

import torch

from nanokv.integrations.vllm.layers import _distinct, _halves, _heads, _views
from nanokv.integrations.vllm.worker import page_bytes

BLOCKS, HEADS, TOKENS, SIZE = 3, 2, 4, 8


@pytest.mark.parametrize("tokens_first", [False, True])
def test_halves_are_what_the_kernels_of_vllm_see(tokens_first: bool) -> None:
    shape = (BLOCKS, TOKENS, HEADS, 2 * SIZE) if tokens_first else (BLOCKS, HEADS, TOKENS, 2 * SIZE)
    cache = torch.arange(BLOCKS * TOKENS * HEADS * 2 * SIZE, dtype=torch.float32).view(shape)
    cache = cache.transpose(1, 2) if tokens_first else cache
    halves = _halves(cache, SIZE)
    keys, values = torch.split(cache.transpose(1, 2), SIZE, dim=-1)  # as its FlashAttention backend does
    assert torch.equal(halves[:, 0], keys)
    assert torch.equal(halves[:, 1], values)
    assert halves.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()


def test_heads_are_moved_whole() -> None:
    cache = torch.randn(BLOCKS, HEADS, TOKENS, 2 * SIZE)
    heads = _heads(cache)
    assert heads.shape == (BLOCKS, 1, HEADS, TOKENS * 2 * SIZE)
    assert torch.equal(heads[2, 0, 1], cache[2, 1].flatten())
    assert heads.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
    with pytest.raises(RuntimeError):  # never a copy
        _heads(cache.transpose(2, 3))


@pytest.mark.parametrize(("heads", "pages"), [(1, 1), (2, 2), (8, 8), (40, 8), (128, 64)])
def test_objects_fill_their_pages_at_every_degree(heads: int, pages: int) -> None:
    whole = 24576 * heads
    assert page_bytes(whole, heads) * pages == whole
    if heads % 2 == 0 and heads <= 64:
        assert page_bytes(whole // 2, heads // 2) == page_bytes(whole, heads)


def test_layers_that_share_a_cache_are_moved_once() -> None:
    one, two = torch.zeros(2, 2), torch.zeros(2, 2)
    assert [*_distinct({"0": one, "1": two, "2": one})] == ["0", "1"]


def test_blocks_that_kernels_divide_are_never_copied() -> None:
    """[blocks, parts, heads, tokens, bytes]: without gaps they are one run, else a plane for each part."""
    whole = torch.arange(BLOCKS * 2 * HEADS * TOKENS * SIZE, dtype=torch.float32).view(BLOCKS, 2, HEADS, TOKENS, SIZE)
    by_token = torch.randn(BLOCKS, 2, TOKENS, HEADS, SIZE).transpose(2, 3)
    for cache, planes in ((whole, 1), (by_token, 2), (whole[:, 0], 1), (by_token[:, 0], 1)):
        views = _views(cache)
        assert len(views) == planes
        for view in views:
            assert view.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr() and view.dim() == 4
        first = torch.cat([view[1].reshape(-1).view(torch.uint8) for view in views])
        assert torch.equal(first, cache[1].reshape(-1).view(torch.uint8))
