"""Requests: the objects that a launch puts or gets, as a table in device memory.

The table is private to the launching rank. None of its words is an argument of the kernel, so a captured graph puts
other keys, sizes and owners once the host or a kernel has changed the table.

Guarantees: a put with an owner, size, flag, lease or time that cannot be is refused (`is_possible`). The caller
answers for the addresses, which no kernel can check.

Why the orderings suffice: the table changes only between launches, so plain loads (`table64`) read it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import table64
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import FLAG_PLAN, WORD_BYTES
from nanokv.device.segment.record import Field, Record
from nanokv.device.segment.world_table import World, is_rank

REQUEST = Record(
    "Request",
    8,
    [
        Field("owner", "<i8", "put: the rank whose segment gets the object"),
        Field("key_hash", "<i8", "low half of the key's digest"),
        Field("key_check", "<i8", "high half of the key's digest"),
        Field("nbytes", "<i8", "put: bytes of the object; get: bytes of the destination"),
        Field("address", "<i8", "address of the source or the destination, as the launching device sees it"),
        Field("block", "<i8", "for a paged cache, instead of the address: the number of the block"),
        Field("plane", "<i8", "for a paged cache: the first plane of the object"),
        Field("flags", "<i8", "put: FLAG_* of the header"),
        Field("lease", "<i8", "put: TERMS bits: the time in ns at which its lease ends, or 0, and its priority"),
        Field("group", "<i8", "put: LABEL.group, or 0"),
        Field("until", "<i8", "put: LABEL.until, or 0"),
        Field("what", "<i8", "the descriptor: format and seven dimensions; get: format 0 if any will do", repeat=8),
    ],
)
REQUEST_BYTES = tl.constexpr(REQUEST.size)
Q_OWNER = REQUEST.at("owner")
Q_KEY_HASH = REQUEST.at("key_hash")
Q_KEY_CHECK = REQUEST.at("key_check")
Q_BYTES = REQUEST.at("nbytes")
Q_ADDRESS = REQUEST.at("address")
Q_BLOCK = REQUEST.at("block")
Q_PLANE = REQUEST.at("plane")
Q_FLAGS = REQUEST.at("flags")
Q_LEASE = REQUEST.at("lease")
Q_GROUP = REQUEST.at("group")
Q_UNTIL = REQUEST.at("until")
Q_WHAT = REQUEST.at("what")


@triton.jit
def is_possible(world: World, request: tl.int64) -> Any:
    """True if the words of a request for a put can be right: the owner leads to a segment, and no word is negative."""
    # negative if one of them is
    least = table64(request + Q_BYTES) | table64(request + Q_LEASE) | table64(request + Q_UNTIL)
    flags = table64(request + Q_FLAGS)
    return is_rank(world, table64(request + Q_OWNER)) & (least >= 0) & ((flags & ~FLAG_PLAN) == 0)


@triton.jit
def key_in(request: tl.int64) -> Any:
    """The key in a request."""
    return Key(table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK))


@triton.jit
def descriptor_in(request: tl.int64) -> Any:
    """The descriptor in a request."""
    what = request + Q_WHAT
    return Descriptor(
        table64(what),
        table64(what + 1 * WORD_BYTES),
        table64(what + 2 * WORD_BYTES),
        table64(what + 3 * WORD_BYTES),
        table64(what + 4 * WORD_BYTES),
        table64(what + 5 * WORD_BYTES),
        table64(what + 6 * WORD_BYTES),
        table64(what + 7 * WORD_BYTES),
    )
