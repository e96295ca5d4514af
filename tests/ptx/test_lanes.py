"""Lanes of a warp together: shuffles, votes, reductions, matches, matrices; and lanes that part."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nanokv.device.ptx import Divergence, Machine
from tests.support.ptx_modules import Value, module, run_module

pytestmark = pytest.mark.proved

A, B, D, E = Value("a", "u32"), Value("b", "u32"), Value("d", "u32"), Value("e", "u32")
FULL = 0xFFFFFFFF


def warp(
    text: str, rows: Sequence[tuple[int, ...]], outputs: tuple[Value, ...] = (D,), inputs: tuple[Value, ...] = (A, B)
) -> list[list[int]]:
    """The results of one warp."""
    assert len(rows) == 32
    return run_module(module(text, inputs, outputs, target="sm_100a"), inputs, outputs, rows)


def shuffled(mode: str, lane: int, by: int, clamp: int) -> tuple[int, bool]:
    """The source lane and the predicate, by the pseudo code of the PTX ISA."""
    segment, top, by = clamp >> 8 & 31, clamp & 31, by & 31
    most = (lane & segment) | (top & ~segment & 31)
    least = lane & segment
    if mode == "up":
        source = lane - by
        good = source >= most
    elif mode == "down":
        source = lane + by
        good = source <= most
    elif mode == "bfly":
        source = lane ^ by
        good = source <= most
    else:
        source = least | (by & ~segment & 31)
        good = source <= most
    return (source if good else lane), good


@pytest.mark.parametrize("clamp", [0x1F, 0x00, 0x181F, 0x1C03, 0x1000, 0x0F])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str, clamp: int) -> None:
    dice = random.Random(clamp)
    for by in (0, 1, 5, 16, 31):
        rows = [(dice.getrandbits(32), (by + 7 * lane) % 32) for lane in range(32)]
        fixed_text = f"shfl.sync.{mode}.b32 %d, %a, {by}, {clamp}, -1;"
        moved_text = f"shfl.sync.{mode}.b32 %e|%q, %a, %b, {clamp}, -1;"
        got = warp(fixed_text + moved_text, rows, (D, E, Value("q", "pred")))
        for lane, (fixed, moved, good) in enumerate(got):
            assert fixed == rows[shuffled(mode, lane, by, clamp)[0]][0]
            source, wanted = shuffled(mode, lane, rows[lane][1], clamp)
            assert (moved, good) == (rows[source][0], wanted)


REDUCTIONS: dict[str, Callable[[list[int]], int]] = {
    "add.u32": sum,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda words: min(words, key=lambda word: word ^ 1 << 31),
    "max.s32": lambda words: max(words, key=lambda word: word ^ 1 << 31),
    "and.b32": lambda words: int(np.bitwise_and.reduce(words)),
    "or.b32": lambda words: int(np.bitwise_or.reduce(words)),
    "xor.b32": lambda words: int(np.bitwise_xor.reduce(words)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    dice = random.Random(name)
    rows = [(dice.getrandbits(32), 0xFFFF if lane < 16 else 0xFFFF0000) for lane in range(32)]
    got = warp(f"redux.sync.{name} %d, %a, -1; redux.sync.{name} %e, %a, %b;", rows, (D, E))
    words = [row[0] for row in rows]
    for lane, (whole, half) in enumerate(got):
        assert whole == REDUCTIONS[name](words) % (1 << 32)
        assert half == REDUCTIONS[name](words[:16] if lane < 16 else words[16:]) % (1 << 32)


def test_reductions_of_numbers() -> None:
    numbers = np.linspace(-3, 5, 32, dtype=np.float32)
    rows = [(int(word), 0) for word in numbers.view(np.uint32)]
    got = warp("redux.sync.max.f32 %d, %a, -1; redux.sync.min.abs.f32 %e, %a, -1;", rows, (D, E))
    found = np.array(got, np.uint32).view(np.float32)
    assert (found == [numbers.max(), np.abs(numbers).min()]).all()


def test_votes_matches_and_leaders() -> None:
    rows = [(lane % 5, lane // 16) for lane in range(32)]
    text = """setp.eq.u32 %p0, %a, 3; vote.sync.ballot.b32 %d, %p0, -1;
    vote.sync.any.pred %q, %p0, -1; vote.sync.all.pred %r, %p0, -1; vote.sync.uni.pred %s, %p0, -1;
    match.any.sync.b32 %e, %a, -1; match.all.sync.b32 %f|%x, %a, -1; match.all.sync.b32 %g|%y, 7, -1;
    elect.sync %h|%z, -1;"""
    words = tuple(Value(name, "u32") for name in "defgh")
    flags = tuple(Value(name, "pred") for name in "qrsxyz")
    for lane, got in enumerate(warp(text, rows, (*words, *flags))):
        same = sum(1 << n for n in range(32) if n % 5 == lane % 5)
        assert got[:5] == [sum(1 << n for n in range(32) if n % 5 == 3), same, 0, FULL, 0]
        assert got[5:] == [1, 0, 0, 0, 1, lane == 0]


def test_lane_registers() -> None:
    names = [
        "laneid",
        "warpid",
        "tid.x",
        "ntid.x",
        "nctaid.x",
        *(f"lanemask_{each}" for each in ("eq", "lt", "le", "gt", "ge")),
    ]
    outputs = tuple(Value(f"o{n}", "u32") for n in range(len(names)))
    text = " ".join(f"mov.u32 %o{n}, %{name};" for n, name in enumerate(names))
    for lane, got in enumerate(warp(text, [(0, 0)] * 32, outputs)):
        below = (1 << lane) - 1
        assert got == [lane, 0, lane, 32, 1, 1 << lane, below, 2 * below + 1, FULL - 2 * below - 1, FULL - below]


# --- lanes that part ------------------------------------------------------------------------------
def test_a_loop_of_different_length_in_each_lane() -> None:
    text = """mov.u32 %d, 0; mov.u32 %t1, %a; setp.eq.u32 %p0, %t1, 0; @%p0 bra DONE;
    LOOP: add.u32 %d, %d, %t1; sub.u32 %t1, %t1, 1; setp.ne.u32 %p0, %t1, 0; @%p0 bra LOOP;
    DONE: shfl.sync.idx.b32 %e, %d, 31, 31, -1;"""
    got = warp(text, [(lane * 7 % 40, 0) for lane in range(32)], (D, E))
    sums = [n * (n + 1) // 2 for n in (lane * 7 % 40 for lane in range(32))]
    assert got == [[each, sums[31]] for each in sums]


def test_branches_within_branches_and_lanes_that_end() -> None:
    text = """mov.u32 %d, 1; setp.lt.u32 %p0, %a, 16; @!%p0 bra HIGH;
    setp.lt.u32 %p1, %a, 8; @%p1 bra LOW; add.u32 %d, %d, 10; bra.uni JOIN;
    LOW: add.u32 %d, %d, 20; bra.uni JOIN;
    HIGH: setp.eq.u32 %p2, %a, 31; st.global.u32 [%slot+16], 5; @%p2 exit; add.u32 %d, %d, 30;
    JOIN: add.u32 %d, %d, 100;"""
    got = warp(text, [(lane, 0) for lane in range(32)])
    assert got == [[121]] * 8 + [[111]] * 8 + [[131]] * 15 + [[5]]


def test_everything_may_have_a_guard() -> None:
    text = """mov.u32 %d, 7; mov.u32 %e, 9; setp.lt.u32 %p0, %a, 4;
    @%p0 add.u32 %d, %d, %a; @!%p0 ld.global.u32 %e, [%slot]; @%p0 st.global.u32 [%slot+8], 1000;
    @%p0 atom.global.add.u32 %e, [%slot+8], 1; ld.global.u32 %t1, [%slot+8]; @!%p0 mov.u32 %t1, 0;
    add.u32 %d, %d, %t1;"""
    got = warp(text, [(lane, 0) for lane in range(32)], (D, E))
    assert got == [[7 + lane + 1001, 1000] for lane in range(4)] + [[7, lane] for lane in range(4, 32)]


def test_a_shuffle_of_lanes_that_are_named_by_its_mask() -> None:
    text = """setp.lt.u32 %p0, %a, 16; @!%p0 bra HIGH; shfl.sync.idx.b32 %d, %b, 3, 31, 0xffff; bra.uni DONE;
    HIGH: shfl.sync.idx.b32 %d, %b, 20, 31, 0xffff0000; DONE:"""
    assert warp(text, [(lane, lane + 100) for lane in range(32)]) == [[103]] * 16 + [[120]] * 16


@pytest.mark.parametrize(
    "text",
    [
        "setp.lt.u32 %p0, %a, 16; @%p0 shfl.sync.idx.b32 %d, %b, 3, 31, -1;",
        "setp.lt.u32 %p0, %a, 16; @%p0 bra DONE; shfl.sync.idx.b32 %d, %b, 3, 31, -1; bra DONE; bar.sync 0; DONE:",
        "setp.lt.u32 %p0, %a, 16; @%p0 bra ONE; bar.sync 0; bra DONE; ONE: bar.sync 0; DONE:",
        "setp.lt.u32 %p0, %a, 16; @%p0 bar.warp.sync -1;",
    ],
)
def test_lanes_that_are_waited_for_in_vain(text: str) -> None:
    with pytest.raises(Divergence, match=r"CTA \(0, 0, 0\), warp 0, kernel, line \d+: `.*`: lanes 0x"):
        warp(text, [(lane, 0) for lane in range(32)])


# --- matrices -------------------------------------------------------------------------------------
def halves(
    matrix: np.ndarray[tuple[int, ...], np.dtype[np.float32]], kind: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """The bits of small whole numbers as narrow ones."""
    if kind == "f16":
        return matrix.astype(np.float16).view(np.uint16)
    return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("k", [8, 16])
def test_products_of_matrices(kind: str, k: int) -> None:
    dice = np.random.default_rng(k)
    a, b = (dice.integers(-8, 8, shape).astype(np.float32) for shape in ((16, k), (k, 8)))
    c = dice.integers(-99, 99, (16, 8)).astype(np.float32)
    bits_a, bits_b = halves(a, kind).astype(np.int64), halves(b, kind).astype(np.int64)
    rows = []
    for lane in range(32):  # PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"
        g, t = lane // 4, lane % 4
        words = [
            bits_a[g + 8 * (n % 2), 2 * t + 8 * (n // 2)] | bits_a[g + 8 * (n % 2), 2 * t + 8 * (n // 2) + 1] << 16
            for n in range(k // 4)
        ]
        words += [bits_b[2 * t + 8 * n, g] | bits_b[2 * t + 8 * n + 1, g] << 16 for n in range(k // 8)]
        words += [int(c[g + 8 * (n // 2), 2 * t + n % 2].view(np.uint32)) for n in range(4)]
        rows.append(tuple(int(word) for word in words))
    inputs = tuple(Value(f"i{n}", "u32") for n in range(len(rows[0])))
    outputs = tuple(Value(f"o{n}", "u32") for n in range(4))
    names = [f"%{value.name}" for value in inputs]
    groups = [names[: k // 4], names[k // 4 : k // 4 + k // 8], names[-4:]]
    text = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%o0, %o1, %o2, %o3}}, "
    text += ", ".join(f"{{{', '.join(group)}}}" for group in groups) + ";"
    wanted = a @ b + c
    for lane, got in enumerate(warp(text, rows, outputs, inputs)):
        for n, word in enumerate(got):
            assert np.uint32(word).view(np.float32) == wanted[lane // 4 + 8 * (n // 2), 2 * (lane % 4) + n % 2]


def packed(row: np.ndarray[tuple[int, ...], np.dtype[Any]], bits: int) -> int:
    """Elements of one register, the lowest bits first."""
    return sum(int(word) << bits * n for n, word in enumerate(row))


@pytest.mark.parametrize(
    ("shape", "kind", "to"),
    [("m16n8k8", "tf32", "f32"), ("m16n8k4", "tf32", "f32"), ("m16n8k32", "s8", "s32"), ("m16n8k16", "f16", "f16")],
)
def test_products_of_other_kinds(shape: str, kind: str, to: str) -> None:
    """PTX ISA, "Matrix Fragments": a register holds 32 bits of a row of A, or of a column of B."""
    dice, k = np.random.default_rng(3), int(shape.rpartition("k")[2])
    bits = {"tf32": 32, "s8": 8, "f16": 16}[kind]
    a, b = (dice.integers(-8, 8, size).astype(np.float32) for size in ((16, k), (k, 8)))
    c = dice.integers(-99, 99, (16, 8)).astype(np.float32)

    def words(
        matrix: np.ndarray[tuple[int, ...], np.dtype[np.float32]], of: str
    ) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        types = {"tf32": (np.float32, np.uint32), "s8": (np.int8, np.uint8), "f16": (np.float16, np.uint16)}
        types |= {"f32": (np.float32, np.uint32), "s32": (np.int32, np.uint32)}
        return matrix.astype(types[of][0]).view(types[of][1])

    per = 32 // bits
    rows: list[tuple[int, ...]] = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        row = []
        for half in range(k // (4 * per)):
            first = t * per + 4 * per * half
            row += [packed(words(a, kind)[g + down, first : first + per], bits) for down in (0, 8)]
        row += [packed(words(b, kind)[first : first + per, g], bits) for first in range(t * per, k, 4 * per)]
        for down in (0, 8):
            out = words(c, to)[g + down, 2 * t : 2 * t + 2]
            row += [packed(out, 16)] if to == "f16" else [int(word) for word in out]
        rows.append(tuple(row))
    inputs = tuple(Value(f"i{n}", "u32") for n in range(len(rows[0])))
    count_a, count_b = 2 * k // (4 * per), k // (4 * per)
    names = [f"%{value.name}" for value in inputs]
    groups = [names[:count_a], names[count_a : count_a + count_b], names[count_a + count_b :]]
    outputs = tuple(Value(f"o{n}", "u32") for n in range(len(groups[2])))
    results = ", ".join(f"%{value.name}" for value in outputs)
    text = f"mma.sync.aligned.{shape}.row.col.{to}.{kind}.{kind}.{to} {{{results}}}, "
    text += ", ".join(f"{{{', '.join(group)}}}" for group in groups) + ";"
    wanted = words(a @ b + c, to)
    for lane, got in enumerate(warp(text, rows, outputs, inputs)):
        pairs = [wanted[lane // 4 + down, 2 * (lane % 4) : 2 * (lane % 4) + 2] for down in (0, 8)]
        whole = [int(word) for pair in pairs for word in pair]
        assert got == ([packed(pair, 16) for pair in pairs] if to == "f16" else whole)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_go_to_shared_memory_and_back(trans: str) -> None:
    """Lane l gives the address of row l; each lane gets two elements of one row of every matrix."""
    text = f"""mul.lo.u32 %t1, %a, 16; mov.u32 %t2, buffer; add.u32 %t1, %t1, %t2;
    shl.b32 %t3, %a, 16; or.b32 %t3, %t3, %a; st.shared.v4.b32 [%t1], {{%t3, %t3, %t3, %t3}};
    st.shared.u16 [%t1+6], 77; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%o0, %o1, %o2, %o3}}, [%t1];
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%t1], {{%o0, %o1, %o2, %o3}};
    bar.sync 0; ld.shared.v2.b32 {{%o4, %o5}}, [%t1];"""
    outputs = tuple(Value(f"o{n}", "u32") for n in range(6))
    ptx = module(text, (A,), outputs, head=".shared .align 16 .b8 buffer[512];")
    memory = np.repeat(np.arange(32), 8).reshape(4, 8, 8)
    memory[:, :, 3] = 77
    for lane, got in enumerate(run_module(ptx, (A,), outputs, [(lane,) for lane in range(32)])):
        row, column = lane // 4, 2 * (lane % 4)
        for n in range(4):
            matrix = memory[n].T if trans else memory[n]
            assert got[n] == matrix[row, column] | matrix[row, column + 1] << 16
        assert got[4:] == [lane | lane << 16, lane | 77 << 16]


def test_a_barrier_of_one_warp_is_passed() -> None:
    machine = Machine()
    run_module(module("bar.sync 0; bar.warp.sync -1; mov.u32 %d, %a;", (A,), (D,)), (A,), (D,), [(1,)], machine)
    assert machine.report().findings == ()
