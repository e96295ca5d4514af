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


def test_a_cpu_is_launched_on_only_within_a_machine() -> None:
    cpu = torch.device("cpu")
    assert not launches_on(cpu)
    with ptx.machine():
        assert launches_on(cpu) and not launches_on(torch.device("cuda"))
    assert not launches_on(cpu)
