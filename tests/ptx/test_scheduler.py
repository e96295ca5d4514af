"""Warps and CTAs in random order: barriers, races, limits; split lanes, late loads, and other memories."""

from typing import Any

import numpy as np
import pytest
import torch

from nanokv.device.ptx import (
    Access,
    Cta,
    Divergence,
    HostMemory,
    Late,
    Machine,
    Malformed,
    MemoryFault,
    NoProgress,
    TensorMemory,
    Trap,
    Warp,
)
from nanokv.device.ptx.kinds import Array
from tests.ptx.test_memory import HEAD, kernel

pytestmark = pytest.mark.proved


def many_warps(body: str, warps: int, shared: int = 1024) -> str:
    """A CTA of several warps on tensor %x0; %r0 is the thread."""
    return f"""{HEAD}.shared .align 16 .b8 buffer[{shared}];
    .visible .entry kernel(.param .u64 p) .reqntid {32 * warps} {{ .reg .b64 %x<9>; .reg .b32 %r<10>; .reg .pred %p<5>;
    ld.param.u64 %x0, [p]; mov.u32 %r0, %tid.x; {body} ret; }}"""


REVERSE = """shl.b32 %r1, %r0, 2; st.shared.u32 [%r1], %r0; ld.global.u32 %r5, [%x0]; BARRIER xor.b32 %r2, %r1, 508;
ld.shared.u32 %r3, [%r2]; mul.wide.u32 %x1, %r0, 4; add.u64 %x1, %x0, %x1; st.global.u32 [%x1], %r3;"""


def reversed_by(ptx: str, seed: int) -> bool:
    words = torch.zeros(128, dtype=torch.int32)
    Machine(seed=seed).launch(ptx, (1, 1, 1), [("words", words)])
    return words.tolist() == list(range(127, -1, -1))


def test_a_barrier_makes_warps_wait_and_a_missing_one_is_seen() -> None:
    right, wrong = (many_warps(REVERSE.replace("BARRIER", each), 4) for each in ("bar.sync 0;", ""))
    assert all(reversed_by(right, seed) for seed in range(10))
    assert not all(reversed_by(wrong, seed) for seed in range(10))


def test_named_barriers_of_some_warps() -> None:
    """Warps 0 and 1 wait for each other at barrier 1, the others at barrier 2; then all."""
    body = """setp.lt.u32 %p0, %r0, 64; shl.b32 %r1, %r0, 2; st.shared.u32 [%r1], %r0; ld.global.u32 %r5, [%x0];
    @%p0 bra LOW; bar.sync 2, 64; bra.uni GO; LOW: barrier.cta.sync.aligned 1, 64; GO: xor.b32 %r2, %r1, 252;
    ld.shared.u32 %r3, [%r2];
    bar.sync 0; st.shared.u32 [%r1], %r3; ld.global.u32 %r5, [%x0]; bar.sync 0; xor.b32 %r2, %r1, 508;
    ld.shared.u32 %r3, [%r2];
    mul.wide.u32 %x1, %r0, 4; add.u64 %x1, %x0, %x1; st.global.u32 [%x1], %r3;"""
    for seed in range(5):
        words = torch.zeros(128, dtype=torch.int32)
        Machine(seed=seed).launch(many_warps(body, 4), (1, 1, 1), [("words", words)])
        assert words.tolist() == [*range(64, 128), *range(64)]


def test_warps_that_wait_in_different_places() -> None:
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 bra ONE; bar.sync 1; ret; ONE: bar.sync 2;"
    with pytest.raises(
        Divergence, match=r"all warps wait, and none can come: barrier 1: .*bar.sync 1.*; barrier 2: .*bar.sync 2"
    ):
        Machine().launch(many_warps(body, 2), (1, 1, 1), [("words", torch.zeros(4))])


def test_a_warp_that_ends_is_not_waited_for() -> None:
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 exit; bar.sync 0; st.global.u32 [%x0], 1;"
    words = torch.zeros(4, dtype=torch.int32)
    Machine().launch(many_warps(body, 2), (1, 1, 1), [("words", words)])
    assert words[0] == 1


ADD = """mov.u32 %r0, %laneid; setp.ne.u32 %p0, %r0, 0; @%p0 bra DONE; mov.u32 %r2, 0;
LOOP: ld.global.u32 %r1, [%x0]; add.u32 %r1, %r1, 1; st.global.u32 [%x0], %r1; add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 5;
@%p1 bra LOOP; DONE:"""


def test_ctas_interleave_and_a_seed_says_how() -> None:
    def lost(seed: int, **options: Any) -> int:
        words = torch.zeros(1, dtype=torch.int32)
        Machine(seed=seed, **options).launch(kernel(ADD, 1), (6, 1, 1), [("words", words)])
        return 30 - int(words[0])

    assert max(lost(seed) for seed in range(5)) > 5
    assert lost(3) == lost(3)
    assert lost(3, resident=1) == 0
    atomics = ADD.replace(
        "ld.global.u32 %r1, [%x0]; add.u32 %r1, %r1, 1; st.global.u32 [%x0], %r1;", "red.global.add.u32 [%x0], 1;"
    )
    words = torch.zeros(1, dtype=torch.int32)
    Machine().launch(kernel(atomics, 1), (6, 1, 1), [("words", words)])
    assert words[0] == 30


def test_no_progress_and_traps() -> None:
    words = torch.zeros(1, dtype=torch.int32)
    spin = "LOOP: ld.global.u32 %r1, [%x0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra LOOP;"
    with pytest.raises(NoProgress, match="more than 500 steps of kernel"):
        Machine(limit=500).launch(kernel(spin, 1), (2, 1, 1), [("words", words)])
    with pytest.raises(Trap, match=r"CTA \(0, 0, 0\), warp 0, kernel, line \d+: `trap`"):
        Machine().launch(kernel("trap;", 1), (1, 1, 1), [("words", words)])
    with pytest.raises(Malformed, match="2 arguments for 1 parameters"):
        Machine().launch(kernel("", 1), (1, 1, 1), [("words", words), ("more", 1)])
    with pytest.raises(Malformed, match="a module has one entry"):
        Machine().launch(HEAD, (1, 1, 1), [])


AGREE = """ld.global.u32 %r1, [%x0]; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; setp.ne.u32 %p0, %r1, %r2;
@%p0 st.global.u32 [%x0+4], 1;
red.global.add.u32 [%x0], 1;"""


def test_a_load_of_all_lanes_may_be_cut_in_two() -> None:
    def disagree(seed: int, split: float) -> bool:
        words = torch.zeros(2, dtype=torch.int32)
        Machine(seed=seed, split_lanes=split).launch(kernel(AGREE, 1), (4, 1, 1), [("words", words)])
        assert words[0] == 4 * 32
        return bool(words[1])

    assert not any(disagree(seed, 0.0) for seed in range(20))
    assert any(disagree(seed, 0.5) for seed in range(20))


# --- other memories -------------------------------------------------------------------------------
class Recorder(TensorMemory):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, ...]] = []

    def load(self, warp: Warp, access: Access, lanes: Array | None, addresses: Array) -> Array:
        self.events.append(
            (
                "load",
                access.size,
                access.semantics,
                access.scope,
                None if lanes is None else int(lanes.sum()),
                len(addresses),
            )
        )
        return super().load(warp, access, lanes, addresses)

    def store(self, warp: Warp, access: Access, lanes: Array | None, addresses: Array, values: Array) -> None:
        self.events.append(("store", access.size, access.semantics, access.scope, values.dtype.itemsize))
        super().store(warp, access, lanes, addresses, values)

    def atomic(self, warp: Warp, access: Access, lane: int, address: int, operands: Any) -> int:
        self.events.append(("atomic", access.operation, access.semantics, access.scope, lane, tuple(operands)))
        return super().atomic(warp, access, lane, address, operands)

    def fence(self, warp: Warp, access: Access, lanes: Array | None) -> None:
        self.events.append(("fence", access.semantics, access.scope))

    def barrier(self, warps: Any, lanes: Array | None) -> None:
        self.events.append(("barrier", len(warps)))

    def start(self, warp: Warp) -> None:
        self.events.append(("start", warp.number))

    def finish(self, warp: Warp) -> None:
        self.events.append(("finish", warp.number))


def test_a_memory_is_told_everything_about_an_access() -> None:
    body = """mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 3; setp.eq.u32 %p1, %r0, 9; ld.global.v2.b32 {%r1, %r2}, [%x0];
    @%p0 ld.relaxed.gpu.global.u64 %x1, [%x0]; ld.volatile.global.u8 %r1, [%x0]; ld.acquire.sys.global.u32 %r1, [%x0];
    st.release.cta.global.u16 [%x0], 1; @%p1 atom.global.sys.acq_rel.cas.b64 %x2, [%x0], 1, 2;
    @%p1 red.release.gpu.global.add.u32 [%x0], 5;
    fence.acq_rel.sys; fence.sc.gpu; membar.cta; bar.sync 0; bar.warp.sync -1; @!%p0 exit;
    @%p1 ld.global.u32 %r1, [%x0];"""
    memory = Recorder()
    Machine(memory=memory).launch(kernel(body, 1), (1, 1, 1), [("words", torch.zeros(8, dtype=torch.int64))])
    assert memory.events == [
        ("start", 0),
        ("load", 4, "weak", "", None, 32),
        ("load", 4, "weak", "", None, 32),
        ("load", 8, "relaxed", "gpu", 3, 3),
        ("load", 1, "volatile", "sys", None, 32),
        ("load", 4, "acquire", "sys", None, 32),
        ("store", 2, "release", "cta", 2),
        ("atomic", "cas.b64", "acq_rel", "sys", 9, (1, 2)),
        ("atomic", "add.u32", "release", "gpu", 9, (5,)),
        ("fence", "acq_rel", "sys"),
        ("fence", "sc", "gpu"),
        ("fence", "sc", "cta"),
        ("barrier", 1),
        ("barrier", 1),
        ("finish", 0),
    ]


class Later(Late):
    """A load that is made when its values are wanted."""

    def __init__(self, memory: "LateMemory", *what: Any) -> None:
        self.memory, self.what = memory, what

    def values(self) -> Array:
        self.memory.made += 1
        return HostMemory.load(self.memory, *self.what)


class LateMemory(TensorMemory):
    """Every weak load is late; a fence, a release and a barrier settle those of the warp."""

    late = True
    made = 0

    def load(self, warp: Warp, access: Access, lanes: Array | None, addresses: Array) -> Any:
        if access.semantics != "weak":
            warp.settle()
            return super().load(warp, access, lanes, addresses)
        return Later(self, warp, access, lanes, addresses)

    def fence(self, warp: Warp, access: Access, lanes: Array | None) -> None:
        warp.settle()


LOAD_BUFFERING = """mov.u32 %r0, %tid.x; ld.global.v2.u32 {%r1, %r2}, [%x0]; st.global.u32 [%x0+8], 7;
FENCE st.global.u32 [%x0], 5;
st.global.u32 [%x0+4], 6; add.u32 %r3, %r1, %r2; st.global.u32 [%x0+12], %r3; ld.global.u32 %r4, [%x0];"""


@pytest.mark.parametrize(("fence", "wanted"), [("", 11), ("fence.acq_rel.gpu;", 3)])
def test_a_load_may_be_as_late_as_its_first_use(fence: str, wanted: int) -> None:
    memory = LateMemory()
    words = torch.tensor([1, 2, 0, 0], dtype=torch.int32)
    Machine(memory=memory).launch(kernel(LOAD_BUFFERING.replace("FENCE", fence), 1), (1, 1, 1), [("words", words)])
    assert words.tolist() == [5, 6, 7, wanted]
    assert memory.made == 3  # also the one that nobody used


def test_late_loads_of_some_lanes_and_registers_that_are_written_again() -> None:
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %x1, %r0, 4; add.u64 %x1, %x0, %x1; setp.lt.u32 %p0, %r0, 9;
    mov.u32 %r1, 50;
    @%p0 ld.global.s8 %r1, [%x1]; st.global.u32 [%x0+252], 1; @!%p0 mov.u32 %r1, 60; st.global.u32 [%x1], %r1;"""
    words = torch.arange(-4, 60, dtype=torch.int32)
    Machine(memory=LateMemory()).launch(kernel(body, 1), (1, 1, 1), [("words", words)])
    assert words[:32].tolist() == [*range(-4, 5), *[60] * 23]


def test_a_warp_runs_without_a_scheduler() -> None:
    words = torch.zeros(4, dtype=torch.int32)
    machine = Machine(memory=HostMemory())
    launch = machine.prepare(
        kernel("mov.u32 %r1, %ctaid.y; st.global.u32 [%x0], %r1;", 1), (1, 9, 1), [("words", words)]
    )
    (warp,) = Cta(launch, (0, 7, 0)).warps
    warp.run()
    assert warp.done and words[0] == 7
    assert isinstance(np.asarray(warp.registers[0]), np.ndarray)


def test_a_launch_knows_its_own_tensors_only() -> None:
    one, two = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    machine = Machine()
    machine.launch(kernel("st.global.u32 [%x0], 1;", 1), (1, 1, 1), [("one", one)])
    with pytest.raises(MemoryFault):
        machine.launch(kernel("st.global.u32 [%x1], 1;", 2), (1, 1, 1), [("two", two), ("address", one.data_ptr())])
