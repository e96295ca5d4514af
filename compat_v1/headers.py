"""The STATE words of the objects that the master knows: it looks at them, and makes them DEAD.

(READY, 0, e) -> (DEAD, 0, e)     removed or evicted: the pages are free at once, because readers validate
(WRITING, 0, e) -> (DEAD, 0, e)   given up: the producer may still write, so the pages go into quarantine

Both are one compare-and-swap in the header (`Machine.kill`), so that the master never overlooks a commit by the
producer, or a pin. The master's lock does not keep producers and readers out; the word does.
"""

from typing import NamedTuple

from nanokv.compat_v1.table import Table, TableEntry
from nanokv.device.machines.base import Machine
from nanokv.device.segment.layout import DEAD, READY, REMOVED, unpack


class State(NamedTuple):
    """A STATE word, taken apart."""

    phase: int
    pins: int
    epoch: int


def split(word: int) -> State:
    """Take a STATE word apart."""
    return State(*(int(unpack("STATE", name, word)) for name in ("state", "pins", "epoch")))


def settle(machine: Machine, table: Table, entry: TableEntry) -> int:
    """The state of an object in its header: RESERVED, WRITING, READY or DEAD. Brings the table up to date.

    READY comes from the producer or its kernel. DEAD comes from a producer that gave the object up without a master.
    """
    if entry.ready:
        return int(READY.value)
    state = split(machine.state(*entry.where))
    if state.epoch != entry.place.epoch or state.phase >= DEAD.value:
        table.set_aside(entry)
        return int(DEAD.value)
    if state.phase == READY.value:
        table.finish(entry)
    return state.phase


def kill(machine: Machine, entry: TableEntry, phase: int) -> State:
    """(phase, 0, epoch) -> (DEAD, 0, epoch). Returns the word that was there: equal to the first on success."""
    return split(machine.kill(*entry.where, phase, entry.place.epoch))


def release(machine: Machine, table: Table, entry: TableEntry, kind: int = REMOVED.value) -> None:
    """Free the slot and the pages of a DEAD object that nobody writes to any more, and tell the owner's poller.

    `kind`: of the hint, REMOVED or EVICTED; the latter is counted.
    """
    machine.announce(entry.place.owner, kind, *entry.place[1:3])
    table.forget(entry)
    table.give_back(entry)
