"""Kernels of Triton on the machine: results as torch's, for one and four warps and for three GPUs."""

import threading
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from nanokv.device import ptx
from nanokv.device.ptx import Malformed, MemoryFault
from nanokv.device.ptx.fixtures import ptx_machine

pytestmark = pytest.mark.proved

__all__ = ["ptx_machine"]
BF16 = torch.bfloat16


@triton.jit
def add_kernel(x: tl.tensor, y: tl.tensor, out: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax_kernel(x: tl.tensor, out: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    values = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, values / tl.sum(values, 0), mask=at < n)


@triton.jit
def matmul_kernel(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inner = k + tl.arange(0, BK)
        left = tl.load(
            a + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0
        )
        right = tl.load(
            b + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def reductions_kernel(x: tl.tensor, out: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> None:
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    values = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(out + columns, tl.sum(values, 0))
    tl.store(out + COLUMNS + columns, tl.max(values, 0))
    tl.store(out + 2 * COLUMNS + columns, tl.argmin(values, 0))
    tl.store(out + 3 * COLUMNS + columns, tl.sum(tl.cumsum(values, 0), 0))
    tl.store(out + 4 * COLUMNS + rows, tl.sum(values, 1))


@triton.jit
def histogram_kernel(x: tl.tensor, out: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.atomic_add(out + tl.load(x + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def sort_kernel(x: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def counter_kernel(lock: tl.tensor, count: tl.tensor, limit: tl.tensor) -> None:
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.store(count, tl.minimum(tl.load(count) + 1, limit))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")


@triton.jit
def functions_kernel(x: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(out + at, tl.exp(v) + tl.log(tl.abs(v) + 1) + tl.sqrt(tl.abs(v)) + tl.sigmoid(v) + tl.floor(v) + tl.erf(v))
    whole = v.to(tl.int32)
    tl.store(out + BLOCK + at, (whole // 3 + whole % 5 + (whole << 2) + tl.abs(whole)).to(tl.float32))
    tl.store(out + 2 * BLOCK + at, v.to(tl.float16).to(tl.float32) + v.to(tl.bfloat16).to(tl.float32))


def check_add(num_warps: int) -> None:
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    add_kernel[(4,)](x, y, out, 1000, BLOCK=256, num_warps=num_warps)
    assert torch.equal(out, x + y)


def check_softmax(num_warps: int) -> None:
    x = torch.randn(4, 200).to(BF16)
    out = torch.zeros_like(x)
    softmax_kernel[(4,)](x, out, 200, BLOCK=256, num_warps=num_warps)
    torch.testing.assert_close(out.float(), x.float().softmax(1), atol=1e-3, rtol=1e-2)


def check_matmul(num_warps: int) -> None:
    for dtype in (BF16, torch.float16, torch.float32):
        a, b = torch.randn(48, 80).to(dtype), torch.randn(80, 64).to(dtype)
        c = torch.zeros(48, 64)
        matmul_kernel[(2, 2)](a, b, c, 48, 64, 80, BM=32, BN=32, BK=32, num_warps=num_warps)
        torch.testing.assert_close(c, a.float() @ b.float(), atol=5e-2, rtol=1e-2)


def check_reductions(num_warps: int) -> None:
    x, out = torch.randn(32, 16), torch.zeros(96)
    reductions_kernel[(1,)](x, out, ROWS=32, COLUMNS=16, num_warps=num_warps)
    wanted = [x.sum(0), x.max(0).values, x.argmin(0).float(), x.cumsum(0).sum(0), x.sum(1)]
    torch.testing.assert_close(out, torch.cat(wanted), atol=1e-4, rtol=1e-4)


def check_histogram(num_warps: int) -> None:
    x, out = torch.randint(0, 10, (700,), dtype=torch.int32), torch.zeros(10, dtype=torch.int32)
    histogram_kernel[(3,)](x, out, 700, BLOCK=128, num_warps=num_warps)
    assert torch.equal(out.long(), torch.bincount(x, minlength=10))


def check_sort(num_warps: int) -> None:
    x, out = torch.randn(128), torch.zeros(128)
    sort_kernel[(1,)](x, out, BLOCK=128, num_warps=num_warps)
    assert torch.equal(out, x.sort().values)


def check_lock(num_warps: int) -> None:
    lock, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    counter_kernel[(9,)](lock, count, 99, num_warps=num_warps)
    assert (int(lock[0]), int(count[0])) == (0, 9)


def check_functions(num_warps: int) -> None:
    v, out = torch.randn(64) * 9, torch.zeros(192)
    functions_kernel[(1,)](v, out, BLOCK=64, num_warps=num_warps)
    whole = v.int()
    wanted = [
        v.exp() + (v.abs() + 1).log() + v.abs().sqrt() + v.sigmoid() + v.floor() + v.erf(),
        torch.div(whole, 3, rounding_mode="trunc") + torch.fmod(whole, 5) + (whole << 2) + whole.abs(),
        v.half().float() + v.to(BF16).float(),
    ]
    torch.testing.assert_close(out, torch.cat(wanted), atol=1e-5, rtol=1e-5)


CHECKS = [
    check_add,
    check_softmax,
    check_matmul,
    check_reductions,
    check_histogram,
    check_sort,
    check_lock,
    check_functions,
]


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("check", CHECKS)
def test_results_are_those_of_torch(check: Callable[[int], None], num_warps: int, ptx_machine: ptx.Machine) -> None:
    torch.manual_seed(num_warps)
    check(num_warps)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options", [{"capability": 80}, {"capability": 100}, {"split_lanes": 0.3}, {"count": True, "seed": 5}], ids=str
)
@pytest.mark.parametrize("check", CHECKS)
def test_results_for_other_gpus_and_machines(check: Callable[[int], None], options: dict[str, int]) -> None:
    for num_warps in (1, 2, 4):
        with ptx.machine(**options) as machine:
            torch.manual_seed(num_warps)
            check(num_warps)
        assert machine.report().findings == ()


# --- the driver -----------------------------------------------------------------------------------
def test_a_wrong_mask_is_found_by_its_tensor() -> None:
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    with pytest.raises(
        MemoryFault, match=r"add_kernel, line \d+: `.*ld.global.*test_triton.py:\d+.*the storage of `x`, which has 4000"
    ):
        ptx.run(add_kernel, (4,), x, y, out, 1024, BLOCK=256, num_warps=1)


def test_one_run_reports_its_launch() -> None:
    x, out = torch.randn(8, 100), torch.zeros(8, 100)
    report = ptx.run(softmax_kernel, (8,), x, out, 100, BLOCK=128, num_warps=1, seed=4, options={"count": True})
    assert report.seed == 4 and report.launches == {"softmax_kernel": 1} and report.findings == ()
    assert report.counts[0].warps == 8 and report.counts[0].most.stores >= 1
    assert "softmax_kernel" in str(report)
    by_grid = ptx.run(softmax_kernel, lambda meta: (800 // meta["BLOCK"] + 2,), x, out, 100, BLOCK=128, num_warps=1)
    assert by_grid.steps == report.steps or by_grid.steps > 0


def test_nothing_of_triton_stays_changed() -> None:
    from triton.backends import backends
    from triton.runtime.driver import driver

    before = driver._active, backends["nvidia"]
    with pytest.raises(KeyError, match="leave"), ptx.machine():
        raise KeyError("leave")
    assert (driver._active, backends["nvidia"]) == before


def test_capabilities_are_compiled_apart() -> None:
    texts = {}
    for capability in (90, 80, 90):
        with ptx.machine(capability=capability):
            x, out = torch.randn(256), torch.zeros(256)
            compiled = add_kernel[(1,)](x, x, out, 256, BLOCK=256, num_warps=1)
            assert torch.equal(out, x + x)
        texts[capability] = compiled.asm["ptx"]
    assert ".target sm_80" in texts[80] and ".target sm_90" in texts[90]
    assert "cubin" not in compiled.asm


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(Malformed, match="TRITON_INTERPRET"):
        ptx.run(lambda: None, (1,))
    meta = torch.zeros(8, device="meta")
    with pytest.raises(Malformed, match="`x` lies on meta"):
        ptx.run(add_kernel, (1,), meta, meta, meta, 8, BLOCK=32, num_warps=1)


def test_a_configuration_is_not_chosen_without_a_clock() -> None:
    x, out = torch.randn(256), torch.zeros(256)
    configs = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 128)]
    ptx.run(triton.autotune(configs[:1], key=["n"])(add_kernel), (4,), x, x, out, 256)
    assert torch.equal(out, x + x)
    with pytest.raises(Malformed, match="the machine has no clock"):
        ptx.run(triton.autotune(configs, key=["n"])(add_kernel), (4,), x, x, out, 256)


def test_machines_of_threads_wait_for_each_other() -> None:
    seen: list[dict[str, int]] = []

    def work(times: int) -> None:
        with ptx.machine() as machine:
            for _ in range(times):
                check_add(1)
            seen.append(machine.report().launches)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["add_kernel"] for each in seen) == [3, 4, 5]
