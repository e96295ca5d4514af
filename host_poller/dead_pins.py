"""Takes away the pins of readers that are dead (`device/protocol/pins.py`): held ones, and those on the way."""

from collections.abc import Callable

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.layout import PIN_HELD, unpack

Alive = Callable[[int, int], bool]


def drop_dead_pins(machine: Machine, owner: int, alive: Alive) -> int:
    """Look at the ledger of one segment once; returns how many lines of the dead went. What is left waits for the next.

    Args:
        alive: (rank, incarnation) -> False if it has certainly ended.
    """
    ledger = machine.pin_ledger(owner)
    dropped = 0
    unsure: dict[int, list[int]] = {}  # slot -> lines of readers that died between two steps of pinning
    for line in np.flatnonzero(ledger).tolist():
        said = int(ledger[line])
        producer, slot = int(unpack("PIN", "producer", said)), int(unpack("PIN", "header", said))
        who = unpack("PRODUCER", "rank", producer), unpack("PRODUCER", "incarnation", producer)
        if slot >= machine.geometry.hdr_count or alive(*who):
            continue
        if unpack("PIN", "phase", said) == PIN_HELD.value:
            epoch = int(machine.headers(owner, slot, 1)[0]["epoch"])
            dropped += machine.drop_pin(owner, line, said, epoch)
        else:
            unsure.setdefault(slot, []).append(line)
    for slot, lines in unsure.items():
        if machine.recount(owner, slot, len(lines)):
            for line in lines:
                machine.clear_intent(owner, line, int(ledger[line]))
            dropped += len(lines)
    return dropped
