"""The answers of protocol operations. Inside the protocol they are numbers; only the API raises exceptions."""

from enum import IntEnum

import triton.language as tl


class Status(IntEnum):
    """The answer of one operation on one object."""

    OK = 0
    MISS = 1  #: no READY object has this key
    DUPLICATE = 2  #: an object has the key already, or another producer is writing one
    FULL = 3  #: no extent of the size was free, and none could be split, bumped or evicted
    NO_HEADER = 4  #: every header slot is in use
    NO_ENTRY = 5  #: all sixteen directory entries that the key may use are taken
    LOST = 6  #: the object was given up while its producer wrote it; the owner's host frees the pages
    TORN = 7  #: the object went away while it was copied; the bytes in the destination mean nothing
    PINNED = 8  #: a reader holds the object in place
    NOT_READY = 9  #: the object exists, but not all of its bytes yet
    CORRUPT = 10  #: a word of the segment cannot be right, or a checksum is wrong
    SIZE = 11  #: the destination has another number of bytes than the object
    TOO_LARGE = 12  #: larger than the largest size class
    NO_PIN = 13  #: the segment's pin ledger is full
    BUSY = 14  #: a bounded loop gave up; nothing was changed
    INVALID = 15  #: an argument, or a word of a request, cannot be right; nothing was done


OK = tl.constexpr(Status.OK.value)
MISS = tl.constexpr(Status.MISS.value)
DUPLICATE = tl.constexpr(Status.DUPLICATE.value)
FULL = tl.constexpr(Status.FULL.value)
NO_HEADER = tl.constexpr(Status.NO_HEADER.value)
NO_ENTRY = tl.constexpr(Status.NO_ENTRY.value)
LOST = tl.constexpr(Status.LOST.value)
TORN = tl.constexpr(Status.TORN.value)
PINNED = tl.constexpr(Status.PINNED.value)
NOT_READY = tl.constexpr(Status.NOT_READY.value)
CORRUPT = tl.constexpr(Status.CORRUPT.value)
SIZE = tl.constexpr(Status.SIZE.value)
TOO_LARGE = tl.constexpr(Status.TOO_LARGE.value)
NO_PIN = tl.constexpr(Status.NO_PIN.value)
BUSY = tl.constexpr(Status.BUSY.value)
INVALID = tl.constexpr(Status.INVALID.value)

# what a segment has for an extent of a size class (`joinable.outlook`)
NOTHING = tl.constexpr(0)
NEIGHBOURS = tl.constexpr(1)  # that can be joined, or are being joined
EXTENT = tl.constexpr(2)
