"""Memory: bounds of tensors, alignment, vectors, atomics, shared, local and generic addresses, asynchronous copies."""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from nanokv.device.ptx import HostMemory, Machine, MemoryFault, Misaligned, TensorMemory
from tests.support.ptx_modules import Value, module, nearest, run_module, signed

pytestmark = pytest.mark.proved

A, B, D, E = Value("a", "u32"), Value("b", "u32"), Value("d", "u32"), Value("e", "u32")
ONE_WARP = [(lane, lane * 3) for lane in range(32)]
HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, params: int) -> str:
    """A kernel of 64-bit parameters %x0, %x1, ... and 32-bit registers %r0 to %r9."""
    names = ", ".join(f".param .u64 p{n}" for n in range(params))
    loads = " ".join(f"ld.param.u64 %x{n}, [p{n}];" for n in range(params))
    registers = ".reg .b64 %x<9>; .reg .b32 %r<10>; .reg .pred %p<5>;"
    return f"{HEAD}.visible .entry kernel({names}) .reqntid 32 {{ {registers} {loads} {body} ret; }}"


def launch(body: str, *tensors: torch.Tensor, machine: Machine | None = None) -> Machine:
    machine = machine or Machine()
    machine.launch(kernel(body, len(tensors)), (1, 1, 1), [(f"tensor_{n}", each) for n, each in enumerate(tensors)])
    return machine


# --- bounds ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("offset", "said"), [(400, "offset 400 from the start"), (-4, "4 bytes before the storage")])
def test_a_pointer_that_leaves_its_tensor(offset: int, said: str) -> None:
    one, two = torch.zeros(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)
    with pytest.raises(
        MemoryFault, match=rf"kernel, line \d+: `ld.global.u32 .*4 bytes at {said} .*`tensor_1`, which has 400"
    ):
        launch(f"ld.global.u32 %r0, [%x1+{offset}];", one, two)
    launch("ld.global.u32 %r0, [%x1+396];", one, two)


def test_lanes_that_are_masked_off_may_point_anywhere() -> None:
    tensor = torch.arange(32, dtype=torch.int32)
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %x1, %r0, 400; add.u64 %x1, %x0, %x1; setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, 5; @%p0 ld.global.u32 %r1, [%x1]; st.global.u32 [%x0+4], %r1;"""
    machine = launch(body, tensor)
    assert tensor[1] in (0, 5)
    (finding,) = machine.report().findings
    assert (
        finding.what == "lanes store different values to one address" and "st.global.u32 [%x0+4], %r1" in finding.where
    )


def test_a_view_may_use_the_whole_storage_and_one_storage_is_one_place() -> None:
    storage = torch.zeros(64, dtype=torch.int32)
    launch(
        "st.global.u32 [%x0+-4], 7; st.global.u32 [%x1+4], 8; ld.global.u32 %r0, [%x0]; st.global.u32 [%x1+8], %r0;",
        storage[9:],
        storage,
    )
    assert storage[[8, 1, 2]].tolist() == [7, 8, 0]


def test_an_address_from_memory_must_be_allowed() -> None:
    hidden = torch.arange(4, dtype=torch.int64)
    table = torch.tensor([hidden.data_ptr(), 0])
    body = "ld.global.u64 %x1, [%x0]; ld.global.u64 %x2, [%x1+24]; st.global.u64 [%x0+8], %x2;"
    with pytest.raises(MemoryFault, match="in no tensor of this launch"):
        launch(body, table)
    for memory in (TensorMemory([hidden]), TensorMemory([(hidden.data_ptr(), hidden.data_ptr() + 32)]), HostMemory()):
        table[1] = 0
        launch(body, table, machine=Machine(memory=memory))
        assert table[1] == 3
    with pytest.raises(MemoryFault, match="0x10, which is not mapped"):
        launch("mov.u64 %x1, 16; ld.global.u64 %x1, [%x1];", table, machine=Machine(memory=HostMemory()))


@pytest.mark.parametrize(
    ("text", "width"), [("ld.global.u32 %r0, [%x0+2];", 4), ("ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%x0+8];", 16)]
)
def test_addresses_are_aligned(text: str, width: int) -> None:
    with pytest.raises(Misaligned, match=f"no multiples of {width}: 0x"):
        launch(text, torch.zeros(64, dtype=torch.int32))


# --- values ---------------------------------------------------------------------------------------
def test_narrow_elements_fill_their_registers() -> None:
    tensor = torch.tensor([0x8182838485868788 - (1 << 64)] + [0] * 8)
    body = """ld.global.s8 %r0, [%x0]; st.global.u32 [%x0+8], %r0; ld.global.u8 %r0, [%x0+7];
    st.global.u32 [%x0+12], %r0; ld.global.s16 %r0, [%x0+2]; st.global.u32 [%x0+16], %r0; ld.global.s32 %x1, [%x0+4];
    st.global.u64 [%x0+24], %x1;
    ld.global.b16 %r0, [%x0+2]; st.global.b8 [%x0+20], %r0; ld.global.nc.L1::evict_first.u32 %r0, [%x0];
    st.global.u32 [%x0+32], %r0;"""
    launch(body, tensor)
    found = [word % (1 << 64) for word in tensor.tolist()]
    assert found[1:5] == [0x81_FFFFFF88, 0x86_FFFF8586, 0xFFFFFFFF81828384, 0x85868788]


def test_vectors() -> None:
    tensor = torch.arange(1, 17, dtype=torch.int32)
    body = """ld.global.v4.b32 {%r0, _, %r2, %r3}, [%x0]; st.global.v2.b32 [%x0+32], {%r3, %r0};
    ld.global.v2.u64 {%x1, %x2}, [%x0+16]; st.global.v2.b64 [%x0+48], {%x2, %x1};"""
    launch(body, tensor)
    assert tensor[8:].tolist() == [4, 1, 11, 12, 7, 8, 5, 6]


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, new: old + new,
    "add.u64": lambda old, new: old + new,
    "exch.b32": lambda old, new: new,
    "exch.b64": lambda old, new: new,
    "and.b64": lambda old, new: old & new,
    "or.b32": lambda old, new: old | new,
    "xor.b64": lambda old, new: old ^ new,
    "min.u32": min,
    "max.u64": max,
    "min.s32": lambda old, new: min(old, new, key=lambda word: signed(word, 32)),
    "max.s64": lambda old, new: max(old, new, key=lambda word: signed(word, 64)),
    "inc.u32": lambda old, new: 0 if old >= new else old + 1,
    "dec.u32": lambda old, new: new if old == 0 or old > new else old - 1,
    "cas.b32": lambda old, new: 99 if old == new else old,
    "cas.b64": lambda old, new: 99 if old == new else old,
}


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(name: str, space: str) -> None:
    kind = f"u{name[-2:]}"
    bits = int(kind[1:])
    dice = random.Random(name)
    inputs, outputs = [Value("a", kind), Value("b", kind)], [Value("d", kind), Value("e", kind)]
    edges = [0, 1, 2, (1 << bits) - 1, 1 << bits - 1, dice.getrandbits(bits)]
    rows = [(old, new) for old in edges for new in edges]
    if space == "shared":
        place = "mov.u32 %t1, buffer; mov.u32 %t2, %tid.x; shl.b32 %t2, %t2, 3; add.u32 %t1, %t1, %t2;"
        where = "%t1"
    else:
        place, where = "add.u64 %w1, %slot, 16;", "%w1"
    space = f".{space}" if space else ""
    operands = "%b, 99" if name.startswith("cas") else "%b"
    text = f"{place} st{space}.{kind} [{where}], %a; atom{space}.{name} %d, [{where}], {operands};"
    text += f" ld{space}.{kind} %e, [{where}];"
    ptx = module(text, inputs, outputs, head=".shared .align 8 .b8 buffer[256];")
    for (old, new), (before, after) in zip(rows, run_module(ptx, inputs, outputs, rows), strict=True):
        assert before == old
        assert after == ATOMICS[name](old, new) % (1 << bits)


@pytest.mark.parametrize("kind", ["f32", "f64", "f16x2", "bf16x2"])
def test_sums_of_numbers(kind: str) -> None:
    of = kind.removesuffix("x2")
    half, two = nearest(Fraction(1, 2), of) or 0, nearest(Fraction(2), of) or 0
    both = (half | two << 16) if kind.endswith("x2") else half
    word = "u64" if kind == "f64" else "u32"
    rows = [(both, 0)]
    inputs, outputs = [Value("a", word), Value("b", word)], [Value("d", word)]
    noftz = ".noftz" if kind.endswith("x2") else ""
    text = f"add.u64 %w1, %slot, 16; st.global.{word} [%w1], %a; red.global.add{noftz}.{kind} [%w1], %a;"
    text += f" ld.global.{word} %d, [%w1];"
    ((found,),) = run_module(module(text, inputs, outputs), inputs, outputs, rows)
    one, four = nearest(Fraction(1), of) or 0, nearest(Fraction(4), of) or 0
    assert found == (one | four << 16 if kind.endswith("x2") else one)


def test_atomics_of_all_lanes_come_one_after_the_other() -> None:
    tensor = torch.zeros(34, dtype=torch.int32)
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %x1, %r0, 4; add.u64 %x1, %x0, %x1;
    atom.global.add.u32 %r1, [%x0+128], 2; st.global.u32 [%x1], %r1;"""
    machine = Machine(one_lane_atomics=True, system_scope=True)
    launch(body, tensor, machine=machine)
    assert tensor.tolist() == [*range(0, 64, 2), 64, 0]
    assert [finding.what for finding in machine.report().findings] == [
        "an atomic by more than one lane",
        "an atomic of scope gpu",
    ]
    assert launch(body, tensor).report().findings == ()


# --- shared, local, generic -----------------------------------------------------------------------
def test_shared_memory_is_of_the_cta_and_bounded() -> None:
    head = ".shared .align 16 .b8 first[8]; .shared .align 16 .b8 buffer[128];"
    text = """mov.u32 %t1, buffer; shl.b32 %t2, %a, 2; add.u32 %t3, %t1, %t2; st.shared.u32 [%t3], %b;
    xor.b32 %t2, %t2, 124; add.u32 %t3, %t1, %t2; bar.sync 0; ld.shared.u32 %d, [%t3]; ld.shared.u32 %e, [buffer+4];"""
    got = run_module(module(text, (A, B), (D, E), head=head), (A, B), (D, E), ONE_WARP)
    assert got == [[3 * (31 - lane), 3] for lane in range(32)]
    with pytest.raises(MemoryFault, match="shared memory at 144, of 144 bytes"):
        run_module(module("ld.shared.u32 %d, [buffer+128];", (A,), (D,), head=head), (A,), (D,), [(1,)])


def test_local_memory_is_of_each_lane() -> None:
    text = """.local .align 8 .b8 depot[64]; .reg .b64 %SP, %SPL; mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
    and.b32 %t1, %a, 7; mul.wide.u32 %w1, %t1, 8; add.u64 %w2, %SPL, %w1; st.local.u32 [%w2+4], %b;
    add.u64 %w3, %SP, %w1; st.u32 [%w3], %a; ld.local.v2.u32 {%d, %e}, [%w2];"""
    got = run_module(module(text, (A, B), (D, E)), (A, B), (D, E), ONE_WARP)
    assert got == [[lane, 3 * lane] for lane in range(32)]


def test_generic_addresses_and_their_spaces() -> None:
    head = ".shared .align 16 .b8 buffer[128]; .global .align 4 .u32 table[4] = {5, 6, 7, 8};"
    text = """mov.u64 %w1, buffer; cvta.shared.u64 %w2, %w1; mul.wide.u32 %w3, %a, 4; add.u64 %w2, %w2, %w3;
    st.u32 [%w2], %b; cvta.to.shared.u64 %w4, %w2; ld.shared.u32 %d, [%w4]; isspacep.shared %q, %w2;
    isspacep.global %r, %w2;
    isspacep.global %s, %slot; mov.u64 %w5, table; ld.global.u32 %e, [%w5+8];"""
    outputs = (D, E, *(Value(name, "pred") for name in "qrs"))
    got = run_module(module(text, (A, B), outputs, head=head), (A, B), outputs, ONE_WARP)
    assert got == [[3 * lane, 7, 1, 0, 1] for lane in range(32)]


def test_asynchronous_copies_land_when_they_are_waited_for() -> None:
    head = ".shared .align 16 .b8 buffer[1024];"
    text = """mov.u32 %t1, buffer; shl.b32 %t2, %a, 4; add.u32 %t1, %t1, %t2; st.shared.v4.b32 [%t1], {%b, %b, %b, %b};
    mov.u64 %w1, table; cp.async.ca.shared.global [%t1], [%w1], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%t1+512], [%w1+16], 16, 8; cp.async.commit_group;
    ld.shared.u32 %d, [%t1]; cp.async.wait_group 1; ld.shared.u32 %e, [%t1+4];
    ld.shared.u32 %f, [%t1+512]; cp.async.wait_all; ld.shared.v4.b32 {%g, _, _, %h}, [%t1+512];"""
    head += " .global .align 16 .u32 table[8] = {5, 6, 7, 8, 9, 10, 11, 12};"
    outputs = tuple(Value(name, "u32") for name in "defgh")
    got = run_module(module(text, (A, B), outputs, head=head), (A, B), outputs, ONE_WARP)
    assert got == [[3 * lane, 6, 0, 9, 0] for lane in range(32)]
