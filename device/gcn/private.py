"""Private memory of each lane (scratch), where functions keep registers of their callers.

Only addresses that are the same for all lanes: a frame's, in a scalar register, and an offset. Accesses count for VMCNT
as those to global memory do. Source: AMD, "CDNA3 Instruction Set Architecture" (FLAT, SCRATCH).
"""

import re

import numpy as np

from nanokv.device.emulation.errors import MemoryFault, Unsupported
from nanokv.device.gcn.access import Step
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import registers, scalar_source
from nanokv.device.gcn.outstanding import Operation
from nanokv.device.gcn.registers import LANES
from nanokv.device.gcn.wave import Wave

WORD_BYTES = 4
FIRST = 1 << 62  #: of the addresses that order accesses of one wave: above those of global memory


def access(statement: Statement) -> Step:
    """scratch_load_dword[xN] v0, off, s33 offset:4, and scratch_store_dword[xN] off, v0, s33 offset:4."""
    match = re.fullmatch(r"scratch_(load|store)_dword(?:x([234]))?", statement.name)
    if match is None or statement.modifiers.keys() - {"offset"}:
        raise Unsupported("the kind of access to private memory")
    is_load, count = match[1] == "load", int(match[2] or 1)
    data, lane_address = statement.operands[:2] if is_load else statement.operands[1::-1]
    if lane_address != "off":
        raise Unsupported("an address of private memory per lane")
    held = registers(data, count)
    frame = statement.operands[2]
    base = scalar_source("0" if frame == "off" else frame, 32)
    offset, row = int(statement.modifiers.get("offset", "0"), 0), held.row

    def issue(wave: Wave) -> None:
        at, acting = base(wave) + offset, wave.active
        first, rest = divmod(at, WORD_BYTES)
        if rest or first < 0 or first + count > len(wave.private):
            raise MemoryFault(f"private memory at {at}, of {len(wave.private) * WORD_BYTES} bytes")
        place = wave.private[first : first + count]
        span = FIRST + at, FIRST + at + count * WORD_BYTES
        values = np.zeros((count, LANES), np.uint32) if is_load else wave.vector[row : row + count].copy()

        def load() -> None:
            values[:] = place

        def store() -> None:
            np.copyto(place, values, where=acting)

        def retire() -> None:
            np.copyto(wave.vector[row : row + count], values, where=acting)

        if is_load:
            wave.issue(Operation(load, retire, range(held.first, held.first + count), span))
        else:
            wave.issue(Operation(store, span=span))

    return issue


BUILDERS = dict.fromkeys(("scratch_load_", "scratch_store_"), access)
