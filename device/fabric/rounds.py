"""Get, by a reader that sees the owner's memory only by transfers: four rounds, whatever the number of keys.

    1. the two buckets of each key
    2. the headers of the entries that may be of it
    3. the bytes, the descriptor, and the header again
    4. the STATE word, and the first line of the control block

Each round is one transfer per peer, and none begins before the last one is complete. A reader who knows where an object
lies, from an event or an earlier get, begins with the third.

Guarantees
- A reader gets the bytes and the descriptor of the key that it asked for, whole, or no object (I4). It does so also
  if the owner removes, evicts and puts meanwhile, or if another segment lies where the card says: the copy counts only
  if STATE was READY before the third round and is READY in the same epoch after it, if the header of the third round
  has the key, place and size by which the bytes were read, and if the control block is that of the card.
- The owner's process is not asked. It need not even run, where the link does not need it.
- A reader does not wait: it is told TORN, and asks again.

Why the orderings suffice: a transfer orders nothing within itself, and a transfer that is complete happened before one
that begins later. The owner's producers release READY after bytes, descriptor and header; the next producer that uses
slot or pages has acquired that the object is DEAD, or made it so by a read-modify-write, before it stores a word there.
So what is read between two looks at STATE that are READY in one epoch is of that epoch: the bytes, the descriptor, and
all words of the header except those of pins and last access.

The first look at a header is not at one instant. It may have STATE of one use of the slot and place or size of the one
before; the last look may have STATE of that use and the rest of the next one, which may be equal. So two equal looks
prove nothing about the words beside STATE, and the third round reads them once more (scenario remote-fresh). For the
same reason a first look that names impossible bytes is only DOUBTFUL: it may be torn, or the header is corrupt. And
descriptor and flags belong to the third round: those beside the first STATE may be of the slot's last use.

Transfers see a store that follows a read-modify-write of its thread not before that. x86 promises it; Arm's memory
model does not, after a compare-and-swap that only acquires (`header.kill`, in an eviction that hands pages on).

The functions of one round follow each other around its transfer. They touch private memory only.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.fetches import fetch_at, in_order, rows_of_bytes
from nanokv.device.fabric.judging import copy_line, judge_again, judge_header, rank_of, same_header
from nanokv.device.fabric.lines import add_look, field, gather, peek, poke
from nanokv.device.fabric.records import (
    F_HEADER,
    F_KEY_CHECK,
    F_KEY_HASH,
    F_OWNER,
    F_SLOT,
    F_STATUS,
    F_WHAT,
    W_MOST_LOOKS,
    W_PLACES,
)
from nanokv.device.memory.triton import select, store64, word
from nanokv.device.protocol.directory import candidate_at, entry_header, entry_owner, home_of, in_bounds, is_sure
from nanokv.device.protocol.status import BUSY, MISS, OK, TORN
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import CANDIDATES, ENTRIES_PER_BUCKET
from nanokv.device.segment.world_table import World, descriptor_at, header_at, segment


# --- first round: buckets ---
@triton.jit
def ask_buckets(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring both buckets of each key. Askers: two per key."""
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        seg = segment(world, home_of(world, field(fetch, F_KEY_CHECK)))
        key_hash = field(fetch, F_KEY_HASH)
        store64(fetch + F_STATUS, word(MISS), "relaxed")
        add_look(work, 2 * i, 2 * i, candidate_at(world, seg, key_hash, word(0)))
        add_look(work, 2 * i + 1, 2 * i + 1, candidate_at(world, seg, key_hash, word(ENTRIES_PER_BUCKET)))
        i += 1
    rows, _ = gather(work, 2 * count, word(0), word(0))
    return rows


# --- second round: headers ---
@triton.jit
def ask_headers(world: World, work: tl.int64, count: tl.int64, candidates: tl.int64) -> Any:
    """The rows that bring the headers of all entries that may be of a key: (rows, candidates).

    Args:
        candidates: address of room for two words per look: the number of the fetch, and the entry.
    """
    places, most = field(work, W_PLACES), field(work, W_MOST_LOOKS)
    found = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        k = word(0)
        while k < CANDIDATES:
            bucket = peek(places, 2 * i + k // ENTRIES_PER_BUCKET)
            entry = peek(bucket, k % ENTRIES_PER_BUCKET)
            if is_sure(entry, field(fetch, F_KEY_CHECK)) and in_bounds(world, entry):
                if found < most:
                    poke(candidates, 2 * found, i)
                    poke(candidates, 2 * found + 1, entry)
                    found += 1
                else:
                    store64(fetch + F_STATUS, word(BUSY), "relaxed")
            k += 1
        i += 1
    return ask_candidates(world, work, candidates, found), found


@triton.jit
def ask_candidates(world: World, work: tl.int64, candidates: tl.int64, count: tl.int64) -> Any:
    """The rows that bring the headers behind entries. Askers: one per candidate."""
    k = word(0)
    while k < count:
        entry = peek(candidates, 2 * k + 1)
        seg = segment(world, entry_owner(entry))
        add_look(work, k, k, header_at(world, seg, entry_header(entry)))
        k += 1
    rows, _ = gather(work, count, word(0), word(0))
    return rows


@triton.jit
def take_headers(world: World, work: tl.int64, candidates: tl.int64, count: tl.int64) -> None:
    """After the second round: the answer of each fetch, and where its object lies."""
    places = field(work, W_PLACES)
    k = word(0)
    while k < count:
        fetch, entry, header = fetch_at(work, peek(candidates, 2 * k)), peek(candidates, 2 * k + 1), peek(places, k)
        answer = judge_header(world, header, entry, Key(field(fetch, F_KEY_HASH), field(fetch, F_KEY_CHECK)))
        if rank_of(answer) > rank_of(field(fetch, F_STATUS)):
            store64(fetch + F_STATUS, answer, "relaxed")
            store64(fetch + F_OWNER, entry_owner(entry), "relaxed")
            store64(fetch + F_SLOT, entry_header(entry), "relaxed")
            copy_line(fetch + F_HEADER, header)
        k += 1


# --- one round alone, for a reader who knows where objects lie: whether they still do ---
@triton.jit
def ask_known(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring the headers of all fetches that are OK. Askers: one per fetch."""
    asked = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            seg = segment(world, field(fetch, F_OWNER))
            add_look(work, asked, i, header_at(world, seg, field(fetch, F_SLOT)))
            asked += 1
        i += 1
    rows, _ = gather(work, asked, word(0), word(0))
    return rows


@triton.jit
def take_known(work: tl.int64, count: tl.int64) -> None:
    """After that round: a fetch whose header is another one by now is MISS."""
    places = field(work, W_PLACES)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            if not same_header(fetch + F_HEADER, peek(places, i)):
                store64(fetch + F_STATUS, word(MISS), "relaxed")
        i += 1


# --- third round: bytes, descriptors, headers again ---
@triton.jit
def ask_bytes(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring bytes, header and descriptor of all fetches that are OK: (rows, lines in use).

    Askers: two per fetch.

    Bytes that lie one after the other on both sides are one row. So are those with a small gap that is the same on both
    sides: what is between is copied too, so the room between two places belongs to this call.
    """
    row = rows_of_bytes(world, work, in_order(world, work, count))
    asked = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            seg = segment(world, field(fetch, F_OWNER))
            add_look(work, asked, 2 * i, header_at(world, seg, field(fetch, F_SLOT)))
            add_look(work, asked + 1, 2 * i + 1, descriptor_at(world, seg, field(fetch, F_SLOT)))
            asked += 2
        i += 1
    return gather(work, asked, row, word(0))


@triton.jit
def take_descriptors(work: tl.int64, count: tl.int64) -> None:
    """After the third round: keep descriptors and headers, whose lines the next round overwrites.

    A fetch whose header is another one by now is TORN.
    """
    places = field(work, W_PLACES)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            header = peek(places, 2 * i)
            if same_header(fetch + F_HEADER, header):
                copy_line(fetch + F_HEADER, header)
                copy_line(fetch + F_WHAT, peek(places, 2 * i + 1))
            else:
                store64(fetch + F_STATUS, word(TORN), "relaxed")
        i += 1


# --- fourth round: STATE words again, and control blocks ---
@triton.jit
def ask_again(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring the headers of all fetches that are OK, and the control blocks. Askers: two per fetch."""
    asked = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            seg = segment(world, field(fetch, F_OWNER))
            add_look(work, asked, 2 * i, header_at(world, seg, field(fetch, F_SLOT)))
            add_look(work, asked + 1, 2 * i + 1, seg)
            asked += 2
        i += 1
    rows, _ = gather(work, asked, word(0), word(0))
    return rows


@triton.jit
def take_again(world: World, work: tl.int64, count: tl.int64) -> Any:
    """After the fourth round: the answer of each fetch. Returns how many are OK."""
    places = field(work, W_PLACES)
    good = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            status = judge_again(world, work, fetch, peek(places, 2 * i), peek(places, 2 * i + 1))
            store64(fetch + F_STATUS, status, "relaxed")
            good += select(status == OK, word(1), word(0))
        i += 1
    return good
