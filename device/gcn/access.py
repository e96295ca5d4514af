"""Loads, stores and atomics on global memory: by address, by buffer, and into scalar registers.

An address is a pair of vector registers, or a scalar base and an offset per lane. A buffer has a base and a size; lanes
outside of it load zeros and store nothing, which Triton uses for masks.
Source: AMD, "CDNA3 Instruction Set Architecture".
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.memory import Addresses, Dwords
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import registers, scalar_source, vector_source
from nanokv.device.gcn.outstanding import Operation
from nanokv.device.gcn.registers import FIRST_VECTOR, LANES, MASK32, Mask
from nanokv.device.gcn.wave import Wave

Step = Callable[[Wave], None]
Where = Callable[[Wave], tuple[Addresses, Mask]]  #: the address of each active lane, and which lanes these are

WIDTHS = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2,
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
}  # fmt: skip
KNOWN_MODIFIERS = {"offset", "offen", "sc0", "sc1", "nt"}


def span_of(addresses: Addresses, width: int) -> tuple[int, int]:
    """(first, end) of what an access touches."""
    return int(addresses.min()), int(addresses.max()) + width


# --- where ---
def by_address(statement: Statement, vector: str, scalar: str) -> Where:
    """global_...: v[0:1], off; or an offset of 32 bits in v0, and a base in s[0:1]."""
    offset = np.uint64(int(statement.modifiers.get("offset", "0"), 0) & (1 << 64) - 1)
    if scalar == "off":
        whole = vector_source(vector, "u64")
        return lambda wave: (whole(wave)[wave.active] + offset, wave.active)
    part, base = vector_source(vector, "u32"), scalar_source(scalar, 64)
    return lambda wave: (
        np.broadcast_to(part(wave), LANES)[wave.active].astype(np.uint64) + (np.uint64(base(wave)) + offset),
        wave.active,
    )


def by_buffer(statement: Statement, vector: str, descriptor: str, scalar: str) -> Where:
    """buffer_...: a descriptor in four scalar registers, an offset in a vector register (offen) and a scalar one."""
    first = registers(descriptor, 4).first
    inner = int(statement.modifiers.get("offset", "0"), 0)
    per_lane = vector_source(vector, "u32") if "offen" in statement.modifiers else None
    outer = scalar_source(scalar, 32)

    def where(wave: Wave) -> tuple[Addresses, Mask]:
        low, high, size, _ = wave.scalar[first : first + 4]
        if high >> 16:
            raise Unsupported("a buffer with a stride, or swizzled")
        offset = np.full(LANES, inner, np.uint64)
        if per_lane is not None:
            offset += per_lane(wave)
        inside = wave.active & (offset + np.uint64(outer(wave)) < np.uint64(size))
        base = np.uint64((low | high << 32) + outer(wave))
        return offset[inside] + base, inside

    return where


def _where(statement: Statement, first: int) -> Where:
    """Where an instruction accesses memory; its place is named from operand `first` on."""
    unknown = statement.modifiers.keys() - KNOWN_MODIFIERS
    if unknown:
        raise Unsupported(f"modifiers {sorted(unknown)}")
    texts = statement.operands[first:]
    if statement.name.startswith("buffer_"):
        return by_buffer(statement, texts[0], texts[1], texts[2])
    return by_address(statement, texts[0], texts[1])


# --- vector loads and stores ---
def _kind(statement: Statement) -> tuple[str, int, str]:
    """The kind of access, its bytes per lane, and which half of a register has it: "", "d16" or "d16_hi"."""
    match = re.fullmatch(r"(?:global|buffer)_(?:load|store)_([a-z]+(?:x[234])?)(?:_(d16|d16_hi))?", statement.name)
    if match is None or match[1] not in WIDTHS:
        raise Unsupported("the kind of access")
    return match[1], WIDTHS[match[1]], match[2] or ""


def extended(values: Dwords, kind: str) -> Dwords:
    """Bytes and shorts with a sign are extended by it."""
    if kind in ("sbyte", "sshort"):
        sign = np.uint32(0x80 if kind == "sbyte" else 0x8000)
        return (values ^ sign) - sign
    return values


def load(statement: Statement) -> Step:
    """global_load, buffer_load."""
    kind, width, half = _kind(statement)
    count = max(width // 4, 1)
    target = registers(statement.operands[0], count)
    if not target.vector:
        raise Unsupported("a load into scalar registers")
    where, row, system = _where(statement, 1), target.row, _system(statement)

    def issue(wave: Wave) -> None:
        addresses, lanes = where(wave)
        acting = wave.active
        values = np.zeros((count, LANES), np.uint32)

        def perform() -> None:
            values[:, lanes] = extended(wave.memory.load(wave, addresses, width, system), kind)

        def retire() -> None:
            into, new = wave.vector[row : row + count], values
            if half:
                keep, shift = np.uint32(0xFFFF0000 if half == "d16" else 0xFFFF), np.uint32(0 if half == "d16" else 16)
                new = into & keep | (values & np.uint32(0xFFFF)) << shift
            np.copyto(into, new, where=acting)

        if len(addresses):
            wave.memory.host.check(addresses, width)
            span = span_of(addresses, width)
        else:
            perform, span = _nothing, (0, 0)
        wave.issue(Operation(perform, retire, range(target.first, target.first + count), span))

    return issue


def store(statement: Statement) -> Step:
    """global_store, buffer_store."""
    _, width, half = _kind(statement)
    buffer = statement.name.startswith("buffer_")
    count = max(width // 4, 1)
    data = registers(statement.operands[0 if buffer else 1], count)
    texts = statement.operands if buffer else (statement.operands[1], statement.operands[0], *statement.operands[2:])
    where, row, system = _where(statement._replace(operands=texts), 1), data.row, _system(statement)
    shift = np.uint32(16 if half == "d16_hi" else 0)

    def issue(wave: Wave) -> None:
        addresses, lanes = where(wave)
        if not len(addresses):
            wave.issue(Operation(_nothing, span=(0, 0)))
            return
        values = wave.vector[row : row + count][:, lanes] >> shift
        wave.memory.host.check(addresses, width)
        wave.issue(wave.memory.store(wave, addresses, width, values, system))

    return issue


def _nothing() -> None:
    """No lane accesses memory."""


def _system(statement: Statement) -> bool:
    """Whether an access is coherent with all agents."""
    return "sc0" in statement.modifiers and "sc1" in statement.modifiers


# --- atomics ---
#: as `emulation.host_memory.modified` names them, where the ISA has another name
OPERATIONS = {
    "swap": "exch", "cmpswap": "cas", "smin": "min.s", "smax": "max.s", "umin": "min.u", "umax": "max.u",
}  # fmt: skip


def atomic(statement: Statement) -> Step:
    """global_atomic_OPERATION[_x2]: sc0 means that the old value is returned, sc1 system scope."""
    match = re.fullmatch(r"global_atomic_([a-z]+)(_x2)?", statement.name)
    if match is None:
        raise Unsupported("the kind of atomic")
    operation, count = OPERATIONS.get(match[1], match[1]), 2 if match[2] else 1
    compares = match[1] == "cmpswap"
    returns = "sc0" in statement.modifiers
    texts = statement.operands if returns else ("", *statement.operands)
    target = registers(texts[0], count) if returns else None
    data = registers(texts[2], count * (1 + compares)).row
    where = _where(statement._replace(operands=(texts[0], texts[1], *texts[3:])), 1)
    system = "sc1" in statement.modifiers

    def issue(wave: Wave) -> None:
        addresses, lanes = where(wave)
        if not len(addresses):
            wave.issue(Operation(_nothing, span=(0, 0)))
            return
        acting, size = np.flatnonzero(lanes), 4 * count
        wave.memory.host.check(addresses, size)
        words = wave.vector[data : data + (1 + compares) * count, acting].astype(np.uint64)
        values = words if count == 1 else words[::2] | words[1::2] << np.uint64(32)
        operands = values[::-1].T.tolist()  # of each lane; the expected value stands behind the new one
        old = np.zeros((count, LANES), np.uint32)

        def perform() -> None:
            for n, address, given in zip(acting, addresses.tolist(), operands, strict=True):
                was = wave.memory.atomic(wave, address, size, operation, given, system)
                old[0, n] = was & MASK32
                if count == 2:
                    old[1, n] = was >> 32

        def retire() -> None:
            if target is not None:
                np.copyto(wave.vector[target.row : target.row + count], old, where=lanes)

        written = range(target.first, target.first + count) if target is not None else range(0)
        wave.issue(Operation(perform, retire, written, span_of(addresses, size)))

    return issue


# --- caches ---
def write_back(statement: Statement) -> Step:
    """buffer_wbl2: what was stored before becomes visible to other agents once a wait has covered this."""
    system = _system(statement)
    return lambda wave: wave.issue(Operation(lambda: wave.memory.write_back(wave, system)))


def invalidate(statement: Statement) -> Step:
    """buffer_inv: later loads see what is in memory, not what was cached before."""
    system = _system(statement)
    return lambda wave: wave.memory.invalidate(wave, system)


# --- scalar loads ---
def scalar_load(statement: Statement) -> Step:
    """s_load_dword[xN]: the base in a pair of scalar registers, an offset in a constant or a register."""
    count = int(statement.name.partition("x")[2] or 1)
    target, base, offset = statement.operands
    into, pair, by = registers(target, count), scalar_source(base, 64), scalar_source(offset, 32)
    if into.first >= FIRST_VECTOR or statement.modifiers:
        raise Unsupported("operands of a scalar load")

    def issue(wave: Wave) -> None:
        address = pair(wave) + by(wave) & ~3
        lines = np.array([address + 4 * n for n in range(count)], np.uint64)
        wave.memory.host.check(lines, 4)
        values: list[Any] = wave.memory.host.read(lines, 4)[0].tolist()

        def retire() -> None:
            for n, value in enumerate(values):
                wave.scalar[into.first + n] = value

        wave.lgkm.issue(Operation(_nothing, retire, range(into.first, into.first + count), in_order=False))

    return issue


def is_access(name: str) -> bool:
    """Whether other waves may act between this instruction and the next one."""
    return name.startswith(("global_", "buffer_", "s_load_"))


#: how names of instructions begin, and what makes a step of one
BUILDERS = {
    "buffer_wbl2": write_back,
    "buffer_inv": invalidate,
    "global_atomic_": atomic,
    "global_load_": load,
    "buffer_load_": load,
    "global_store_": store,
    "buffer_store_": store,
    "s_load_dword": scalar_load,
}
