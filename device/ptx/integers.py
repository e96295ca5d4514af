"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision")."""

from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import Array, is_float, size_of, unsigned
from nanokv.device.ptx.operands import Instruction
from nanokv.device.ptx.writer import Writer, helper, known, opcode

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
SYMBOLS = {"add": "+", "sub": "-", "mul": "*"}


def integer_kind(i: Instruction) -> str:
    """The kind of an integer instruction."""
    kind = i.modifiers[-1]
    if kind not in INTEGERS:
        raise Unsupported(f".{kind}")
    return kind


def sum_or_difference(w: Writer, i: Instruction) -> None:
    """add, sub, with .cc: the carry out goes into a flag; addc, subc: it comes in."""
    symbol = SYMBOLS[i.opcode[:3]]
    if i.modifiers in (("u16x2",), ("s16x2",)):
        halves = (f"{w.read(each, 'u32')}.view(Tu16)" for each in i.operands[1:3])
        w.write(i.operands[0], f"({f' {symbol} '.join(halves)}).view(Tu32)", "u32")
        return
    kind = integer_kind(i)
    known(i, kind, "cc")
    carries = i.opcode in ("addc", "subc")
    kind = unsigned(kind)
    a, b = w.let(w.read(i.operands[1], kind)), w.let(w.read(i.operands[2], kind))
    if not carries and "cc" not in i.modifiers:
        w.write(i.operands[0], f"{a} {symbol} {b}", kind)
        return
    carry = f"W.carry.astype(T{kind})" if carries else w.constant(0, kind)
    made = w.let(f"{a} {symbol} {b} {symbol} {carry}")
    if "cc" in i.modifiers:
        if carries:
            flag = (
                f"where(W.carry, {made} <= {a}, {made} < {a})"
                if symbol == "+"
                else f"({a} < {b}) | ((({a} - {b}) < {carry}))"
            )
        else:
            flag = f"{made} < {a}" if symbol == "+" else f"{a} < {b}"
        set_carry(w, flag)
    w.write(i.operands[0], made, kind)


def set_carry(w: Writer, flag: str) -> None:
    """Assign the carry flag, in the lanes that execute this."""
    lanes = w.lanes()
    w.line(f"W.carry = {flag}" if lanes == "None" else f"W.carry = where({lanes}, {flag}, W.carry)")


@helper
def upper(a: Array, b: Array) -> Array:
    """The upper halves of products."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> bits).astype(a.dtype)
    return np.array([(x * y) >> bits for x, y in zip(a.tolist(), b.tolist(), strict=True)], a.dtype)


def product(w: Writer, i: Instruction, kind: str) -> tuple[str, str]:
    """An expression of the product of operands 1 and 2 by .lo, .hi or .wide, and its kind."""
    if "wide" in i.modifiers:
        wide = f"{kind[0]}{16 * size_of(kind)}"
        if size_of(kind) == 8:
            raise Unsupported(f".wide.{kind}")
        a, b = (w.read(operand, kind) for operand in i.operands[1:3])
        return f"{a}.astype(T{wide}) * {b}.astype(T{wide})", wide
    if "hi" in i.modifiers:
        return f"upper({w.read(i.operands[1], kind)}, {w.read(i.operands[2], kind)})", kind
    if "lo" not in i.modifiers:
        raise Unsupported("neither .lo nor .hi nor .wide")
    kind = unsigned(kind)
    return f"{w.read(i.operands[1], kind)} * {w.read(i.operands[2], kind)}", kind


def multiply(w: Writer, i: Instruction) -> None:
    """mul.lo, mul.hi, mul.wide."""
    kind = integer_kind(i)
    known(i, kind, "lo", "hi", "wide")
    w.write(i.operands[0], *product(w, i, kind))


@opcode("mad", "madc")
def _mad(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    if is_float(kind):  # mad.rn.f32 is fma
        from nanokv.device.ptx.floats import fused

        fused(w, i)
        return
    known(i, integer_kind(i), "lo", "hi", "wide", "cc")
    expression, wide = product(w, i, kind)
    made_kind = unsigned(wide)
    factor = w.let(f"({expression}).view(T{made_kind})" if wide[0] == "s" else expression)
    addend = w.let(w.read(i.operands[3], made_kind))
    carried = f" + W.carry.astype(T{made_kind})" if i.opcode == "madc" else ""
    made = w.let(f"{factor} + {addend}{carried}")
    if "cc" in i.modifiers:
        flag = f"{made} < {addend}"
        set_carry(w, f"where(W.carry, {made} <= {addend}, {flag})" if carried else flag)
    w.write(i.operands[0], made, made_kind)


@helper
def divisor(w: "Warp", i: Instruction, lanes: Array | None, b: Array) -> Array:
    """b, with ones in place of zeros. A lane that divides by zero is a finding: PTX leaves the result undefined."""
    zero = b == 0
    if zero.any():
        if (zero if lanes is None else zero & lanes).any():
            w.found("a division by zero", i.about)
        return np.where(zero, np.ones_like(b), b)
    return b


@helper
def quotient(a: Array, b: Array) -> Array:
    """Signed quotients, towards zero; the least number by -1 is itself, as in hardware."""
    made = np.where(b == -1, -a, a // np.where(b == -1, 1, b))
    return np.where((b != -1) & (a % np.where(b == -1, 1, b) != 0) & ((a < 0) != (b < 0)), made + 1, made).astype(
        a.dtype
    )


@helper
def remainder(a: Array, b: Array) -> Array:
    """Signed remainders, with the sign of the dividend."""
    return np.where(b == -1, 0, np.fmod(a, np.where(b == -1, 1, b))).astype(a.dtype)


def divide(w: Writer, i: Instruction) -> None:
    """div and rem of integers."""
    kind = integer_kind(i)
    known(i, kind)
    a = w.read(i.operands[1], kind)
    b = f"divisor(W, {w.keep(i)}, {w.lanes()}, {w.read(i.operands[2], kind)})"
    if kind[0] == "u":
        w.write(i.operands[0], f"{a} // {b}" if i.opcode == "div" else f"{a} % {b}", kind)
    else:
        w.write(i.operands[0], f"{'quotient' if i.opcode == 'div' else 'remainder'}({a}, {b})", kind)


opcode("rem")(divide)
opcode("addc", "subc")(sum_or_difference)


def least_or_most(w: Writer, i: Instruction) -> None:
    """min and max of integers."""
    kind = i.modifiers[-1]
    known(i, kind)
    a, b = i.operands[1], i.operands[2]
    if kind in ("u16x2", "s16x2"):
        half = "u16" if kind[0] == "u" else "s16"
        halves = ", ".join(f"{w.read(each, 'u32')}.view(T{half})" for each in (a, b))
        w.write(i.operands[0], f"np.{i.opcode}imum({halves}).view(Tu32)", "u32")
        return
    w.write(i.operands[0], f"np.{i.opcode}imum({w.read(a, kind)}, {w.read(b, kind)})", integer_kind(i))


def negative(w: Writer, i: Instruction) -> None:
    """neg of integers."""
    known(i, integer_kind(i))
    w.write(i.operands[0], f"-{w.read(i.operands[1], i.modifiers[-1])}", i.modifiers[-1])


def absolute(w: Writer, i: Instruction) -> None:
    """abs of integers."""
    known(i, integer_kind(i))
    w.write(i.operands[0], f"np.abs({w.read(i.operands[1], i.modifiers[-1])})", i.modifiers[-1])


@opcode("sad")
def _sad(w: Writer, i: Instruction) -> None:
    kind = integer_kind(i)
    known(i, kind)
    a, b = w.let(w.read(i.operands[1], kind)), w.let(w.read(i.operands[2], kind))
    c, word = w.read(i.operands[3], unsigned(kind)), f"T{unsigned(kind)}"
    w.write(
        i.operands[0],
        f"{c} + where({a} < {b}, {b}.view({word}) - {a}.view({word}), {a}.view({word}) - {b}.view({word}))",
        unsigned(kind),
    )


@opcode("mul24", "mad24")
def _mul24(w: Writer, i: Instruction) -> None:
    raise Unsupported("multiplication of 24 bits")


@opcode("selp")
def _selp(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    known(i, kind)
    chosen = w.read(i.operands[3], "pred")
    w.write(i.operands[0], f"where({chosen}, {w.read(i.operands[1], kind)}, {w.read(i.operands[2], kind)})", kind)


@opcode("mov")
def _mov(w: Writer, i: Instruction) -> None:
    to, of = i.operands
    kind = i.modifiers[-1]
    known(i, kind)
    parts, sources = w.items(to), w.items(of)
    if len(parts) > 1:  # one word into several
        bits = 8 * size_of(kind) // len(parts)
        found = w.let(w.read(of, unsigned(kind)))
        for n, part in enumerate(parts):
            amount = w.constant(n * bits, unsigned(kind))
            w.write(part, f"({found} >> {amount}).astype(Tu{bits})", f"u{bits}")
    elif len(sources) > 1:  # several words into one
        bits = 8 * size_of(kind) // len(sources)
        words = [
            f"({w.read(part, f'u{bits}')}.astype(T{unsigned(kind)}) << {w.constant(n * bits, unsigned(kind))})"
            for n, part in enumerate(sources)
        ]
        w.write(to, " | ".join(words), unsigned(kind))
    else:
        w.write(parts[0], w.read(sources[0], kind), kind)
