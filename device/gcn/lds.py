"""Accesses to LDS, the memory that the waves of a workgroup share.

Source: AMD, "CDNA3 Instruction Set Architecture".
"""

import re
from typing import Any

import numpy as np

from nanokv.device.emulation.errors import MemoryFault, Unsupported
from nanokv.device.gcn.access import Step, extended
from nanokv.device.gcn.lanes import permute
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import registers, vector_source
from nanokv.device.gcn.outstanding import Operation, nothing
from nanokv.device.gcn.registers import LANES
from nanokv.device.gcn.wave import Wave

KINDS = {"u8": (1, ""), "i8": (1, "sbyte"), "u16": (2, ""), "i16": (2, "sshort")}
KINDS |= {f"b{bits}": (bits // 8, "") for bits in (8, 16, 32, 64, 96, 128)}


def _bytes_of(wave: Wave, addresses: Any, width: int) -> Any:
    """The index of each byte: [lanes, width].

    Raises:
        MemoryFault: a lane is not aligned (to 4 bytes at most), or lies outside of the workgroup's LDS.
    """
    if int(np.bitwise_or.reduce(addresses)) & min(width, 4) - 1:
        raise MemoryFault(f"LDS: {width} bytes at {addresses.tolist()}")
    if int(addresses.max()) + width > len(wave.workgroup.lds):
        raise MemoryFault(f"LDS: {width} bytes at {int(addresses.max())} of {len(wave.workgroup.lds)}")
    return addresses[:, None].astype(np.int64) + np.arange(width)


def _offsets(statement: Statement, width: int) -> list[int]:
    """One offset in bytes, or two that count in widths (st64: in 64 widths)."""
    modifiers = statement.modifiers
    if not re.search(r"2(st64)?_b", statement.name):
        return [int(modifiers.get("offset", "0"), 0)]
    unit = width * (64 if "st64" in statement.name else 1)
    return [int(modifiers.get(f"offset{n}", "0"), 0) * unit for n in range(2)]


def _shape(statement: Statement) -> tuple[int, str, list[int]]:
    match = re.fullmatch(r"ds_(?:read|write)(?:2|2st64)?_([bui]\d+)", statement.name)
    if match is None or match[1] not in KINDS:
        raise Unsupported("the kind of access to LDS")
    width, kind = KINDS[match[1]]
    return width, kind, _offsets(statement, width)


def read(statement: Statement) -> Step:
    """ds_read, ds_read2."""
    width, kind, offsets = _shape(statement)
    count = max(width // 4, 1)
    target = registers(statement.operands[0], count * len(offsets))
    place, row = vector_source(statement.operands[1], "u32"), target.row

    def issue(wave: Wave) -> None:
        acting, values = wave.active, np.zeros((target.count, LANES), np.uint32)
        for n, offset in enumerate(offsets if acting.any() else ()):
            found = wave.workgroup.lds[_bytes_of(wave, place(wave)[acting] + np.uint32(offset), width)]
            padded = np.zeros((len(found), 4 * count), np.uint8)
            padded[:, :width] = found
            values[n * count : (n + 1) * count, acting] = extended(padded.view(np.uint32).T, kind)

        def retire() -> None:
            np.copyto(wave.vector[row : row + target.count], values, where=acting)

        wave.lgkm.issue(Operation(nothing, retire, target.numbers()))

    return issue


def write(statement: Statement) -> Step:
    """ds_write, ds_write2."""
    width, _, offsets = _shape(statement)
    count = max(width // 4, 1)
    place = vector_source(statement.operands[0], "u32")
    rows = [registers(text, count).row for text in statement.operands[1:]]

    def issue(wave: Wave) -> None:
        acting = wave.active
        for row, offset in zip(rows if acting.any() else (), offsets, strict=False):
            where = _bytes_of(wave, place(wave)[acting] + np.uint32(offset), width)
            words = np.ascontiguousarray(wave.vector[row : row + count][:, acting].T)
            wave.workgroup.lds[where] = words.view(np.uint8)[:, :width]
        wave.lgkm.issue(Operation(nothing))

    return issue


def between_lanes(statement: Statement) -> Step:
    """ds_bpermute_b32: by the paths of LDS, without its memory."""
    into = registers(statement.operands[0], 1)
    moved = permute(statement)

    def issue(wave: Wave) -> None:
        values = moved(wave)
        acting = wave.active

        def retire() -> None:
            np.copyto(wave.vector[into.row], values, where=acting)

        wave.lgkm.issue(Operation(nothing, retire, into.numbers()))

    return issue


#: how names of instructions begin, and what makes a step of one
BUILDERS = {"ds_bpermute_b32": between_lanes, "ds_read": read, "ds_write": write}
