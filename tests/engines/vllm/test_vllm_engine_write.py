"""`nanokv.write=kernel`: vLLM's Triton backend writes its cache by NanoKV's kernel, compiled, on the PTX machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

import torch
from vllm.v1.attention.backends import triton_attn

import nanokv
from nanokv.bench.vllm.process import connector
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.engine_write import EngineWrite
from nanokv.integrations.vllm.layers import _halves
from nanokv.integrations.vllm.metadata import BlockSave
from nanokv.integrations.vllm.saving import Saves
from nanokv.integrations.vllm.stats import WorkerCounts
from tests.engines.vllm.test_vllm_refusals import config_of
from tests.gpu.on_ptx import machine_for

LAYERS, BLOCKS, HEADS, TOKENS, SIZE = 2, 6, 2, 32, 32


class Engine:
    """Layers of vLLM's Triton backend, as a forward pass calls them."""

    def __init__(self) -> None:
        self.caches = [torch.zeros(BLOCKS, HEADS, TOKENS, 2 * SIZE) for _ in range(LAYERS)]
        self._backend = triton_attn.TritonAttentionImpl(
            num_heads=4,
            head_size=SIZE,
            scale=1.0,
            num_kv_heads=HEADS,
            alibi_slopes=None,
            sliding_window=None,
            kv_cache_dtype="auto",
        )
        self._layer = SimpleNamespace(_k_scale=torch.ones(1), _v_scale=torch.ones(1))

    def step(self, slots: list[int], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """New tokens at these slots, in all layers; returns their K and V per layer, [tokens, heads, size]."""
        dice, computed = torch.Generator().manual_seed(seed), []
        for cache in self.caches:
            key, value = (torch.randn(len(slots), HEADS, SIZE, generator=dice) for _ in range(2))
            self._backend.do_kv_cache_update(self._layer, key, value, cache, torch.tensor(slots))
            computed.append((key, value))
        return computed


@pytest.fixture
def engine() -> Engine:
    return Engine()


def writer_of(model: Path, cache: nanokv.NanoKVCache, engine: Engine, hold: float | None = None) -> EngineWrite:
    halves = [_halves(layer, SIZE) for layer in engine.caches]
    saving = Saves(cache, {0: cache.paged_kv(halves, kv_dim=1)}, lambda target: target, hold, WorkerCounts())
    config = config_of(model, connector("kv_both"), max_num_batched_tokens=64, max_num_seqs=4)
    return EngineWrite(config, saving, halves)


def whole(engine: Engine, block: int) -> torch.Tensor:
    return torch.stack([_halves(layer, SIZE)[block] for layer in engine.caches])


def test_the_kernel_writes_the_cache_and_stores_full_blocks(model: Path, engine: Engine) -> None:
    theirs = triton_attn.triton_reshape_and_cache_flash
    prefill, decode = nanokv.local_world(2, heap_bytes=1 << 20, page_bytes=32768)
    with prefill, decode, machine_for("sm_90", 1):
        write = writer_of(model, prefill, engine)
        first = [*range(32, 80)]  # block 1, and half of block 2
        write.bind([BlockSave(0, [b"one"], [1], [TOKENS], 1)])
        for layer, (key, value) in enumerate(engine.step(first, seed=1)):
            halves = _halves(engine.caches[layer], SIZE)
            assert torch.equal(halves[1, 0], key[:32])
            assert torch.equal(halves[2, 1, :16], value[32:])
        write.finish()
        assert torch.equal(decode.get(b"one"), whole(engine, 1))  # published by the launch of the last layer
        # block 2 becomes full; block 1, full before, is asked for again under another key
        write.bind([BlockSave(0, [b"again", b"two"], [1, 2], [0, 16], 1)])
        engine.step([*range(80, 96)], seed=2)
        write.finish()
        write.bind([])
        engine.step([96], seed=3)  # a step that fills nothing
        write.finish()
        write.close()
        assert torch.equal(decode.get(b"two"), whole(engine, 2))
        assert torch.equal(decode.get(b"again"), whole(engine, 1))
    assert triton_attn.triton_reshape_and_cache_flash is theirs


def test_counts_and_refusals(model: Path, engine: Engine) -> None:
    prefill, decode = nanokv.local_world(2, heap_bytes=2 * 32768, page_bytes=32768, evict=False)
    with prefill, decode, machine_for("sm_90", 2):
        write = writer_of(model, prefill, engine)
        counts: Any = write._saving._counts
        for key, block in ((b"a", 1), (b"a", 2), (b"b", 3), (b"c", 4)):  # new, known, new, no room
            write.bind([BlockSave(0, [key], [block], [TOKENS], 1)])
            engine.step([*range(32 * block, 32 * block + 32)], seed=block)
            write.finish()
        write.close()
        assert (counts.stored, counts.known, counts.refused) == (2, 1, 1)
        assert torch.equal(decode.get(b"a"), whole(engine, 1))
        assert torch.equal(decode.get(b"b"), whole(engine, 3))
        assert not decode.exists(b"c")
        assert whole(engine, 4).count_nonzero()  # the engine's cache has its tokens all the same


def test_it_needs_a_device_that_runs_kernels(model: Path, engine: Engine) -> None:
    (cache,) = nanokv.local_world(1, heap_bytes=1 << 20)
    with cache, pytest.raises(InvalidArgument, match="kernels cannot run on device=cpu"):
        writer_of(model, cache, engine)
