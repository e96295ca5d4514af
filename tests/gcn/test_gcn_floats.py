"""Float32: fused multiply-add rounds once, conversions saturate, LLVM's division is exact, matrices multiply."""

import random
from fractions import Fraction

import numpy as np
import pytest

from nanokv.device.gcn.registers import LANES
from tests.support.gcn_text import executed, float_bits, lanes_of

pytestmark = pytest.mark.proved


def nearest(value: Fraction) -> float:
    """The float32 next to a number, ties to even; for numbers in the range of normal ones."""
    if not value:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    unit = Fraction(2) ** (exponent - 24)
    while not 2**23 <= abs(value / unit) < 2**24:
        unit *= 2 if abs(value / unit) >= 2**24 else Fraction(1, 2)
    return float(round(value / unit) * unit)


def some_floats(seed: int, low: int = -30, high: int = 30) -> list[float]:
    """One per lane."""
    dice = random.Random(seed)
    return [float(np.float32(dice.uniform(-2, 2) * 2.0 ** dice.randint(low, high))) for _ in range(LANES)]


def test_fused_multiply_add_rounds_once() -> None:
    a, b = some_floats(1), some_floats(2)
    c = [
        float(np.float32(-x * y * (1 + n % 3))) for n, (x, y) in enumerate(zip(a, b, strict=True))
    ]  # cancels, or almost
    a[0], b[0], c[0] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60  # float64 would lose the addend, and round to even
    wave = executed("v_fma_f32 v1, v2, v3, v4\n\tv_fmac_f32_e32 v4, v2, v3", {
        "v2": float_bits(a), "v3": float_bits(b), "v4": float_bits(c),
    })  # fmt: skip
    exact = [nearest(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert lanes_of(wave, "v1") == float_bits(exact)
    assert lanes_of(wave, "v4") == float_bits(exact)


def test_conversions_truncate_and_saturate() -> None:
    given = [0.0, 1.9, -1.9, 4294967040.0, 5e9, -5e9, float("nan"), float("inf"), 2147483647.0, -2147483648.0] + [
        3.5
    ] * 54
    wave = executed("v_cvt_u32_f32_e32 v1, v3\n\tv_cvt_i32_f32_e32 v2, v3", {"v3": float_bits(given)})
    top = 2**32 - 1
    assert lanes_of(wave, "v1")[:10] == [0, 1, 0, 4294967040, top, 0, 0, top, 2**31, 0]
    assert lanes_of(wave, "v2")[:10] == [
        0, 1, top, 2**31 - 1, 2**31 - 1, 2**31, 0, 2**31 - 1, 2**31 - 1, 2**31,
    ]  # fmt: skip
    wave = executed("v_cvt_f32_u32_e32 v1, v3\n\tv_cvt_f32_i32_e32 v2, v3", {"v3": [top] * LANES})
    assert lanes_of(wave, "v1")[0] == float_bits([2.0**32])[0] and lanes_of(wave, "v2")[0] == float_bits([-1.0])[0]


DIVISION = """
    v_div_scale_f32 v10, s[4:5], v3, v3, v2
    v_rcp_f32_e32 v11, v10
    v_div_scale_f32 v12, vcc, v2, v3, v2
    v_fma_f32 v13, -v10, v11, 1.0
    v_fmac_f32_e32 v11, v13, v11
    v_mul_f32_e32 v13, v12, v11
    v_fma_f32 v14, -v10, v13, v12
    v_fmac_f32_e32 v13, v14, v11
    v_fma_f32 v10, -v10, v13, v12
    v_div_fmas_f32 v10, v10, v11, v13
    v_div_fixup_f32 v1, v10, v3, v2
"""


def test_divisions_as_llvm_writes_them_are_exact() -> None:
    """Also of numbers far apart, and of what is not a number."""
    a, b = some_floats(3, -100, 100), some_floats(4, -20, 20)
    a[:9] = [0.0, 1.0, -1.0, float("inf"), 5.0, 0.0, float("nan"), 3e38, 1e-37]
    b[:9] = [5.0, 0.0, float("inf"), 2.0, float("-inf"), 0.0, 1.0, 0.25, 3e5]
    wave = executed(DIVISION, {"v2": float_bits(a), "v3": float_bits(b)})
    with np.errstate(all="ignore"):
        quotients = np.array(a, np.float32) / np.array(b, np.float32)
    made = np.array(lanes_of(wave, "v1"), np.uint32).view(np.float32)
    normal = (np.abs(quotients) >= np.finfo(np.float32).tiny) | (quotients == 0) | np.isnan(quotients)
    assert normal.sum() > 55
    np.testing.assert_array_equal(made[normal], quotients[normal])


def test_pairs_choose_halves_and_signs() -> None:
    pair = {
        "v2": float_bits([2.0])[0],
        "v3": float_bits([3.0])[0],
        "v4": float_bits([5.0])[0],
        "v5": float_bits([7.0])[0],
    }
    wave = executed(
        "v_pk_mul_f32 v[6:7], v[2:3], v[4:5]\n"
        "\tv_pk_add_f32 v[8:9], v[2:3], v[4:5] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]",
        pair,
    )
    found = [lanes_of(wave, f"v{n}")[0] for n in (6, 7, 8, 9)]
    assert found == float_bits([10.0, 21.0, -3.0, -2.0])


def test_matrices_multiply() -> None:
    dice = np.random.default_rng(5)
    a, b, c = (dice.integers(-9, 9, shape).astype(np.float32) for shape in ((16, 4), (4, 16), (16, 16)))
    lane = np.arange(LANES)
    values = {"v2": float_bits(a[lane % 16, lane // 16]), "v3": float_bits(b[lane // 16, lane % 16])}
    for n in range(4):
        values[f"v{8 + n}"] = float_bits(c[4 * (lane // 16) + n, lane % 16])
    wave = executed("v_mfma_f32_16x16x4_f32 v[4:7], v2, v3, v[8:11]", values)
    for n in range(4):
        assert lanes_of(wave, f"v{4 + n}") == float_bits((a @ b + c)[4 * (lane // 16) + n, lane % 16])


def test_larger_matrices_multiply() -> None:
    """Blocks of eight rows: four of the lower half of the lanes, then four of the upper half."""
    dice = np.random.default_rng(7)
    a, b, c = (dice.integers(-9, 9, shape).astype(np.float32) for shape in ((32, 2), (2, 32), (32, 32)))
    lane = np.arange(LANES)
    places = [(8 * (n // 4) + 4 * (lane // 32) + n % 4, lane % 32) for n in range(16)]
    values = {f"v{20 + n}": float_bits(c[place]) for n, place in enumerate(places)}
    values |= {"v2": float_bits(a[lane % 32, lane // 32]), "v3": float_bits(b[lane // 32, lane % 32])}
    wave = executed("v_mfma_f32_32x32x2_f32 v[4:19], v2, v3, v[20:35]", values)
    for n, place in enumerate(places):
        assert lanes_of(wave, f"v{4 + n}") == float_bits((a @ b + c)[place])


@pytest.mark.parametrize(("edge", "inner"), [(16, 16), (32, 8)])
def test_matrices_of_bfloat16_multiply(edge: int, inner: int) -> None:
    dice = np.random.default_rng(6)
    a, b = (dice.integers(-9, 9, shape).astype(np.float32) for shape in ((edge, inner), (inner, edge)))
    lane, results = np.arange(LANES), edge * edge // LANES
    values = {}
    for n in range(2):
        k = 4 * (lane // edge) + 2 * n  # of the lower half; the next one is in the upper half
        for name, low, high in (
            (f"v{2 + n}", a[lane % edge, k], a[lane % edge, k + 1]),
            (f"v{4 + n}", b[k, lane % edge], b[k + 1, lane % edge]),
        ):
            values[name] = [x >> 16 | y for x, y in zip(float_bits(low), float_bits(high), strict=True)]
    wave = executed(f"v_mfma_f32_{edge}x{edge}x{inner}_bf16 v[8:{7 + results}], v[2:3], v[4:5], 0", values)
    for n in range(results):
        row = 8 * (n // 4) + 4 * (lane // edge) + n % 4
        assert lanes_of(wave, f"v{8 + n}") == float_bits((a @ b)[row, lane % edge])
