"""Operands of an instruction, made functions that read or write the registers of a wave.

An operand is a register, or a constant: small integers, some floats, and 32 bits behind the instruction. A constant of
an operand of 64 bits is extended by its sign; one of 32 bits of a vector operand b64 or u64 by zeros.
Source: AMD, "CDNA3 Instruction Set Architecture"; LLVM, "Syntax of AMDGPU Instruction Operands".
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.registers import EXEC, MASK32, RegisterFile, Registers, named, to_mask

ScalarSource = Callable[[RegisterFile], int]
VectorSource = Callable[[RegisterFile], Any]  #: [64] of a dtype, or one value for all lanes
FLOATS = ("0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494")
DTYPES: dict[str, np.dtype[Any]] = {
    "b16": np.dtype(np.uint16),
    "u16": np.dtype(np.uint16),
    "i16": np.dtype(np.int16),
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
}


def constant(text: str, bits: int, *, by_zeros: bool = False) -> int | None:
    """The bits of a constant; None for a register. `by_zeros`: how 32 bits are extended to 64."""
    if text in FLOATS:
        if bits != 32:
            raise Unsupported(f"the constant {text} in an operand of {bits} bits")
        return int.from_bytes(struct.pack("<f", float(text)), "little")
    try:
        value = int(text, 0)
    except ValueError:
        return None
    if bits == 64 and text.startswith("0x") and value > (MASK32 if by_zeros else MASK32 >> 1):
        raise Unsupported(f"the constant {text} in an operand of 64 bits: its extension depends on the instruction")
    return value & (1 << bits) - 1


def registers(text: str, count: int) -> Registers:
    """The registers of an operand that must be `count` registers.

    Raises:
        Unsupported: it is something else.
    """
    found = named(text)
    if found is None or found.count != count:
        raise Unsupported(f"operand {text}: {count} registers are expected")
    return found


def scalar_source(text: str, bits: int) -> ScalarSource:
    """Reads 32 or 64 bits of scalar registers, or a constant."""
    value = constant(text, bits)
    if value is not None:
        return lambda wave: value
    if text == "scc":
        return lambda wave: wave.scc
    first = registers(text, bits // 32).first
    if first == EXEC and bits == 64:
        return lambda wave: wave.exec
    return (lambda wave: wave.scalar[first]) if bits == 32 else (lambda wave: wave.pair(first))


def scalar_target(text: str, bits: int) -> Callable[[RegisterFile, int], None]:
    """Writes 32 or 64 bits to scalar registers."""
    found = registers(text, bits // 32)
    first, count = found.first, found.count
    if first == EXEC and count == 2:
        return RegisterFile.set_exec
    if first < EXEC and count == 1:

        def write(wave: RegisterFile, value: int) -> None:
            wave.scalar[first] = value

        return write
    return lambda wave, value: wave.set_scalar(first, value, count)


def vector_source(text: str, kind: str) -> VectorSource:
    """Reads lanes of a type: of vector registers, or one value for all lanes.

    Args:
        text: perhaps with the modifiers of floats: -v1, |v1|.
        kind: a key of DTYPES.
    """
    if kind == "f32" and constant(text, 32) is None and text[0] in "-|":
        return _modified(text)
    dtype = DTYPES[kind]
    bits = 8 * dtype.itemsize
    unsigned = np.dtype(f"<u{bits // 8}")
    value = constant(text, bits, by_zeros=kind in ("b64", "u64"))
    if value is not None:
        same = np.array(value, unsigned).view(dtype)[()]
        return lambda wave: same
    found = registers(text, max(bits // 32, 1))
    if found.vector:
        return _lanes(found.row, dtype)
    read = scalar_source(text, max(bits, 32))
    return lambda wave: np.array(read(wave) & (1 << bits) - 1, unsigned).view(dtype)[()]


def _lanes(row: int, dtype: np.dtype[Any]) -> VectorSource:
    """Reads lanes of a vector register, or of two."""
    if dtype.itemsize == 8:
        return lambda wave: wave.wide(row).view(dtype)
    if dtype.itemsize == 2:
        return lambda wave: wave.vector[row].astype(np.uint16).view(dtype)
    return lambda wave: wave.vector[row].view(dtype)


def _modified(text: str) -> VectorSource:
    negative, plain = text[0] == "-", text.removeprefix("-")
    absolute = plain.startswith("|")
    read = vector_source(plain.strip("|"), "f32")

    def modified(wave: RegisterFile) -> Any:
        value = np.abs(read(wave)) if absolute else read(wave)
        return -value if negative else value

    return modified


def vector_target(text: str, kind: str) -> Callable[[RegisterFile, Any], None]:
    """Writes the active lanes of vector registers; 16 bits fill the lower half, the upper becomes zero."""
    bits = 8 * DTYPES[kind].itemsize
    found = registers(text, max(bits // 32, 1))
    if not found.vector:
        raise Unsupported(f"{text} cannot take a value per lane")
    row = found.row
    if bits == 64:
        return lambda wave, value: wave.set_wide(row, value)
    if bits == 16:
        return lambda wave, value: wave.set_vector(row, value.view(np.uint16).astype(np.uint32))
    return lambda wave, value: wave.set_vector(row, value.view(np.uint32))


def mask_source(text: str) -> VectorSource:
    """Reads one bit per lane of a pair of scalar registers."""
    read = scalar_source(text, 64)
    return lambda wave: to_mask(read(wave))


def mask_target(text: str) -> Callable[[RegisterFile, int], None]:
    """Writes one bit per lane; bits of lanes that are not active become zero."""
    return scalar_target(text, 64)


def used(operands: tuple[str, ...]) -> frozenset[int]:
    """The numbers of all registers that some operands name."""
    found = [named(text.strip("-|").removeprefix("sext(").removesuffix(")").strip("|")) for text in operands]
    return frozenset(number for each in found if each is not None for number in each.numbers())
