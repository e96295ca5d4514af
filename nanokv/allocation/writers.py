"""Who writes an object that is not READY yet: what its header says."""

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import RESERVED, STATE_MASK, WRITING
from nanokv.types import KeyDigest


def writer_in(machine: Machine, owner: int, slot: int, key: KeyDigest) -> tuple[int, int] | None:
    """The rank and the incarnation that write the object of a key in a header slot; None if no rank does."""
    header = machine.headers(owner, slot, 1)[0]
    halves = tuple(int(header[half].view(np.int64)) for half in ("key_hash", "key_check"))
    if halves != tuple(key) or header["state"] & STATE_MASK.value not in (RESERVED.value, WRITING.value):
        return None
    return producer_of(int(header["producer"]))
