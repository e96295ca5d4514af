"""Which living rank gets an object of a rank that leaves, so that nothing has to be evicted for it."""

from typing import Any

from nanokv import stored_layouts
from nanokv.allocation.base import Allocation
from nanokv.allocation.routing import Routing
from nanokv.device.machines.base import Machine
from nanokv.errors import OutOfMemory, ReuseViolation
from nanokv.heap.base import Heap
from nanokv.keys import tag_of
from nanokv.saved.room import Room
from nanokv.types import KeyDigest


class Destinations:
    """The segments of the ranks that live, apart from that of `owner`, and what is free in them."""

    def __init__(self, heap: Heap, machine: Machine, allocation: Allocation, owner: int) -> None:
        self._heap = heap
        self._machine = machine
        self._alloc = allocation.alloc
        self._owner = owner
        self._rooms: dict[int, Room] = {}
        self._layouts = {stored_layouts.tag_in(row): row for row in machine.layouts(owner) if row["identity"]}
        self._takes: dict[tuple[int, int], bool] = {}  # whether a segment has the layout of an identity, by its tag

    def choose(self, key: KeyDigest, nbytes: int) -> int | None:
        """A rank whose segment has room for an object, which then counts as taken there; None if there is none.

        The key chooses where the search begins, as for a put whose home rank has gone (`Routing`).
        """
        home = Routing(self._heap.world_size, -1, self._cannot).owner_of(key, None)
        order = (home, *(rank for rank in range(self._heap.world_size) if rank != home))
        return next((rank for rank in order if rank >= 0 and self._has_room(rank, key, nbytes)), None)

    def _cannot(self, rank: int) -> bool:
        return rank == self._owner or self._heap.peer_closed(rank)

    def _has_room(self, rank: int, key: KeyDigest, nbytes: int) -> bool:
        if self._cannot(rank) or not self._takes_layout(rank, tag_of(key)):
            return False
        if rank not in self._rooms:
            self._rooms[rank] = Room(self._machine, self._alloc, rank)
        room = self._rooms[rank]
        return not room.is_too_large(nbytes) and room.take(nbytes)

    def _takes_layout(self, rank: int, tag: int) -> bool:
        row: Any = self._layouts.get(tag)
        if row is None:
            return True
        if (rank, tag) not in self._takes:
            try:
                stored_layouts.write_row(self._machine, rank, row.reshape(1))
                self._takes[rank, tag] = True
            except (OutOfMemory, ReuseViolation):  # an object is of no use where its layout is not known
                self._takes[rank, tag] = False
        return self._takes[rank, tag]
