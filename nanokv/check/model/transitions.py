"""What must hold at each step of an execution.

Every write to a STATE word must be one of the transitions that `device/protocol/header.py` lists, epochs never go back
(I7), a pinned object never becomes DEAD, each HELD line of a ledger stands for a pin (I8), and whoever publishes pages
shares them with nobody (I1). What must hold when all has come to rest: `rest`.
"""

from collections.abc import Iterable
from functools import partial

from nanokv.check.report import CheckFailure
from nanokv.device.segment.layout import (
    DEAD,
    EPOCH_SHIFT,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    HEADER_BYTES,
    LOW32,
    PIN_HELD,
    READY,
    RESERVED,
    WORD,
    WRITING,
    unpack,
)
from nanokv.device.sim.simulation import Simulation
from nanokv.device.sim.world import SimulatedWorld

_NAMES = {RESERVED.value: "RESERVED", WRITING.value: "WRITING", READY.value: "READY", DEAD.value: "DEAD"}
_STEPS = {(RESERVED.value, WRITING.value), (WRITING.value, READY.value)}


def _said(word: int) -> str:
    state, pins, epoch = (unpack("STATE", name, word) for name in ("state", "pins", "epoch"))
    return f"({_NAMES.get(state, state)}, {pins}, {epoch})"


def _state_at(slot: int) -> int:
    """Where the STATE word of a slot lies in the header arena."""
    return slot * int(HEADER_BYTES.value) + int(H_STATE.value)


# --- while tasks run --------------------------------------------------------------------------
def watch_states(simulation: Simulation, world: SimulatedWorld) -> None:
    """Check every write to a STATE word, and to a line of a pin ledger, of the execution that begins."""
    for base in world.bases:
        headers = base + world.geometry.offsets["hdr_base"]
        for slot in range(world.geometry.hdr_count):
            address = headers + _state_at(slot)
            simulation.memory.watched[address] = partial(_check_step, simulation, world, headers, slot)
        for line in range(world.geometry.pin_slots):
            address = base + world.geometry.offsets["pin_base"] + line * WORD
            simulation.memory.watched[address] = partial(_check_line, simulation, world, base, address)


def _check_step(simulation: Simulation, world: SimulatedWorld, headers: int, slot: int, old: int, new: int) -> None:
    if new == old:  # a read-modify-write that only reads
        return
    if not _is_legal(old, new):
        raise CheckFailure(f"the STATE word of slot {slot} went from {_said(old)} to {_said(new)}")
    if unpack("STATE", "pins", new) < unpack("STATE", "pins", old):
        base = headers - world.geometry.offsets["hdr_base"]
        _check_pins(slot, new, _lines(simulation, world, base).values())
    if unpack("STATE", "state", new) == WRITING.value:
        _check_overlap(simulation, world, headers, slot)


def _lines(simulation: Simulation, world: SimulatedWorld, base: int) -> dict[int, int]:
    """The lines of a ledger by their addresses."""
    start = base + world.geometry.offsets["pin_base"]
    addresses = [start + line * WORD for line in range(world.geometry.pin_slots)]
    return {address: simulation.memory.newest(address) for address in addresses}


def _check_line(simulation: Simulation, world: SimulatedWorld, base: int, address: int, old: int, new: int) -> None:
    if unpack("PIN", "phase", new) == PIN_HELD.value:
        slot = int(unpack("PIN", "header", new))
        state = simulation.memory.newest(base + world.geometry.offsets["hdr_base"] + _state_at(slot))
        lines = _lines(simulation, world, base) | {address: new}
        _check_pins(slot, state, lines.values())


def _check_pins(slot: int, state: int, lines: Iterable[int]) -> None:
    """Each line of the ledger that is HELD stands for one pin (I8)."""
    held = [unpack("PIN", "header", line) for line in lines if unpack("PIN", "phase", line) == PIN_HELD.value]
    if held.count(slot) > unpack("STATE", "pins", state):
        raise CheckFailure(f"I8: {held.count(slot)} lines of the ledger hold slot {slot}, its STATE is {_said(state)}")


def _is_legal(old: int, new: int) -> bool:
    was, state = unpack("STATE", "state", old), unpack("STATE", "state", new)
    age = unpack("STATE", "epoch", new) - unpack("STATE", "epoch", old)
    if age:
        fresh = was == DEAD.value or old == RESERVED.value
        return bool(age == 1 and fresh and new == RESERVED.value | (new >> EPOCH_SHIFT.value << EPOCH_SHIFT.value))
    pins, had = unpack("STATE", "pins", new), unpack("STATE", "pins", old)
    if state == was == READY.value:
        return True  # pins: the ledger says at rest whether they are right
    if pins or had:
        return False
    return (was, state) in _STEPS or state == DEAD.value


def _pages(simulation: Simulation, world: SimulatedWorld, header: int) -> tuple[int, int]:
    """The bytes from and to which a header holds pages; a whole extent of its class."""
    newest = simulation.memory.newest
    n_pages = newest(header + H_PAGES.value) & LOW32.value
    whole = min((size for size in world.geometry.class_pages if size >= n_pages), default=0) if n_pages else 0
    start = newest(header + H_PAYLOAD.value)
    return start, start + whole * world.geometry.page_bytes


def _check_overlap(simulation: Simulation, world: SimulatedWorld, headers: int, slot: int) -> None:
    start, end = _pages(simulation, world, headers + slot * HEADER_BYTES.value)
    for other in range(world.geometry.hdr_count):
        header = headers + other * HEADER_BYTES.value
        if other == slot or simulation.memory.newest(header + H_STATE.value) == RESERVED.value:
            continue
        first, last = _pages(simulation, world, header)
        if first < end and start < last:
            raise CheckFailure(f"I1: slot {slot} publishes bytes {start:#x} to {end:#x}, which slot {other} holds")
