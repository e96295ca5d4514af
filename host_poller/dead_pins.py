"""Takes away the pins of dead readers (`device/protocol/pins.py`): those that they held, and half-made ones."""

from collections.abc import Callable

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import PIN_HELD, unpack

Alive = Callable[[int, int], bool]  #: (rank, incarnation) -> False if it has certainly ended


def drop_dead_pins(machine: Machine, owner: int, alive: Alive) -> int:
    """Look at the ledger of one segment once. Returns how many lines of the dead went; the next look takes the rest."""
    ledger = machine.pin_ledger(owner)
    dropped = 0
    unsure: dict[int, list[int]] = {}  # slot -> lines of readers that died between two steps of pinning
    for line in np.flatnonzero(ledger).tolist():
        word = int(ledger[line])
        slot, reader = unpack("PIN", "header", word), producer_of(unpack("PIN", "producer", word))
        if slot >= machine.geometry.hdr_count or alive(*reader):
            continue
        if unpack("PIN", "phase", word) == PIN_HELD.value:
            epoch = int(machine.headers(owner, slot, 1)[0]["epoch"])
            dropped += machine.drop_pin(owner, line, word, epoch)
        else:
            unsure.setdefault(slot, []).append(line)
    for slot, lines in unsure.items():
        if machine.recount(owner, slot, len(lines)):
            for line in lines:
                machine.clear_intent(owner, line, int(ledger[line]))
            dropped += len(lines)
    return dropped
