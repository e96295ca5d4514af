"""CTAs of several warps, compiled for sm_90: in whatever order their warps go on, they stay together.

The PTX machine notices what keeps them together: a look that each warp takes for itself, and a barrier that is missing.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language import core

from nanokv.device import ptx
from nanokv.device.library import OK, PINNED, lookup, pin, remove, store64, unpin, word
from nanokv.device.memory import triton as memory
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.fsck import check_segments
from tests.gpu.bodies import World, flat, key
from tests.support.twins import native_of

pytestmark = pytest.mark.proved

CTAS, KEYS = 8, 8
BURST = 1.0  #: another warp goes on after each step
STEPS = 400_000  #: far more than a run takes
BARRIER = re.compile(r"^\s*bar\.sync[^;]*;", re.M)
KEY_STEP, CHECK_STEP = tl.constexpr(0x5851F42D4C95), tl.constexpr(0x14057B7EF767)  # those of `bodies.key`


@triton.jit
def take_kernel(world: tl.int64, keys: tl.int64, out: tl.int64) -> None:
    """Every CTA finds each object, holds it, lets it go, and removes it. `out`: how many it removed."""
    n = word(0)
    removed = word(0)
    while n < keys:
        key_hash = n * KEY_STEP + 1
        key_check = n * CHECK_STEP - 1
        status, owner, slot, epoch, _, _ = lookup(world, key_hash, key_check)
        if status == OK:
            status, line = pin(world, owner, slot, epoch)
            if status == OK:
                unpin(world, owner, slot, epoch, line)
        status = word(PINNED)
        while status == PINNED:  # by another CTA
            status, _ = remove(world, key_hash, key_check)
        removed += (status == OK).to(tl.int64)
        n += 1
    store64(out + tl.program_id(0).to(tl.int64) * WORD_BYTES, removed, "relaxed")


def wrong(seed: int, warps: int = 4, kernel: Any = take_kernel, without: int | None = None) -> str:
    """What is wrong after every CTA has taken every object: "" if nothing is.

    Args:
        kernel: `take_kernel`, or the same compiled in another way.
        without: the number of a barrier that is left out.
    """
    machine = ptx.Machine(seed=seed, limit=STEPS, burst=BURST)
    if without is not None:
        machine = WithoutBarrier(without, seed=seed, limit=STEPS, burst=BURST)
    with ptx.installed(machine, 90):
        world = World(torch.device("cpu"), 64, may_evict=False)
        native, table = native_of(world)
        source, out = torch.zeros(8, dtype=torch.uint8), torch.zeros(CTAS, dtype=torch.int64)
        for n in range(KEYS):
            assert native.put(n % 2, key(n), source.data_ptr(), 8, flat(8), n) == 0
        machine.memory = ptx.TensorMemory([*world.segments, table, out])
        try:
            kernel[(CTAS,)](native.table_address, KEYS, out.data_ptr(), num_warps=warps)
        except ptx.PtxError as error:
            return f"{type(error).__name__}: {error}"
    if machine.findings:
        return str(machine.report())
    if int(out.sum()) != KEYS:
        return f"removed: {out.tolist()}"
    report = check_segments(world.views(), mode="device")
    return "" if report.clean else str(report.findings[0])


class WithoutBarrier(ptx.Machine):
    """A machine that leaves a barrier out of each kernel."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(**options)
        self._number = number

    def launch(self, ptx: str, *args: Any, **named: Any) -> None:
        start, end = [each.span() for each in BARRIER.finditer(ptx)][self._number]
        super().launch(ptx[:start] + ptx[end:], *args, **named)


@pytest.mark.parametrize("warps", [1, 4, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_warps_stay_together(warps: int) -> None:
    for seed in range(3):
        assert wrong(seed, warps) == ""


@core.builtin
def no(source: Any, _semantic: Any = None) -> Any:
    return core.constexpr(False)


@triton.jit
def own(value: tl.int64) -> Any:
    return value


@pytest.mark.parametrize(("name", "other"), [("several_warps", no), ("uniform", own)])
def test_a_look_by_each_warp_is_noticed(name: str, other: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each warp reads for itself what another CTA changes, and goes its own way."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(memory, name, other)
    kernel = triton.jit(take_kernel.fn)
    assert [found for seed in range(4) if (found := wrong(seed, kernel=kernel))]


# the barriers of `take_kernel` whose absence is noticed, by their number in PTX, and the order of warps that does. All
# others stand on steps that no CTA takes here (of copies, of corrupt words), or only before a release:
# `test_several_warps` looks at each. After a change of the protocol: python -m tests.compiled.test_warps
NOTICED = {
    0: [
        *range(1, 10),
        12,
        19,
        20,
        25,
        *range(31, 36),
        42,
        49,
        *range(58, 68),
        *range(70, 76),
        77,
        *range(79, 84),
        *range(93, 102),
    ],
    1: [76],
    2: [26],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("seed", "number"), [(seed, each) for seed, several in NOTICED.items() for each in several])
def test_a_missing_barrier_is_noticed(seed: int, number: int) -> None:
    assert wrong(seed, without=number)


def barriers() -> int:
    """How many barriers the kernel has."""
    with ptx.installed(ptx.Machine(), 90):
        compiled = take_kernel.warmup(0, KEYS, 0, num_warps=4, grid=(1,))
    return len(BARRIER.findall(compiled.asm["ptx"]))


@pytest.mark.exhaustive
def test_more_than_a_third_of_all_barriers_are_in_the_table() -> None:
    assert sum(map(len, NOTICED.values())) > barriers() / 3


if __name__ == "__main__":
    for number in range(barriers()):
        if (seed := next((seed for seed in range(3) if wrong(seed, without=number)), None)) is not None:
            print(f"seed {seed} notices that barrier {number} is missing", flush=True)
