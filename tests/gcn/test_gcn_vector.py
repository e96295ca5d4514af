"""Vector arithmetic against Python's integers, lane by lane; EXEC; carries, comparisons, selections."""

import random
from collections.abc import Callable

import pytest

from nanokv.device.gcn.registers import LANES
from tests.support.gcn_text import executed, lanes_of

pytestmark = pytest.mark.proved

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
EDGES = [0, 1, 2, 31, 32, 33, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, M32 - 1, M32]


def numbers(seed: int, bits: int = 32) -> list[int]:
    """One number per lane, some of them at an edge."""
    dice = random.Random(seed)
    return [
        dice.choice(EDGES) << dice.choice((0, bits - 32)) if dice.random() < 0.5 else dice.getrandbits(bits)
        for _ in range(LANES)
    ]


def s(value: int, bits: int = 32) -> int:
    """As a number with a sign."""
    return value - (1 << bits) if value >> bits - 1 else value


def perm(a: int, b: int, selectors: int) -> int:
    both, made = (a << 32 | b).to_bytes(8, "little"), []
    for which in selectors.to_bytes(4, "little"):
        if which < 8:
            made.append(both[which])
        elif which < 12:
            made.append(0xFF if both[2 * (which - 8) + 1] >> 7 else 0)
        else:
            made.append(0 if which == 12 else 0xFF)
    return int.from_bytes(bytes(made), "little")


WHOLE = "dst_sel:DWORD dst_unused:UNUSED_PAD"
NARROW: dict[str, Callable[[int, int, int], int]] = {
    "v_mov_b32_e32 v1, v2": lambda a, b, c: a,
    "v_not_b32_e32 v1, v2": lambda a, b, c: ~a,
    "v_bfrev_b32_e32 v1, v2": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_add_u32_e32 v1, v2, v3": lambda a, b, c: a + b,
    "v_sub_u32_e32 v1, v2, v3": lambda a, b, c: a - b,
    "v_subrev_u32_e32 v1, v2, v3": lambda a, b, c: b - a,
    "v_sub_u32_e64 v1, v2, v3 clamp": lambda a, b, c: max(a - b, 0),
    "v_add_u32_e64 v1, v2, v3 clamp": lambda a, b, c: min(a + b, M32),
    "v_add_u16_e32 v1, v2, v3": lambda a, b, c: a + b & 0xFFFF,
    "v_mul_lo_u16_e32 v1, v2, v3": lambda a, b, c: a * b & 0xFFFF,
    "v_lshlrev_b16_e32 v1, v2, v3": lambda a, b, c: b << (a & 15) & 0xFFFF,
    "v_and_b32_e32 v1, v2, v3": lambda a, b, c: a & b,
    "v_xnor_b32_e32 v1, v2, v3": lambda a, b, c: ~(a ^ b),
    "v_lshlrev_b32_e32 v1, v2, v3": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32_e32 v1, v2, v3": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32_e32 v1, v2, v3": lambda a, b, c: s(b) >> (a & 31),
    "v_min_i32_e32 v1, v2, v3": lambda a, b, c: min(a, b, key=s),
    "v_max_u32_e32 v1, v2, v3": lambda a, b, c: max(a, b),
    "v_mul_lo_u32 v1, v2, v3": lambda a, b, c: a * b,
    "v_mul_hi_u32 v1, v2, v3": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 v1, v2, v3": lambda a, b, c: s(a) * s(b) >> 32,
    "v_mul_u32_u24_e32 v1, v2, v3": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_hi_u32_u24_e32 v1, v2, v3": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_i32_i24_e32 v1, v2, v3": lambda a, b, c: s(a & 0xFFFFFF, 24) * s(b & 0xFFFFFF, 24),
    "v_mul_hi_i32_i24_e32 v1, v2, v3": lambda a, b, c: s(a & 0xFFFFFF, 24) * s(b & 0xFFFFFF, 24) >> 32,
    "v_mad_i32_i24 v1, v2, v3, v4": lambda a, b, c: s(a & 0xFFFFFF, 24) * s(b & 0xFFFFFF, 24) + c,
    "v_mad_u32_u24 v1, v2, v3, v4": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_bcnt_u32_b32 v1, v2, v3": lambda a, b, c: a.bit_count() + b,
    "v_ffbh_u32_e32 v1, v2": lambda a, b, c: 32 - a.bit_length() if a else M32,
    "v_ffbl_b32_e32 v1, v2": lambda a, b, c: (a & -a).bit_length() - 1,
    "v_or3_b32 v1, v2, v3, v4": lambda a, b, c: a | b | c,
    "v_and_or_b32 v1, v2, v3, v4": lambda a, b, c: a & b | c,
    "v_bfi_b32 v1, v2, v3, v4": lambda a, b, c: a & b | ~a & c,
    "v_add3_u32 v1, v2, v3, v4": lambda a, b, c: a + b + c,
    "v_xad_u32 v1, v2, v3, v4": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32 v1, v2, v3, v4": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 v1, v2, v3, v4": lambda a, b, c: a + b << (c & 31),
    "v_lshl_or_b32 v1, v2, v3, v4": lambda a, b, c: a << (b & 31) | c,
    "v_bfe_u32 v1, v2, v3, v4": lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1,
    "v_bfe_i32 v1, v2, 4, 8": lambda a, b, c: s(a >> 4 & 0xFF, 8),
    "v_and_b32_e32 v4, 0x0f0f0f0f, v4\n\tv_perm_b32 v1, v2, v3, v4": lambda a, b, c: perm(a, b, c & 0x0F0F0F0F),
    "v_alignbit_b32 v1, v2, v3, v4": lambda a, b, c: (a << 32 | b) >> (c & 31),
    f"v_lshlrev_b32_sdwa v1, v2, v3 {WHOLE} src0_sel:DWORD src1_sel:BYTE_1": lambda a, b, c: (b >> 8 & 255) << (a & 31),
    f"v_add_u32_sdwa v1, v2, sext(v3) {WHOLE} src0_sel:WORD_1 src1_sel:WORD_0": lambda a, b, c: (
        (a >> 16) + s(b & 0xFFFF, 16)
    ),
    "v_or_b32_sdwa v1, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD": lambda a, b, c: (
        ((a | b) & 0xFFFF) << 16
    ),
}
WIDE: dict[str, Callable[[int, int, int], int]] = {
    "v_mov_b64_e32 v[6:7], v[2:3]": lambda a, b, c: a,
    "v_lshl_add_u64 v[6:7], v[2:3], 4, v[4:5]": lambda a, b, c: (a << 4) + b,
    "v_lshlrev_b64 v[6:7], v8, v[2:3]": lambda a, b, c: a << (c & 63),
    "v_lshrrev_b64 v[6:7], v8, v[2:3]": lambda a, b, c: a >> (c & 63),
    "v_ashrrev_i64 v[6:7], v8, v[2:3]": lambda a, b, c: s(a, 64) >> (c & 63),
    "v_mad_u64_u32 v[6:7], s[4:5], v8, v9, v[2:3]": lambda a, b, c: c * c + a,
    "v_mad_i64_i32 v[6:7], s[4:5], v8, v9, v[2:3]": lambda a, b, c: s(c) * s(c) + a,
}


@pytest.mark.parametrize("code", NARROW)
def test_of_32_bits(code: str) -> None:
    a, b, c = numbers(1), numbers(2), numbers(3)
    wave = executed(code, {"v2": a, "v3": b, "v4": c})
    assert lanes_of(wave, "v1") == [NARROW[code](*each) & M32 for each in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("code", WIDE)
def test_of_64_bits(code: str) -> None:
    a, b, c = numbers(1, 64), numbers(2, 64), numbers(3)
    wave = executed(code, {"v[2:3]": a, "v[4:5]": b, "v8": c, "v9": c})
    assert lanes_of(wave, "v[6:7]") == [WIDE[code](*each) & M64 for each in zip(a, b, c, strict=True)]


@pytest.mark.parametrize(
    "code", ["v_add_u32_e32 v1, s4, v2", "v_add_u32_e32 v1, -7, v2", "v_add_u32_e32 v1, 0xffff1234, v2"]
)
def test_one_value_for_all_lanes(code: str) -> None:
    a = numbers(4)
    value = {"s4": 77, "-7": -7, "0xffff1234": 0xFFFF1234}[code.split()[2].rstrip(",")]
    assert lanes_of(executed(code, {"v2": a, "s4": 77}), "v1") == [each + value & M32 for each in a]


def test_lanes_that_do_not_act_keep_their_registers() -> None:
    mask = 0x8000_0000_0000_0005
    wave = executed("v_mov_b32_e32 v1, 7\n\tv_mov_b64_e32 v[2:3], -1", {"v1": 1, "v[2:3]": 2}, exec_=mask)
    assert lanes_of(wave, "v1") == [7 if mask >> lane & 1 else 1 for lane in range(LANES)]
    assert lanes_of(wave, "v[2:3]") == [M64 if mask >> lane & 1 else 2 for lane in range(LANES)]


CARRIES: dict[str, Callable[[int, int, int], int]] = {
    "v_add_co_u32_e32 v1, vcc, v2, v3": lambda a, b, c: a + b,
    "v_addc_co_u32_e32 v1, vcc, v2, v3, vcc": lambda a, b, c: a + b + c,
    "v_sub_co_u32_e32 v1, vcc, v2, v3": lambda a, b, c: a - b,
    "v_subb_co_u32_e32 v1, vcc, v2, v3, vcc": lambda a, b, c: a - b - c,
    "v_subrev_co_u32_e32 v1, vcc, v2, v3": lambda a, b, c: b - a,
    "v_subbrev_co_u32_e32 v1, vcc, v2, v3, vcc": lambda a, b, c: b - a - c,
}


@pytest.mark.parametrize("code", CARRIES)
def test_carries(code: str) -> None:
    a, b, vcc, mask = numbers(1), numbers(2), 0x0123_4567_89AB_CDEF, 0xFFFF_FFFF_FFFF_00FF
    wave = executed(code, {"v1": 9, "v2": a, "v3": b, "vcc": vcc}, exec_=mask)
    expected = [CARRIES[code](a[n], b[n], vcc >> n & 1) for n in range(LANES)]
    acts = [mask >> n & 1 for n in range(LANES)]
    assert lanes_of(wave, "v1") == [value & M32 if act else 9 for value, act in zip(expected, acts, strict=True)]
    out = sum(1 << n for n in range(LANES) if acts[n] and not 0 <= expected[n] <= M32)
    assert wave.pair(106) == out


@pytest.mark.parametrize("kind", ["u32", "i32", "u64", "i64"])
@pytest.mark.parametrize("how", ["eq", "ne", "gt", "ge", "lt", "le"])
def test_comparisons_make_masks(how: str, kind: str) -> None:
    bits = int(kind[1:])
    a, b, mask = numbers(5, bits), numbers(6, bits), 0xFFFF_0FFF_FFFF_FFFF
    b[:8] = a[:8]
    one, two = ("v2", "v4") if bits == 32 else ("v[2:3]", "v[4:5]")
    wave = executed(f"v_cmp_{how}_{kind}_e64 s[4:5], {one}, {two}", {one: a, two: b, "s[4:5]": 0}, exec_=mask)
    number = (lambda x: s(x, bits)) if kind[0] == "i" else (lambda x: x)
    holds = {"eq": "__eq__", "ne": "__ne__", "gt": "__gt__", "ge": "__ge__", "lt": "__lt__", "le": "__le__"}[how]
    assert wave.pair(4) == sum(
        1 << n for n in range(LANES) if mask >> n & 1 and getattr(number(a[n]), holds)(number(b[n]))
    )


def test_a_mask_selects() -> None:
    wave = executed("v_cndmask_b32_e64 v1, v2, 5, s[4:5]", {"v2": 3, "s[4:5]": 6})
    assert lanes_of(wave, "v1") == [5 if n in (1, 2) else 3 for n in range(LANES)]
    code = "v_cndmask_b32_sdwa v1, v2, v3, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1"
    wave = executed(code, {"v2": 3, "v3": 0x50000, "vcc": 2})
    assert lanes_of(wave, "v1") == [3, 5] + [3] * 62
    wave = executed("v_cndmask_b32_e32 v1, 0, v2, vcc", {"v2": 3, "vcc": 1})
    assert lanes_of(wave, "v1") == [3] + [0] * 63
