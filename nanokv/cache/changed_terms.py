"""New terms for an object that exists, and for its copies (`hold` of a cache)."""

from nanokv.allocation.base import Allocation
from nanokv.allocation.terms import TermsChange
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FLAG_LABEL
from nanokv.errors import OutOfMemory
from nanokv.transfer.single import TRIES
from nanokv.types import KeyDigest


def change_terms(machine: Machine, allocation: Allocation, key: KeyDigest, change: TermsChange) -> bool:
    """Change the terms of a READY object and of its copies; False if there is none.

    Raises:
        OutOfMemory: the label is to change, for which the object is pinned, and the pin ledger is full.
    """
    changed: set[tuple[int, int, int]] = set()
    for _ in range(TRIES):
        found = allocation.locate(key)
        if found.status != Status.OK:
            break
        lives = {place[:3]: place for place in (found.place, *machine.find_copies(key))}
        changed |= {life for life in lives.keys() - changed if _change(machine, lives[life], change)}
        if lives.keys() <= changed:
            break
    return bool(changed)


def _change(machine: Machine, place: Place, change: TermsChange) -> bool:
    """Change the terms of the object at a place; False if it is gone, or is being read at this moment."""
    if change.group is None and change.until is None:
        return machine.renew(place, change.without, change.access)
    status, line = machine.pin(place)
    if status == Status.FULL:
        raise OutOfMemory(f"the pin ledger of rank {place.owner} is full: nothing was changed")
    if status != Status.OK:
        return False
    try:
        group, until = label_of(machine, place)
        machine.label(
            place,
            group if change.group is None else change.group,
            until if change.until is None else change.until,
        )
        return not (change.without or change.access) or machine.renew(place, change.without, change.access)
    finally:
        machine.unpin(place, line)


def label_of(machine: Machine, place: Place) -> tuple[int, int]:
    """The label of a pinned object, as `Machine.label` takes it: (group, until); 0 and 0 if it has none."""
    if not int(machine.headers(place.owner, place.slot, 1)["flags"][0]) & FLAG_LABEL.value:
        return 0, 0
    label = machine.labels(place.owner, place.slot, 1)
    return int(label["group"].view("<i8")[0]), int(label["until"][0])
