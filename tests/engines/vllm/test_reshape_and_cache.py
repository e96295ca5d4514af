"""Writes into a paged cache, compared with vLLM's: its operation for CPUs, and its Triton kernel on the PTX machine."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm import _custom_ops as vllm_ops

from nanokv.bench.gpu.engine_write import vllm_kernel, write_as_vllm
from nanokv.device.machines.reshape_and_cache import reshape_and_cache, reshape_and_cache_flash
from nanokv.transfer.cache_writer import FilledBlock
from tests.gpu.library_bodies import caches
from tests.gpu.on_ptx import machine_for
from tests.gpu.reshape_and_cache_bodies import (
    BF16,
    E4M3,
    E5M2,
    PADDING,
    Pair,
    Shape,
    Tokens,
    hnd,
    nhd,
    older,
    plain,
    scales_of,
    write,
)

CPU = torch.device("cpu")
NO_SCALES = (torch.ones(1), torch.ones(1))


@pytest.fixture(autouse=True)
def on_the_ptx_machine() -> Iterator[None]:
    with machine_for("sm_90", 3):
        yield


def vllm_cpu_cache(shape: Shape, dtype: torch.dtype) -> tuple[Pair, torch.Tensor]:
    """K and V as vLLM's CPU backend views its cache, [blocks, heads, tokens, dim]; and the whole of it."""
    blocks, tokens, heads, dim = shape
    whole = torch.zeros(blocks, heads, tokens, 2 * dim, dtype=dtype)
    k, v = whole.view(blocks, heads, 2 * tokens, dim).chunk(2, dim=2)
    return (k, v), whole


def as_older_and_hnd(pair: Pair) -> Pair:
    """The same memory in our layouts: vLLM's CPU backend keeps K of a head transposed, as the older layout with x=1."""
    k, v = pair
    blocks, heads, tokens, dim = k.shape
    strides = k.stride()
    return k.as_strided((blocks, heads, dim, tokens, 1), (strides[0], strides[1], tokens, 1, 1)), v.transpose(1, 2)


@pytest.mark.parametrize(
    ("isa", "shape", "dtype"),
    [
        ("vec16", Shape(4, 16, 2, 64), BF16),
        ("vec16", Shape(3, 16, 1, 32), torch.float32),
        ("vec", Shape(3, 32, 2, 32), BF16),
        ("vec", Shape(2, 64, 3, 64), torch.float16),
    ],
)
def test_the_cache_is_that_of_vllms_cpu_operation(isa: str, shape: Shape, dtype: torch.dtype) -> None:
    """In chunks, with padding, of tokens in any order; and a block that was filled so is published."""
    theirs, whole = vllm_cpu_cache(shape, dtype)
    ours = hnd(shape, dtype, CPU)
    full = [*range(shape.tokens - 1, 4, -1)]
    last = shape.blocks * shape.tokens - 1
    with caches(CPU, pages=64) as (here, there):
        made = here.cache_writer([ours], capacity=1)
        for n, slots in enumerate(([3, 0, 4, 1, 2, PADDING, last], [*full, PADDING, last - 3])):
            of = Tokens(slots, shape, CPU, dtype=dtype, seed=n)
            key, value = of.k.contiguous(), of.v.contiguous()
            vllm_ops.cpu_attn_reshape_and_cache(key, value, *theirs, of.slots, isa)
            made.start([FilledBlock("full", 0, shape.tokens - 5)] if n else [], preferred_segment=1)
            made.write(0, of.k, of.v, of.slots)
            assert made.results() == ([None] if n else [])
        k, v = as_older_and_hnd(theirs)
        wanted = torch.stack([k[..., 0].permute(0, 3, 1, 2), v])  # [2, blocks, tokens, heads, dim]
        assert wanted.count_nonzero() and whole.count_nonzero() == wanted.count_nonzero()
        assert torch.equal(torch.stack(ours), wanted)
        assert torch.equal(there.get("full")[0], wanted[:, 0])
        made.close()


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vLLM quantizes on CPUs with AVX-512 only")
@pytest.mark.parametrize(("name", "dtype"), [("fp8", E4M3), ("fp8_e5m2", E5M2)])
def test_quantized_tokens_are_those_of_vllms_cpu_operation(name: str, dtype: torch.dtype) -> None:
    """Equal where fp8 holds the number; else vLLM's operation rounds toward zero, and ours to the nearest."""
    shape = Shape(2, 32, 2, 32)
    scales = (torch.tensor([2.0]), torch.tensor([4.0]))
    for exact in (True, False):
        (k, v), _ = vllm_cpu_cache(shape, torch.uint8)
        ours = hnd(shape, torch.uint8, CPU)
        of = Tokens([*range(60), PADDING, 63], shape, CPU, dtype=BF16)
        of.k, of.v = (x.abs().clamp(1, 400).copysign(x) for x in (of.k, of.v))  # vLLM's flushes subnormal numbers
        if exact:
            of.k, of.v = (x.to(dtype).to(BF16) for x in (of.k, of.v))
        by = [scale.item() for scale in scales]
        vllm_ops.cpu_attn_reshape_and_cache(of.k, of.v, k, v, of.slots, "vec", *by, name)
        reshape_and_cache_flash(of.k, of.v, *ours, of.slots, name, *scales)
        theirs = as_older_and_hnd((k, v))
        wanted = torch.stack([theirs[0][..., 0].permute(0, 3, 1, 2), theirs[1]]).int()
        above = torch.stack(ours).int() - wanted
        assert sorted({*above.flatten().tolist()}) == ([0] if exact else [0, 1])


@pytest.mark.parametrize("layout", [nhd, hnd, older])
@pytest.mark.parametrize("dtype", [BF16, torch.float32, E4M3])
def test_the_cache_is_that_of_vllms_triton_kernel(layout: Any, dtype: torch.dtype) -> None:
    """Both compiled, on the PTX machine. For fp8 values that fit: vLLM's kernel leaves saturation to the GPU."""
    shape = Shape(4, 16, 4, 32)
    ours: Pair = layout(shape, dtype, CPU)
    theirs: Pair = layout(shape, dtype, CPU)
    of = Tokens([5, PADDING, 63, 0, 17, 31, PADDING], shape, CPU, dtype=torch.float32 if dtype == E4M3 else dtype)
    scales = scales_of(1, CPU) if dtype == E4M3 else NO_SCALES
    name = "fp8" if dtype == E4M3 else "auto"
    write(ours, of.k, of.v, of.slots, name, scales)
    write_as_vllm(vllm_kernel(), of.k, of.v, theirs, of.slots, scales, fp8=dtype == E4M3)
    assert torch.equal(plain(ours), plain(theirs))
    assert plain(ours).count_nonzero()


@pytest.mark.parametrize("ours", [reshape_and_cache, reshape_and_cache_flash])
def test_the_signature_is_vllms(ours: Any) -> None:
    theirs = inspect.signature(getattr(vllm_ops, ours.__name__)).parameters
    assert list(inspect.signature(ours).parameters) == [*theirs, "publish"]
