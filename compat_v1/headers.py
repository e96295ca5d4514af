"""The STATE words of the objects that the master knows: looking at them, and making them DEAD.

(READY, 0, e) -> (DEAD, 0, e)     removed or evicted: the pages are free at once, for readers validate
(WRITING, 0, e) -> (DEAD, 0, e)   given up: the producer may still write, the pages go to quarantine
Both are one compare-and-swap in the header (`machine.kill`), so that a commit of the producer's own, or a pin, is never
overlooked. The lock of the master does not protect them from the producer; the word does.
"""

from typing import NamedTuple

from nanokv.compat_v1.table import Entry, Table
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


def settle(machine: Machine, table: Table, entry: Entry) -> int:
    """What the header says of an object: RESERVED, WRITING, READY or DEAD. The table follows.

    READY comes from a producer or its kernel; DEAD without the master, from one that gave up while it had no master.
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


def kill(machine: Machine, entry: Entry, phase: int) -> State:
    """(phase, 0, epoch) -> (DEAD, 0, epoch). Returns what was there: equal to the first on success."""
    return split(machine.kill(*entry.where, phase, entry.place.epoch))


def release(machine: Machine, table: Table, entry: Entry) -> None:
    """Free what a DEAD object held, and tell the owner's poller. Nobody writes to its pages any more."""
    machine.announce(entry.place.owner, REMOVED.value, *entry.place[1:3])
    table.forget(entry)
    table.give_back(entry)
