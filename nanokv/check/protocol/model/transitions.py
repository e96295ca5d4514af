"""What must hold at each step of an execution.

Every write to a STATE word must be one of the transitions that `device/protocol/header.py` lists, epochs never go back
(I7), a pinned object never becomes DEAD, each HELD line of a ledger stands for a pin (I8), and a producer that
publishes pages shares them with nobody (I1). What must hold when all has come to rest: `at_rest`.
"""

from collections.abc import Iterable
from functools import partial

from nanokv.check.report import CheckFailure
from nanokv.device.segment.geometry import Geometry
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
from nanokv.device.sim.memory import Memory
from nanokv.device.sim.world import SimulatedWorld

_NAMES = {RESERVED.value: "RESERVED", WRITING.value: "WRITING", READY.value: "READY", DEAD.value: "DEAD"}
_STEPS = {(RESERVED.value, WRITING.value), (WRITING.value, READY.value)}


def watch_states(memory: Memory, segments: SimulatedWorld) -> None:
    """Check every write to a STATE word, and to a line of a pin ledger, of the execution that begins."""
    for base in segments.bases:
        segment = _Segment(memory, segments.geometry, base)
        for slot in range(segments.geometry.hdr_count):
            memory.watched[segment.header(slot) + H_STATE.value] = partial(segment.check_state, slot)
        for line in segment.lines:
            memory.watched[line] = partial(segment.check_line, line)


class _Segment:
    """The headers and the pin ledger of one segment."""

    def __init__(self, memory: Memory, geometry: Geometry, base: int) -> None:
        self._newest, self._geometry = memory.newest, geometry
        self._headers = base + geometry.offsets["hdr_base"]
        ledger = base + geometry.offsets["pin_base"]
        self.lines = range(ledger, ledger + geometry.pin_slots * WORD, WORD)  #: addresses of the ledger's lines

    def header(self, slot: int) -> int:
        """The address of a header."""
        return self._headers + slot * int(HEADER_BYTES.value)

    def check_state(self, slot: int, old: int, new: int) -> None:
        """A STATE word is written."""
        if new == old:  # a read-modify-write that only reads
            return
        if not _is_legal(old, new):
            raise CheckFailure(f"the STATE word of slot {slot} went from {_text(old)} to {_text(new)}")
        if unpack("STATE", "pins", new) < unpack("STATE", "pins", old):
            self._check_pins(slot, new, map(self._newest, self.lines))
        if unpack("STATE", "state", new) == WRITING.value:
            self._check_overlap(slot)

    def check_line(self, address: int, old: int, new: int) -> None:
        """A line of the ledger is written."""
        if unpack("PIN", "phase", new) == PIN_HELD.value:
            slot = int(unpack("PIN", "header", new))
            lines = (new if line == address else self._newest(line) for line in self.lines)
            self._check_pins(slot, self._newest(self.header(slot) + H_STATE.value), lines)

    def _check_pins(self, slot: int, state: int, lines: Iterable[int]) -> None:
        """Each line of the ledger that is HELD stands for one pin (I8)."""
        held = [unpack("PIN", "header", line) for line in lines if unpack("PIN", "phase", line) == PIN_HELD.value]
        if held.count(slot) > unpack("STATE", "pins", state):
            raise CheckFailure(
                f"I8: {held.count(slot)} lines of the ledger hold slot {slot}, its STATE is {_text(state)}"
            )

    def _pages(self, slot: int) -> tuple[int, int]:
        """The bytes from and to which a header holds pages: a whole extent of its class."""
        header, geometry = self.header(slot), self._geometry
        n_pages = self._newest(header + H_PAGES.value) & LOW32.value
        whole = min((size for size in geometry.class_pages if size >= n_pages), default=0) if n_pages else 0
        start = self._newest(header + H_PAYLOAD.value)
        return start, start + whole * geometry.page_bytes

    def _check_overlap(self, slot: int) -> None:
        start, end = self._pages(slot)
        for other in range(self._geometry.hdr_count):
            if other == slot or self._newest(self.header(other) + H_STATE.value) == RESERVED.value:
                continue
            first, last = self._pages(other)
            if max(first, start) < min(last, end):  # of a dead object that gave its pages away, none are left
                raise CheckFailure(f"I1: slot {slot} publishes bytes {start:#x} to {end:#x}, which slot {other} holds")


def _text(state: int) -> str:
    phase, pins, epoch = (unpack("STATE", name, state) for name in ("state", "pins", "epoch"))
    return f"({_NAMES.get(phase, phase)}, {pins}, {epoch})"


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
