"""What the design assumes about CUDA, measured by itself, without a segment.

- ceilings: a large copy within the GPU, and a large product of matrices. All other figures are to be seen beside these.
- looks: what a poller does without hints: a copy of eight bytes into pinned memory on a stream of its own, and a wait,
  while the GPU is idle, and while products of matrices fill it.
- orders: cycles of one add, and of one compare-and-swap after another, by ordering and scope, with stores before it
  that a release waits for. The protocol uses system scope, so that peers and hosts may take part.
- captures: which calls of another thread break the capture of a graph, in each mode of the capture, and whether the
  relaxed mode of that thread prevents it.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.clock import cycles, launch
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer, synchronize
from nanokv.bench.suite.timing import summarise

WORDS = 64  #: words of one store of a warp: 512 bytes
COPIES = 3  #: pairs of tensors that the copy takes in turn
MODES = {"global": 0, "thread_local": 1}  #: of a capture: CUstreamCaptureMode
RELAXED = 2
JOIN_SECONDS = 10.0


# --- ceilings ----------------------------------------------------------------------------------
def ceilings(device: torch.device, settings: GpuSettings) -> dict[str, Any]:
    """The rate of a copy, reading and writing counted, and of a product of matrices of random numbers."""
    timer, size, n = Timer(device), settings.probe_bytes, settings.matmul
    places = [torch.randint(0, 256, (size,), dtype=torch.uint8, device=device) for _ in range(COPIES)]
    twins = [torch.empty_like(place) for place in places]
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    one, two = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(one)
    for lap in range(20 + settings.warm):
        if lap == settings.warm:
            timer.clear()
        twin, place = twins[lap % COPIES], places[lap % COPIES]
        timer.time("copy", lambda twin=twin, place=place: twin.copy_(place))  # type: ignore[misc]
        timer.time("product", lambda: torch.mm(one, two, out=out))
    us = timer.summaries()
    if not all(torch.equal(twin, place) for twin, place in zip(twins, places, strict=True)):
        raise Unsound("other bytes were copied than there are")
    rates = {
        "copy_tb_per_s": 2 * size / us["copy"]["p50"] / 1e6,
        "product_tflops": 2 * n**3 / us["product"]["p50"] / 1e6,
    }
    return {"what": "ceilings", "bytes": size, "matmul": n, "us": us} | rates


# --- looks -------------------------------------------------------------------------------------
def looks(device: torch.device, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    """The host's time of one look: a row for an idle GPU, and one for a busy one."""
    on_gpu = device.type == "cuda"
    word, seen = torch.ones(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64, pin_memory=on_gpu)
    stream = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]
    n = settings.matmul
    one = torch.randn(n, n, device=device).to(torch.bfloat16 if on_gpu else torch.float32)
    for busy in (False, True):
        synchronize(device)
        for _ in range(settings.probe_rounds if busy else 0):
            torch.mm(one, one)
        ns = []
        for _ in range(settings.probe_rounds):
            start = time.perf_counter_ns()
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                seen.copy_(word, non_blocking=True)
            if stream is not None:
                stream.synchronize()
            ns.append(time.perf_counter_ns() - start)
        busy_still = on_gpu and not torch.cuda.current_stream(device).query()
        yield {"what": "look", "gpu": "busy" if busy else "idle", "us": summarise(ns), "busy_to_the_end": busy_still}


# --- orders ------------------------------------------------------------------------------------
@triton.jit  # type: ignore[untyped-decorator]
def ordered_add_kernel(
    words: tl.int64,
    stores: tl.int64,
    out: tl.int64,
    rounds: tl.int64,
    sem: tl.constexpr,
    scope: tl.constexpr,
    lines: tl.constexpr,
) -> None:
    """Store `lines` * 512 bytes, then add 1 to a word by one ordered atomic, and write how many cycles that took."""
    lanes = tl.arange(0, 64)
    word_at = tl.cast(words, tl.pointer_type(tl.int64))
    store_at = tl.cast(stores, tl.pointer_type(tl.int64))
    out_at = tl.cast(out, tl.pointer_type(tl.int64))
    i = tl.cast(0, tl.int64)
    while i < rounds:
        for line in tl.static_range(lines):
            tl.store(store_at + line * 64 + lanes, lanes.to(tl.int64) + i)
        start = cycles()
        old = tl.atomic_add(word_at, 1, sem=sem, scope=scope)
        tl.store(word_at + 16, old)  # waits for the answer
        end = cycles()
        tl.store(out_at + i, end - start)
        i += 1


@triton.jit  # type: ignore[untyped-decorator]
def swap_chain_kernel(words: tl.int64, out: tl.int64, rounds: tl.int64, scope: tl.constexpr) -> None:
    """Compare-and-swaps of one word, each with what the one before it left, and the cycles of all."""
    word_at = tl.cast(words, tl.pointer_type(tl.int64))
    out_at = tl.cast(out, tl.pointer_type(tl.int64))
    old = tl.load(word_at)
    start = cycles()
    i = tl.cast(0, tl.int64)
    while i < rounds:
        old = tl.atomic_cas(word_at, old, old + 1, sem="relaxed", scope=scope) + 1
        i += 1
    tl.store(out_at + 1, old)
    tl.store(out_at, cycles() - start)


def orders(device: torch.device, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    """Rows of an ordering and a scope: the median of the cycles of one atomic; both scopes take turns.

    Raises:
        Unsound: an add or a swap got lost.
    """
    rounds = settings.probe_rounds
    words = torch.zeros(WORDS, dtype=torch.int64, device=device)
    stores = torch.zeros(max(settings.order_stores) * WORDS + 1, dtype=torch.int64, device=device)
    out = torch.zeros(max(rounds, 2), dtype=torch.int64, device=device)
    ends, added = (words.data_ptr(), stores.data_ptr(), out.data_ptr()), 0
    for lines in settings.order_stores:
        for sem in ("relaxed", "acquire", "release", "acq_rel"):
            for scope in ("gpu", "sys"):
                for _ in range(2):  # the first launch compiles
                    launch(ordered_add_kernel, 1, *ends, rounds, sem=sem, scope=scope, lines=lines)
                    added += rounds
                median = float(out[rounds // 8 :].double().median())
                yield {"what": "order", "sem": sem, "scope": scope, "stored_bytes": lines * 512, "cycles": median}
    for scope in ("gpu", "sys"):
        for _ in range(2):
            launch(swap_chain_kernel, 1, words.data_ptr(), out.data_ptr(), rounds, scope=scope)
            added += rounds
        yield {
            "what": "order",
            "sem": "swap after swap",
            "scope": scope,
            "stored_bytes": 0,
            "cycles": out[0].item() / rounds,
        }
    if int(words[0]) != added:
        raise Unsound(f"{added} adds and swaps left {int(words[0])}")


# --- captures ----------------------------------------------------------------------------------
def captures(device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each mode of a capture, and of the other thread: which of its calls broke it, and how.

    The capture is the driver's own, not torch's: a broken one leaves torch's allocator as it was.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    main, side = torch.cuda.Stream(device), torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    word, captured, third = (torch.zeros(WORDS, dtype=torch.int64, device=device) for _ in range(3))
    pinned = torch.zeros(WORDS, dtype=torch.int64, pin_memory=True)
    event.record()

    def on_side(call: Callable[[], object]) -> Callable[[], object]:
        def do() -> object:
            with torch.cuda.stream(side):
                return call()

        return do

    def look() -> None:
        pinned.copy_(word, non_blocking=True)
        side.synchronize()

    calls: dict[str, Callable[[], object]] = {
        "copy to pinned memory": on_side(lambda: pinned.copy_(word, non_blocking=True)),
        "the same, and a wait for its stream": on_side(look),
        "kernel": on_side(lambda: word.add_(1)),
        "copy from pageable memory": on_side(lambda: word.copy_(torch.zeros(WORDS, dtype=torch.int64))),
        "wait for an event": event.synchronize,
        "query of an event": event.query,
        "new device memory": on_side(lambda: torch.empty(64 << 20, dtype=torch.uint8, device=device)),
        "new pinned memory": lambda: torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True),
        "wait for the default stream": lambda: torch.cuda.default_stream(device).synchronize(),
        "kernel on the default stream": lambda: third.add_(1),
        "wait for the device": lambda: torch.cuda.synchronize(device),
    }
    kept: list[object] = []  # nothing is freed while a capture is under way
    for mode, number in MODES.items():
        for relaxed in (False, True):
            broken = {}
            for name, call in calls.items():
                torch.cuda.synchronize(device)
                said = _beside_a_capture(cuda, main, number, captured, call, kept, relaxed=relaxed)
                if said:
                    broken[name] = said
            yield {
                "what": "capture",
                "mode": mode,
                "thread_is_relaxed": relaxed,
                "calls": len(calls),
                "broken_by": broken,
            }


def _beside_a_capture(
    cuda: Any,
    stream: Any,
    mode: int,
    captured: torch.Tensor,
    call: Callable[[], object],
    kept: list[object],
    *,
    relaxed: bool,
) -> list[str]:
    """Capture one kernel while another thread makes a call: what went wrong."""
    said: list[str] = []
    ready, begun = threading.Event(), threading.Event()

    def beside() -> None:
        try:
            torch.cuda.current_stream().query()  # this thread has the context now
            if relaxed:
                cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))
            ready.set()
            begun.wait(JOIN_SECONDS)
            kept.append(call())
        except Exception as error:
            said.append(str(error).splitlines()[0][:100])
        finally:
            ready.set()

    thread = threading.Thread(target=beside, name="bench-beside-a-capture")
    thread.start()
    ready.wait(JOIN_SECONDS)
    graph, handle = ctypes.c_void_p(), ctypes.c_void_p(stream.cuda_stream)
    codes = [cuda.cuStreamBeginCapture_v2(handle, ctypes.c_int(mode))]
    begun.set()
    thread.join(JOIN_SECONDS)
    try:
        with torch.cuda.stream(stream):
            captured.add_(1)
    except Exception as error:
        said.append(f"the captured launch: {str(error).splitlines()[0][:80]}")
    codes.append(cuda.cuStreamEndCapture(handle, ctypes.byref(graph)))
    if graph.value:
        cuda.cuGraphDestroy(graph)
    return [*said, *(f"CUDA error {code}" for code in codes if code)]


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """All rows; those about captures on a GPU only."""
    keep(ceilings(device, settings))
    for row in (*looks(device, settings), *orders(device, settings)):
        keep(row)
    if device.type == "cpu":
        keep({"what": "capture", "skipped": "there are graphs on GPUs alone"})
        return
    for row in captures(device):
        keep(row)
