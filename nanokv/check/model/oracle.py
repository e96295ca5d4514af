"""What must hold: at each step of a STATE word, and when all has come to rest.

While tasks run, every write to a STATE word must be one of the transitions that `device/header.py` lists, epochs never
go back (I7), a pinned object never becomes DEAD (I8), and whoever publishes pages shares them with nobody (I1). When
all tasks have ended or were killed, the production sweepers run until they rest, natively, on a copy of the
memory; then fsck must find nothing at all: what the dead held is back (I2, I5, I6).
"""

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from nanokv.check.report import CheckFailure
from nanokv.device.layout import (
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
from nanokv.device.native_machine import NativeMachine
from nanokv.device.sim.simulation import Simulation
from nanokv.device.sim.world import SimulatedWorld
from nanokv.fsck import check_segments

if TYPE_CHECKING:
    from nanokv.check.model.stage import Stage

MOST_SWEEPS = 60
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


# --- at rest ----------------------------------------------------------------------------------
def come_to_rest(stage: "Stage") -> None:
    """Let the production sweepers run until they have nothing to do, on a copy of memory; then fsck must be clean.

    Where no host code took part, what comes out depends on memory alone: each content is looked at once.
    """
    dead = stage.deaths()
    content = (array("q", stage.simulation.memory.words).tobytes(), *sorted(dead))
    if stage.hosts or content not in stage.sound:
        _look(stage, dead)
        stage.sound.add(content)


def _look(stage: "Stage", dead: set[int]) -> None:
    views = stage.world.views()
    bases = [int(view.raw.ctypes.data) for view in views]
    ranks = range(stage.geometry.world_size)
    tables = [stage.geometry.world_table(rank, 1, bases) for rank in ranks]
    machines = [NativeMachine(stage.geometry, table, views, lambda rank: None) for table in tables]
    if dead or stage.hosts:
        _sweep(stage, machines, sorted({0, *stage.hosts}))
    alive: Callable[[int, int], bool] = lambda rank, incarnation: rank not in dead  # noqa: E731
    report = check_segments(views, mode="device", quiescent=True, alive=alive)
    findings = [str(finding) for finding in report.findings if not _waits(str(finding), dead)]
    if findings:
        raise CheckFailure("fsck: " + "; ".join(findings))


def _waits(finding: str, dead: set[int]) -> bool:
    """Counts of operations of a dead rank stay until it attaches again."""
    return any(f"activity of rank {rank}" in finding for rank in dead)


def _sweep(stage: "Stage", machines: list[NativeMachine], ranks: list[int]) -> None:
    sweepers: list[tuple[Any, Any]] = []
    for rank in ranks:
        if rank not in stage.hosts:
            stage.sweeper(rank)
        bridge, sweeper, poller = stage.hosts[rank]
        bridge.machine = machines[rank]
        sweepers.append((sweeper, poller))
    for step in range(MOST_SWEEPS):
        for sweeper, poller in sweepers:
            if poller is not None:
                poller.drain(1e6 + step)
            sweeper.step(1e6 + step)
        if step > 1 and not any(sweeper.pending for sweeper, _ in sweepers):
            break
    else:
        raise CheckFailure(f"I6: the sweeper does not come to rest in {MOST_SWEEPS} sweeps")
    for rank, (sweeper, _) in zip(ranks, sweepers, strict=True):
        _check_index(sweeper, machines[rank], rank)


def _check_index(sweeper: Any, machine: NativeMachine, rank: int) -> None:
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    state = unpack("STATE", "state", headers["state"])
    want = [int(row["epoch"]) if at == READY.value else -1 for row, at in zip(headers, state, strict=True)]
    have = sweeper.index.epochs().tolist()
    if want != have:
        raise CheckFailure(f"I5: the index of rank {rank} has epochs {have}, the headers say {want}")
    slots, rows = sweeper.index.rows()
    for name in ("key_hash", "key_check", "payload_base", "bytes_total", "n_pages"):
        if (rows[name] != headers[slots][name]).any():
            raise CheckFailure(
                f"I5: the index of rank {rank} has {name} {rows[name]}, the headers {headers[slots][name]}"
            )
