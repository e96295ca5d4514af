"""What an engine's write into its paged cache costs: NanoKV's kernel with and without publishing, and vLLM's own Triton
kernel beside it where its source is found. 16 tokens per block, 8 heads of 128 elements of bfloat16.

`python -m bench.gpu.engine_write` counts instructions and accesses of all warps, per token, on the PTX machine. As a
benchmark it measures launches on a GPU. vLLM need not be installed: a folder on PYTHONPATH with `vllm/` and in it
VLLM_FILE is enough.
"""

import ast
import importlib.util
import linecache
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.objects import key_of
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer
from nanokv.device import ptx
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.full_blocks import FullBlock, FullBlocks
from nanokv.device.machines.records import Request
from nanokv.device.machines.reshape_and_cache import Publish, reshape_and_cache_flash
from nanokv.device.protocol.status import Status

BLOCKS, BLOCK, HEADS, SIZE = 8, 16, 8, 128
TOKENS = BLOCKS * BLOCK
LAYERS = 3
#: layers of an object, and what their launches are called; a `CacheWriter` makes the same launches
PUBLISHING = ((1, ["publishing one layer"]), (LAYERS, ["first layer", "layer between", "last layer"]))
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
    paths = [path for place in found.submodule_search_locations if (path := Path(place) / VLLM_FILE).exists()]
    if not paths:
        return None
    text = paths[0].read_text(encoding="utf-8")
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
        for layers, names in PUBLISHING:
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


# --- measured ----------------------------------------------------------------------------------
class Written:
    """Tokens and the layers of a paged cache, which take turns: each write finds its layer outside the L2 cache.

    Every kind of write brings the same tokens into the same slots, in the order of a shuffled block table.
    """

    def __init__(self, device: torch.device, settings: GpuSettings, tokens: int) -> None:
        self.device, self.tokens, self.blocks = device, tokens, tokens // BLOCK
        laps = settings.write_laps + settings.warm
        self.nbytes = LAYERS * 2 * BLOCK * HEADS * SIZE * 2  # of an object
        self.segment = OneSegment.with_room(device, 4 * self.blocks, self.nbytes, PAGE_BYTES)
        shape = (settings.write_layers, self.blocks, BLOCK, HEADS, SIZE)
        self.k, self.v = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        news = (laps, tokens, HEADS, SIZE) if tokens <= BLOCK * BLOCK else (4, tokens, HEADS, SIZE)
        self.key, self.value = (torch.randn(news, device=device).bfloat16() for _ in range(2))
        order = torch.randperm(self.blocks, device=device)
        self.slots = (order[:, None] * BLOCK + torch.arange(BLOCK, device=device)).reshape(-1)
        self.order = order.tolist()
        self.one = torch.ones(1, device=device)
        self.full = FullBlocks(self.segment.world, self.blocks, self.blocks, BLOCK, device)
        self._removed = Batch(self.segment.world, self.blocks, device)
        self._bad = torch.zeros(2, dtype=torch.int64, device=device)

    def new(self, lap: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Key and value of the tokens, and the layer's K and V, of a lap."""
        layer = lap % len(self.k)
        return self.key[lap % len(self.key)], self.value[lap % len(self.value)], self.k[layer], self.v[layer]

    def name(self, lap: int, layers: int) -> None:
        """Name the objects of writes that publish."""
        first, nbytes = (2 * lap + (layers > 1)) * self.blocks, self.nbytes // LAYERS * layers
        blocks = [FullBlock(key_of(first + n), n, BLOCK, 0, nbytes, (0,) * 8) for n in self.order]
        self.full.fill(blocks)
        self._removed.fill([Request(each.key, 0, 0) for each in blocks])

    def check_bytes(self, lap: int) -> None:
        """Note whether the layer has the tokens, and wipe it, without waiting."""
        key, value, k, v = self.new(lap)
        for there, layer in ((key, k), (value, v)):
            self._bad[0] += (layer.view(self.tokens, HEADS, SIZE)[self.slots] != there).any()
            layer.zero_()

    def end_objects(self) -> None:
        """Note statuses, and remove the objects, without waiting."""
        self._bad[1] += (self.full.batch.statuses[: self.blocks] != Status.OK).sum()
        self._removed.remove()
        self._bad[1] += (self._removed.statuses[: self.blocks] != Status.OK).sum()
        self.segment.empty_ring()

    def check(self) -> None:
        """Raise Unsound if a layer had other bytes, or a block was not published."""
        if self._bad.any():
            raise Unsound(f"{int(self._bad[0])} layers had other bytes, {int(self._bad[1])} blocks were not published")
        self.segment.check()


def measure(device: torch.device, settings: GpuSettings, tokens: int) -> dict[str, Any]:
    """One row: writes of `tokens` tokens that fill whole blocks, of each kind in turn.

    Raises:
        Unsound: see `Written.check`.
    """
    written, timer = Written(device, settings, tokens), Timer(device)
    theirs = vllm_kernel()
    one = written.one
    for lap in range(settings.write_laps + settings.warm):
        if lap == settings.warm:
            timer.clear()
        key, value, k, v = written.new(lap)
        vllms = partial(write_as_vllm, theirs, key, value, (k, v), written.slots, (one, one))
        ours = partial(reshape_and_cache_flash, key, value, k, v, written.slots, "auto", one, one)
        if theirs is not None:
            timer.time("vLLM's kernel", vllms)
            written.check_bytes(lap)
        timer.time("without publishing", ours)
        written.check_bytes(lap)
        for layers, names in PUBLISHING:
            written.name(lap, layers)
            for layer, name in enumerate(names):
                timer.time(name, partial(ours, publish=Publish(written.full, layer, layers)))
                written.check_bytes(lap)
            written.end_objects()
    us = timer.summaries()
    written.check()
    moved = 2 * 2 * tokens * HEADS * SIZE * 2  # K and V, read and written
    note = "" if theirs is not None else f"without vLLM's kernel: no package `vllm` with {VLLM_FILE} was found"
    rates = {name: moved / summary["p50"] / 1e3 for name, summary in us.items()}
    return {"tokens": tokens, "us": us, "gb_per_s": rates, "note": note}


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for each number of tokens."""
    for tokens in settings.tokens:
        keep(measure(device, settings, tokens))


def main() -> None:
    """Print what is counted."""
    print(table(list(costs())))


if __name__ == "__main__":
    main()
