"""The master's table: objects by key and by header slot, and the objects in quarantine.

`reclaim.recover` can rebuild all of it from the headers. An object is in the index from OPEN_FOR_WRITE until it is
removed or given up. A header slot is on its owner's shelf, or in quarantine, exactly while its space counts it as
taken. Shelves are in the order of opening, in which the policy "fifo" evicts.
"""

from dataclasses import dataclass

from nanokv.compat_v1.allocator import Space
from nanokv.device.machines.records import Descriptor, Place
from nanokv.device.segment.geometry import Geometry
from nanokv.types import KeyDigest

Slot = tuple[int, int]  #: owner and header slot


@dataclass(slots=True)
class TableEntry:
    """One object, live or in quarantine."""

    key: KeyDigest
    place: Place
    page: int  #: first page
    n_pages: int
    descriptor: Descriptor
    producer: tuple[int, int]  #: rank and incarnation, as far as PRODUCER bits hold them
    opened_at: float  #: seconds on the master's clock
    ready: bool = False  #: the master has seen the header READY: it stays so until the master kills it

    @property
    def where(self) -> Slot:
        """Owner and header slot."""
        return self.place[:2]


class Table:
    """Objects and space of all segments. No lock: the master holds its own."""

    def __init__(self, geometry: Geometry) -> None:
        self.spaces = [Space(geometry.n_pages, geometry.hdr_count) for _ in range(geometry.world_size)]
        self.index: dict[KeyDigest, TableEntry] = {}
        self.shelves: list[dict[int, TableEntry]] = [{} for _ in range(geometry.world_size)]
        self.unfinished: dict[Slot, TableEntry] = {}
        self.quarantine: dict[Slot, TableEntry] = {}

    def add(self, entry: TableEntry) -> None:
        """Add an object that was opened, or found in its header."""
        self.index[entry.key] = entry
        self.shelves[entry.place.owner][entry.place.slot] = entry
        if not entry.ready:
            self.unfinished[entry.where] = entry

    def at(self, owner: int, slot: int, epoch: int) -> TableEntry | None:
        """The object in a header slot, if it has this epoch."""
        entry = self.shelves[owner].get(slot) if 0 <= owner < len(self.shelves) else None
        return entry if entry is not None and entry.place.epoch == epoch else None

    def held(self, owner: int, slot: int, epoch: int) -> TableEntry | None:
        """The object in quarantine in a header slot, if it has this epoch."""
        entry = self.quarantine.get((owner, slot))
        return entry if entry is not None and entry.place.epoch == epoch else None

    def finish(self, entry: TableEntry) -> None:
        """The object is READY."""
        entry.ready = True
        self.unfinished.pop(entry.where, None)

    def forget(self, entry: TableEntry) -> None:
        """The object is DEAD. Its pages and its slot are still taken."""
        if self.index.get(entry.key) is entry:
            del self.index[entry.key]
        self.shelves[entry.place.owner].pop(entry.place.slot, None)
        self.unfinished.pop(entry.where, None)

    def set_aside(self, entry: TableEntry) -> None:
        """The object is DEAD, and its producer may still write to its pages: into quarantine."""
        self.forget(entry)
        self.quarantine[entry.where] = entry

    def give_back(self, entry: TableEntry) -> None:
        """Free the pages and the slot of an object that was forgotten or set aside."""
        self.quarantine.pop(entry.where, None)
        self.spaces[entry.place.owner].give(entry.place.slot, entry.page, entry.n_pages)
