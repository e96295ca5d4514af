"""Moves one object into another segment: by a copy there, before the one here goes. So no reader ever misses it.

An object without bytes has no copies (`device/protocol/replicate.py`): it is removed, and put again. Between the two
steps readers miss it, and if this process dies there, the object is lost.
"""

from typing import Any

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Descriptor, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.last_access import is_leased
from nanokv.device.segment.layout import ACCESS_TIME, LOW32
from nanokv.host_poller.index import key_of
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest


def place_of(owner: int, slot: int, header: Any) -> Place:
    """Where the object of a whole OBJ_HEADER record lies."""
    return Place(owner, slot, int(header["epoch"]), int(header["payload_base"]), int(header["bytes_total"]))


def move_object(
    machine: Machine, single: SingleTransfer, place: Place, header: Any, descriptor: Any, to: int, now: int
) -> int:
    """Move a READY object into the segment of the rank `to`. It keeps the time of its last use, and its terms.

    Args:
        header: its OBJ_HEADER record, whole. descriptor: its OBJ_DESC record. now: ns.

    Returns:
        OK; PINNED: it stays, beside a copy; MISS: it went away by itself; NOT_READY, TORN, LOST: the copy met another
        call of its key; CORRUPT: its checksum is wrong; FULL, NO_HEADER, NO_ENTRY: there is no room. After all but OK
        and MISS the object is where it was.
    """
    key, access = KeyDigest(*key_of(header)), int(header["last_access"])
    used = now if is_leased(access, now) else access & ACCESS_TIME.value
    if not place.nbytes:
        return _put_again(machine, single, place, key, descriptor, to, used)
    status = machine.replicate(to, key, used) if single.has_memory(to, place.nbytes) else Status.FULL
    if status not in (Status.OK, Status.DUPLICATE):
        return status
    return machine.remove_slot(place.owner, place.slot, place.epoch)


def _put_again(
    machine: Machine, single: SingleTransfer, place: Place, key: KeyDigest, descriptor: Any, to: int, used: int
) -> int:
    """Remove an object without bytes, and put it again."""
    status = machine.remove_slot(place.owner, place.slot, place.epoch)
    if status != Status.OK:
        return status
    words: Descriptor = int(descriptor["format"]) & LOW32.value, *descriptor["dims"].view(np.int64).tolist()
    begun = machine.begin(to, key, 0, 0, words, used)
    if begun.status != Status.OK:
        return Status.MISS
    single.seal(key, begun.place, words)
    return machine.finish(begun.place, begun.phase)
