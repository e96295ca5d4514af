"""Remove: READY to DEAD in one compare-and-swap, then everything that the object held goes back. Its copies go too.

Source: Harris' linked lists (2001): first mark the object, then unlink it.

Guarantees
- Of several removers exactly one makes an object, or a copy of it, DEAD, and frees it: entry, pages, slot, hint
  (`retire`). If it dies on the way, the owner's sweeper goes on from the header. A pinned object stays (I8).
- After OK no copy of the object (`replicate`) is READY, or becomes so: the remover reads the turnstile, ends what it
  sees, and passes the turnstile, until no replicator has passed in between, at most ROUNDS times. Then the answer is
  NOT_READY: some copies are gone, and a remover that tries again goes on. Producers and other removers bring no copy,
  so they make nobody look again: removers of one bucket that go at the same pace, as on a GPU, would do so for ever.
- A new object of the key, put when the old one was dead, stays: only the first thing that goes may be a primary. A copy
  of the new object may go, as by an eviction.
- PINNED: nothing was done, if the pin was there when the remover came. A pin that comes meanwhile keeps that copy, and
  so the object; others may be gone.
- Two removers that meet may both answer OK if the object has copies: each has ended one.

Why the orderings suffice: see `header` (kill), `retire` and `replicate`.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, select, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.claim import stop_copy
from nanokv.device.protocol.directory import (
    candidate_at,
    copies_passed,
    entry_header,
    entry_owner,
    first_place,
    home_of,
    is_copy,
    is_sure,
    judge,
    look,
    turn_at,
)
from nanokv.device.protocol.header import epoch_of, kill, state_word
from nanokv.device.protocol.retire import count_eviction, retire
from nanokv.device.protocol.status import CORRUPT, MISS, NOT_READY, OK, PINNED
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import COUNT_CORRUPT, EVICTED, PIN_BITS, PIN_COUNT, READY, REMOVED
from nanokv.device.segment.world_table import World, header_at, open_world, segment

ROUNDS = tl.constexpr(256)  # looks for copies, while replicators pass the turnstile


@triton.jit
def remove_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, kind: tl.int64) -> Any:
    """Make one READY object DEAD, and free it: OK, PINNED, or MISS if it has gone away (or never was READY).

    `kind`: REMOVED, or EVICTED, which is counted. Other copies of the object stay.
    """
    seg = segment(world, owner)
    phase = enter(world, seg)
    header = header_at(world, seg, slot)
    seen = kill(header, READY, epoch)
    status = word(MISS)
    if seen == state_word(READY, epoch):
        retire(world, seg, owner, slot, epoch, kind)
        if kind == EVICTED:
            count_eviction(world, seg)
        status = word(OK)
    elif (seen & ~PIN_BITS) == state_word(READY, epoch):
        status = word(PINNED)
    leave(world, seg, phase)
    return status


@triton.jit(noinline=True)
def first_to_go(table: tl.int64, key: Key) -> Any:
    """What a removal ends first: the primary, or else a copy.

    Returns (status, entry, STATE word, 1 if there are copies): OK, MISS, NOT_READY, CORRUPT, or PINNED if any copy is.
    """
    world = open_world(table)
    home = segment(world, home_of(world, key.check))
    status = word(MISS)
    found = word(0)
    state = word(0)
    copies = word(0)
    pins = word(0)
    tagged, _ = look(world, home, key)
    while tagged != 0:
        entry = load64(candidate_at(world, home, key.hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key.check):
            answer, seen = judge(world, entry, key)
            copies = copies | select(is_copy(entry), word(1), word(0))
            better = (status == MISS) | ((answer == NOT_READY) & (status == CORRUPT))
            if answer == OK:
                pins = pins | (seen & PIN_COUNT)
                better = (status != OK) | (not is_copy(entry))
            if better & (answer != MISS):
                status, found, state = answer, entry, seen
        tagged = tagged & (tagged - 1)
    if status == CORRUPT:
        add64(home + COUNT_CORRUPT, 1, "relaxed")
    if pins != 0:
        status = word(PINNED)
    return status, found, state, copies


@triton.jit(noinline=True)
def end_copies(table: tl.int64, key: Key) -> Any:
    """End every copy of an object that is seen, READY or WRITING: OK, or PINNED at the first one that is."""
    world = open_world(table)
    home = segment(world, home_of(world, key.check))
    status = word(OK)
    tagged, _ = look(world, home, key)
    while (tagged != 0) & (status == OK):
        entry = load64(candidate_at(world, home, key.hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key.check) & is_copy(entry):
            answer, state = judge(world, entry, key)
            alive = answer == OK
            if answer == NOT_READY:
                alive = not stop_copy(world, entry, state)
            if alive:
                gone = remove_slot(world, entry_owner(entry), entry_header(entry), epoch_of(state), REMOVED)
                status = select(gone == PINNED, word(PINNED), word(OK))
        tagged = tagged & (tagged - 1)
    return status


@triton.jit
def remove_whole(world: World, key: Key) -> Any:
    """Remove a READY object and all its copies. Returns (status, owner of what went first, 1 if there were copies).

    OK, MISS, NOT_READY, PINNED or CORRUPT.
    """
    turn = turn_at(world, segment(world, home_of(world, key.check)), key.hash)
    passed = load64(turn, "acquire")  # acquire: the entries of all that have passed (scenario copy-remove)
    status = word(MISS)
    owner = word(0)
    copies = word(0)
    rounds = word(0)
    more = rounds == 0
    while more:
        status, entry, state, copies = first_to_go(world.table, key)
        if (status == OK) & is_copy(entry):
            # a copy that is READY has brought its primary along: if that is alive, it is seen now
            status, entry, state, copies = first_to_go(world.table, key)
        rounds += 1
        more = status == OK
        owner = entry_owner(entry)
        if more:
            status = remove_slot(world, owner, entry_header(entry), epoch_of(state), REMOVED)
            more = (status == MISS) & (rounds < ROUNDS)  # it has just gone, but a copy may be there
    more = (status == OK) & (world.world_size > 1)
    rounds = word(0)
    seen = copies
    while more:
        if seen != 0:
            status = end_copies(world.table, key)
        # acquire: the entries of all that have passed (kept). Later ones validate by themselves
        before = add64(turn, 1, "acquire")
        rounds += 1
        again = (status == OK) & (copies_passed(before) != copies_passed(passed))
        more = again & (rounds < ROUNDS)
        if again & (rounds == ROUNDS):
            status = word(NOT_READY)
        passed = before
        seen = word(1)
    return status, owner, copies


@triton.jit
def remove(world: World, key: Key) -> Any:
    """Remove a READY object and all its copies. Returns (status, owner): OK, MISS, NOT_READY, PINNED or CORRUPT."""
    status, owner, _ = remove_whole(world, key)
    return status, owner
