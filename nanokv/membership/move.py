"""Moves one object into another segment.

This version removes the object and puts it again, under the same digest and descriptor. Between the two steps readers
miss it, and if this process dies there, the object is lost. A replica that is made before the first copy goes has
neither fault.
"""

from typing import Any

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Descriptor, Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.last_access import is_leased
from nanokv.device.segment.layout import ACCESS_TIME, FLAG_LABEL, LOW32, TERMS_PRIORITY_SHIFT, unpack
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
        OK; PINNED: nothing was done; MISS: it went away by itself; CORRUPT: its checksum is wrong, and nothing was
        done; DUPLICATE, FULL, NO_HEADER, NO_ENTRY or LOST: it is gone.
    """
    key = KeyDigest(*key_of(header))
    copy = single.payload(place).clone()
    status = machine.verify(key, place, copy.data_ptr())
    if status != Status.OK:
        return Status.MISS if status == Status.TORN else status
    access = int(header["last_access"])
    leased, used = is_leased(access, now), access & ACCESS_TIME.value
    terms = _terms(machine, place, header, used if leased else 0)
    status = machine.remove_slot(place.owner, place.slot, place.epoch)
    if status != Status.OK:
        return status
    words: Descriptor = int(descriptor["format"]) & LOW32.value, *descriptor["dims"].view(np.int64).tolist()
    begun = machine.begin(to, key, place.nbytes, 0, words, now if leased else used)
    if begun.status != Status.OK:
        return begun.status
    machine.set_terms(begun.place, terms)
    single.payload(begun.place).copy_(copy)
    single.seal(key, begun.place, words)
    return machine.finish(begun.place, begun.phase)


def _terms(machine: Machine, place: Place, header: Any, until: int) -> Terms:
    """The terms of an object. `until`: the end of its lease, or 0."""
    access = until | int(unpack("ACCESS", "priority", int(header["last_access"]))) << TERMS_PRIORITY_SHIFT.value
    if not int(header["flags"]) & FLAG_LABEL.value:
        return Terms(access)
    label = machine.labels(place.owner, place.slot, 1)[0]
    return Terms(access, int(label["group"].view(np.int64)), int(label["until"]))
