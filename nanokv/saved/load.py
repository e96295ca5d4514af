"""From a file to segments: objects are put back under their digests, and nothing has to go for them.

An object goes to the segment of the rank that it was saved from. If there is not enough room for all that are bound for
a segment, those that were used last go first; among those for which there is room the order is that of their last use,
so that eviction finds the oldest first again.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nanokv.allocation import stored_layouts
from nanokv.allocation.room import NO_ROOM
from nanokv.allocation.routing import Routing
from nanokv.allocation.status_errors import error_for
from nanokv.device.machines.records import Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import PRIORITY, TERMS_PRIORITY_SHIFT
from nanokv.errors import SegmentCorrupt
from nanokv.keys.hashing import tag_of
from nanokv.saved.reading import DamagedObject, SavedFile
from nanokv.saved.room import Room
from nanokv.saved.save import Progress, no_progress
from nanokv.types import KeyDigest, Loaded

if TYPE_CHECKING:
    from nanokv.cache.engine import Engine

_COUNTED = {
    Status.OK: "objects",
    Status.DUPLICATE: "duplicates",
    Status.TOO_LARGE: "too_large",
    **dict.fromkeys(NO_ROOM, "no_room"),
}  #: the field of Loaded that counts each answer


def load(file: SavedFile, engine: "Engine", preferred: int | None, progress: Progress = no_progress) -> Loaded:
    """Put all objects of a file. `preferred`: the rank whose segment gets all of them, if it is not None.

    Raises:
        OutOfMemory, ReuseViolation: the table of layouts of a segment is full, or has another identity of the same tag.
            Nothing was put.
        SegmentCorrupt: the payloads of some objects are damaged. All others were put.
        WriteLost, PeerLost: from an object on nothing was put.
    """
    loader = _Loader(file, engine, preferred)
    loader.write_layouts()
    total = int(file.rows["bytes_total"].sum())
    done = 0
    for at in loader.order():
        loader.put(at)
        done += int(file.rows["bytes_total"][at])
        progress(done, total)
    if loader.damaged:
        raise SegmentCorrupt(
            f"{loader.damaged} of {len(file.rows)} objects are damaged in the file and were not loaded; of the others: "
            + ", ".join(f"{name}={value}" for name, value in loader.counts._asdict().items())
        )
    return loader.counts


class _Loader:
    def __init__(self, file: SavedFile, engine: "Engine", preferred: int | None) -> None:
        self._file = file
        self._rows = file.rows
        self._heap, self._machine = engine.heap, engine.machine
        self._allocation, self._single = engine.allocation, engine.single
        self.damaged = 0
        self.counts = Loaded(0, 0, 0, 0, 0)
        halves = (self._rows[name].view(np.int64).tolist() for name in ("key_hash", "key_check"))
        self._keys = list(map(KeyDigest, *halves))
        self._owners = self._choose_owners(preferred)
        of = (self._machine, self._allocation.alloc)
        self._rooms = {owner: Room(*of, owner, self._heap.backing) for owner in set(self._owners)}

    def _choose_owners(self, preferred: int | None) -> list[int]:
        """Each object's segment: the preferred one, else where it was, else where a put without a wish goes."""
        heap = self._heap
        if preferred is not None:
            return [preferred] * len(self._keys)
        route = Routing(heap.world_size, heap.rank, heap.peer_closed).owner_of
        lives = [rank == heap.rank or not heap.peer_closed(rank) for rank in range(heap.world_size)]
        wishes = (rank if rank < len(lives) and lives[rank] else None for rank in self._rows["rank"].tolist())
        return [route(key, wish) for key, wish in zip(self._keys, wishes, strict=True)]

    def write_layouts(self) -> None:
        """Write the layouts of the objects into the segments that get them."""
        tags = list(map(tag_of, self._keys))
        for row in self._file.layouts:
            mine = stored_layouts.tag_in(row)
            for owner in sorted({owner for tag, owner in zip(tags, self._owners, strict=True) if tag == mine}):
                stored_layouts.write_row(self._machine, owner, row.reshape(1))

    def order(self) -> Iterator[int]:
        """The rows in the order in which they are put."""
        left = {owner: [room.slots, room.pages] for owner, room in self._rooms.items()}
        fitting: list[int] = []
        others: list[int] = []
        for at in self._rows["last_used"].argsort(kind="stable")[::-1].tolist():  # those used last come first
            room, budget = self._rooms[self._owners[at]], left[self._owners[at]]
            nbytes = int(self._rows["bytes_total"][at])
            pages = budget[1] + 1 if room.is_too_large(nbytes) else room.pages_of(nbytes)
            if budget[0] > 0 and pages <= budget[1]:
                budget[0], budget[1] = budget[0] - 1, budget[1] - pages
                fitting.append(at)
            else:
                others.append(at)
        yield from reversed(fitting)
        yield from others

    def put(self, at: int) -> None:
        """Put one object, and count what came of it."""
        status, nbytes = self._try_put(at), int(self._rows["bytes_total"][at])
        if status == Status.CORRUPT:
            self.damaged += 1
        elif status in _COUNTED:
            name = _COUNTED[Status(status)]
            self.counts = self.counts._replace(**{name: getattr(self.counts, name) + 1})
        else:
            raise error_for(status, self._keys[at], self._machine.geometry, nbytes=nbytes)
        if status == Status.OK:
            self.counts = self.counts._replace(bytes=self.counts.bytes + nbytes)

    def _try_put(self, at: int) -> int:
        row, key, owner, nbytes = self._rows[at], self._keys[at], self._owners[at], int(self._rows["bytes_total"][at])
        if self._rooms[owner].is_too_large(nbytes):
            return Status.TOO_LARGE
        if self._allocation.exists(key) != Status.MISS:  # before there is no room for what needs none
            return Status.DUPLICATE
        if not self._rooms[owner].take(nbytes):
            return Status.FULL
        descriptor = int(row["format"]), *row["dims"].view(np.int64).tolist()
        try:
            fill = partial(self._fill, row)
            return self._single.put_filled(key, nbytes, owner, descriptor, fill, self._terms_of(row))
        except DamagedObject:
            return Status.CORRUPT

    def _fill(self, row: Any, payload: torch.Tensor) -> None:
        """Raises DamagedObject, so that the object is given up before anybody reads it."""
        for start, part in self._file.parts(row):
            payload[start : start + len(part)].copy_(torch.from_numpy(part))

    def _terms_of(self, row: Any) -> Terms:
        priority, until = int(row["priority"]) & PRIORITY.value, self._file.moment.from_wall(int(row["until"]))
        return Terms(priority << TERMS_PRIORITY_SHIFT.value, int(row["group"].view(np.int64)), until)
