"""The master reclaims: it gives up unfinished objects, empties the quarantine, rebuilds its table from the headers.

An unfinished object is given up when it takes longer than `write_timeout`, or its producer is dead: its header becomes
DEAD, its key is free, a late commit is answered LOST. Its pages wait in quarantine until its producer is dead, or has
acknowledged by a commit or an abort that came too late (FLAG_ACK). Nothing is freed because time has passed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.compat_v1.allocator import Space
from nanokv.compat_v1.headers import State, kill, release, settle
from nanokv.compat_v1.table import Table, TableEntry
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place
from nanokv.device.segment.geometry import Geometry, producer_of
from nanokv.device.segment.last_access import time_of
from nanokv.device.segment.layout import DEAD, FLAG_ACK, READY, RESERVED, STATE_MASK, WRITING
from nanokv.errors import SegmentCorrupt
from nanokv.host_poller.dead_pins import Alive
from nanokv.host_poller.index import key_of

Descriptors = Callable[[int], npt.NDArray[Any]]  #: rank -> the OBJ_DESC records of its segment


def give_up_stuck(machine: Machine, table: Table, alive: Alive, opened_before: float) -> int:
    """Give up unfinished objects that were opened earlier, or whose producer is dead. Returns how many."""
    gone = 0
    for entry in list(table.unfinished.values()):
        if settle(machine, table, entry) != WRITING.value:
            continue
        if entry.opened_at < opened_before or not alive(*entry.producer):
            gone += give_up(machine, table, entry)
    return gone


def give_up(machine: Machine, table: Table, entry: TableEntry) -> bool:
    """WRITING -> DEAD, into quarantine. False if its producer was faster."""
    if kill(machine, entry, WRITING.value) != State(WRITING.value, 0, entry.place.epoch):
        settle(machine, table, entry)
        return False
    table.set_aside(entry)
    return True


def empty_quarantine(machine: Machine, table: Table, alive: Alive) -> int:
    """Free the objects that nobody writes to any more. Returns how many."""
    free = [e for e in table.quarantine.values() if not alive(*e.producer) or _is_acknowledged(machine, e)]
    for entry in free:
        release(machine, table, entry)
    return len(free)


def _is_acknowledged(machine: Machine, entry: TableEntry) -> bool:
    header = machine.headers(*entry.where, 1)[0]
    return bool(int(header["flags"]) & FLAG_ACK.value)


# --- starting over ----------------------------------------------------------------------------
def recover(machine: Machine, alive: Alive, descriptors: Descriptors, now: float) -> Table:
    """Rebuild the master's table from the headers of all segments; they are the truth.

    READY objects stay, and so do unfinished objects of living producers. Objects that an earlier master left RESERVED
    are freed, and objects of dead producers that are not READY; other DEAD objects stay in quarantine.

    Raises:
        SegmentCorrupt: a header names pages outside of the arena or those of another object, or a key has two objects.
    """
    table = Table(machine.geometry)
    for owner in range(machine.geometry.world_size):
        found = list(_entries(machine, owner, descriptors(owner), now))
        taken = [(entry.place.slot, entry.page, entry.n_pages) for entry, _ in found]
        try:
            table.spaces[owner] = Space(machine.geometry.n_pages, machine.geometry.hdr_count, taken)
        except ValueError as error:
            raise SegmentCorrupt(f"segment {owner}: headers name pages that cannot be: {error}") from None
        for entry, phase in found:
            _place(machine, table, entry, phase)
    give_up_stuck(machine, table, alive, -np.inf)
    empty_quarantine(machine, table, alive)
    return table


def _entries(
    machine: Machine, owner: int, descriptors: npt.NDArray[Any], now: float
) -> Iterator[tuple[TableEntry, int]]:
    """The object of each header that is live or DEAD with pages, and its state; the longest unused first."""
    headers = machine.headers(owner, 0, machine.geometry.hdr_count)
    state = headers["state"] & STATE_MASK.value
    slots = np.flatnonzero((headers["epoch"] > 0) & ((state != DEAD.value) | (headers["n_pages"] > 0)))
    for slot in slots[time_of(headers["last_access"][slots]).argsort(kind="stable")].tolist():
        yield _entry(machine.geometry, owner, slot, headers[slot], descriptors[slot], now), int(state[slot])


def _entry(geometry: Geometry, owner: int, slot: int, header: Any, desc: Any, now: float) -> TableEntry:
    payload, n_pages = int(header["payload_base"]), int(header["n_pages"])
    page, rest = divmod(payload - geometry.offsets["heap_base"], geometry.page_bytes)
    if n_pages and (rest or page < 0):
        raise SegmentCorrupt(f"segment {owner}, header slot {slot}: payload_base is {payload}, which is no page")
    return TableEntry(
        key=key_of(header),
        place=Place(owner, slot, int(header["epoch"]), payload, int(header["bytes_total"])),
        page=page if n_pages else 0,
        n_pages=n_pages,
        descriptor=(int(desc["format"].view(np.int64)), *desc["dims"].view(np.int64).tolist()),
        producer=producer_of(int(header["producer"])),
        opened_at=now,
    )


def _place(machine: Machine, table: Table, entry: TableEntry, phase: int) -> None:
    if phase == RESERVED.value:
        # an earlier master died in the middle of OPEN_FOR_WRITE: no producer was told of these pages
        if kill(machine, entry, RESERVED.value) == State(RESERVED.value, 0, entry.place.epoch):
            release(machine, table, entry)
        return
    if phase == DEAD.value:
        table.set_aside(entry)
        return
    if phase > DEAD.value or entry.key in table.index:
        owner, slot = entry.where
        raise SegmentCorrupt(f"segment {owner}, header slot {slot}: state {phase}, or a key seen before")
    entry.ready = phase == READY.value
    table.add(entry)
