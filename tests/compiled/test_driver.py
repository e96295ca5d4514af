"""What Triton keeps of the PTX machine, and what the host asks it."""

import gc
import sys
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from nanokv.device import ptx
from nanokv.device.machines.lane import launches_on


@triton.jit
def store_kernel(out_ptr: tl.tensor) -> None:
    tl.store(out_ptr, 1)


def test_a_kernel_may_outlive_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is collected without a word, and runs on another machine."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    kernel, out = triton.jit(store_kernel.fn), torch.zeros(1, dtype=torch.int64)
    for _ in range(2):
        ptx.run(kernel, (1,), out.zero_())
        assert int(out[0]) == 1
    kernel.device_caches.clear()
    gc.collect()
    assert said == []


@triton.jit
def parting_kernel(word: tl.int64, out_ptr: tl.tensor) -> None:
    """Each warp of CTA 0 loads a word for itself and branches on it; CTA 1 changes it. Both branches have a barrier."""
    if tl.program_id(0) == 1:
        tl.store(tl.cast(word, tl.pointer_type(tl.int64)), 1)
    elif tl.load(tl.cast(word, tl.pointer_type(tl.int64)), volatile=True) == 0:
        tl.debug_barrier()
        tl.store(out_ptr, 1)
    else:
        tl.debug_barrier()
        tl.store(out_ptr + 1, 1)


@pytest.mark.parametrize("ctas", [1, 2])
def test_warps_that_part_are_found(ctas: int) -> None:
    """They meet at one barrier, from two places."""
    found = []
    for seed in range(20):
        word, out = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        options = {"memory": ptx.HostMemory(), "burst": 1.0}
        report = ptx.run(parting_kernel, (ctas,), word.data_ptr(), out, seed=seed, options=options, num_warps=4)
        found += [each.what for each in report.findings]
    assert (found == []) == (ctas == 1)
    assert {*found} <= {"warps of a CTA at one barrier from different places"}


def test_a_cpu_is_launched_on_only_within_a_machine() -> None:
    cpu = torch.device("cpu")
    assert not launches_on(cpu)
    with ptx.machine():
        assert launches_on(cpu) and not launches_on(torch.device("cuda"))
    assert not launches_on(cpu)
