"""Functions of a module: parameters, results, lanes that call by themselves; and Triton's own."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from nanokv.device import ptx
from nanokv.device.ptx import Trap, Unsupported
from tests.support.ptx_modules import Value, module, run_module

pytestmark = pytest.mark.proved

A, B, D, E = Value("a", "u32"), Value("b", "u32"), Value("d", "u32"), Value("e", "u32")
ONE_WARP = [(lane, lane * 3) for lane in range(32)]

FUNCTIONS = """
.func (.param .b32 result) plus(.param .b32 left, .param .b32 right);
.func (.param .align 8 .b8 both[16]) twice(.param .b32 value, .param .b64 wide) {
    .reg .b32 %r<5>; .reg .b64 %rd<5>; .local .align 8 .b8 depot[8];
    ld.param.b32 %r0, [value]; ld.param.b64 %rd0, [wide]; st.local.b32 [depot], %r0; ld.local.b32 %r1, [depot];
    { .param .b32 p0; .param .b32 p1; .param .b32 q; st.param.b32 [p0], %r0; st.param.b32 [p1], %r1;
    call.uni (q), plus, (p0, p1); ld.param.b32 %r2, [q]; }
    add.u64 %rd0, %rd0, %rd0; st.param.b32 [both], %r2; st.param.b64 [both+8], %rd0; ret;
}
.func (.param .b32 result) plus(.param .b32 left, .param .b32 right) {
    .reg .b32 %r<5>; ld.param.b32 %r0, [left]; ld.param.b32 %r1, [right]; add.u32 %r2, %r0, %r1;
    st.param.b32 [result], %r2; ret;
}"""


def call(value: str, wide: str, to: str, to_wide: str) -> str:
    return f"""{{ .param .b32 param0; .param .b64 param1; .param .align 8 .b8 retval0[16];
    st.param.b32 [param0], {value}; st.param.b64 [param1], {wide};
    call.uni (retval0), twice, (param0, param1);
    ld.param.b32 {to}, [retval0]; ld.param.b64 {to_wide}, [retval0+8]; }}"""


def test_functions_call_functions() -> None:
    text = f"""cvt.u64.u32 %w1, %b; {call("%a", "%w1", "%d", "%w2")}
    {call("%d", "%w2", "%d", "%w2")} cvt.u32.u64 %e, %w2;"""
    got = run_module(module(text, (A, B), (D, E), head=FUNCTIONS), (A, B), (D, E), ONE_WARP)
    assert got == [[4 * lane, 12 * lane] for lane in range(32)]


def test_lanes_call_from_different_places() -> None:
    text = f"""mov.u64 %w1, 1; mov.u32 %d, 0; setp.lt.u32 %p0, %a, 10; @%p0 bra LOW;
    {call("%a", "%w1", "%d", "%w2")} bra.uni DONE;
    LOW: {call("%b", "%w1", "%d", "%w2")} DONE: shfl.sync.idx.b32 %e, %d, 5, 31, -1;"""
    got = run_module(module(text, (A, B), (D, E), head=FUNCTIONS), (A, B), (D, E), ONE_WARP)
    assert got == [[6 * lane if lane < 10 else 2 * lane, 30] for lane in range(32)]


ONE_ARGUMENT = "{ .param .b32 p; st.param.b32 [p], %a; call f, (p); }"


@pytest.mark.parametrize(
    ("text", "head", "said"),
    [
        (ONE_ARGUMENT, ".extern .func f(.param .b32 x);", "a call of f"),
        ("{ call.uni again; }", ".func again() { call.uni again; ret; }", "recursion: kernel -> again -> again"),
        (ONE_ARGUMENT, ".func f(.param .b32 x, .param .b32 y) { ret; }", "1 arguments for 2"),
        ("{ call %w1, ProtoType; }", "", "a call of ProtoType"),
    ],
)
def test_calls_that_are_refused(text: str, head: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        run_module(module(text, (A,), (D,), head=head), (A,), (D,), [(1,)])


# --- Triton ---------------------------------------------------------------------------------------
@triton.jit(noinline=True)
def step(place: tl.tensor, words: tl.tensor, n: tl.tensor) -> Any:
    """The word at a place, and where to go on."""
    here = tl.load(words + place)
    if here < 0:
        return n, place
    return here * 2, (place + here) % n


@triton.jit
def walk_kernel(words: tl.tensor, out: tl.tensor, n: tl.tensor, STEPS: tl.constexpr) -> None:
    place = tl.program_id(0)
    total = 0
    for _ in range(STEPS):
        found, place = step(place, words, n)
        total += found
    tl.store(out + tl.program_id(0), total + place)


@triton.jit(noinline=True)
def row_sum(words: tl.tensor, row: tl.tensor, WIDTH: tl.constexpr) -> Any:
    return tl.sum(tl.load(words + row * WIDTH + tl.arange(0, WIDTH)), 0)


@triton.jit
def sums_kernel(words: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr) -> None:
    row = tl.program_id(0)
    tl.store(out + row, row_sum(words, row, WIDTH) - row_sum(words, row + 1, WIDTH))


@pytest.mark.parametrize("num_warps", [1, 4])
def test_functions_of_triton_that_are_not_inlined(num_warps: int) -> None:
    words = torch.tensor([3, 5, -1, 2, 7, 1, 4], dtype=torch.int32)
    out = torch.zeros(7, dtype=torch.int32)
    with ptx.machine():
        compiled = walk_kernel[(7,)](words, out, 7, STEPS=5, num_warps=num_warps)
    assert "call.uni" in compiled.asm["ptx"]
    wanted = []
    for place in range(7):
        total = 0
        for _ in range(5):
            here = int(words[place])
            found, place = (7, place) if here < 0 else (here * 2, (place + here) % 7)  # noqa: PLW2901
            total += found
        wanted.append(total + place)
    assert out.tolist() == wanted


@pytest.mark.parametrize("num_warps", [1, 4])
def test_functions_of_triton_with_shared_memory(num_warps: int) -> None:
    words = torch.randint(-100, 100, (5, 256), dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int32)
    ptx.run(sums_kernel, (4,), words, out, WIDTH=256, num_warps=num_warps)
    assert torch.equal(out, (words[:-1].sum(1) - words[1:].sum(1)).int())


@triton.jit
def sines_kernel(x: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(out + at, tl.sin(tl.load(x + at)))


def test_a_stack_of_triton_in_local_memory() -> None:
    """Sines of large numbers keep a table of words in local memory."""
    x = torch.linspace(-1e6, 1e6, 64)
    out = torch.zeros(64)
    with ptx.machine() as machine:
        compiled = sines_kernel[(1,)](x, out, N=64, num_warps=1)
        assert "ld.local" in compiled.asm["ptx"]
        assert machine.report().launches == {"sines_kernel": 1}
    torch.testing.assert_close(out, x.sin(), atol=1e-6, rtol=1e-5)


@triton.jit
def asserting_kernel(x: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.device_assert(tl.load(x + at) < 60, "less than sixty")


def test_an_assertion_that_fails_is_a_trap_with_its_words() -> None:
    with pytest.raises(Trap, match="device_assert failed: less than sixty"):
        ptx.run(asserting_kernel, (1,), torch.arange(64), N=64, num_warps=1, debug=True)
    ptx.run(asserting_kernel, (1,), torch.arange(64) - 8, N=64, num_warps=1, debug=True)
