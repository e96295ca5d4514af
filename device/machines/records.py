"""The arguments and answers of host calls: places of objects, requests, hints."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.host_records import NO_HOLE
from nanokv.device.segment.layout import DTYPE_MASK, DTYPE_SHIFT, LOW32

Descriptor = tuple[int, ...]  #: eight words: dtype code and number of dimensions, then seven dimensions
Words = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Where one object lies, or will lie."""

    owner: int  #: rank of the segment
    slot: int  #: of the header
    epoch: int
    payload: int = 0  #: offset from the segment's base, in bytes
    nbytes: int = 0


class Begun(NamedTuple):
    """An object that is being written. After OK: fill `place.payload`, then `finish`, or `abort` and `leave`."""

    status: int
    place: Place
    phase: int  #: the grace phase to leave; -1 if no operation is counted (plans, v1)
    evicted: int = 0  #: v1: objects that the master evicted for it


class Found(NamedTuple):
    """The answer of `lookup`. After OK, it held only if `validate` answers OK afterwards."""

    status: int
    place: Place
    descriptor: Descriptor

    def suits(self, nbytes: int, what: Descriptor) -> bool:
        """`get.is_described` and its size, for a host that copies by itself: it holds only if validated afterwards."""
        kind = self.descriptor[0] & LOW32.value
        same = (kind, *self.descriptor[1:]) == (what[0] & LOW32.value, *what[1:])
        raw = (kind >> DTYPE_SHIFT.value) & DTYPE_MASK.value == 0
        return self.place.nbytes == nbytes and (same or raw or what[0] == 0)


class What(NamedTuple):
    """Size, dtype and shape of a tensor."""

    nbytes: int
    descriptor: Descriptor
    address: int  #: of the WHAT record in `words`, which says the same
    words: Words

    @staticmethod
    def of(nbytes: int, descriptor: Descriptor) -> "What":
        """Make a request with a record of its own."""
        words = np.array((nbytes, *descriptor), np.int64)
        return What(nbytes, descriptor, int(words.ctypes.data), words)


class Terms(NamedTuple):
    """Who may evict an object, and when it goes by itself. All 0: by its last use alone, and never."""

    access: int = 0  #: TERMS bits: the end of its lease in ns, or 0, and its priority
    group: int = 0  #: LABEL.group
    until: int = 0  #: LABEL.until


NO_TERMS = Terms()


class Request(NamedTuple):
    """One object to put or get."""

    key: tuple[int, int]
    address: int  #: put: of the source; get: of the destination; as the launching device sees it
    nbytes: int
    owner: int = 0  #: put: the rank of the segment that gets the object
    what: Descriptor = (0,) * 8  #: the descriptor; get: see `get.is_described`
    flags: int = 0
    block: int = 0  #: the block of the batch's pages, instead of an address
    plane: int = 0  #: the first plane of the object
    terms: Terms = NO_TERMS  #: put


class Hints(NamedTuple):
    """Hints that were taken from a ring."""

    hints: Words
    head: int  #: the ticket up to which the machine looked
    hole: int  #: the first ticket whose slot was empty, or `head`
    records: npt.NDArray[Any]  #: per hint the header that a STORED one is about (OBJ_HEADER)
    good: npt.NDArray[np.bool_]  #: per hint whether that is whole; False if the hint is not about a READY header


class Bell(NamedTuple):
    """What native code sleeps on until a hint is left in any segment."""

    address: int  #: of a word of 32 bits: 1 while somebody waits; who leaves a hint clears it, and wakes who waits
    futex: int  #: the number of the system call


class Position(NamedTuple):
    """Where the consumer of a ring is."""

    tail: int  #: tickets consumed
    head: int  #: the ticket before which the last look ended
    hole: int = NO_HOLE.value  #: the ticket that the tail waits for
    hole_since: int = 0  #: ns
    hole_head: int = 0  #: the head then

    def advanced(self, head: int, hole: int, now: int, patience: int) -> "Position":
        """After a look up to `head`: move on to there, or for a while only to the first empty slot, `hole`.

        Its producer may yet fill it. `now` and `patience`: ns.
        """
        if hole == head:
            return Position(head, head)
        if self.hole == NO_HOLE.value or self.hole < self.tail:
            return Position(hole, head, hole, now, head)
        if now - self.hole_since > patience:
            return Position(self.hole_head, head)
        return self._replace(head=head)
