"""Floating-point instructions against exact fractions, rounded once; conversions, comparisons, minima."""

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.ptx_modules import FORMATS, Value, is_nan, module, nearest, run_module, signed, value_of

pytestmark = pytest.mark.proved

Number = Fraction | float


def words(kind: str, count: int) -> list[int]:
    """Words of a kind: zeros, the least, the greatest, infinities, NaN, ones, subnormals, and others near 1."""
    form, dice = FORMATS[kind], random.Random(kind)
    one, top = form.bias << form.mantissa, 1 << (form.bits - 1)
    infinity = (2 * form.bias + 1) << form.mantissa
    edges = [
        0,
        1,
        one,
        one + 1,
        one - 1,
        infinity - 1,
        infinity,
        infinity + 1,
        1 << form.mantissa,
        (1 << form.mantissa) - 1,
    ]
    found = edges + [top | each for each in edges]
    while len(found) < count:
        found.append(
            dice.choice([dice.getrandbits(form.bits), one + dice.getrandbits(form.mantissa + 2) - (1 << form.mantissa)])
        )
    return [word % (1 << form.bits) for word in found]


def summed(a: Number, b: Number) -> Number:
    """a + b exactly, with the signs of zeros."""
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    if isinstance(a, float):
        return b if a == 0 else a  # -0 + b, or an infinity or NaN
    if isinstance(b, float):
        return a if b == 0 else b
    return a + b


def times(a: Number, b: Number) -> Number:
    """a * b exactly, with the signs of zeros."""
    if not isinstance(a, float) and not isinstance(b, float) and a and b:
        return a * b
    sign_a = math.copysign(1, a) if isinstance(a, float) else (1 if a >= 0 else -1)
    sign_b = math.copysign(1, b) if isinstance(b, float) else (1 if b >= 0 else -1)
    sizes = [math.copysign(float(each) if isinstance(each, float) else (1.0 if each else 0.0), 1) for each in (a, b)]
    product = math.nan if any(map(math.isnan, sizes)) else sizes[0] * sizes[1]
    return math.copysign(product, sign_a * sign_b)


def negated(a: Number) -> Number:
    return -a if isinstance(a, float) or a else -0.0


def same(found: int, wanted: int | None, kind: str) -> bool:
    return is_nan(found, kind) if wanted is None else found == wanted


EXACT: dict[str, tuple[int, Callable[..., Number]]] = {
    "add": (2, summed),
    "sub": (2, lambda a, b: summed(a, negated(b))),
    "mul": (2, times),
    "fma": (3, lambda a, b, c: summed(times(a, b), c)),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", EXACT)
def test_arithmetic_is_rounded_once(name: str, kind: str) -> None:
    count, of = EXACT[name]
    inputs, outputs = [Value(each, kind) for each in "abc"[:count]], [Value("d", kind)]
    text = f"{name}.rn.{kind} %d, {', '.join(f'%{each.name}' for each in inputs)};"
    dice = random.Random(text)
    choices = words(kind, 60)
    rows = [tuple(dice.choice(choices) for _ in range(count)) for _ in range(1280)]
    got = run_module(module(text, inputs, outputs), inputs, outputs, rows)
    for row, (found,) in zip(rows, got, strict=True):
        wanted = nearest(of(*(value_of(word, kind) for word in row)), kind)
        assert same(found, wanted, kind), [hex(word) for word in (*row, found, wanted or 0)]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_pairs_are_two_numbers(name: str, kind: str) -> None:
    count, of = EXACT[name]
    bits = FORMATS[kind].bits
    word = f"u{2 * bits}"
    inputs, outputs = [Value(each, word) for each in "abc"[:count]], [Value("d", word)]
    dice, choices = random.Random(kind), words(kind, 60)
    rows = [tuple(dice.choice(choices) | dice.choice(choices) << bits for _ in range(count)) for _ in range(320)]
    text = f"{name}.rn.{kind}x2 %d, {', '.join(f'%{each.name}' for each in inputs)};"
    ptx = module(text, inputs, outputs, target="sm_100a")
    for row, (found,) in zip(rows, run_module(ptx, inputs, outputs, rows), strict=True):
        for shift in (0, bits):
            parts = [value_of(each >> shift & (1 << bits) - 1, kind) for each in row]
            assert same(found >> shift & (1 << bits) - 1, nearest(of(*parts), kind), kind)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_roots(kind: str) -> None:
    inputs, outputs = [Value("a", kind), Value("b", kind)], [Value("d", kind), Value("e", kind)]
    choices = words(kind, 100)
    rows = [(a, random.Random(a).choice(choices)) for a in choices]
    ptx = module(f"div.rn.{kind} %d, %a, %b; sqrt.rn.{kind} %e, %a;", inputs, outputs)
    with np.errstate(all="ignore"):
        for row, (quotient, root) in zip(rows, run_module(ptx, inputs, outputs, rows), strict=True):
            a, b = (value_of(word, kind) for word in row)
            if not isinstance(a, float) and not isinstance(b, float) and a and b:
                assert quotient == nearest(a / b, kind)
            if not isinstance(a, float) and a > 0:
                assert_root(root, a, kind)


def assert_root(root: int, of: Fraction, kind: str) -> None:
    """The square of the root is nearer to the number than those of its neighbours' midpoints."""
    here, below, above = (value_of(root + n, kind) for n in (0, -1, 1))
    assert isinstance(here, Fraction) and isinstance(below, Fraction) and isinstance(above, Fraction)
    assert ((here + below) / 2) ** 2 <= of <= ((here + above) / 2) ** 2


def ordered(word: int, kind: str) -> tuple[Number, int]:
    """A key that puts -0 below +0."""
    found = value_of(word, kind)
    return (0, 0) if isinstance(found, float) and found == 0 else (found, 1)


@pytest.mark.parametrize("kind", FORMATS)
def test_minima_and_maxima(kind: str) -> None:
    inputs = [Value("a", kind), Value("b", kind)]
    nan = kind != "f64"
    outputs = [Value("d", kind), Value("e", kind), *([Value("f", kind), Value("g", kind)] if nan else [])]
    text = f"min.{kind} %d, %a, %b; max.{kind} %e, %a, %b;"
    text += f" min.NaN.{kind} %f, %a, %b; max.NaN.{kind} %g, %a, %b;" if nan else ""
    rows = list(itertools.product(words(kind, 24), repeat=2))
    canonical = (1 << FORMATS[kind].bits - 1) - 1
    for row, found in zip(rows, run_module(module(text, inputs, outputs), inputs, outputs, rows), strict=True):
        numbers = [word for word in row if not is_nan(word, kind)]
        least = min(numbers, key=lambda word: ordered(word, kind)) if numbers else canonical
        most = max(numbers, key=lambda word: ordered(word, kind)) if numbers else canonical
        strict = [least, most] if len(numbers) == 2 else [canonical] * 2
        assert found == [least, most, *(strict if nan else [])], [hex(word) for word in row]


def test_a_minimum_of_magnitudes_with_the_sign_of_the_product() -> None:
    inputs, outputs = [Value("a", "f32"), Value("b", "f32")], [Value("d", "f32")]
    rows = [
        (nearest(Fraction(a), "f32") or 0, nearest(Fraction(b), "f32") or 0) for a, b in [(-3, 2), (-2, -3), (5, 7)]
    ]
    got = run_module(module("min.xorsign.abs.f32 %d, %a, %b;", inputs, outputs), inputs, outputs, rows)
    assert [value_of(found, "f32") for (found,) in got] == [-2, 2, 5]


ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
@pytest.mark.parametrize("how", [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"])
def test_comparisons_with_nan(how: str, kind: str) -> None:
    inputs, outputs = [Value("a", kind), Value("b", kind)], [Value("d", "pred")]
    rows = list(itertools.product(words(kind, 24), repeat=2))
    got = run_module(module(f"setp.{how}.{kind} %d, %a, %b;", inputs, outputs), inputs, outputs, rows)
    for row, (found,) in zip(rows, got, strict=True):
        a, b = (value_of(word, kind) for word in row)
        unordered = any(isinstance(each, float) and math.isnan(each) for each in (a, b))
        plain = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
        wanted = {"num": not unordered, "nan": unordered}.get(how)
        if wanted is None:
            wanted = plain[how[:2]] and not unordered if len(how) == 2 else plain[how[:2]] or unordered
        assert found == wanted, [hex(word) for word in row]


@pytest.mark.parametrize(
    ("to", "of"),
    [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"), ("f32", "f16"), ("f32", "bf16"), ("f64", "f32")],
)
def test_numbers_become_numbers(to: str, of: str) -> None:
    rounding = "" if FORMATS[to].bits > FORMATS[of].bits else ".rn"
    inputs, outputs = [Value("a", of)], [Value("d", to)]
    rows = [(word,) for word in words(of, 320)]
    middle = FORMATS[of].mantissa - FORMATS[to].mantissa
    if middle > 0:  # ties
        rows += [((FORMATS[of].bias << FORMATS[of].mantissa) + (n << middle - 1),) for n in range(16)]
    got = run_module(module(f"cvt{rounding}.{to}.{of} %d, %a;", inputs, outputs), inputs, outputs, rows)
    for (word,), (found,) in zip(rows, got, strict=True):
        assert same(found, nearest(value_of(word, of), to), to), hex(word)


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_two_numbers_become_a_pair(to: str) -> None:
    inputs, outputs = [Value("a", "f32"), Value("b", "f32")], [Value("d", "u32")]
    rows = list(itertools.product(words("f32", 24), repeat=2))
    got = run_module(module(f"cvt.rn.{to}x2.f32 %d, %a, %b;", inputs, outputs), inputs, outputs, rows)
    for (upper, lower), (found,) in zip(rows, got, strict=True):
        assert same(found >> 16, nearest(value_of(upper, "f32"), to), to)
        assert same(found & 0xFFFF, nearest(value_of(lower, "f32"), to), to)


@pytest.mark.parametrize(("to", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_two_numbers_become_a_pair_of_bytes(to: str, dtype: torch.dtype) -> None:
    values = torch.arange(0x80, dtype=torch.uint8).view(dtype).double()
    finite = values[values.isfinite()].tolist()  # by their bits: ascending
    middles = [(low + high) / 2 for low, high in itertools.pairwise(finite)]
    of = [*finite, *middles, *(each * (1 + 2**-20) for each in middles), finite[-1] * 1.1, 1e30, 1e-30]
    rows = [*words("f32", 60), *(nearest(Fraction(sign * each), "f32") or 0 for each in of for sign in (1, -1))]
    inputs, outputs = [Value("a", "f32"), Value("b", "f32")], [Value("d", "u16")]
    pairs = list(zip(rows, rows[::-1], strict=True))
    got = run_module(module(f"cvt.rn.satfinite.{to}x2.f32 %d, %a, %b;", inputs, outputs), inputs, outputs, pairs)
    for pair, (found,) in zip(pairs, got, strict=True):
        for word, byte in zip(pair, (found >> 8, found & 0xFF), strict=True):
            value = float(value_of(word, "f32"))
            if math.isnan(value):
                assert byte == 0x7F
            else:
                near = min(range(len(finite)), key=lambda code: (abs(finite[code] - min(abs(value), 1e9)), code & 1))
                assert byte == near | (word >> 31) << 7, (value, hex(byte))


ROUNDINGS: dict[str, Callable[[Fraction], int]] = {"rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("to", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize(("how", "of"), list(itertools.product(ROUNDINGS, ["f32", "f64"])))
def test_numbers_become_integers(how: str, of: str, to: str) -> None:
    bits, sign = int(to[1:]), to[0] == "s"
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if sign else (0, (1 << bits) - 1)
    inputs, outputs = [Value("a", of)], [Value("d", to)]
    numbers = [Fraction(n, 4) for n in range(-20, 21)] + [Fraction(2) ** n * s for n in range(70) for s in (1, -1)]
    rows = [(word,) for word in (*words(of, 40), *(nearest(number, of) or 0 for number in numbers))]
    got = run_module(module(f"cvt.{how}.{to}.{of} %d, %a;", inputs, outputs), inputs, outputs, rows)
    for (word,), (found,) in zip(rows, got, strict=True):
        value = value_of(word, of)
        if isinstance(value, float) and math.isnan(value):
            wanted = 1 << bits - 1 if bits == 64 or of == "f64" else 0
        elif isinstance(value, float) and math.isinf(value):
            wanted = most if value > 0 else least
        else:
            wanted = min(max(ROUNDINGS[how](Fraction(value)), least), most)
        assert found == wanted % (1 << bits), hex(word)


@pytest.mark.parametrize(("to", "of"), list(itertools.product(["f32", "f64"], ["s32", "u32", "s64", "u64", "s16"])))
def test_integers_become_numbers(to: str, of: str) -> None:
    bits = int(of[1:])
    dice = random.Random(of)
    rows = [(word,) for word in (0, 1, (1 << bits) - 1, 1 << bits - 1, *(dice.getrandbits(bits) for _ in range(60)))]
    inputs, outputs = [Value("a", of)], [Value("d", to)]
    got = run_module(module(f"cvt.rn.{to}.{of} %d, %a;", inputs, outputs), inputs, outputs, rows)
    for (word,), (found,) in zip(rows, got, strict=True):
        assert found == nearest(Fraction(signed(word, bits) if of[0] == "s" else word), to)


def test_subnormal_numbers_are_flushed_and_results_saturated() -> None:
    inputs, outputs = [Value("a", "f32"), Value("b", "f32")], [Value("d", "f32"), Value("e", "f32")]
    one, tiny = 0x3F800000, 0x00400000
    rows = [(tiny, one), (tiny | 1 << 31, one), (one, one), (0x80000000 | one, one), (0x7FC00000, one)]
    text = "mul.ftz.f32 %d, %a, %b; add.sat.f32 %e, %a, %b;"
    got = run_module(module(text, inputs, outputs), inputs, outputs, rows)
    assert [found[0] for found in got[:4]] == [0, 1 << 31, one, one | 1 << 31]
    assert [found[1] for found in got] == [one, one, one, 0, 0]


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("ex2.approx.ftz.f32", lambda x: 2.0**x),
        ("lg2.approx.f32", math.log2),
        ("rcp.approx.f32", lambda x: 1 / x),
        ("sqrt.approx.f32", math.sqrt),
        ("rsqrt.approx.f32", lambda x: 1 / math.sqrt(x)),
        ("sin.approx.f32", math.sin),
        ("cos.approx.f32", math.cos),
        ("tanh.approx.f32", math.tanh),
    ],
)
def test_functions(name: str, of: Callable[[float], float]) -> None:
    numbers = np.array([0.25, 0.5, 1.0, 1.5, 3.0, 7.25], np.float32)
    inputs, outputs = [Value("a", "f32")], [Value("d", "f32")]
    got = run_module(
        module(f"{name} %d, %a;", inputs, outputs), inputs, outputs, [(int(w),) for w in numbers.view(np.uint32)]
    )
    found = np.array([word for (word,) in got], np.uint32).view(np.float32)
    np.testing.assert_allclose(found, [of(float(x)) for x in numbers], rtol=3e-7)


def test_signs_and_kinds_of_numbers() -> None:
    inputs, outputs = (
        [Value("a", "f32"), Value("b", "f32")],
        [Value("d", "f32"), Value("e", "f32"), Value("f", "f32"), Value("g", "pred")],
    )
    rows = list(itertools.product(words("f32", 24), repeat=2))
    text = "neg.f32 %d, %a; abs.f32 %e, %a; copysign.f32 %f, %a, %b; testp.subnormal.f32 %g, %a;"
    got = run_module(module(text, inputs, outputs), inputs, outputs, rows)
    top = 1 << 31
    for (a, b), (minus, size, signed_as, subnormal) in zip(rows, got, strict=True):
        if not is_nan(a, "f32"):
            assert (minus, size) == (a ^ top, a & ~top)
        if not is_nan(b, "f32"):
            assert signed_as == (b & ~top) | (a & top)
        assert subnormal == (0 < a & ~top < 1 << 23)
