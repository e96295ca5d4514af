"""Kernels of Triton, compiled for GPUs that are not there, on the PTX machine: the same results as torch's."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from nanokv.device import ptx

pytestmark = pytest.mark.proved


@triton.jit
def add_kernel(x: tl.tensor, y: tl.tensor, out: tl.tensor, count: tl.tensor, width: tl.constexpr) -> None:
    """out = x + y."""
    at = tl.program_id(0) * width + tl.arange(0, width)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x: tl.tensor, out: tl.tensor, columns: tl.tensor, width: tl.constexpr) -> None:
    """A softmax per row."""
    at = tl.arange(0, width)
    row = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=-float("inf"))
    made = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * columns + at, made / tl.sum(made, 0), mask=at < columns)


@triton.jit
def count_kernel(out: tl.tensor) -> None:
    """Each CTA adds 1."""
    tl.atomic_add(out, 1, sem="acq_rel", scope="sys")


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_give_what_torch_gives(capability: int, warps: int) -> None:
    torch.manual_seed(capability + warps)
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    report = ptx.run(add_kernel, (4,), x, y, out, 1000, width=256, num_warps=warps, capability=capability)
    assert torch.equal(out, x + y) and not report.findings
    rows, made = torch.randn(7, 100), torch.zeros(7, 100)
    ptx.run(softmax_kernel, (7,), rows, made, 100, width=128, num_warps=warps, capability=capability)
    torch.testing.assert_close(made, rows.softmax(1))


def test_ctas_meet_in_an_atomic_and_are_counted() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    report = ptx.run(count_kernel, (200,), out, options={"count": True}, num_warps=1, seed=3)
    assert int(out) == 200
    (counts,) = report.counts
    assert counts.warps == 200 and counts.total.ordered_atomics == 200 and counts.most.chain == 1


def test_an_access_outside_of_the_tensors_is_an_error() -> None:
    x, out = torch.zeros(1000), torch.zeros(1000)
    with pytest.raises(ptx.MemoryFault):
        ptx.run(add_kernel, (8,), x, x, out, 2048, width=256, num_warps=1)


def test_a_memory_that_lacks_a_method_is_refused_before_a_launch() -> None:
    class Loads(ptx.Memory):
        def load(self, warp: Any, access: Any, lanes: Any, addresses: Any) -> Any: ...

    with pytest.raises(TypeError, match=r"abstract methods '?atomic'?, '?store"):
        Loads()  # type: ignore[abstract]
