"""Groups: objects with one name, which are dropped at once."""

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.host_poller.index import key_of
from nanokv.host_poller.labels import labelled

_SLICE = 16 * 1024  #: header slots that are copied at once


def drop_group(machine: Machine, allocation: Allocation, group: int) -> int:
    """Remove the READY objects of a group, and their copies, from all segments, except pinned ones: their number.

    `group`: LABEL.group, as `Hasher.group` has it.
    """
    return sum(_drop_in(machine, allocation, owner, group) for owner in range(machine.geometry.world_size))


def _drop_in(machine: Machine, allocation: Allocation, owner: int, group: int) -> int:
    removed = 0
    for first in range(0, machine.geometry.hdr_count, _SLICE):
        headers = machine.headers(owner, first, _SLICE)
        places = labelled(headers)
        if not len(places):
            continue
        labels = machine.labels(owner, first, len(headers))  # after the headers, see `device/protocol/label.py`
        for at in places[labels["group"][places].view(np.int64) == group].tolist():
            if allocation.remove_slot(owner, first + at, int(headers["epoch"][at])) == Status.OK:
                removed += 1
                key = key_of(headers[at])
                if machine.find_copies(key):
                    allocation.remove(key)  # also those that are being made, maybe in a segment already seen
    return removed
