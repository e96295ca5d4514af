"""Engines run under torch.inference_mode(), whose tensors cannot be written outside of it: a cache has none of them."""

from collections.abc import Iterator

import pytest
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.config import Alloc
from nanokv.heap import HeapKind


def made(heap: HeapKind, alloc: Alloc, name: str) -> NanoKVCache:
    """A world of one rank."""
    return NanoKVCache(8 << 20, heap=heap, name=name, rank=0, world_size=1, alloc=alloc, page_bytes=16384)


def every_call(cache: NanoKVCache, turn: str) -> None:
    """Calls that write segments, tables and results."""
    plain = torch.arange(300_000, dtype=torch.int32)
    for name, tensor in {"small": plain[:5], "large": plain, "by torch": plain.view(-1, 2).T}.items():
        key = f"{turn} {name}"
        cache.put(key, tensor)
        assert torch.equal(cache.get(key, dst=torch.zeros(tensor.shape, dtype=tensor.dtype)), tensor)
        assert torch.equal(cache.get_async(key).wait(60.0), tensor)
        dst = torch.zeros(tensor.shape, dtype=tensor.dtype)  # an inference tensor, and a thread writes it
        assert torch.equal(cache.get_async(key, dst=dst).wait(60.0), tensor)
        with cache.pin(key) as view:
            assert torch.equal(view, tensor)
            view.fill_(1)
        assert cache.get(key).sum() == tensor.numel()
    plan = cache.open_for_write(f"{turn} plan", 64)
    cache.engine.heap.segment(0)[plan.payload_base : plan.payload_base + 64].fill_(7)
    cache.commit(f"{turn} plan")
    assert cache.put_many([f"{turn} a", f"{turn} b"], [torch.ones(9), torch.zeros(9)]) == [None, None]
    assert len([each for each in cache.get_many([f"{turn} a", f"{turn} b"]) if each is not None]) == 2
    assert not cache.heap_bases_tensor.is_inference()


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """With one, the machine copies large objects too."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("heap", ["local", "shm"])
@pytest.mark.parametrize("alloc", ["device", "host"])
@pytest.mark.parametrize("made_inside", [True, False])
def test_made_in_one_mode_and_used_in_both(heap: HeapKind, alloc: Alloc, made_inside: bool, shm_name: str) -> None:
    with torch.inference_mode(made_inside):
        cache = made(heap, alloc, shm_name)
        layers = [torch.randn(4, 2, 8, 2, 16)]
    with cache:
        for inside in (not made_inside, made_inside, not made_inside):
            with torch.inference_mode(inside):
                every_call(cache, f"{inside}")
                paged = cache.paged_kv(layers, kv_dim=1)
                assert paged.put([f"block {inside}"], [1]) == [None]
                assert paged.get([f"block {inside}"], [2]) == [None]
            assert torch.equal(layers[0][1], layers[0][2])
            cache.flush()
            cache.clear()
