"""How far the payloads of an elastic world's segments have memory: a lazy segment gets it as it is used.

A page without memory that is written when the folder of worlds is full would be the end of the process (SIGBUS). So
whoever puts reserves the memory first, for any segment: blocks of the world's file, by fallocate. A put that gets none
is answered as one that finds no room. Where the owner of a segment is not lazy, all of it is reserved from the start.

Invariants: the payload of a segment has memory up to `WorldRank.backed`, without a hole. Two processes that reserve at
the same time may set the word to the lower end: then some is reserved again, which costs little.
"""

import logging
from typing import Protocol

import numpy as np

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, WORD
from nanokv.heap.world_file import WorldMap
from nanokv.seldom import Seldom

MOST, SHARE = 128 << 20, 16  #: bytes that are reserved ahead of use; at most the 16th part of a segment

_seldom = Seldom(logging.getLogger("nanokv.heap"))


class BackedFile(Protocol):
    """The file of a world, as one of its processes has it."""

    what: str  #: whose it is, for messages
    folder: str  #: where it lies, for messages

    def free_bytes(self) -> int:
        """How many bytes its file system has left."""
        ...

    def reserve(self, geometry: Geometry, rank: int, start: int, end: int) -> bool:
        """Allocate the blocks of a part of a rank's segment. False if there is not enough memory."""
        ...


class Backing:
    """The memory of all segments of one world, as one of its processes reserves it. Any thread may call.

    Attributes:
        ahead: bytes that are reserved beyond those that are about to be used.
    """

    def __init__(self, file: BackedFile, mapped: WorldMap, geometry: Geometry) -> None:
        self._file, self._geometry = file, geometry
        self._begin, self._end = geometry.offsets["heap_base"], geometry.offsets["heap_limit"]
        self.ahead = min(MOST, (self._end - self._begin) // SHARE)
        # words as memoryviews, which are read in a quarter of an array's time: each put asks
        self._backed = [mapped.ranks["backed"][rank : rank + 1].data for rank in range(len(mapped.parts))]
        at = HEAP_CTL.offsets["bump_ptr"]
        #: by rank: the addresses of the word that says how far it has memory, and of its HeapCtl.bump_ptr
        self.words = [
            (mapped.ranks["backed"][rank : rank + 1].ctypes.data, part[at:].ctypes.data)
            for rank, part in enumerate(mapped.parts)
        ]
        self._bumps = [part[at : at + WORD].view(np.uint64).data for part in mapped.parts]

    def is_ready(self, rank: int, nbytes: int) -> bool:
        """Reserve what puts of so many bytes may take next in a segment, and some more for those of others meanwhile.

        False: the folder is full. Then there may be room in pages that have been used (`reach`).
        """
        backed = self._backed[rank][0]
        if backed >= self._end or not backed:  # 0: the rank is absent, and nobody gets a page of it
            return True
        return self.reach(rank, min(self._bumps[rank][0], self._end) + nbytes + self.ahead)

    def end_of(self, rank: int) -> int | None:
        """The number of the first page of a segment that has no memory, or None: all of them have."""
        backed = self._backed[rank][0]
        return (max(backed, self._begin) - self._begin) // self._geometry.page_bytes if backed < self._end else None

    def reach(self, rank: int, end: int) -> bool:
        """Reserve the payload of a segment up to an offset, at most its end. False: the folder is full."""
        backed, end = max(self._backed[rank][0], self._begin), min(end, self._end)
        if end <= backed:
            return True
        if not self._file.reserve(self._geometry, rank, backed, end):
            self._tell_full(rank, backed - self._begin)
            return False
        self._backed[rank][0] = max(self._backed[rank][0], end)
        return True

    def _tell_full(self, rank: int, have: int) -> None:
        file, whole = self._file, self._end - self._begin
        what = f"segment {rank} of {file.what} has {have} of the {whole} bytes that it may take"
        _seldom.warn(file.what, f"{file.folder} is full: {what}, {file.free_bytes()} are free, and puts find no room")

    def begin(self, rank: int, *, whole: bool) -> None:
        """A rank has come: its payload has memory already, or none yet."""
        self._backed[rank][0] = self._end if whole else self._begin

    def end(self, rank: int) -> None:
        """A rank has left for good, and its memory goes back."""
        self._backed[rank][0] = 0
