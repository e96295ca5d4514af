"""Scalar arithmetic against Python's integers, SCC included."""

import pytest

from tests.support.gcn_text import executed

pytestmark = pytest.mark.proved

MAX = 0xFFFFFFFF
# (instruction on s4 or s[4:5], sources s6 and s7 or pairs from s8 and s10 on, SCC before, result, SCC after)
CASES = [
    ("s_add_u32 s4, s6, s7", MAX, 2, 0, 1, 1),
    ("s_addc_u32 s4, s6, s7", MAX, 0, 1, 0, 1),
    ("s_sub_u32 s4, s6, s7", 3, 5, 0, MAX - 1, 1),
    ("s_subb_u32 s4, s6, s7", 5, 4, 1, 0, 0),
    ("s_subb_u32 s4, s6, s7", 0, MAX, 1, 0, 1),
    ("s_add_i32 s4, s6, s7", 0x7FFFFFFF, 1, 0, 0x80000000, 1),
    ("s_sub_i32 s4, s6, s7", 0x80000000, 1, 0, 0x7FFFFFFF, 1),
    ("s_mul_i32 s4, s6, s7", MAX, 3, 1, MAX - 2, 1),
    ("s_mul_hi_u32 s4, s6, s7", MAX, MAX, 0, MAX - 1, 0),
    ("s_mul_hi_i32 s4, s6, s7", MAX, 5, 0, MAX, 0),
    ("s_and_b32 s4, s6, s7", 0b1100, 0b0011, 1, 0, 0),
    ("s_andn2_b32 s4, s6, s7", 0b1100, 0b0100, 0, 0b1000, 1),
    ("s_orn2_b32 s4, s6, s7", 0, MAX, 1, 0, 0),
    ("s_nor_b32 s4, s6, s7", 0, 1, 0, MAX - 1, 1),
    ("s_lshl_b32 s4, s6, s7", 3, 33, 0, 6, 1),
    ("s_ashr_i32 s4, s6, s7", 0x80000000, 31, 0, MAX, 1),
    ("s_lshl3_add_u32 s4, s6, s7", 0x20000000, 7, 0, 7, 1),
    ("s_bfe_u32 s4, s6, 0x80004", 0x12345678, 0, 0, 0x67, 1),
    ("s_bfe_i32 s4, s6, 0x40004", 0x000000F0, 0, 0, MAX, 1),
    ("s_bfm_b32 s4, s6, s7", 4, 8, 1, 0xF00, 1),
    ("s_cselect_b32 s4, s6, s7", 1, 2, 1, 1, 1),
    ("s_cselect_b32 s4, s6, s7", 1, 2, 0, 2, 0),
    ("s_min_i32 s4, s6, s7", MAX, 1, 0, MAX, 1),
    ("s_min_u32 s4, s6, s7", MAX, 1, 1, 1, 0),
    ("s_max_i32 s4, s6, s7", MAX, 1, 1, 1, 0),
    ("s_abs_i32 s4, s6", MAX, 0, 0, 1, 1),
    ("s_sext_i32_i8 s4, s6", 0x80, 0, 0, 0xFFFFFF80, 0),
    ("s_brev_b32 s4, s6", 1, 0, 0, 0x80000000, 0),
    ("s_not_b32 s4, s6", MAX, 0, 1, 0, 0),
    ("s_ff1_i32_b32 s4, s6", 0x10, 0, 0, 4, 0),
    ("s_ff1_i32_b32 s4, s6", 0, 0, 0, MAX, 0),
    ("s_flbit_i32_b32 s4, s6", 0x10, 0, 0, 27, 0),
    ("s_pack_ll_b32_b16 s4, s6, s7", 0x11112222, 0x33334444, 0, 0x44442222, 0),
    ("s_cmov_b32 s4, s6", 9, 0, 1, 9, 1),
    ("s_movk_i32 s4, 0x8000", 0, 0, 0, 0xFFFF8000, 0),
]
WIDE = [
    ("s_and_b64 s[4:5], s[8:9], s[10:11]", 1 << 63 | 1, 1 << 63, 1 << 63, 1),
    ("s_xor_b64 s[4:5], s[8:9], -1", 5, 0, 2**64 - 6, 1),
    ("s_lshl_b64 s[4:5], s[8:9], 33", 3, 0, 3 << 33, 1),
    ("s_lshr_b64 s[4:5], s[8:9], 33", 5 << 33, 0, 5, 1),
    ("s_ashr_i64 s[4:5], s[8:9], 4", 1 << 63, 0, 0xF8 << 56, 1),
    ("s_cselect_b64 s[4:5], s[8:9], 0", 7, 0, 0, 0),
    ("s_bfe_u64 s[4:5], s[8:9], 0x8001c", 0x12345678 << 4, 0, 0x12, 1),
    ("s_mov_b64 s[4:5], s[8:9]", 7 << 40, 0, 7 << 40, 0),
]


@pytest.mark.parametrize(("code", "a", "b", "scc", "result", "after"), CASES)
def test_of_32_bits(code: str, a: int, b: int, scc: int, result: int, after: int) -> None:
    wave = executed(code, {"s6": a, "s7": b, "scc": scc})
    assert (wave.scalar[4], wave.scc) == (result, after)


@pytest.mark.parametrize(("code", "a", "b", "result", "after"), WIDE)
def test_of_64_bits(code: str, a: int, b: int, result: int, after: int) -> None:
    wave = executed(code, {"s[8:9]": a, "s[10:11]": b})
    assert (wave.pair(4), wave.scc) == (result, after)


@pytest.mark.parametrize(
    ("code", "a", "b", "truth"),
    [
        ("s_cmp_lt_i32 s6, s7", MAX, 0, 1),
        ("s_cmp_lt_u32 s6, s7", MAX, 0, 0),
        ("s_cmp_ge_u32 s6, s7", 4, 4, 1),
        ("s_cmp_lg_u32 s6, s7", 4, 4, 0),
        ("s_cmp_eq_u64 s[6:7], 5", 5, 1, 0),
        ("s_cmpk_eq_i32 s6, 0xfff0", MAX - 15, 0, 1),
        ("s_cmpk_gt_u32 s6, 0xfff0", 0xFFF1, 0, 1),
        ("s_bitcmp1_b32 s6, 4", 0x10, 0, 1),
        ("s_bitcmp0_b32 s6, 4", 0x10, 0, 0),
    ],
)
def test_comparisons_set_scc(code: str, a: int, b: int, truth: int) -> None:
    assert executed(code, {"s6": a, "s7": b, "scc": 1 - truth}).scc == truth


def test_bits_are_set_and_counted() -> None:
    wave = executed(
        "s_bitset0_b32 s4, 31\n\ts_bitset1_b32 s4, 0\n\ts_bcnt1_i32_b64 s5, s[8:9]", {"s4": 1 << 31, "s[8:9]": 7 << 40}
    )
    assert wave.scalar[4:6] == [1, 3]


def test_saving_exec_chooses_lanes() -> None:
    wave = executed("s_and_saveexec_b64 s[4:5], s[8:9]", {"s[8:9]": 0b1010}, exec_=0b0110)
    assert (wave.pair(4), wave.exec, wave.scc, wave.active.sum()) == (0b0110, 0b0010, 1, 1)
    wave = executed("s_andn2_saveexec_b64 vcc, vcc", {"vcc": 0b1010}, exec_=0b1110)
    assert (wave.pair(106), wave.exec, wave.scc) == (0b1110, 0, 0)
    wave = executed("s_mov_b64 exec, 6\n\ts_mov_b32 exec_hi, 1", {})
    assert wave.exec == 1 << 32 | 6 and wave.active.sum() == 3
