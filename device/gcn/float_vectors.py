"""Vector instructions on float32 that are more than a function of a lane's sources: division, pairs, matrices.

Source: AMD, "CDNA3 Instruction Set Architecture".
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.emulation.floats import from_bf16
from nanokv.device.gcn import floats
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import mask_source, mask_target, registers, scalar_source, vector_source, vector_target
from nanokv.device.gcn.registers import LANE, LANES, RegisterFile, to_bits
from nanokv.device.gcn.scalar import Operation

F32 = np.float32


# --- division: v_div_scale twice, v_rcp, steps of fused arithmetic, v_div_fmas, v_div_fixup ---
def scale(statement: Statement) -> Operation:
    """v_div_scale_f32."""
    target, out, *texts = statement.operands
    which, denominator, numerator = (vector_source(text, "f32") for text in texts)
    write, write_out = vector_target(target, "f32"), mask_target(out)

    def scaled(wave: RegisterFile) -> None:
        sources = (np.broadcast_to(read(wave), LANES) for read in (which, denominator, numerator))
        value, marks = floats.scaled(*sources)
        write(wave, value)
        write_out(wave, to_bits(marks & wave.active))

    return scaled


def fused_scaled(statement: Statement) -> Operation:
    """v_div_fmas_f32: a * b + c; where VCC is set, what v_div_scale has scaled by 2**64 is scaled back.

    c is the quotient so far, and says in which direction. With these factors a division as LLVM writes it is exact.
    """
    target, *texts = statement.operands
    one, two, three = (vector_source(text, "f32") for text in texts)
    marks, write = mask_source("vcc"), vector_target(target, "f32")

    def fused(wave: RegisterFile) -> None:
        quotient = three(wave)
        value = floats.fused(one(wave), two(wave), quotient)
        factor = np.where(floats.exponent(quotient) > 127, F32(2.0**64), F32(2.0**-64))
        write(wave, np.where(marks(wave), value * factor, value))

    return fused


# --- two float32 per lane ---
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_fma_f32": floats.fused,
}


def pair(statement: Statement) -> Operation:
    """v_pk_...: the lower and the upper half; op_sel and op_sel_hi choose the halves of each source."""
    function, (target, *texts) = FUNCTIONS[statement.name], statement.operands
    modifiers = {name: _flags(text) for name, text in statement.modifiers.items()}
    if modifiers.keys() - {"op_sel", "op_sel_hi", "neg_lo", "neg_hi"}:
        raise Unsupported(f"modifiers {sorted(modifiers)}")
    low, high = modifiers.get("op_sel", [0] * len(texts)), modifiers.get("op_sel_hi", [1] * len(texts))
    minus = modifiers.get("neg_lo", [0] * len(texts)), modifiers.get("neg_hi", [0] * len(texts))
    lower = [_half(text, half, sign) for text, half, sign in zip(texts, low, minus[0], strict=True)]
    upper = [_half(text, half, sign) for text, half, sign in zip(texts, high, minus[1], strict=True)]
    row = registers(target, 2).row

    def both(wave: RegisterFile) -> None:
        halves = [function(*[read(wave) for read in reads]) for reads in (lower, upper)]
        for n, value in enumerate(halves):
            wave.set_vector(row + n, np.broadcast_to(value, LANES).view(np.uint32))

    return both


def _flags(text: str) -> list[int]:
    return [int(flag) for flag in text.strip("[]").split(",")]


def _half(text: str, half: int, minus: int) -> Callable[[RegisterFile], Any]:
    """One of two float32 of a pair of registers."""
    found, sign = registers(text, 2), F32(-1 if minus else 1)
    if found.vector:
        row = found.row + half
        return lambda wave: wave.vector[row].view(F32) * sign
    bits = scalar_source(f"s{found.first + half}", 32)
    return lambda wave: np.array(bits(wave), np.uint32).view(F32)[()] * sign


# --- matrices ---
MATRICES = ("16x16x4_f32", "32x32x2_f32", "16x16x16_bf16", "32x32x8_bf16")


def multiply_matrices(statement: Statement) -> Operation:
    """v_mfma_f32_16x16x4_f32, 32x32x2_f32, 16x16x16_bf16, 32x32x8_bf16: D = A B + C, by all lanes, EXEC or not.

    With K numbers per lane, matrices of M columns and g = l // M, lane l holds A[l % M, K g + k] and B[K g + k, l % M]
    for each k, and of C and D the column l % M: four rows from 4 g on, of each block of 256 / M rows. The products are
    summed in float64 and rounded once; the hardware rounds more often.
    """
    target, first, second, third = statement.operands
    if statement.modifiers:
        raise Unsupported(f"modifiers {statement.modifiers}")
    count, read = (1, _float32) if statement.name.endswith("_f32") else (4, _bfloat16)
    width = max(count // 2, 1)
    edge = 32 if "_32x32x" in statement.name else 16
    groups, results = LANES // edge, edge * edge // LANES  # registers of a result
    into, one, two = registers(target, results).row, registers(first, width).row, registers(second, width).row
    start = None if third == "0" else registers(third, results).row
    column, group = LANE % edge, LANE // edge
    result = np.arange(results, dtype=np.uint32)[:, None]
    rows = 4 * groups * (result // 4) + 4 * group + result % 4
    inner = count * group + np.arange(count, dtype=np.uint32)[:, None]

    def multiplied(wave: RegisterFile) -> None:
        a, b, c = np.zeros((edge, groups * count)), np.zeros((groups * count, edge)), np.zeros((edge, edge))
        a[column, inner], b[inner, column] = read(wave, one), read(wave, two)
        if start is not None:
            c[rows, column] = wave.vector[start : start + results].view(F32)
        wave.vector[into : into + results] = (a @ b + c)[rows, column].astype(F32).view(np.uint32)

    return multiplied


def _float32(wave: RegisterFile, row: int) -> Any:
    """One number per lane: [1, 64]."""
    return wave.vector[row : row + 1].view(F32)


def _bfloat16(wave: RegisterFile, row: int) -> Any:
    """Four numbers per lane, the lower half of a register first: [4, 64]."""
    halves = [from_bf16(wave.vector[row + n // 2] >> np.uint32(16 * (n % 2)) & np.uint32(0xFFFF)) for n in range(4)]
    return np.stack(halves)


BUILDERS: Mapping[str, Callable[[Statement], Operation]] = {
    "v_div_scale_f32": scale,
    "v_div_fmas_f32": fused_scaled,
    **dict.fromkeys(FUNCTIONS, pair),
    **{f"v_mfma_f32_{sizes}": multiply_matrices for sizes in MATRICES},
}
