"""Claiming: a producer inserts its key into the directory, or learns that another one has it.

Inserting has two phases, because two producers of one key may both find no entry, and take different ones:
1. Write the entry TENTATIVE.
2. Pass the bucket's turnstile: one read-modify-write on one word.
3. Look at the other fifteen entries. At a FINAL entry of the key, withdraw. Of two TENTATIVE ones the producer whose
   entry stands first in the order of the entries removes the other; the producer of the second withdraws.
4. TENTATIVE -> FINAL by CAS. It fails if another producer has removed the entry: then that producer's entry stays.

A producer withdraws where a copy is READY, as at a FINAL entry. A copy that is being made does not refuse it: the
producer gives that copy up.

Source: the turnstile, Dekker's pattern with one read-modify-write in the place of its fence.

Guarantees
- At most one entry of a key is FINAL with a live header. Only the rank that made a header DEAD removes its FINAL entry.
- An insert that withdraws has seen another insert of the same key, at the same time or before. It answers DUPLICATE
  even if that other insert fails afterwards.
- A TENTATIVE entry whose producer died is removed when its header is reclaimed.

Why the orderings suffice: the passages of a turnstile are totally ordered, and each acquires the releases of the
earlier ones. So of two producers of one key at least one finds the other's entry when it looks, and plain loads suffice
for the look at fifteen words. A producer that finds no other came first; one that finds another settles by a CAS on
that very entry, never by an earlier read. The producer that passes first may miss that the other one's header has its
key, as an entry hands nothing over (`directory`). The later one misses nothing, and settles with the first one's entry.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, store64, word
from nanokv.device.protocol.directory import (
    candidate_at,
    entry_header,
    entry_owner,
    entry_word,
    first_place,
    has_tag,
    home_of,
    is_copy,
    is_sure,
    judge,
    look,
    ones,
    turn_at,
)
from nanokv.device.protocol.header import epoch_of, kill, state_word
from nanokv.device.protocol.status import DUPLICATE, NO_ENTRY, NOT_READY, OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import (
    CANDIDATES,
    ENTRIES_PER_BUCKET,
    ENTRY_FINAL,
    ENTRY_REPLICA,
    ENTRY_TENTATIVE,
    PIN_BITS,
    READY,
    WRITING,
)
from nanokv.device.segment.world_table import (
    World,
    header_at,
    open_world,
    segment,
)


@triton.jit
def roomiest(empty: tl.int64) -> Any:
    """The first empty place in the emptier bucket, or -1.

    Because the emptier of two buckets is taken, a directory at half load practically never runs full.
    """
    first = empty & ((word(1) << ENTRIES_PER_BUCKET) - 1)
    second = empty >> ENTRIES_PER_BUCKET
    room = ones(first | (second << 8))
    emptier = select((room >> 8) > (room & 0xFF), second << ENTRIES_PER_BUCKET, first)
    return select(empty != 0, first_place(emptier), word(-1))


@triton.jit(noinline=True)
def is_taken(table: tl.int64, seg: tl.int64, key: Key, tagged: tl.int64) -> Any:
    """True if one of the entries at the places `tagged` leads to an object of this key, or to one that is being put.

    A copy that is being made is neither.
    """
    world = open_world(table)
    taken = tagged != tagged
    while tagged != 0:
        seen = load64(candidate_at(world, seg, key.hash, first_place(tagged)), "relaxed")
        if is_sure(seen, key.check):
            answer, _ = judge(world, seen, key)
            taken = taken | (answer == OK) | ((answer == NOT_READY) & (not is_copy(seen)))
        tagged = tagged & (tagged - 1)
    return taken


@triton.jit
def survey(world: World, seg: tl.int64, key: Key, tagged: tl.int64, empty: tl.int64) -> Any:
    """Choose a place for a new entry of a key, after a `look`, which may be old: no place is taken by it.

    Returns (status, place): OK, DUPLICATE, or NO_ENTRY and -1.
    """
    at = roomiest(empty)
    status = select(at >= 0, word(OK), word(NO_ENTRY))
    if tagged != 0:
        if is_taken(world.table, seg, key, tagged):
            status = word(DUPLICATE)
    return status, at


@triton.jit
def place(world: World, seg: tl.int64, key: Key, start: tl.int64, entry: tl.int64) -> Any:
    """Write a TENTATIVE entry, at the place `start` if it is empty still. Returns (status, place): OK or NO_ENTRY."""
    status = word(OK)
    at = word(-1)
    i = word(0)
    while (status == OK) & (at < 0):
        here = (start + i) & (CANDIDATES - 1)
        # relaxed: the turnstile orders the entry before the look
        if cas64(candidate_at(world, seg, key.hash, here), 0, entry, "relaxed") == 0:
            at = here
        i += 1
        status = select((at < 0) & (i == CANDIDATES), word(NO_ENTRY), status)
    return status, at


@triton.jit
def settle(world: World, seg: tl.int64, key: Key, mine: tl.int64, i: tl.int64) -> Any:
    """Settle with the i-th entry; the caller's own is at the place `mine`. True if the caller's own may stay."""
    entry_at = candidate_at(world, seg, key.hash, i)
    stays = i == i
    seen = load64(entry_at, "relaxed")
    again = has_tag(seen, key.check)
    tries = word(0)
    while again & (tries < CANDIDATES):
        answer, _ = judge(world, seen, key)
        live = (answer == OK) | ((answer == NOT_READY) & (not is_copy(seen)))
        final = is_sure(seen, key.check)
        again = live & (not final) & (mine < i)
        stays = (not live) | again
        if again:
            got = cas64(entry_at, seen, 0, "relaxed")  # relaxed: the word itself decides
            again = (got != seen) & has_tag(got, key.check)
            seen = got
        tries += 1
    return stays & (not again)


@triton.jit(noinline=True)
def prevails(table: tl.int64, seg: tl.int64, key: Key, mine: tl.int64, others: tl.int64) -> Any:
    """Settle with the entries at the places `others`. True if the caller's own may stay."""
    world = open_world(table)
    stays = mine == mine
    left = others
    while (left != 0) & stays:
        stays = settle(world, seg, key, mine, first_place(left))
        left = left & (left - 1)
    while (others != 0) & stays:
        stays = has_no_copy(world, seg, key, first_place(others))
        others = others & (others - 1)
    return stays


@triton.jit
def stop_copy(world: World, entry: tl.int64, state: tl.int64) -> Any:
    """Give up a copy that was seen WRITING: False if it is READY by now. Its producer's commit fails: LOST.

    The owner's sweeper frees the pages after a grace period: the producer may still store into them (`quarantine`).
    """
    header = header_at(world, segment(world, entry_owner(entry)), entry_header(entry))
    epoch = epoch_of(state)
    return (kill(header, WRITING, epoch) & ~PIN_BITS) != state_word(READY, epoch)


@triton.jit
def has_no_copy(world: World, seg: tl.int64, key: Key, i: tl.int64) -> Any:
    """Give up, for a producer, the copy that the i-th entry leads to. False if it is READY."""
    entry = load64(candidate_at(world, seg, key.hash, i), "relaxed")
    gone = i == i
    if is_copy(entry) & has_tag(entry, key.check):
        answer, state = judge(world, entry, key)
        gone = answer != OK
        if answer == NOT_READY:
            gone = stop_copy(world, entry, state)
    return gone


@triton.jit
def claim(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key: Key) -> Any:
    """Insert the key of a RESERVED header: OK, DUPLICATE or NO_ENTRY. After OK the entry is FINAL."""
    seg = segment(world, home_of(world, key.check))
    tagged, empty = look(world, seg, key)
    status, start = survey(world, seg, key, tagged, empty)
    if status == OK:
        status = claim_at(world, seg, start, owner, slot, epoch, key)
    return status


@triton.jit
def claim_at(
    world: World, seg: tl.int64, start: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key: Key
) -> Any:
    """`claim`, after a `survey` of the segment `seg` chose the place `start`."""
    tentative = entry_word(ENTRY_TENTATIVE, key.check, owner, slot, epoch)
    status, mine = place(world, seg, key, start, tentative)
    if status == OK:
        # acq_rel: the later of two producers sees the entry of the earlier one (scenario same-key-busy)
        add64(turn_at(world, seg, key.hash), 1, "acq_rel")
        tagged, _ = look(world, seg, key)
        others = tagged & ~(word(1) << mine)
        if others != 0:
            if not prevails(world.table, seg, key, mine, others):
                status = word(DUPLICATE)
        entry_at = candidate_at(world, seg, key.hash, mine)
        target = select(status == OK, entry_word(ENTRY_FINAL, key.check, owner, slot, epoch), word(0))
        # relaxed: a reader acts on READY only, and a later producer has acquired the turnstile
        if cas64(entry_at, tentative, target, "relaxed") != tentative:
            status = word(DUPLICATE)
    return status


@triton.jit
def erase(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key: Key) -> None:
    """Remove the entry of a DEAD header, in whichever phase it is. Does nothing if there is none.

    Other producers of the key may remove one that is TENTATIVE, and then its place may have another entry.
    """
    seg = segment(world, home_of(world, key.check))
    final = entry_word(ENTRY_FINAL, key.check, owner, slot, epoch)
    tentative = entry_word(ENTRY_TENTATIVE, key.check, owner, slot, epoch)
    replica = entry_word(ENTRY_REPLICA, key.check, owner, slot, epoch)
    tagged, _ = look(world, seg, key)
    while tagged != 0:
        entry_at = candidate_at(world, seg, key.hash, first_place(tagged))
        seen = load64(entry_at, "relaxed")
        if seen == final:
            store64(entry_at, word(0), "relaxed")  # nobody else removes it
        elif (seen == tentative) | (seen == replica):
            cas64(entry_at, seen, 0, "relaxed")
        tagged = tagged & (tagged - 1)
