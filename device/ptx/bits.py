"""Logic, shifts, and bits within words (PTX ISA, "Logic and Shift Instructions", bfe, bfi, popc, clz, ...)."""

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import Array, size_of, unsigned
from nanokv.device.ptx.operands import Immediate, Instruction, Operand
from nanokv.device.ptx.writer import Writer, helper, known, opcode

_SYMBOLS = {"and": "&", "or": "|", "xor": "^"}


def whole(operand: Operand) -> int | None:
    """The number that an operand is, or None: it is a register."""
    if not isinstance(operand, Immediate):
        return None
    if operand.kind != "int":
        raise Unsupported(f"the number {operand.value}")
    return int(operand.value)


@opcode("and", "or", "xor")
def _logic(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    known(i, kind)
    a, b = (w.read(operand, _checked(kind)) for operand in i.operands[1:3])
    w.write(i.operands[0], f"{a} {_SYMBOLS[i.opcode]} {b}", kind)


def _checked(kind: str) -> str:
    if kind != "pred" and kind not in ("b16", "b32", "b64"):
        raise Unsupported(f".{kind}")
    return kind


@opcode("not")
def _not(w: Writer, i: Instruction) -> None:
    kind = _checked(i.modifiers[-1])
    known(i, kind)
    w.write(i.operands[0], f"~({w.read(i.operands[1], kind)})", kind)


@opcode("cnot")
def _cnot(w: Writer, i: Instruction) -> None:
    kind = _checked(i.modifiers[-1])
    known(i, kind)
    w.write(i.operands[0], f"({w.read(i.operands[1], kind)} == 0).astype(T{kind})", kind)


@helper
def shifted(a: Array, by: Array, left: bool) -> Array:
    """Shifts by 32-bit amounts. Those above the width are the width: zeros, or the sign."""
    bits = 8 * a.dtype.itemsize
    amount = np.minimum(by, np.uint32(bits)).astype(a.dtype)
    most = a.dtype.type(bits - 1)
    if left or a.dtype.kind == "u":
        made = a << np.minimum(amount, most) if left else a >> np.minimum(amount, most)
        return np.where(amount > most, a.dtype.type(0), made)
    return a >> np.minimum(amount, most)


@opcode("shl", "shr")
def _shift(w: Writer, i: Instruction) -> None:
    kind, by = i.modifiers[-1], i.operands[2]
    known(i, kind)
    left = i.opcode == "shl"
    kind = unsigned(kind) if left or kind[0] == "b" else kind
    value = w.read(i.operands[1], kind)
    if (amount := whole(by)) is not None and 0 <= amount < 8 * size_of(kind):
        w.write(i.operands[0], f"{value} {'<<' if left else '>>'} {w.constant(amount, kind)}", kind)
    else:
        w.write(i.operands[0], f"shifted({value}, {w.read(by, 'u32')}, {left})", kind)


@helper
def funnel(low: Array, high: Array, by: Array, left: bool, wrap: bool) -> Array:
    """A shift of two words; of the result the upper (left) or the lower one."""
    amount = (by & np.uint32(31) if wrap else np.minimum(by, np.uint32(32))).astype(np.uint64)
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    return ((both << amount) >> np.uint64(32) if left else both >> amount).astype(np.uint32)


@opcode("shf")
def _shf(w: Writer, i: Instruction) -> None:
    known(i, "l", "r", "wrap", "clamp", "b32")
    low, high, by = (w.read(operand, "u32") for operand in i.operands[1:4])
    made = f"funnel({low}, {high}, {by}, {i.modifiers[0] == 'l'}, {i.modifiers[1] == 'wrap'})"
    w.write(i.operands[0], made, "u32")


@helper
def extracted(a: Array, at: Array, count: Array) -> Array:
    """bfe: `count` bits from bit `at` on, filled with the sign of the field if the kind is signed."""
    bits, kind = 8 * a.dtype.itemsize, a.dtype.kind
    made = []
    for value, start, length in zip(
        a.tolist(), (at & np.uint32(255)).tolist(), (count & np.uint32(255)).tolist(), strict=True
    ):
        word = value % (1 << bits)
        found = (word >> start) & ((1 << length) - 1)
        if kind == "i" and length:
            sign = word >> min(start + length - 1, bits - 1) & 1
            present = max(min(length, bits - start), 0)
            if sign:
                found |= -1 << present
        made.append(found % (1 << bits))
    return np.array(made, f"u{a.dtype.itemsize}").view(a.dtype)


@opcode("bfe")
def _bfe(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    known(i, "u32", "s32", "u64", "s64")
    value, at, count = i.operands[1:4]
    bits = 8 * size_of(kind)
    if (
        isinstance(at, Immediate)
        and isinstance(count, Immediate)
        and count.value > 0
        and at.value + count.value <= bits
    ):
        first, length = int(at.value), int(count.value)
        left, right = w.constant(bits - first - length, unsigned(kind)), w.constant(bits - length, kind)
        moved = f"({w.read(value, unsigned(kind))} << {left})"
        w.write(i.operands[0], f"{moved} >> {right}" if kind[0] == "u" else f"{moved}.view(T{kind}) >> {right}", kind)
    else:
        w.write(i.operands[0], f"extracted({w.read(value, kind)}, {w.read(at, 'u32')}, {w.read(count, 'u32')})", kind)


@helper
def inserted(a: Array, b: Array, at: Array, count: Array) -> Array:
    """bfi: `count` bits of a in place of those of b from bit `at` on."""
    bits = 8 * a.dtype.itemsize
    made = []
    rows = zip(a.tolist(), b.tolist(), (at & np.uint32(255)).tolist(), (count & np.uint32(255)).tolist(), strict=True)
    for new, old, start, length in rows:
        field = ((1 << length) - 1) << start
        made.append((old & ~field | (new << start) & field) % (1 << bits))
    return np.array(made, a.dtype)


@opcode("bfi")
def _bfi(w: Writer, i: Instruction) -> None:
    known(i, "b32", "b64")
    kind = unsigned(i.modifiers[-1])
    new, old, at, count = i.operands[1:5]
    first, length = whole(at), whole(count)
    if first is not None and length is not None and first + length <= 8 * size_of(kind):
        field = ((1 << length) - 1) << first
        kept = f"{w.read(old, kind)} & {w.constant(~field, kind)}"
        moved = f"({w.read(new, kind)} << {w.constant(first, kind)}) & {w.constant(field, kind)}"
        w.write(i.operands[0], f"({kept}) | ({moved})", kind)
    else:
        parts = ", ".join([w.read(new, kind), w.read(old, kind), w.read(at, "u32"), w.read(count, "u32")])
        w.write(i.operands[0], f"inserted({parts})", kind)


@helper
def leading_zeros(a: Array) -> Array:
    """clz."""
    bits = 8 * a.dtype.itemsize
    return np.array([bits - value.bit_length() for value in a.tolist()], np.uint32)


@helper
def highest_bit(a: Array, as_shift: bool) -> Array:
    """bfind: where the highest bit stands that differs from the sign, or -1; with .shiftamt: how far from the top."""
    bits = 8 * a.dtype.itemsize
    found = [(value if value >= 0 else ~value).bit_length() - 1 for value in a.tolist()]
    return np.array([(bits - 1 - at if as_shift and at >= 0 else at) % (1 << 32) for at in found], np.uint32)


@helper
def reversed_bits(a: Array) -> Array:
    """brev."""
    bits = 8 * a.dtype.itemsize
    return np.array([int(f"{value:0{bits}b}"[::-1], 2) for value in a.tolist()], a.dtype)


@opcode("popc", "clz", "brev")
def _bits_of(w: Writer, i: Instruction) -> None:
    known(i, "b32", "b64")
    value = w.read(i.operands[1], unsigned(i.modifiers[-1]))
    if i.opcode == "brev":
        w.write(i.operands[0], f"reversed_bits({value})", unsigned(i.modifiers[-1]))
    elif i.opcode == "clz":
        w.write(i.operands[0], f"leading_zeros({value})", "u32")
    else:
        w.write(i.operands[0], f"np.bitwise_count({value}).astype(Tu32)", "u32")


@opcode("bfind")
def _bfind(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    known(i, "shiftamt", "u32", "s32", "u64", "s64")
    w.write(i.operands[0], f"highest_bit({w.read(i.operands[1], kind)}, {'shiftamt' in i.modifiers})", "u32")


@helper
def any_logic(a: Array, b: Array, c: Array, table: int) -> Array:
    """lop3: for each bit, the bit of the table that the bits of a, b and c name."""
    made = np.zeros_like(a)
    for n in range(8):
        if table >> n & 1:
            made |= (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
    return made


@opcode("lop3")
def _lop3(w: Writer, i: Instruction) -> None:
    known(i, "b32")
    table = whole(i.operands[4])
    if table is None:
        raise Unsupported(f"the table {i.operands[4]}")
    a, b, c = (w.read(operand, "u32") for operand in i.operands[1:4])
    w.write(i.operands[0], f"any_logic({a}, {b}, {c}, {table})", "u32")


#: mode -> for each selector 0..3 the four bytes, lowest first, of which 0-3 are of a and 4-7 of b
_PERMUTATIONS = {
    "f4e": [[n + m for m in range(4)] for n in range(4)],
    "b4e": [[(n - m) % 8 for m in range(4)] for n in range(4)],
    "rc8": [[n] * 4 for n in range(4)],
    "ecl": [[max(n, m) for m in range(4)] for n in range(4)],
    "ecr": [[min(n, m) for m in range(4)] for n in range(4)],
    "rc16": [[2 * (n & 1), 2 * (n & 1) + 1] * 2 for n in range(4)],
}


@helper
def permuted(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """prmt: bytes of two words, by the nibbles of a third (whose upper bit asks for the sign), or by a mode."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    made = np.zeros_like(a)
    table = np.array(_PERMUTATIONS[mode], np.uint32) if mode else None
    for n in range(4):
        nibble = (selector >> np.uint32(4 * n)) & np.uint32(15)
        which = nibble if table is None else table[selector & np.uint32(3), n]
        byte = (both >> ((which & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        made |= np.where(which & np.uint32(8), sign, byte) << np.uint32(8 * n)
    return made


@opcode("prmt")
def _prmt(w: Writer, i: Instruction) -> None:
    known(i, "b32", *_PERMUTATIONS)
    a, b, c = (w.read(operand, "u32") for operand in i.operands[1:4])
    mode = next((each for each in i.modifiers if each in _PERMUTATIONS), "")
    w.write(i.operands[0], f"permuted({a}, {b}, {c}, {mode!r})", "u32")


@opcode("bmsk")
def _bmsk(w: Writer, i: Instruction) -> None:
    known(i, "clamp", "b32")
    if "clamp" not in i.modifiers:
        raise Unsupported("without .clamp")
    at, count = (w.read(operand, "u32") for operand in i.operands[1:3])
    ones, zeros = w.constant(-1, "u32"), w.constant(0, "u32")
    field = f"(~shifted({ones}, {count}, True))"
    w.write(i.operands[0], f"shifted({field} | {zeros}, {at}, True)", "u32")
