"""What crosses lanes, or takes a part of a register: DPP, SDWA, readlane, bpermute, mbcnt.

A DPP operand reads another lane of the same row of sixteen (or of the row before). A lane without a source (it lies
outside of the row, or does not act) keeps its target; with bound_ctrl it takes a zero. Rows and banks of four lanes
that the masks exclude are not written.
Source: AMD, "CDNA3 Instruction Set Architecture"; LLVM, "Syntax of AMDGPU
Instruction Modifiers".
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import (
    DTYPES,
    registers,
    scalar_source,
    scalar_target,
    vector_source,
    vector_target,
)
from nanokv.device.gcn.registers import LANE, LANES, Mask, RegisterFile, to_mask
from nanokv.device.gcn.scalar import Operation, lowest_bit

Lanes = npt.NDArray[np.int64]
VectorWrite = Callable[[RegisterFile, Any], None]
NOBODY = -1
ROW = 16
INDEX = LANE.astype(np.int64)


# --- DPP ---
def _shifted(by: int, width: int) -> Lanes:
    """The lane `by` below, within groups of `width` lanes."""
    within = INDEX % width - by
    return np.where((within >= 0) & (within < width), INDEX - by, NOBODY)


CONTROLS: dict[str, Callable[[int], Lanes]] = {
    "row_mirror": lambda _: INDEX - INDEX % ROW + ROW - 1 - INDEX % ROW,
    "row_half_mirror": lambda _: INDEX - INDEX % 8 + 7 - INDEX % 8,
    "row_shr": lambda by: _shifted(by, ROW),
    "row_shl": lambda by: _shifted(-by, ROW),
    "row_ror": lambda by: INDEX - INDEX % ROW + (INDEX % ROW - by) % ROW,
    "row_newbcast": lambda lane: INDEX - INDEX % ROW + lane,
    "wave_shr": lambda by: _shifted(by, LANES),
    "wave_shl": lambda by: _shifted(-by, LANES),
    # the last lane of a row for all lanes of the next one; lane 31 for the upper half
    "row_bcast": lambda last: np.where(last < INDEX, (INDEX // (last + 1)) * (last + 1) - 1, NOBODY),
}


def sources_of(control: str, value: str) -> Lanes:
    """The lane that each lane reads; NOBODY: none."""
    if control == "quad_perm":
        order = np.array([int(each) for each in value.strip("[]").split(",")])
        return INDEX - INDEX % 4 + order[INDEX % 4]
    if control not in CONTROLS or (control == "row_bcast" and value not in ("15", "31")):
        raise Unsupported(f"{control}:{value}")
    return CONTROLS[control](int(value or 0))


def moved_source(
    statement: Statement, text: str, kind: str, write: VectorWrite
) -> tuple[Callable[[RegisterFile], Any], VectorWrite]:
    """The first source of a DPP instruction, and the writing of its target."""
    modifiers = dict(statement.modifiers)
    row_mask, bank_mask = int(modifiers.pop("row_mask", "0xf"), 0), int(modifiers.pop("bank_mask", "0xf"), 0)
    zeros = modifiers.pop("bound_ctrl", "") in ("0", "1")  # both spell the bit that is set
    ((control, value),) = modifiers.items()
    source = sources_of(control, value)
    reaches, safe = source != NOBODY, np.maximum(source, 0)
    enabled: Mask = (row_mask >> (LANE // ROW) & 1 == 1) & (bank_mask >> (LANE % ROW // 4) & 1 == 1)
    plain = vector_source(text, kind)
    if not registers(text, max(DTYPES[kind].itemsize // 4, 1)).vector:
        raise Unsupported(f"DPP of {text}")

    def read(wave: RegisterFile) -> Any:
        value = plain(wave)[safe]
        return np.where(reaches & wave.active[safe], value, value.dtype.type(0))

    def masked(wave: RegisterFile, value: Any) -> None:
        active, all_active = wave.active, wave.all_active
        wave.active = active & enabled & (zeros | (reaches & active[safe]))
        wave.all_active = False
        write(wave, value)
        wave.active, wave.all_active = active, all_active

    return read, masked


# --- SDWA ---
PARTS = {"DWORD": (0, 32), **{f"BYTE_{n}": (8 * n, 8) for n in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16)}


def selected_source(statement: Statement, number: int, text: str, kind: str) -> Callable[[RegisterFile], Any]:
    """A byte or a word of a register, extended by zeros or (sext) its sign."""
    first, bits = PARTS[statement.modifiers.get(f"src{number}_sel", "DWORD")]
    inner = re.fullmatch(r"sext\((.*)\)", text)
    read = vector_source(inner[1] if inner else text, "u32")
    sign = np.uint32(1 << bits - 1 if inner else 0)
    dtype = DTYPES[kind]

    def part(wave: RegisterFile) -> Any:
        field = read(wave) >> np.uint32(first) & np.uint32((1 << bits) - 1)
        field = (field ^ sign) - sign
        return field.view(dtype) if dtype.itemsize == 4 else field.astype(np.uint16).view(dtype)

    return part


def writes_part(statement: Statement) -> bool:
    """Whether only a byte or a word of the target holds the result."""
    return statement.modifiers.get("dst_sel", "DWORD") != "DWORD"


def selected_target(statement: Statement) -> VectorWrite:
    """Writes a byte or a word of the target; the rest becomes zero, or is preserved."""
    first, bits = PARTS[statement.modifiers["dst_sel"]]
    unused = statement.modifiers.get("dst_unused", "UNUSED_PAD")
    if unused not in ("UNUSED_PAD", "UNUSED_PRESERVE"):
        raise Unsupported(unused)
    read, write = vector_source(statement.operands[0], "u32"), vector_target(statement.operands[0], "u32")
    field = np.uint32((1 << bits) - 1 << first)

    def part(wave: RegisterFile, value: Any) -> None:
        placed = value.astype(np.uint32) << np.uint32(first) & field
        write(wave, placed | (read(wave) & ~field) if unused == "UNUSED_PRESERVE" else placed)

    return part


# --- moves between lanes and scalars ---
def read_first_lane(statement: Statement) -> Operation:
    """v_readfirstlane_b32: the value of the first lane that acts; of lane 0 if none does."""
    target, text = statement.operands
    write, row = scalar_target(target, 32), registers(text, 1).row

    def read(wave: RegisterFile) -> None:
        lane = lowest_bit(wave.exec) if wave.exec else 0
        write(wave, int(wave.vector[row, lane]))

    return read


def read_lane(statement: Statement) -> Operation:
    """v_readlane_b32: whether the lane acts or not."""
    target, text, lane = statement.operands
    write, row, which = scalar_target(target, 32), registers(text, 1).row, scalar_source(lane, 32)
    return lambda wave: write(wave, int(wave.vector[row, which(wave) % LANES]))


def write_lane(statement: Statement) -> Operation:
    """v_writelane_b32: whether the lane acts or not."""
    target, text, lane = statement.operands
    row, read, which = registers(target, 1).row, scalar_source(text, 32), scalar_source(lane, 32)

    def written(wave: RegisterFile) -> None:
        wave.vector[row, which(wave) % LANES] = read(wave)

    return written


def count_below(statement: Statement) -> Operation:
    """v_mbcnt_lo, v_mbcnt_hi: ones of a mask below the lane (of its lower or upper half), plus a number."""
    target, mask, base = statement.operands
    upper = "_hi_" in statement.name
    bits_of, add, write = scalar_source(mask, 32), vector_source(base, "u32"), vector_target(target, "u32")
    half = LANES // 2

    def counted(wave: RegisterFile) -> None:
        bits = bits_of(wave)
        ones = to_mask(bits << half if upper else bits)
        write(wave, (np.cumsum(ones) - ones).astype(np.uint32) + add(wave))

    return counted


def permute(statement: Statement) -> Callable[[RegisterFile], Any]:
    """ds_bpermute_b32: each lane reads the lane that its address / 4 names; zero, if that one does not act."""
    _, address, data = statement.operands
    offset = int(statement.modifiers.get("offset", "0"), 0)
    where, values = vector_source(address, "u32"), vector_source(data, "u32")

    def moved(wave: RegisterFile) -> Any:
        lane = (where(wave) + np.uint32(offset)) // np.uint32(4) % np.uint32(LANES)
        return np.where(wave.active[lane], values(wave)[lane], np.uint32(0))

    return moved


BUILDERS: dict[str, Callable[[Statement], Operation]] = {
    "v_readfirstlane_b32": read_first_lane,
    "v_readlane_b32": read_lane,
    "v_writelane_b32": write_lane,
    "v_mbcnt_lo_u32_b32": count_below,
    "v_mbcnt_hi_u32_b32": count_below,
}
