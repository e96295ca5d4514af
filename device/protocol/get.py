"""Get: the whole protocol of a reader, in order: `lookup`, copy, `verify`.

Source: the reader of a seqlock, as in Boehm (2012).

Guarantees: a reader returns the bytes of the key that it asked for, whole, or a miss (I4). The copy counts only if the
header is READY in the same epoch afterwards, and if its checksum is right, where there is one (`checksum`). A reader
neither waits nor is counted: a header that moves on makes the copy worthless, not wrong.

Why the orderings suffice: see `header` (validate) and `directory` (find).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, checksum_bytes, copy_bytes, load64, select, word
from nanokv.device.protocol.checksum import has_checksum, is_right
from nanokv.device.protocol.directory import entry_header, entry_owner, find_state
from nanokv.device.protocol.extent import class_of, is_held
from nanokv.device.protocol.header import descriptor_of, epoch_of, pages_of, raw_bytes, still_ready, unlike
from nanokv.device.protocol.lease import touch
from nanokv.device.protocol.status import CORRUPT, MISS, OK, SIZE, TORN
from nanokv.device.protocol.structs import Descriptor, Found, Key
from nanokv.device.segment.layout import (
    COUNT_CORRUPT,
    DTYPE_MASK,
    DTYPE_SHIFT,
    H_BYTES,
    H_PAYLOAD,
)
from nanokv.device.segment.world_table import World, header_at, is_inside, segment


@triton.jit
def is_extent(world: World, seg: tl.int64, slot: tl.int64, payload: tl.int64, nbytes: tl.int64) -> Any:
    """True if a READY header can hold `nbytes` at the offset `payload`: it has the pages, and their link names it.

    Three words of the header describe its bytes, and the extent's link names the slot: if one of the four is wrong, it
    does not lead to the bytes of another object.
    """
    size = world.page_bytes
    inside = is_inside(world, payload, nbytes)
    offset = select(inside, payload, world.heap_base) - world.heap_base
    page = offset // size
    n_pages = pages_of(header_at(world, seg, slot))
    right = inside & (offset == page * size) & (n_pages == (select(inside, nbytes, word(0)) + size - 1) // size)
    if right & (n_pages > 0):
        right = is_held(world, seg, page, class_of(world, n_pages), slot)
    return right


@triton.jit
def lookup(world: World, key: Key) -> Any:
    """Find a READY object. Returns (status, Found): OK, MISS, NOT_READY or CORRUPT.

    What is found after OK is true only if `validate` returns OK afterwards; after another status it is zeros.
    """
    status, entry, state = find_state(world, key)
    owner = word(0)
    slot = word(0)
    epoch = word(0)
    payload = word(0)
    nbytes = word(0)
    if status == OK:
        owner = entry_owner(entry)
        slot = entry_header(entry)
        seg = segment(world, owner)
        header = header_at(world, seg, slot)
        epoch = epoch_of(state)
        payload = load64(header + H_PAYLOAD, "relaxed")
        nbytes = load64(header + H_BYTES, "relaxed")
        # a header that is still READY in this epoch but names impossible bytes is corrupt, else it was in motion
        if not is_extent(world, seg, slot, payload, nbytes):
            status = select(still_ready(header, epoch), word(CORRUPT), word(MISS))
            if status == CORRUPT:
                add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status, Found(owner, slot, epoch, payload, nbytes)


@triton.jit
def validate(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """After a copy: OK if the object was there all the while, else TORN."""
    header = header_at(world, segment(world, owner), slot)
    return select(still_ready(header, epoch), word(OK), word(TORN))


@triton.jit
def judged(world: World, found: Found, key: Key, flagged: tl.int64, payload_sum: tl.int64) -> Any:
    """After a copy: OK, TORN if the object was not there all the while, CORRUPT if it was and its checksum is wrong."""
    seg = segment(world, found.owner)
    right = is_right(world, seg, found.slot, key, found.nbytes, flagged, payload_sum)
    status = validate(world, found.owner, found.slot, found.epoch)
    if (status == OK) & (not right):
        status = word(CORRUPT)
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status


@triton.jit
def verify(world: World, found: Found, key: Key, copy: tl.int64) -> Any:
    """After a copy to the address `copy` (or in place, for a pinned object): OK, TORN or CORRUPT."""
    flagged = has_checksum(header_at(world, segment(world, found.owner), found.slot))
    payload_sum = word(0)
    if flagged:
        payload_sum = checksum_bytes(copy, found.nbytes, 0)
    return judged(world, found, key, flagged, payload_sum)


@triton.jit
def read(world: World, found: Found, key: Key, dst: tl.int64, now: tl.int64) -> Any:
    """Copy the object that `lookup` found to the address `dst`, and verify: OK, TORN or CORRUPT."""
    copy_bytes(dst, segment(world, found.owner) + found.payload, found.nbytes)
    status = verify(world, found, key, dst)
    if status == OK:
        touch(world, found.owner, found.slot, found.epoch, now)
    return status


@triton.jit
def is_described(world: World, seg: tl.int64, slot: tl.int64, wanted: Descriptor) -> Any:
    """Whether an object has this dtype and shape; raw bytes have any, and a `kind` of 0 asks for none.

    It counts only if the STATE word is validated afterwards.
    """
    right = wanted.kind == 0
    if not right:
        has = descriptor_of(world, seg, slot)
        right = (((has.kind >> DTYPE_SHIFT) & DTYPE_MASK) == 0) | (unlike(has, wanted) == 0)
    return right


@triton.jit
def get_described(world: World, key: Key, dst: tl.int64, room: tl.int64, now: tl.int64, descriptor: Descriptor) -> Any:
    """`get` of an object that `is_described` so; else SIZE."""
    status, found = lookup(world, key)
    if status == OK:
        right = is_described(world, segment(world, found.owner), found.slot, descriptor)
        if (found.nbytes == room) & right:
            status = read(world, found, key, dst, now)
        else:
            valid = validate(world, found.owner, found.slot, found.epoch)
            status = select(valid == OK, word(SIZE), word(TORN))
    return status


@triton.jit
def get(world: World, key: Key, dst: tl.int64, room: tl.int64, now: tl.int64) -> Any:
    """A whole get of an object of exactly `room` bytes to `dst`: OK, MISS, NOT_READY, TORN, SIZE or CORRUPT."""
    return get_described(world, key, dst, room, now, raw_bytes())
