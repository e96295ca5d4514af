"""What an engine's write into its paged cache costs, counted on the PTX machine: `python -m bench.gpu.engine_write`.

Instructions and accesses of all warps, per token: NanoKV's kernel with and without publishing, and vLLM's own Triton
kernel beside it where vLLM is installed. 16 tokens per block, 8 heads of 128 elements of bfloat16.
"""

import ast
import importlib.util
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from nanokv.bench.gpu.one_segment import OneSegment
from nanokv.device import ptx
from nanokv.device.machines.full_blocks import FullBlock, FullBlocks
from nanokv.device.machines.reshape_and_cache import Publish, reshape_and_cache_flash
from nanokv.device.protocol.status import Status

BLOCKS, BLOCK, HEADS, SIZE = 8, 16, 8, 128
TOKENS = BLOCKS * BLOCK
LAYERS = 3
PAGE_BYTES = 4096
PAGES = 4096
COLUMNS = ("instructions", "loads", "stores", "barriers", "atomics", "warps")
VLLM_FILE = "v1/attention/ops/triton_reshape_and_cache_flash.py"
VLLM_KERNEL = "reshape_and_cache_kernel_flash"
VLLM_WARPS = 16  #: per CTA, on NVIDIA


class Cost(NamedTuple):
    """What a launch costs all of its warps, per token; `warps`: of the launch, per token."""

    launch: str
    instructions: float
    loads: float
    stores: float
    barriers: float
    atomics: float
    warps: float


def vllm_kernel() -> Any:
    """vLLM's Triton kernel, compiled from the source of the installed package; None if there is no vLLM.

    vLLM itself defines no kernel where it finds no GPU, so its file is read and not imported.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / VLLM_FILE
    text = path.read_text(encoding="utf-8")
    (function,) = (each for each in ast.parse(text).body if getattr(each, "name", "") == VLLM_KERNEL)
    source = f"import triton\nimport triton.language as tl\n@triton.jit\n{ast.get_source_segment(text, function)}\n"
    name = f"<{VLLM_KERNEL}>"
    linecache.cache[name] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        name,
    )  # for inspect, as Triton asks it
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), scope)
    return scope[VLLM_KERNEL]


def write_as_vllm(
    kernel: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor],
    *,
    fp8: bool = False,
) -> None:
    """Launch vLLM's kernel as `triton_reshape_and_cache_flash` does on a GPU with sm_90 or newer."""
    _, heads, size = key.shape
    k, v = caches
    is_older = k.dim() == 5
    tile = min(2048, triton.next_power_of_2(heads * size))
    kernel[len(slots), triton.cdiv(heads * size, tile)](
        *(key, value, k, v, slots, *scales, key.stride(0), value.stride(0), k.stride(0)),
        head_stride=k.stride(1 if is_older else 2),
        dim_stride_k=k.stride(2) if is_older else 0,
        dim_stride_v=v.stride(2) if is_older else 0,
        page_stride=k.stride(1),
        num_heads=heads,
        head_size=size,
        block_size=k.shape[3 if is_older else 1],
        x=k.shape[4] if is_older else 1,
        USE_HEAD_MAJOR_LAYOUT=is_older,
        FP8_KV_CACHE=fp8,
        TILE_SIZE=tile,
        num_warps=VLLM_WARPS,
        num_stages=10,
    )


def costs(capability: int = 90) -> Iterator[Cost]:
    """Count each kind of launch: 128 tokens that fill 8 blocks."""
    dice = torch.Generator().manual_seed(1)
    key, value = (torch.randn(TOKENS, HEADS, SIZE, generator=dice).bfloat16() for _ in range(2))
    k, v = (torch.zeros(BLOCKS, BLOCK, HEADS, SIZE, dtype=torch.bfloat16) for _ in range(2))
    slots, one = torch.arange(TOKENS), torch.ones(1)
    with ptx.machine(capability=capability, memory=ptx.HostMemory(), count=True) as machine:

        def cost(launch: str, do: Callable[[], None]) -> Cost:
            do()
            counts = machine.report().counts[-1]
            total = counts.total
            atomics = total.relaxed_atomics + total.ordered_atomics
            sums = total.instructions, total.loads, total.stores, total.barriers, atomics, counts.warps
            return Cost._make([launch, *(each / TOKENS for each in sums)])

        def ours(publish: Publish | None) -> Callable[[], None]:
            return lambda: reshape_and_cache_flash(key, value, k, v, slots, "auto", one, one, publish=publish)

        theirs = vllm_kernel()
        if theirs is not None:
            yield cost("vLLM's kernel", lambda: write_as_vllm(theirs, key, value, (k, v), slots, (one, one)))
        yield cost("without publishing", ours(None))
        segment = OneSegment(torch.device("cpu"), PAGES * PAGE_BYTES, PAGE_BYTES, slots=PAGES)
        full = FullBlocks(segment.world, BLOCKS, BLOCKS, BLOCK, segment.device)
        nbytes = 2 * k[0].nbytes
        for layers, names in ((1, ["publishing one layer"]), (LAYERS, ["first layer", "layer between", "last layer"])):
            keys = [(layers * BLOCKS + n, n * 7919) for n in range(BLOCKS)]
            full.fill([FullBlock(key, n, BLOCK, 0, layers * nbytes, (0,) * 8) for n, key in enumerate(keys)])
            yield from (cost(name, ours(Publish(full, layer, layers))) for layer, name in enumerate(names))
            if full.batch.answers() != [Status.OK] * BLOCKS:
                raise RuntimeError(f"the statuses {full.batch.answers()}")


def table(rows: list[Cost]) -> str:
    """The costs, as text."""
    lines = [["per token", *COLUMNS]]
    lines += [[row.launch, *(f"{value:.0f}" if value >= 20 else f"{value:.3g}" for value in row[1:])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


if __name__ == "__main__":
    print(table(list(costs())))
