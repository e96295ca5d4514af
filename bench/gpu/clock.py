"""Clocks that a kernel reads, compared with each other and with the host's.

    cycles        %clock64, of one multiprocessor: a CTA stays on one, so differences within a CTA are exact
    nanoseconds   %globaltimer, of the whole GPU; `resolution` measures how often it ticks, which differs between GPUs

Interpreted kernels read the host's clock for both.
"""

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from nanokv.device.kernels.many import REGISTERS
from nanokv.device.machines.lane import INTERPRETER
from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.segment.layout import WORD_BYTES

READINGS = 4096
PATIENCE = tl.constexpr(1 << 21)  # looks at most of the GPU at a word of the host, about a microsecond each
HOST_PATIENCE = 10.0  #: seconds that the host waits for the GPU


@triton.jit  # type: ignore[untyped-decorator]
def gpu_cycles() -> Any:
    """Cycles of this multiprocessor."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit  # type: ignore[untyped-decorator]
def gpu_nanoseconds() -> Any:
    """Nanoseconds of this GPU."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


INTERPRETED = isinstance(gpu_cycles, InterpretedFunction)
cycles: Any = time.perf_counter_ns if INTERPRETED else gpu_cycles
nanoseconds: Any = time.perf_counter_ns if INTERPRETED else gpu_nanoseconds


@triton.jit  # type: ignore[untyped-decorator]
def read_clocks_kernel(out: tl.int64, count: tl.int64) -> None:
    """Read both clocks `count` times, one after the other, into pairs of words."""
    i = word(0)
    while i < count:
        store64(out + 2 * i * WORD_BYTES, word(nanoseconds()), "relaxed")
        store64(out + (2 * i + 1) * WORD_BYTES, word(cycles()), "relaxed")
        i += 1


@triton.jit  # type: ignore[untyped-decorator]
def shake_hands_kernel(words: tl.int64, count: tl.int64) -> None:
    """Answer the host `count` times: as soon as the first word exceeds i, write the time into the second.

    `words`: two words of pinned host memory. No read-modify-writes: they are not atomic there on every bus. After
    PATIENCE looks the kernel no longer waits.
    """
    i = word(0)
    tries = word(0)
    while i < count:
        said = load64(words, "relaxed")
        while (said <= i) & (tries < PATIENCE):
            said = load64(words, "relaxed")
            tries += 1
        store64(words + WORD_BYTES, word(nanoseconds()), "relaxed")
        i += 1


def resolution(device: torch.device) -> dict[str, float]:
    """How often the GPU's nanosecond clock ticks, and how many cycles a nanosecond has.

    Returns:
        tick_ns: the least difference of two readings except 0. ticks: how many differences were not 0, of `readings`
        readings. cycles_per_ns: of one multiprocessor, over all readings.
    """
    count = 16 if INTERPRETED else READINGS
    words = torch.zeros(count, 2, dtype=torch.int64, device=device)
    for _ in range(2):  # the first launch compiles
        launch(read_clocks_kernel, 1, words.data_ptr(), count)
    said = words.cpu()
    steps = said[1:, 0] - said[:-1, 0]
    spent_ns, spent = (int(said[-1, k] - said[0, k]) for k in range(2))
    moved = steps[steps > 0]
    return {
        "tick_ns": float(moved.min()) if len(moved) else 0.0,
        "ticks": float(len(moved)),
        "readings": float(count),
        "cycles_per_ns": spent / spent_ns if spent_ns else 0.0,
    }


class Offset(NamedTuple):
    """GPU time minus host time (`perf_counter_ns`), in ns, and its largest error in either direction."""

    ns: int
    uncertainty_ns: int
    at_ns: int  #: host time of the measurement


def compare_clocks(device: torch.device, handshakes: int) -> Offset:
    """Compare the GPU's nanosecond clock with the host's: of all handshakes the fastest counts.

    The GPU reads its clock between two readings of the host's, so the offset is known to half the time between these.

    Raises:
        TimeoutError: the GPU did not answer.
    """
    if device.type == "cpu":
        return Offset(0, 0, time.perf_counter_ns())  # an interpreted kernel reads the host's clock
    words = torch.zeros(2, dtype=torch.int64, pin_memory=True)
    launch(shake_hands_kernel, 1, words.data_ptr(), 0)  # compiles
    torch.cuda.synchronize(device)
    launch(shake_hands_kernel, 1, words.data_ptr(), handshakes)
    view = words.numpy()
    best = Offset(0, 1 << 62, 0)
    for i in range(handshakes):
        last = view[1]
        before = time.perf_counter_ns()
        view[0] = i + 1
        while view[1] == last:
            if time.perf_counter_ns() - before > HOST_PATIENCE * 1e9:
                raise TimeoutError(f"the GPU did not answer handshake {i} in {HOST_PATIENCE:.0f} s")
        after = time.perf_counter_ns()
        half = (after - before) // 2
        if half < best.uncertainty_ns:
            best = Offset(int(view[1]) - before - half, half, after)
    torch.cuda.synchronize(device)
    return best


def launch(kernel: Any, ctas: int, *args: int, warps: int = 1, **constants: int | str) -> None:
    """Launch a kernel on the current stream, with the registers that the product's kernels have.

    Interpreted kernels run one at a time per process.
    """
    on_nvidia = torch.cuda.is_available() and torch.version.hip is None
    options: dict[str, Any] = constants | ({"maxnreg": REGISTERS} if on_nvidia else {})
    with INTERPRETER if INTERPRETED else nullcontext():
        kernel[(ctas,)](*args, num_warps=warps, **options)
