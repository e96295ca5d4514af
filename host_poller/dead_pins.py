"""Takes away the pins of dead readers (`device/protocol/pins.py`): those that they held, and half-made ones."""

from collections.abc import Callable, Iterator

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import PIN_HELD, unpack

Alive = Callable[[int, int], bool]  #: (rank, incarnation) -> False if it has certainly ended
SLICE = 8 * 1024  #: lines looked at at once: a copy of a large ledger would stay with the process


def drop_dead_pins(machine: Machine, owner: int, alive: Alive) -> int:
    """Look at the ledger of one segment once. Returns how many lines of the dead went; the next look takes the rest."""
    dropped = 0
    unsure: dict[int, list[tuple[int, int]]] = {}  # slot -> lines of readers that died between two steps of pinning
    for line, word in _used_lines(machine, owner):
        slot, reader = unpack("PIN", "header", word), producer_of(unpack("PIN", "producer", word))
        if slot >= machine.geometry.hdr_count or alive(*reader):
            continue
        if unpack("PIN", "phase", word) == PIN_HELD.value:
            epoch = int(machine.headers(owner, slot, 1)[0]["epoch"])
            dropped += machine.drop_pin(owner, line, word, epoch)
        else:
            unsure.setdefault(slot, []).append((line, word))
    for slot, lines in unsure.items():
        if machine.recount(owner, slot, len(lines)):
            for line, word in lines:
                machine.clear_intent(owner, line, word)
            dropped += len(lines)
    return dropped


def _used_lines(machine: Machine, owner: int) -> Iterator[tuple[int, int]]:
    """The lines of the ledger that are not free, and their words."""
    for first in range(0, machine.geometry.pin_slots, SLICE):
        words = machine.pin_ledger(owner, first, SLICE)
        used = np.flatnonzero(words)
        yield from zip((first + used).tolist(), words[used].tolist(), strict=True)
