"""What one warp costs, and the longest chain of accesses that wait for each other."""

import pytest
import torch
import triton
import triton.language as tl

from nanokv.device import ptx
from nanokv.device.ptx import Machine, WarpCounts
from tests.ptx.test_memory import kernel
from tests.ptx.test_scheduler import many_warps

pytestmark = pytest.mark.proved


def counted(body: str, *, warps: int = 1) -> WarpCounts:
    """The costliest warp of a kernel on a tensor of zeros."""
    machine = Machine(count=True)
    text = kernel(body, 1) if warps == 1 else many_warps(body, warps)
    machine.launch(text, (1, 1, 1), [("words", torch.zeros(4096, dtype=torch.int64))])
    return machine.report().counts[0].most


def test_everything_is_counted_once_per_warp() -> None:
    counts = counted(
        """mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 3; setp.gt.u32 %p1, %r0, 99;
        ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%x0];
        @%p0 ld.global.u32 %r1, [%x0]; @%p1 ld.global.u32 %r1, [%x0]; st.global.u32 [%x0], %r0;
        @%p1 st.global.u32 [%x0], %r0;
        atom.global.add.u32 %r1, [%x0], 1; red.release.gpu.global.add.u32 [%x0], 1;
        atom.acquire.sys.global.cas.b32 %r2, [%x0], 1, 2;
        fence.acq_rel.sys; shfl.sync.idx.b32 %r1, %r1, 0, 31, -1; bar.sync 0; bar.warp.sync -1;"""
    )  # fmt: skip
    assert (counts.loads, counts.stores, counts.shuffles, counts.barriers, counts.fences) == (2, 1, 1, 2, 1)
    assert (counts.relaxed_atomics, counts.ordered_atomics) == (1, 2)
    assert counts.instructions == 3 + 5 + 3 + 4 + 2  # with ld.param and ret


def test_instructions_of_parted_lanes_count_for_each_group() -> None:
    body = """mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 9; @%p0 bra LOW; add.u32 %r1, %r0, 1; bra.uni DONE;
    LOW: add.u32 %r1, %r0, 2; DONE:"""
    assert counted(body).instructions == 2 + 3 + 3


NEXT = "ld.global.u64 %x1, [%x1]; add.u64 %x1, %x1, %x0;"
CHAINS = {
    "loads side by side": ("ld.global.u64 %x1, [%x0]; ld.global.u64 %x2, [%x0+8]; ld.global.u64 %x3, [%x0+16];", 1),
    "an address from memory": (f"mov.u64 %x1, %x0; {NEXT} {NEXT} {NEXT}", 3),
    "data from memory": ("ld.global.u32 %r1, [%x0]; st.global.u32 [%x0+8], %r1;", 2),
    "a store is not waited for": ("st.global.u32 [%x0], 1; st.global.u32 [%x0+8], 1; ld.global.u32 %r1, [%x0];", 1),
    "a guard": ("ld.global.u32 %r1, [%x0]; setp.eq.u32 %p0, %r1, 0; @%p0 st.global.u32 [%x0+8], 1;", 2),
    "a guard that holds nowhere": ("ld.global.u32 %r1, [%x0]; setp.ne.u32 %p0, %r1, 0;"
        " @%p0 st.global.u32 [%x0+8], 1;", 1),
    "behind a branch": ("ld.global.u32 %r1, [%x0]; setp.eq.u32 %p0, %r1, 9; @%p0 exit; ld.global.u32 %r2, [%x0+8];", 2),
    "a register that is written anew": (f"mov.u64 %x1, %x0; {NEXT} mov.u64 %x1, %x0; {NEXT}", 1),
    "a shuffle": (f"mov.u64 %x1, %x0; {NEXT} cvt.u32.u64 %r1, %x1; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;"
                  " and.b32 %r2, %r2, 0; cvt.u64.u32 %x2, %r2; add.u64 %x2, %x0, %x2; ld.global.u64 %x3, [%x2];", 2),
    "local memory": (".local .align 8 .b8 d[8]; ld.global.u32 %r1, [%x0]; st.local.u32 [d], %r1; ld.local.u32 %r2, [d];"
                     " st.global.u32 [%x0+8], %r2;", 2),
    "relaxed atomics": ("atom.global.add.u32 %r1, [%x0], 1; atom.global.add.u32 %r2, [%x0+8], 1;", 1),
    "acquires": ("atom.acquire.sys.global.add.u32 %r1, [%x0], 1; ld.acquire.sys.global.u32 %r2, [%x0];"
        " ld.global.u32 %r3, [%x0];", 3),
    "a release": ("ld.global.u32 %r1, [%x0]; st.global.u32 [%x0], 1; red.release.sys.global.add.u32 [%x0+8], 1;"
        " ld.global.u32 %r2, [%x0];", 2),
    "a fence": ("st.global.u32 [%x0], 1; fence.sc.sys; ld.global.u32 %r2, [%x0];", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    body, wanted = CHAINS[name]
    assert counted(body).chain == wanted


def test_a_chain_goes_through_shared_memory_and_barriers_of_a_cta() -> None:
    """Warp 0 loads and passes the value on; each warp then stores."""
    body = """setp.lt.u32 %p0, %r0, 32; @%p0 ld.global.u32 %r1, [%x0]; @%p0 st.shared.u32 [buffer], %r1; bar.sync 0;
    ld.shared.u32 %r2, [buffer]; mul.wide.u32 %x1, %r0, 8; add.u64 %x1, %x0, %x1; st.global.u32 [%x1], %r2;"""
    machine = Machine(count=True)
    machine.launch(many_warps(body, 2), (1, 1, 1), [("words", torch.zeros(64, dtype=torch.int64))])
    (counts,) = machine.report().counts
    assert (counts.warps, counts.most.chain, counts.most.loads, counts.total.stores) == (2, 2, 1, 2)


@triton.jit
def follow_kernel(words: tl.tensor, out: tl.tensor, STEPS: tl.constexpr) -> None:
    place = tl.load(words)
    for _ in range(STEPS):
        place = tl.load(words + place)
    tl.store(out, place)


def test_a_kernel_of_triton_and_the_table() -> None:
    words, out = torch.tensor([1, 2, 3, 4, 5, 6, 0]), torch.zeros(1, dtype=torch.int64)
    with ptx.machine(count=True) as machine:
        with machine.operation("three steps"):
            follow_kernel[(1,)](words, out, STEPS=3, num_warps=1)
        follow_kernel[(2,)](words, out, STEPS=4, num_warps=1)
    three, four = machine.report().counts
    assert (three.operation, three.kernel, three.warps, three.most.loads, three.most.chain) == (
        "three steps",
        "follow_kernel",
        1,
        4,
        5,
    )
    assert (four.operation, four.warps, four.most.chain, four.total.loads) == ("follow_kernel", 2, 6, 10)
    head, first, _ = machine.report().table().splitlines()
    accesses = "loads stores relaxed atomics ordered atomics fences"
    assert head.split() == f"operation warps instructions {accesses} shuffles barriers calls chain".split()
    assert first.startswith("three steps ") and first.split()[-1] == "5"


def test_counting_changes_no_result() -> None:
    for count in (False, True):
        words = torch.arange(32)
        machine = Machine(count=count)
        body = "mov.u32 %r0, %tid.x; mul.wide.u32 %x1, %r0, 8; add.u64 %x1, %x0, %x1; red.global.add.u64 [%x1], 3;"
        machine.launch(kernel(body, 1), (2, 1, 1), [("words", words)])
        assert words.tolist() == [n + 6 for n in range(32)]
        assert len(machine.report().counts) == count
