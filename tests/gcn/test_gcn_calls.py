"""Calls of functions, the private memory in which they keep registers, and constants beside the code."""

import pytest

from nanokv.device.emulation.errors import MemoryFault, NotWaited, Unsupported
from nanokv.device.gcn.registers import LANES, MASK64
from tests.support.gcn_text import executed, lanes_of

pytestmark = pytest.mark.proved

FUNCTION = """
\t.type\t{name},@function
{name}:
{code}
\ts_setpc_b64 s[30:31]
.Lend_{name}:
\t.size\t{name}, .Lend_{name}-{name}
"""
TABLE = """
\t.type\ttable,@object
\t.section\t.data.rel.ro,"aw",@progbits
\t.p2align\t2, 0x0
table:
\t.long\t7
\t.long\t9
\t.size\ttable, 8
\t.text
"""
TWICE = FUNCTION.format(name="twice", code="\tv_lshlrev_b32_e32 v1, 1, v1")


def distance(name: str) -> str:
    """Lines that leave an address in s[4:5]."""
    return f"s_getpc_b64 s[4:5]\n\ts_add_u32 s4, s4, {name}@rel32@lo+4\n\ts_addc_u32 s5, s5, {name}@rel32@hi+12\n\t"


def call(name: str) -> str:
    """Lines that call a function."""
    return distance(name) + "s_swappc_b64 s[30:31], s[4:5]\n\t"


def test_a_function_is_called_and_returns() -> None:
    wave = executed(call("twice") + call("twice") + "v_add_u32_e32 v1, 1, v1", {"v1": 5}, others=TWICE)
    assert lanes_of(wave, "v1") == [21] * LANES


def test_a_function_calls_another_one() -> None:
    code = f"\ts_mov_b64 s[8:9], s[30:31]\n\t{call('twice')}v_add_u32_e32 v1, 1, v1\n\ts_mov_b64 s[30:31], s[8:9]"
    outer = FUNCTION.format(name="outer", code=code)
    wave = executed(call("outer") + "v_add_u32_e32 v1, 100, v1", {"v1": 5}, others=outer + TWICE)
    assert lanes_of(wave, "v1") == [111] * LANES


@pytest.mark.parametrize("to", [0, 5, (1 << 40) + 2, (1 << 40) + 4000])
def test_a_jump_to_something_else_is_an_error(to: int) -> None:
    with pytest.raises(MemoryFault, match=f"a jump to {to:#x}, where no code lies"):
        executed("s_setpc_b64 s[4:5]", {"s[4:5]": to})


def test_a_distance_from_somewhere_else_is_not_known() -> None:
    with pytest.raises(Unsupported, match="the distance to twice"):
        executed("s_nop 0\n\ts_add_u32 s4, s4, twice@rel32@lo+4", {}, others=TWICE)


def test_constants_are_read_beside_the_code() -> None:
    wave = executed(distance("table") + "s_load_dwordx2 s[6:7], s[4:5], 0x0\n\ts_waitcnt lgkmcnt(0)", {}, others=TABLE)
    assert (wave.scalar[6], wave.scalar[7]) == (7, 9)


# --- private memory ---
KEPT = "scratch_store_dwordx2 off, v[2:3], s33 offset:4\n\ts_mov_b64 exec, -1\n\tv_mov_b64_e32 v[2:3], 0\n\t"
BACK = "scratch_load_dwordx2 v[2:3], off, s33 offset:4\n\t"


def test_lanes_that_act_keep_registers_in_private_memory() -> None:
    mask = 0xFFFF0000FFFF0000
    code = KEPT + f"s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}\n\ts_mov_b32 exec_hi, {mask >> 32:#x}\n\t{BACK}"
    values = [n << 32 | n + 1 for n in range(LANES)]
    wave = executed(code + "s_waitcnt vmcnt(0)", {"v[2:3]": values, "s33": 4}, exec_=mask, private=16)
    assert lanes_of(wave, "v[2:3]") == [value if mask >> n & 1 else 0 for n, value in enumerate(values)]


def test_what_was_not_kept_is_not_zero() -> None:
    wave = executed(BACK + "s_waitcnt vmcnt(0)", {"s33": 0, "v[2:3]": 0}, private=16)
    assert 0 not in lanes_of(wave, "v[2:3]")


@pytest.mark.parametrize("frame", [MASK64 & 0xFFFFFFFC, 8, 2])
def test_private_memory_ends(frame: int) -> None:
    with pytest.raises(MemoryFault, match=r"private memory at .*, of 16 bytes"):
        executed(BACK, {"s33": frame}, private=16)


def test_a_load_from_private_memory_is_waited_for() -> None:
    with pytest.raises(NotWaited, match="v2"):
        executed(BACK + "v_mov_b32_e32 v4, v2", {"s33": 0}, private=16)


# --- what such code uses besides ---
def test_accumulators_keep_vectors() -> None:
    code = "v_accvgpr_write_b32 a1, v2\n\tv_accvgpr_mov_b32 a3, a1\n\ts_mov_b64 exec, -1\n\tv_accvgpr_read_b32 v1, a3"
    wave = executed(code, {"v2": 7, "a1": 1, "a3": 2, "v1": 3}, exec_=0xFF)
    assert lanes_of(wave, "v1") == [7] * 8 + [2] * (LANES - 8)


def test_a_constant_of_32_bits_is_extended_by_zeros() -> None:
    wave = executed("v_mov_b64_e32 v[2:3], 0xffffffff\n\tv_mov_b64_e32 v[4:5], -1", {})
    assert lanes_of(wave, "v[2:3]") == [0xFFFFFFFF] * LANES and lanes_of(wave, "v[4:5]") == [MASK64] * LANES
