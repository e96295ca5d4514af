"""Matrices: mma.sync, ldmatrix, stmatrix, with fragments as the PTX ISA lays them out."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.emulation.floats import from_bf16
from nanokv.device.ptx.kinds import LANES, Array
from nanokv.device.ptx.lanes import all_together
from nanokv.device.ptx.numbers import to_f16
from nanokv.device.ptx.operands import Immediate, Instruction
from nanokv.device.ptx.writer import Writer, helper, known, opcode

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

_GROUP, _INNER = np.arange(LANES) >> 2, np.arange(LANES) & 3
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8}


def _elements(words: tuple[Array, ...], kind: str) -> Array:
    """The elements of a fragment: [register, lane, place in the register], the lowest bits first."""
    raw = np.stack(words)
    if kind == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[:, :, None]
    parts = raw.view(f"u{_BITS[kind] // 8}").reshape(len(words), LANES, -1)
    if kind == "bf16":
        return from_bf16(parts).astype(np.float64)
    return parts.view({"f16": np.float16, "s8": np.int8, "u8": np.uint8}[kind]).astype(np.float64)


@cache
def _places(registers: int, per: int, of_a: bool) -> Array:
    """Where in A, or in the transpose of B, each element of a fragment lies, as an index into the flat matrix."""
    register, lane, place = np.ogrid[:registers, :LANES, :per]
    group, inner = lane >> 2, lane & 3
    row = group + 8 * (register & 1) if of_a else group
    column = inner * per + place + 4 * per * (register >> 1 if of_a else register)
    made: Array = row * (per * registers * (2 if of_a else 4)) + column
    return made


_ROWS = np.stack([_GROUP + 8 * (n >> 1) for n in range(4)])  #: of the registers of C and D, if they have 32 bits
_COLUMNS = np.stack([_INNER * 2 + (n & 1) for n in range(4)])


@helper
def multiplied(
    a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...], kind_a: str, kind_b: str, to: str
) -> list[Array]:
    """m16n8kK, row by column. Products are exact and their sum is rounded once: a GPU's order of sums differs.

    Returns:
        The registers of D, as words.
    """
    per = 32 // _BITS[kind_a]  # elements in a register
    k = 2 * per * len(a)
    rows, columns = np.empty(16 * k), np.empty(8 * k)
    rows[_places(len(a), per, True)] = _elements(a, kind_a)
    columns[_places(len(b), per, False)] = _elements(b, kind_b)
    total = (rows.reshape(16, k) @ columns.reshape(8, k).T)[_ROWS, _COLUMNS]
    if to == "f16":
        halves = np.stack(c).view(np.float16).reshape(2, LANES, 2).transpose(0, 2, 1).reshape(4, LANES)
        made = to_f16(total + halves).astype(np.uint32)
        return [made[n] | (made[n + 1] << np.uint32(16)) for n in (0, 2)]
    dtype = np.dtype("i4") if to == "s32" else np.dtype("f4")
    value = total + np.stack(c).view(dtype)
    return list((value.astype(np.int64) if to == "s32" else value).astype(dtype).view(np.uint32))


#: shape -> registers of A and of B, by bits of an element
_SHAPES = {("m16n8k16", 16): (4, 2), ("m16n8k8", 16): (2, 1), ("m16n8k8", 32): (4, 2), ("m16n8k4", 32): (2, 1)}
_SHAPES |= {("m16n8k32", 8): (4, 2), ("m16n8k16", 8): (2, 1)}


@opcode("mma")
def _mma(w: Writer, i: Instruction) -> None:
    if i.modifiers[:2] != ("sync", "aligned") or len(i.modifiers) != 9 or i.modifiers[3:5] != ("row", "col"):
        raise Unsupported(f"mma.{'.'.join(i.modifiers)}")
    shape, to, kind_a, kind_b, of = i.modifiers[2], *i.modifiers[5:]
    if _SHAPES.get((shape, _BITS.get(kind_a, 0))) != (len(w.items(i.operands[1])), len(w.items(i.operands[2]))):
        raise Unsupported(f"mma of {shape}, {kind_a}")
    integers = kind_a in ("s8", "u8")
    if to != of or to not in (("s32",) if integers else ("f32", "f16") if kind_a == "f16" else ("f32",)):
        raise Unsupported(f"mma of {kind_a} into {to}")
    if _BITS[kind_a] != _BITS.get(kind_b) or (kind_a != kind_b and not integers):
        raise Unsupported(f"mma of {kind_a} and {kind_b}")
    all_together(w, i, Immediate(-1))
    a, b, c = (", ".join(w.read(part, "u32") for part in w.items(operand)) for operand in i.operands[1:4])
    made = w.let(f"multiplied(({a},), ({b},), ({c},), {kind_a!r}, {kind_b!r}, {to!r})")
    for n, register in enumerate(w.items(i.operands[0])):
        w.write(register, f"{made}[{n}]", "u32")


def _elements_of(w: "Warp", addresses: Array, n: int, trans: bool) -> tuple[Array, Array]:
    """Where in shared memory, in words of 16 bits, the two elements of each lane in the n-th matrix lie."""
    rows = addresses[8 * n : 8 * n + 8].astype(np.int64)
    if (rows % 16).any():
        w.misaligned(rows, 16)
    if int(rows.max()) + 16 > w.launch.shared_bytes:
        w.faulted(f"rows of a matrix at {rows.tolist()} in shared memory of {w.launch.shared_bytes} bytes")
    one, two = _GROUP, 2 * _INNER
    if trans:
        return rows[two] // 2 + one, rows[two + 1] // 2 + one
    return rows[one] // 2 + two, rows[one] // 2 + two + 1


@helper
def load_matrices(w: "Warp", addresses: Array, count: int, trans: bool, i: Instruction) -> list[Array]:
    """ldmatrix: matrices of 8 x 8 elements of 16 bits, whose rows lie at the addresses of eight lanes each."""
    w.about = i.about
    shared, made = w.cta.shared.view(np.uint16), []
    for n in range(count):
        first, second = _elements_of(w, addresses, n, trans)
        made.append(shared[first].astype(np.uint32) | (shared[second].astype(np.uint32) << np.uint32(16)))
    return made


@helper
def store_matrices(w: "Warp", addresses: Array, values: tuple[Array, ...], trans: bool, i: Instruction) -> None:
    """stmatrix."""
    w.about = i.about
    shared = w.cta.shared.view(np.uint16)
    for n, value in enumerate(values):
        first, second = _elements_of(w, addresses, n, trans)
        shared[first], shared[second] = value & np.uint32(0xFFFF), value >> np.uint32(16)


@opcode("ldmatrix", "stmatrix")
def _matrices(w: Writer, i: Instruction) -> None:
    known(i, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    loads = i.opcode == "ldmatrix"
    registers, address = w.items(i.operands[0 if loads else 1]), i.operands[1 if loads else 0]
    if f"x{len(registers)}" not in i.modifiers or not any(each.startswith("shared") for each in i.modifiers):
        raise Unsupported(f"{len(registers)} registers")
    all_together(w, i, Immediate(-1))
    where, trans = w.address(address), "trans" in i.modifiers
    if not loads:
        values = ", ".join(w.read(each, "u32") for each in registers)
        w.line(f"store_matrices(W, {where}, ({values},), {trans}, {w.keep(i)})")
        return
    made = w.let(f"load_matrices(W, {where}, {len(registers)}, {trans}, {w.keep(i)})")
    for n, register in enumerate(registers):
        w.write(register, f"{made}[{n}]", "u32")
