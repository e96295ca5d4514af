"""Takes the objects out of a segment, those that were used last first.

The rank that does it owns the segment, or holds the lock of the rank that did, so that nobody else does it.
"""

import time
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from nanokv.allocation import stored_layouts
from nanokv.allocation.base import Allocation
from nanokv.allocation.routing import Routing
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Descriptor, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import is_leased, time_of
from nanokv.device.segment.layout import ACCESS_TIME, DEAD, LOW32, READY, STATE_MASK, unpack
from nanokv.errors import OutOfMemory, ReuseViolation
from nanokv.heap.base import Heap
from nanokv.host_poller.index import key_of
from nanokv.keys.hashing import tag_of
from nanokv.saved.own_segment import OwnSegment
from nanokv.saved.room import Room
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest, Left


# --- moves one object into another segment: by a copy there, before the one here goes ---------
# So no reader ever misses it.
#
# An object without bytes has no copies (`device/protocol/replicate.py`): it is removed, and put again. Between the
# two steps readers miss it, and if this process dies there, the object is lost.
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


# --- which living rank gets an object of a rank that leaves, so that nothing has to be evicted for it ---
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
            self._rooms[rank] = Room(self._machine, self._alloc, rank, self._heap.backing)
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


# --- emptying a segment -----------------------------------------------------------------------
Fate = Literal["move", "drop"]
_NO_HOME = (Status.CORRUPT, Status.FULL, Status.NO_HEADER, Status.NO_ENTRY, Status.TOO_LARGE)  #: it is dropped


class Evacuation:
    """The objects of the segment `owner`, which are to be moved or dropped.

    Attributes:
        done: what has become of them so far.
    """

    def __init__(
        self,
        heap: Heap,
        machine: Machine,
        allocation: Allocation,
        single: SingleTransfer,
        owner: int,
        keys: Fate,
    ) -> None:
        self.done = Left(0, 0, 0)
        self._heap = heap
        self._machine = machine
        self._allocation = allocation
        self._single = single
        self._owner = owner
        self._keys = keys

    def step(self, deadline: float) -> None:
        """Move or drop every object that is READY now, until `deadline` at most (of `time.monotonic`)."""
        source = OwnSegment(self._heap, self._machine, self._owner)
        slots, headers = source.ready()
        destinations = Destinations(self._heap, self._machine, self._allocation, self._owner)
        for at in time_of(headers["last_access"]).argsort(kind="stable")[::-1].tolist():
            if time.monotonic() >= deadline:
                return
            slot, header = int(slots[at]), headers[at]
            if unpack("STATE", "pins", int(header["state"])):
                continue
            to = None
            if self._keys == "move":
                to = destinations.choose(KeyDigest(*key_of(header)), int(header["bytes_total"]))
            self._end(source, slot, header, to)

    def _end(self, source: OwnSegment, slot: int, header: np.void, to: int | None) -> None:
        """Move an object to a rank, or drop it, and count it."""
        place = place_of(self._owner, slot, header)
        if to is not None:
            now = now_ns()
            status = move_object(self._machine, self._single, place, header, source.descriptor(slot), to, now)
            if status == Status.OK:
                moved, dropped, nbytes = self.done
                self.done = Left(moved + 1, dropped, nbytes + place.nbytes)
                return
            if status not in _NO_HOME:
                return  # it has gone, or the next step tries again
        if self._allocation.remove_slot(self._owner, slot, place.epoch) == Status.OK:
            self.done = self.done._replace(dropped=self.done.dropped + 1)

    def is_empty(self) -> bool:
        """True if no header is in use, and none holds pages."""
        return not any(self._left())

    def what_is_left(self) -> str:
        """What keeps the segment from being empty, for messages."""
        names = ("pinned", "READY", "unfinished or in quarantine")
        return ", ".join(f"{n} objects are {name}" for n, name in zip(self._left(), names, strict=True) if n)

    def _left(self) -> Iterator[int]:
        headers = self._machine.headers(self._owner, 0, self._machine.geometry.hdr_count)
        state = headers["state"] & STATE_MASK.value
        pinned = unpack("STATE", "pins", headers["state"]) > 0
        used = (headers["epoch"] > 0) & (state != DEAD.value)
        ready = used & (state == READY.value) & ~pinned
        yield int(np.count_nonzero(pinned))
        yield int(np.count_nonzero(ready))
        yield int(np.count_nonzero((used | (headers["n_pages"] > 0)) & ~pinned & ~ready))
