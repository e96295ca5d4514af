"""Eviction from one segment: READY objects without pins go, in the order of the policy: "last_access" counts the time
since the last use as the object's priority says; "fifo" takes those of high priority last.

When a new object would raise use above `high` percent of the pages, the master evicts until it fits below `low`, so
that evictions come in batches. Pages in quarantine count as used; unfinished, pinned and leased objects stay.
"""

from collections.abc import Iterator
from typing import Literal

from nanokv.compat_v1.headers import State, kill, release, settle
from nanokv.compat_v1.table import Table, TableEntry
from nanokv.device.machines.base import Machine
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import EVICTED, HIGH, READY, unpack

Policy = Literal["fifo", "last_access"]


def evict(machine: Machine, table: Table, owner: int, policy: Policy) -> Iterator[TableEntry]:
    """Evict objects of a segment one after the other, and yield each when it is gone. Looks when first iterated."""
    for entry in _in_order(machine, table, owner, policy):
        if settle(machine, table, entry) != READY.value or _stays(machine, entry):
            continue
        if kill(machine, entry, READY.value) == State(READY.value, 0, entry.place.epoch):
            release(machine, table, entry, EVICTED.value)
            yield entry


def _stays(machine: Machine, entry: TableEntry) -> bool:
    """Look at the terms of one object that is READY."""
    header = machine.headers(entry.place.owner, entry.place.slot, 1)
    return bool(stays(header["last_access"], now_ns())[0])


def _in_order(machine: Machine, table: Table, owner: int, policy: Policy) -> list[TableEntry]:
    entries = list(table.shelves[owner].values())
    words = machine.headers(owner, 0, machine.geometry.hdr_count)["last_access"]
    if policy == "last_access":
        ages = idle(words, now_ns())
        entries.sort(key=lambda entry: -int(ages[entry.place.slot]))
    else:
        high = unpack("ACCESS", "priority", words) == HIGH.value
        entries.sort(key=lambda entry: bool(high[entry.place.slot]))  # a stable sort: else by opening
    return entries


def goal(n_pages: int, wanted: int, used: int, water: tuple[int, int]) -> int:
    """How many pages may stay in use before `wanted` more are taken: `used` if there is nothing to do.

    For an object that is larger than the low mark the aim is the high mark, then the whole segment.
    """
    low, high = (n_pages * percent // 100 for percent in water)
    if used + wanted <= high:
        return used
    return next((limit - wanted for limit in (low, high, n_pages) if limit >= wanted), 0)
