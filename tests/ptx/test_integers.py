"""Integer instructions against Python's integers, with edge values and random ones."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from nanokv.device.ptx import Machine, Unsupported
from tests.support.ptx_modules import Value, module, run_module, signed

pytestmark = pytest.mark.proved


class Case(NamedTuple):
    """`text` with the result %d and operands %a, %b, ...; `of` gives the result of words without sign."""

    text: str
    to: str
    kinds: str  #: of the operands, by spaces
    of: Callable[..., int]

    @property
    def inputs(self) -> list[Value]:
        return [Value(name, kind) for name, kind in zip("abcef", self.kinds.split(), strict=False)]

    @property
    def ptx(self) -> str:
        return module(self.text, self.inputs, [Value("d", self.to)])


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def arithmetic(bits: int) -> Iterator[Case]:
    """Everything that has a variant of this width."""
    u, s, b = f"u{bits}", f"s{bits}", f"b{bits}"
    two, three = f"{u} {u}", f"{u} {u} {u}"

    def of_signed(function: Callable[..., int]) -> Callable[..., int]:
        return lambda *words: function(*(signed(word, bits) for word in words))

    yield Case(f"add.{s} %d, %a, %b;", u, two, lambda a, b: a + b)
    yield Case(f"sub.{u} %d, %a, %b;", u, two, lambda a, b: a - b)
    yield Case(f"mul.lo.{s} %d, %a, %b;", u, two, lambda a, b: a * b)
    yield Case(f"mul.hi.{u} %d, %a, %b;", u, two, lambda a, b: a * b >> bits)
    yield Case(f"mul.hi.{s} %d, %a, %b;", u, two, of_signed(lambda a, b: a * b >> bits))
    yield Case(f"mad.lo.{u} %d, %a, %b, %c;", u, three, lambda a, b, c: a * b + c)
    yield Case(f"mad.hi.{s} %d, %a, %b, %c;", u, three, of_signed(lambda a, b, c: (a * b >> bits) + c))
    yield Case(f"div.{u} %d, %a, %b;", u, two, lambda a, b: a // b)
    yield Case(f"rem.{u} %d, %a, %b;", u, two, lambda a, b: a % b)
    yield Case(f"div.{s} %d, %a, %b;", u, two, of_signed(quotient))
    yield Case(f"rem.{s} %d, %a, %b;", u, two, of_signed(lambda a, b: a - b * quotient(a, b)))
    yield Case(f"min.{u} %d, %a, %b;", u, two, min)
    yield Case(f"max.{s} %d, %a, %b;", u, two, of_signed(max))
    yield Case(f"min.{s} %d, %a, %b;", u, two, of_signed(min))
    yield Case(f"neg.{s} %d, %a;", u, u, lambda a: -a)
    yield Case(f"abs.{s} %d, %a;", u, u, of_signed(abs))
    yield Case(f"sad.{s} %d, %a, %b, %c;", u, three, lambda a, b, c: c + abs(signed(a, bits) - signed(b, bits)))
    yield Case(f"sad.{u} %d, %a, %b, %c;", u, three, lambda a, b, c: c + abs(a - b))
    yield Case(f"and.{b} %d, %a, %b;", u, two, lambda a, b: a & b)
    yield Case(f"or.{b} %d, %a, %b;", u, two, lambda a, b: a | b)
    yield Case(f"xor.{b} %d, %a, %b;", u, two, lambda a, b: a ^ b)
    yield Case(f"not.{b} %d, %a;", u, u, lambda a: ~a)
    yield Case(f"cnot.{b} %d, %a;", u, u, lambda a: int(a == 0))
    yield Case(f"shl.{b} %d, %a, %b;", u, f"{u} u32", lambda a, by: a << min(by, bits))
    yield Case(f"shr.{u} %d, %a, %b;", u, f"{u} u32", lambda a, by: a >> min(by, bits))
    yield Case(f"shr.{b} %d, %a, %b;", u, f"{u} u32", lambda a, by: a >> min(by, bits))
    yield Case(f"shr.{s} %d, %a, %b;", u, f"{u} u32", lambda a, by: signed(a, bits) >> min(by, bits))
    yield Case(f"shl.{b} %d, %a, 3;", u, u, lambda a: a << 3)
    yield Case(f"shr.{s} %d, %a, {bits - 1};", u, u, lambda a: signed(a, bits) >> (bits - 1))
    yield Case(f"shl.{b} %d, %a, {bits};", u, u, lambda a: 0)
    yield Case(f"selp.{b} %d, %a, %b, %c;", u, f"{two} pred", lambda a, b, c: a if c else b)
    yield Case(f"mov.{b} %d, %a;", u, u, lambda a: a)
    yield Case(f"add.{s} %d, %a, -5;", u, u, lambda a: a - 5)
    for name, holds in COMPARISONS.items():
        kinds = ("s", "u") if name in ("lt", "le", "gt", "ge") else ("b",) if name in ("eq", "ne") else ("u",)
        for letter in kinds:
            of = of_signed(holds) if letter == "s" else holds
            yield Case(f"setp.{name}.{letter}{bits} %d, %a, %b;", "pred", two, of)
    if bits > 16:
        yield from wide_only(bits)
    if bits < 64:
        wide = 2 * bits
        yield Case(f"mul.wide.{u} %d, %a, %b;", f"u{wide}", two, lambda a, b: a * b)
        yield Case(f"mul.wide.{s} %d, %a, %b;", f"u{wide}", two, of_signed(lambda a, b: a * b))
        yield Case(f"mad.wide.{u} %d, %a, %b, %c;", f"u{wide}", f"{two} u{wide}", lambda a, b, c: a * b + c)
        yield Case(
            f"mad.wide.{s} %d, %a, %b, %c;",
            f"u{wide}",
            f"{two} u{wide}",
            lambda a, b, c: signed(a, bits) * signed(b, bits) + c,
        )


COMPARISONS: dict[str, Callable[[int, int], int]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    **dict.fromkeys(("lt", "lo"), lambda a, b: a < b),
    **dict.fromkeys(("le", "ls"), lambda a, b: a <= b),
    **dict.fromkeys(("gt", "hi"), lambda a, b: a > b),
    **dict.fromkeys(("ge", "hs"), lambda a, b: a >= b),
}


def extracted(bits: int, *, sign: bool) -> Callable[..., int]:
    """bfe, bit by bit, as the PTX ISA writes it."""

    def of(a: int, at: int, count: int) -> int:
        at, count, most = at & 255, count & 255, bits - 1
        filler = a >> min(at + count - 1, most) & 1 if sign and count else 0
        return sum(((a >> (at + n) & 1) if n < count and at + n <= most else filler) << n for n in range(bits))

    return of


def inserted(bits: int) -> Callable[..., int]:
    """bfi, bit by bit."""

    def of(a: int, b: int, at: int, count: int) -> int:
        for n in range(count & 255):
            if (at & 255) + n < bits:
                place = (at & 255) + n
                b = b & ~(1 << place) | (a >> n & 1) << place
        return b

    return of


def highest(bits: int, *, sign: bool, shift: bool = False) -> Callable[..., int]:
    """bfind, bit by bit."""

    def of(a: int) -> int:
        if sign and a >> (bits - 1):
            a = ~a % (1 << bits)
        found = max((n for n in range(bits) if a >> n & 1), default=-1)
        return bits - 1 - found if shift and found >= 0 else found

    return of


def wide_only(bits: int) -> Iterator[Case]:
    """Bits within words of 32 and 64 bits."""
    u, s, b = f"u{bits}", f"s{bits}", f"b{bits}"
    yield Case(f"popc.{b} %d, %a;", "u32", u, lambda a: a.bit_count())
    yield Case(f"clz.{b} %d, %a;", "u32", u, lambda a: bits - a.bit_length())
    yield Case(f"brev.{b} %d, %a;", u, u, lambda a: sum((a >> n & 1) << (bits - 1 - n) for n in range(bits)))
    yield Case(f"bfind.{u} %d, %a;", "u32", u, highest(bits, sign=False))
    yield Case(f"bfind.{s} %d, %a;", "u32", u, highest(bits, sign=True))
    yield Case(f"bfind.shiftamt.{u} %d, %a;", "u32", u, highest(bits, sign=False, shift=True))
    yield Case(f"bfe.{u} %d, %a, %b, %c;", u, f"{u} u32 u32", extracted(bits, sign=False))
    yield Case(f"bfe.{s} %d, %a, %b, %c;", u, f"{u} u32 u32", extracted(bits, sign=True))
    yield Case(f"bfe.{s} %d, %a, 3, 7;", u, u, lambda a: extracted(bits, sign=True)(a, 3, 7))
    yield Case(f"bfe.{u} %d, %a, 3, 7;", u, u, lambda a: a >> 3 & 127)
    yield Case(f"bfe.{u} %d, %a, 20, 0;", u, u, lambda a: 0)
    yield Case(f"bfi.{b} %d, %a, %b, %c, %e;", u, f"{u} {u} u32 u32", inserted(bits))
    yield Case(f"bfi.{b} %d, %a, %b, 5, 9;", u, f"{u} {u}", lambda a, b: inserted(bits)(a, b, 5, 9))


def permuted(a: int, b: int, selector: int) -> int:
    """prmt, byte by byte."""
    both = a | b << 32
    made = 0
    for n in range(4):
        nibble = selector >> 4 * n & 15
        byte = both >> 8 * (nibble & 7) & 255
        made |= (byte if nibble < 8 else 255 if byte & 128 else 0) << 8 * n
    return made


def chosen(mode: str) -> Callable[..., int]:
    """prmt by a mode: the bytes of each selector, highest first, from the tables of the PTX ISA."""
    tables = {
        "f4e": ("3210", "4321", "5432", "6543"),
        "b4e": ("5670", "6701", "7012", "0123"),
        "rc8": ("0000", "1111", "2222", "3333"),
        "ecl": ("3210", "3211", "3222", "3333"),
        "ecr": ("0000", "1110", "2210", "3210"),
        "rc16": ("1010", "3232", "1010", "3232"),
    }
    return lambda a, b, c: permuted(a, b, int(tables[mode][c & 3], 16))


THREE = "u32 u32 u32"
MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
HALVES = [
    Case("mov.b32 {%t0, %d}, %a;".replace("%t0", "_"), "u16", "u32", lambda a: a >> 16),
    Case("mov.b64 {%d, _}, %a;", "u32", "u64", lambda a: a),
    Case("mov.b64 %d, {%a, %b};", "u64", "u32 u32", lambda a, b: a | b << 32),
    Case("mov.b32 %d, {%a, %b};", "u32", "u16 u16", lambda a, b: a | b << 16),
    Case("prmt.b32 %d, %a, %b, %c;", "u32", "u32 u32 u32", permuted),
    *[Case(f"prmt.b32.{mode} %d, %a, %b, %c;", "u32", THREE, chosen(mode)) for mode in MODES],
    *[
        Case(
            f"lop3.b32 %d, %a, %b, %c, {table:#x};",
            "u32",
            "u32 u32 u32",
            lambda a, b, c, table=table: sum(
                (table >> (4 * (a >> n & 1) + 2 * (b >> n & 1) + (c >> n & 1)) & 1) << n for n in range(32)
            ),
        )
        for table in (0x00, 0xF8, 0x96, 0xCA, 0xE8, 0x1B, 0xFF)
    ],
    Case("shf.l.wrap.b32 %d, %a, %b, %c;", "u32", "u32 u32 u32", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32),
    Case("shf.r.wrap.b32 %d, %a, %b, %c;", "u32", "u32 u32 u32", lambda a, b, c: (b << 32 | a) >> (c & 31)),
    Case("shf.l.clamp.b32 %d, %a, %b, %c;", "u32", "u32 u32 u32", lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    Case("shf.r.clamp.b32 %d, %a, %b, %c;", "u32", "u32 u32 u32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    Case("add.cc.u32 %t0, %a, %b; addc.u32 %d, %c, 0;", "u32", "u32 u32 u32", lambda a, b, c: c + (a + b >> 32)),
    Case("sub.cc.u32 %t0, %a, %b; subc.u32 %d, %c, 0;", "u32", "u32 u32 u32", lambda a, b, c: c - (a < b)),
    Case(
        "add.cc.u32 %t0, %a, %b; addc.cc.u32 %t1, %a, %c; addc.u32 %d, 0, 0;",
        "u32",
        "u32 u32 u32",
        lambda a, b, c: a + c + (a + b >> 32) >> 32,
    ),
    Case(
        "sub.cc.u32 %t0, %a, %b; subc.cc.u32 %t1, %b, %c; subc.u32 %d, 0, 0;",
        "u32",
        "u32 u32 u32",
        lambda a, b, c: -int(b - c - (a < b) < 0),
    ),
    Case("mad.lo.cc.u32 %t0, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;", "u32", THREE, lambda a, b, c: a * b + c >> 32),
    Case("setp.lt.and.u32 %d, %a, %b, %c;", "pred", "u32 u32 pred", lambda a, b, c: a < b and c),
    Case("setp.lt.or.u32 %d, %a, %b, !%c;", "pred", "u32 u32 pred", lambda a, b, c: a < b or not c),
    Case("setp.ge.u32 %p0|%d, %a, %b;", "pred", "u32 u32", lambda a, b: a < b),
    Case("set.lt.u32.u32 %d, %a, %b;", "u32", "u32 u32", lambda a, b: -(a < b)),
    Case("xor.pred %d, %a, %b;", "pred", "pred pred", lambda a, b: bool(a) ^ bool(b)),
    Case("not.pred %d, %a;", "pred", "pred", lambda a: not a),
    Case("mov.pred %d, -1;", "pred", "u32", lambda a: 1),
    Case("add.u16x2 %d, %a, %b;", "u32", "u32 u32", lambda a, b: (a + b & 0xFFFF) | (a & ~0xFFFF) + (b & ~0xFFFF)),
    Case("max.s16x2 %d, %a, %b;", "u32", "u32 u32", lambda a, b: sum(
        (max(signed(a >> n & 0xFFFF, 16), signed(b >> n & 0xFFFF, 16)) & 0xFFFF) << n for n in (0, 16)
    )),
    Case("cvt.s64.s32 %d, %a;", "u64", "u32", lambda a: signed(a, 32)),
    Case("cvt.u64.u32 %d, %a;", "u64", "u32", lambda a: a),
    Case("cvt.s32.s8 %d, %a;", "u32", "u32", lambda a: signed(a & 255, 8)),
    Case("cvt.u16.u64 %d, %a;", "u16", "u64", lambda a: a),
    Case("cvt.sat.s16.s32 %d, %a;", "u16", "u32", lambda a: min(max(signed(a, 32), -(1 << 15)), (1 << 15) - 1)),
    Case("cvt.sat.u8.s32 %d, %a;", "u32", "u32", lambda a: min(max(signed(a, 32), 0), 255)),
    Case("bmsk.clamp.b32 %d, %a, %b;", "u32", "u32 u32", lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32)),
]  # fmt: skip

CASES = [*itertools.chain.from_iterable(map(arithmetic, (16, 32, 64))), *HALVES]


def values(kind: str, dice: random.Random) -> list[int]:
    """Edge values of a kind, and some others."""
    if kind == "pred":
        return [0, 1]
    bits = int(kind[1:])
    top = 1 << (bits - 1)
    edges = [0, 1, 2, 7, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
    return sorted({edge % (1 << bits) for edge in edges}) + [dice.getrandbits(bits) for _ in range(5)]


def operands(case: Case) -> list[tuple[int, ...]]:
    """Rows of operands; divisors are not 0."""
    dice = random.Random(case.text)
    choices = [values(kind.kind, dice) for kind in case.inputs]
    rows = list(itertools.product(*choices))
    if case.text.startswith(("div", "rem")):
        rows = [row for row in rows if row[1]]
    return rows if len(rows) <= 640 else dice.sample(rows, 640)


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_an_instruction(case: Case) -> None:
    rows = operands(case)
    outputs = [Value("d", case.to)]
    bits = 1 if case.to == "pred" else int(case.to[1:])
    got = run_module(case.ptx, case.inputs, outputs, rows)
    for row, (found,) in zip(rows, got, strict=True):
        assert found == int(case.of(*row)) % (1 << bits), [hex(word) for word in row]


def test_a_division_by_zero_is_found_and_does_not_stop() -> None:
    inputs, outputs = [Value("a", "u32"), Value("b", "u32")], [Value("d", "u32")]
    machine = Machine()
    ptx = module("div.u32 %d, %a, %b;", inputs, outputs)
    assert run_module(ptx, inputs, outputs, [(6, 3), (5, 0)], machine)[0] == [2]
    (finding,) = machine.report().findings
    assert finding.what == "a division by zero" and "div.u32 %d, %a, %b" in finding.where and finding.times == 1


@pytest.mark.parametrize(
    "text",
    ["mul24.lo.u32 %d, %a, %b;", "add.sat.s32 %d, %a, %b;", "dp4a.u32.u32 %d, %a, %b, %a;", "shl.b32 %d, %a, 1.5;"],
)
def test_what_is_not_known_is_refused_with_its_line(text: str) -> None:
    inputs, outputs = [Value("a", "u32"), Value("b", "u32")], [Value("d", "u32")]
    ptx = module(text, inputs, outputs)
    line = ptx[: ptx.index(text)].count("\n") + 1
    with pytest.raises(Unsupported, match=rf"kernel, line {line}: `{text.split(maxsplit=1)[0]}"):
        run_module(ptx, inputs, outputs, [(1, 2)])
