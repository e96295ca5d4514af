"""The FETCHes of a pass: where the bytes of each go, which rows bring them, and whether they are right."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.lines import field, look_word, peek, poke, put_row, sort
from nanokv.device.fabric.records import (
    ASKER_MASK,
    F_DST,
    F_HEADER,
    F_KEY_CHECK,
    F_KEY_HASH,
    F_OWNER,
    F_SLOT,
    F_STATUS,
    F_WHAT,
    FETCH_BYTES,
    LINE_WORDS,
    W_BASE,
    W_BYTE_GAP,
    W_FETCHES,
    W_LOOKS,
)
from nanokv.device.memory.triton import checksum_bytes, copy_bytes, store64, word
from nanokv.device.protocol.checksum import checksum
from nanokv.device.protocol.header import epoch_of, load_descriptor, unlike
from nanokv.device.protocol.status import OK, SIZE
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.host_records import WHAT_FORMAT
from nanokv.device.segment.layout import (
    CHECKSUM_MASK,
    CHECKSUM_SHIFT,
    DTYPE_MASK,
    DTYPE_SHIFT,
    FLAG_CHECKSUM,
    H_BYTES,
    H_FLAGS,
    H_PAYLOAD,
    H_STATE,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, segment


@triton.jit
def fetch_at(work: tl.int64, i: tl.int64) -> Any:
    """The address of the i-th FETCH."""
    return field(work, W_FETCHES) + i * FETCH_BYTES


@triton.jit
def dst_of(work: tl.int64, fetch: tl.int64) -> Any:
    """The address to which the bytes of a FETCH go."""
    return field(work, W_BASE) + field(fetch, F_DST)


@triton.jit
def in_order(world: World, work: tl.int64, count: tl.int64) -> Any:
    """Sorted LOOK words of the bytes of all fetches that are OK and have some, in LOOKS: how many."""
    looks = field(work, W_LOOKS)
    found = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if (field(fetch, F_STATUS) == OK) & (field(fetch, F_HEADER + H_BYTES) > 0):
            seg = segment(world, field(fetch, F_OWNER))
            poke(looks, found, look_word(seg + field(fetch, F_HEADER + H_PAYLOAD), i))
            found += 1
        i += 1
    sort(looks, found)
    return found


@triton.jit
def place_each(world: World, work: tl.int64, count: tl.int64) -> Any:
    """Choose where the bytes of each fetch go, so that few rows bring them. Returns how many bytes of room it takes.

    What lies close to each other there lies as far apart here.
    """
    looks, gap = field(work, W_LOOKS), field(work, W_BYTE_GAP)
    found = in_order(world, work, count)
    end_here = word(0)
    end_there = word(0)
    k = word(0)
    while k < found:
        fetch = fetch_at(work, peek(looks, k) & ASKER_MASK)
        at = segment(world, field(fetch, F_OWNER)) + field(fetch, F_HEADER + H_PAYLOAD)
        nbytes = field(fetch, F_HEADER + H_BYTES)
        apart = at - end_there
        if (k == 0) | (apart < 0) | (apart > gap):
            apart = (0 - end_here) & (LINE_WORDS * WORD_BYTES - 1)
        store64(fetch + F_DST, end_here + apart, "relaxed")
        end_here = end_here + apart + nbytes
        end_there = at + nbytes
        k += 1
    return end_here


@triton.jit
def rows_of_bytes(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows of the payloads whose sorted LOOK words name the fetches. Returns how many."""
    looks, gap = field(work, W_LOOKS), field(work, W_BYTE_GAP)
    row = word(0)
    here = word(0)
    there = word(0)
    length = word(0)
    k = word(0)
    while k < count:
        fetch = fetch_at(work, peek(looks, k) & ASKER_MASK)
        dst, nbytes = dst_of(work, fetch), field(fetch, F_HEADER + H_BYTES)
        at = segment(world, field(fetch, F_OWNER)) + field(fetch, F_HEADER + H_PAYLOAD)
        apart = at - there - length
        if (k > 0) & (apart >= 0) & (apart <= gap) & (dst - here == at - there):
            length = at - there + nbytes
        else:
            if k > 0:
                put_row(work, row, here, there, length)
                row += 1
            here, there, length = dst, at, nbytes
        k += 1
    if count > 0:
        put_row(work, row, here, there, length)
        row += 1
    return row


@triton.jit
def has_right_sum(world: World, work: tl.int64, fetch: tl.int64) -> Any:
    """True if the checksum of what was read is right, or if there is none and this reader does not insist on one."""
    right = world.checksum == 0
    if (field(fetch, F_HEADER + H_FLAGS) & FLAG_CHECKSUM) != 0:
        key, nbytes = Key(field(fetch, F_KEY_HASH), field(fetch, F_KEY_CHECK)), field(fetch, F_HEADER + H_BYTES)
        descriptor = load_descriptor(fetch + F_WHAT)
        value = checksum(key, nbytes, checksum_bytes(dst_of(work, fetch), nbytes, 0), descriptor)
        right = ((descriptor.kind >> CHECKSUM_SHIFT) & CHECKSUM_MASK) == value
    return right


@triton.jit
def copy_each(work: tl.int64, count: tl.int64, targets: tl.int64, nbytes: tl.int64, what: tl.int64) -> None:
    """Copy the bytes of all fetches that are OK to addresses (words at `targets`).

    Those of another size, or of another dtype or shape than a WHAT record says, become SIZE. Raw bytes have any; so has
    a record whose format is 0.
    """
    wanted = load_descriptor(what + WHAT_FORMAT)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            if (field(fetch, F_HEADER + H_BYTES) == nbytes) & is_described_so(fetch + F_WHAT, wanted):
                copy_bytes(peek(targets, i), dst_of(work, fetch), nbytes)
            else:
                store64(fetch + F_STATUS, word(SIZE), "relaxed")
        i += 1


@triton.jit
def uses_of(work: tl.int64, count: tl.int64, uses: tl.int64) -> Any:
    """Rank, slot and epoch of each fetch that is OK, as words at `uses`: (how many, bytes of their objects)."""
    good = word(0)
    nbytes = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            poke(uses, 3 * good, field(fetch, F_OWNER))
            poke(uses, 3 * good + 1, field(fetch, F_SLOT))
            poke(uses, 3 * good + 2, epoch_of(field(fetch, F_HEADER + H_STATE)))
            nbytes += field(fetch, F_HEADER + H_BYTES)
            good += 1
        i += 1
    return good, nbytes


@triton.jit
def is_described_so(found: tl.int64, wanted: Descriptor) -> Any:
    """Whether a descriptor that was read, at an address, is the one that is wanted: see `get.is_described`."""
    has = load_descriptor(found)
    any_kind = (wanted.kind == 0) | (((has.kind >> DTYPE_SHIFT) & DTYPE_MASK) == 0)
    return any_kind | (unlike(has, wanted) == 0)
