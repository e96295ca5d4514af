"""Replicate: further copies of an object in the segments of other ranks.

All copies have the object's key. The object that a producer put, the primary, has a FINAL entry in the directory. Each
copy has a header and pages in another segment, and an entry REPLICA in the same two buckets. A replicator
1. looks the object up, takes a header and pages as `put` does, and publishes WRITING;
2. places its entry and passes the turnstile of the key;
3. looks at the other entries. It withdraws where another producer claims the key (TENTATIVE), or where the target has
   the object. Of two that make a copy in one segment, the one whose entry stands first gives the other one up;
4. copies the object, and validates as a reader does; a put with copies has the producer's source instead;
5. commits WRITING -> READY, and leaves a hint.

Source: the claim of a key (`claim`), and a reader's seqlock (`get`).

Guarantees
- READY objects of one key have the same bytes, and at most one of them is a primary.
- After a removal that answered OK no copy of that object is READY, or becomes so (`remove`).
- An object can be read as long as one of its copies is READY. A put of its key is answered DUPLICATE until then.
- A replicator that stops at any step stops nobody: its copy is given up by a producer, a remover, or the sweeper of the
  segment. An eviction takes one copy only.

Why this is right. The passages of a turnstile are in one order, and each acquires the releases of the earlier ones.
- A new object of the key, put after the source went away. A producer that passes after the replicator sees the copy:
  READY, and withdraws; or WRITING, and gives it up, so the commit fails. A producer that passes before is seen by the
  replicator while it is TENTATIVE. Once it is FINAL the source was DEAD before the replicator's look, and the
  validation, a read-modify-write of the source's STATE word after the look, fails. So it does not matter when the
  source was found.
- A removal. It reads the turnstile, ends everything that it sees, and passes the turnstile, until no replicator has
  passed in between: they are counted apart, in the upper half of the word. A copy that passed before that is seen and
  ended, also one that is WRITING. A copy that passes later was made of an object that was READY after the last passage:
  there is none.
- A put with copies commits the primary, which validates it, after the copies have passed; then it commits the copies.

Why the orderings suffice: the turnstile orders the entries and looks; an entry hands nothing over. The STATE word
orders the rest, as for a put and for a read (`header`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, copy_bytes, load64, select, store64, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.checksum import has_checksum
from nanokv.device.protocol.claim import place, roomiest, stop_copy
from nanokv.device.protocol.directory import (
    candidate_at,
    entry_owner,
    entry_word,
    first_place,
    has_tag,
    home_of,
    is_copy,
    is_sure,
    judge,
    look,
    turn_at,
)
from nanokv.device.protocol.get import lookup, validate, verify
from nanokv.device.protocol.header import acknowledge, describe, descriptor_of, reserve
from nanokv.device.protocol.label import label
from nanokv.device.protocol.lease import lease
from nanokv.device.protocol.lifetimes import lifetime, new_access
from nanokv.device.protocol.put import abort, allocate, extent_for, finish, undo
from nanokv.device.protocol.ring import asleep
from nanokv.device.protocol.shards import home_for
from nanokv.device.protocol.status import DUPLICATE, FULL, INVALID, NO_ENTRY, NO_HEADER, NOT_READY, OK
from nanokv.device.protocol.structs import Begun, Found, Key
from nanokv.device.protocol.take_or_evict import take_header
from nanokv.device.segment.layout import (
    ACCESS_TIME,
    COUNT_REFUSED,
    ENTRY_REPLICA,
    FLAG_CHECKSUM,
    FLAG_LABEL,
    H_ACCESS,
    H_FLAGS,
    L_GROUP,
    L_UNTIL,
    LEASED,
    ONE_COPY_PASSED,
    PRIORITY,
    TERMS_PRIORITY_SHIFT,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, header_at, is_rank, label_at, open_world, segment


# --- one copy ---------------------------------------------------------------------------------
@triton.jit
def is_held_by(world: World, home: tl.int64, key: Key, tagged: tl.int64, target: tl.int64) -> Any:
    """True if one of the entries at the places `tagged` leads to a READY object of the key in the segment `target`."""
    held = tagged != tagged
    while tagged != 0:
        seen = load64(candidate_at(world, home, key.hash, first_place(tagged)), "relaxed")
        if is_sure(seen, key.check) & (entry_owner(seen) == target):
            answer, _ = judge(world, seen, key)
            held = held | (answer == OK)
        tagged = tagged & (tagged - 1)
    return held


@triton.jit
def settle_copy(world: World, home: tl.int64, key: Key, mine: tl.int64, i: tl.int64, target: tl.int64) -> Any:
    """Settle a new copy in `target`, whose entry is at the place `mine`, with the i-th entry.

    OK, NOT_READY where a producer claims the key, or DUPLICATE where the target has the object.
    """
    status = word(OK)
    seen = load64(candidate_at(world, home, key.hash, i), "relaxed")
    if has_tag(seen, key.check):
        answer, state = judge(world, seen, key)
        live = (answer == OK) | (answer == NOT_READY)
        if live & (not is_sure(seen, key.check)):
            status = word(NOT_READY)
        elif live & (entry_owner(seen) == target):
            stays = is_copy(seen) & (answer == NOT_READY) & (mine < i)
            if stays:
                stays = stop_copy(world, seen, state)
            status = select(stays, word(OK), word(DUPLICATE))
    return status


@triton.jit
def enter_copy(world: World, target: tl.int64, slot: tl.int64, epoch: tl.int64, key: Key) -> Any:
    """Give a copy that is WRITING its entry: OK, NO_ENTRY, or what `settle_copy` says of the others."""
    home = segment(world, home_of(world, key.check))
    _, empty = look(world, home, key)
    start = roomiest(empty)
    status = select(start >= 0, word(OK), word(NO_ENTRY))
    mine = word(-1)
    if status == OK:
        entry = entry_word(ENTRY_REPLICA, key.check, target, slot, epoch)
        status, mine = place(world, home, key, start, entry)
    if status == OK:
        # acq_rel: others that look see this entry, or this sees what they did (scenario copy-copy)
        add64(turn_at(world, home, key.hash), ONE_COPY_PASSED, "acq_rel")
        tagged, _ = look(world, home, key)
        others = tagged & ~(word(1) << mine)
        while (others != 0) & (status == OK):
            status = settle_copy(world, home, key, mine, first_place(others), target)
            others = others & (others - 1)
    return status


@triton.jit
def allocate_copy(
    world: World, target: tl.int64, key: Key, size_class: tl.int64, n_pages: tl.int64, nbytes: tl.int64, now: tl.int64
) -> Any:
    """Take a header slot and pages for a copy, and publish WRITING, before it has an entry.

    Returns (status, slot, epoch, payload offset): OK, NO_HEADER, FULL or LOST.
    """
    seg = segment(world, target)
    access = new_access(world, seg, key.hash, now, lifetime(seg))
    slot, epoch = take_header(world, seg, target, home_for(world, key.hash), now)
    status = word(NO_HEADER)
    payload = word(0)
    if slot < 0:
        add64(seg + COUNT_REFUSED, 1, "relaxed")
    else:
        reserve(world, seg, slot, epoch, key, 0)
        status, payload = allocate(world, seg, target, slot, epoch, size_class, n_pages, nbytes, now, key, access)
        if status == FULL:
            if not undo(world, seg, slot, epoch):
                acknowledge(header_at(world, seg, slot), epoch)
    return status, slot, epoch, payload


@triton.jit
def begin_copy(world: World, target: tl.int64, key: Key, nbytes: tl.int64, now: tl.int64) -> Any:
    """Begin a copy of `nbytes` in the segment of `target`: a header that is WRITING with an entry, and pages to fill.

    Returns (status, Begun): OK, DUPLICATE, NOT_READY, FULL, NO_HEADER, NO_ENTRY, LOST, or INVALID for an object without
    bytes or of too many, or a rank that is none. After OK the caller stores the payload and calls `end_copy`; after any
    other status there is nothing to do.
    """
    status = word(INVALID)
    slot = word(-1)
    epoch = word(0)
    payload = word(0)
    phase = word(0)
    n_pages, size_class = extent_for(world, nbytes)
    if is_rank(world, target) & (size_class >= 0) & (n_pages > 0):
        phase = enter(world, segment(world, target))
        status, slot, epoch, payload = allocate_copy(world, target, key, size_class, n_pages, nbytes, now)
        if status == OK:
            status = enter_copy(world, target, slot, epoch, key)
            if status != OK:
                abort(world, target, slot, epoch)
        if status != OK:
            leave(world, segment(world, target), phase)
    return status, Begun(slot, epoch, payload, phase)


@triton.jit
def end_copy(world: World, target: tl.int64, begun: Begun, copied: tl.int64) -> Any:
    """Commit a copy whose bytes are there if `copied` is OK, else give it up: LOST if it was, else `copied`."""
    status = copied + 0
    if copied == OK:
        status = finish(world, target, begun)
    else:
        abort(world, target, begun.slot, begun.epoch)
        leave(world, segment(world, target), begun.phase)
    return status


# --- a copy of an object that is there --------------------------------------------------------
@triton.jit
def begin_replica(world: World, target: tl.int64, key: Key, now: tl.int64) -> Any:
    """Look an object up, and begin a copy of it in the segment of `target`.

    Returns (status, Begun of the copy, Found of the object): see `begin_copy` and `get.lookup`.
    """
    home = segment(world, home_of(world, key.check))
    status, found = lookup(world, key)
    begun = Begun(word(-1), word(0), word(0), word(0))
    if status == OK:
        tagged, _ = look(world, home, key)
        if is_held_by(world, home, key, tagged, target):
            status = word(DUPLICATE)
    if status == OK:
        status, begun = begin_copy(world, target, key, found.nbytes, now)
    return status, begun, found


@triton.jit(noinline=True)
def inherit_terms(table: tl.int64, owner: tl.int64, of_slot: tl.int64, target: tl.int64, slot: tl.int64) -> None:
    """Give a copy the lease, the priority and the label of its object. They count if that is validated afterwards."""
    world = open_world(table)
    seg = segment(world, owner)
    of = header_at(world, seg, of_slot)
    access = load64(of + H_ACCESS, "relaxed")
    until = select((access & LEASED) == LEASED, access & ACCESS_TIME, word(0))
    terms = until | ((access & PRIORITY) << TERMS_PRIORITY_SHIFT)
    if terms != 0:
        lease(world, target, slot, terms)
    if (load64(of + H_FLAGS, "relaxed") & FLAG_LABEL) != 0:
        at = label_at(world, seg, of_slot)
        label(world, target, slot, load64(at + L_GROUP, "relaxed"), load64(at + L_UNTIL, "relaxed"))


@triton.jit
def end_replica(world: World, target: tl.int64, begun: Begun, found: Found, copied: tl.int64) -> Any:
    """End a copy that `begin_replica` began and whose bytes were copied and verified with the status `copied`.

    Returns (status, 1 if the target's poller sleeps): OK, TORN, CORRUPT or LOST.
    """
    seg = segment(world, target)
    status = copied + 0
    if status == OK:
        owner = segment(world, found.owner)
        describe(world, seg, begun.slot, descriptor_of(world, owner, found.slot))
        inherit_terms(world.table, found.owner, found.slot, target, begun.slot)
        if has_checksum(header_at(world, owner, found.slot)):  # it may be 0
            flags = header_at(world, seg, begun.slot) + H_FLAGS
            store64(flags, load64(flags, "relaxed") | FLAG_CHECKSUM, "relaxed")
        status = validate(world, found.owner, found.slot, found.epoch)
    status = end_copy(world, target, begun, status)
    return status, asleep(seg)


@triton.jit
def replicate(world: World, target: tl.int64, key: Key, now: tl.int64) -> Any:
    """Copy the object of a key into the segment of `target`: (status, 1 if the target's poller sleeps).

    OK, DUPLICATE if the target has it, MISS, NOT_READY, FULL, NO_HEADER, NO_ENTRY, TORN, CORRUPT, LOST or INVALID.
    """
    sleeps = word(0)
    status, begun, found = begin_replica(world, target, key, now)
    if status == OK:
        to = segment(world, target) + begun.payload
        copy_bytes(to, segment(world, found.owner) + found.payload, found.nbytes)
        status, sleeps = end_replica(world, target, begun, found, verify(world, found, key, to))
    return status, sleeps


# --- where the copies are ---------------------------------------------------------------------
@triton.jit
def find_copies(world: World, key: Key, out: tl.int64) -> Any:
    """How many READY objects a key has; their entries are written as words at the address `out`, at most sixteen."""
    home = segment(world, home_of(world, key.check))
    tagged, _ = look(world, home, key)
    count = word(0)
    while tagged != 0:
        entry = load64(candidate_at(world, home, key.hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key.check):
            answer, _ = judge(world, entry, key)
            if answer == OK:
                store64(out + count * WORD_BYTES, entry, "relaxed")
                count += 1
        tagged = tagged & (tagged - 1)
    return count
