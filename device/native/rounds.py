"""The loop of a poller's rounds in native code: see `machines.ring_rounds`."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.clock import monotonic_ns, nap
from nanokv.device.native.telling import tell, wake_reader
from nanokv.device.protocol.header import state_word
from nanokv.device.protocol.reclaim import snapshot
from nanokv.device.protocol.ring import drain
from nanokv.device.segment.host_records import (
    CHANGE_BYTES,
    CHANGE_HEADER,
    CHANGE_KIND,
    CHANGE_SLOT,
    NO_HOLE,
    NO_ROW,
    R_ASKED,
    R_CHANGED,
    R_CHANGES,
    R_CORRUPT,
    R_END,
    R_HEAD,
    R_HEADER,
    R_HINTS,
    R_HOLE,
    R_HOLE_HEAD,
    R_HOLE_PATIENCE,
    R_HOLE_SINCE,
    R_LEAST_PAUSE,
    R_LIVES,
    R_MOST_PAUSE,
    R_OUTBOX_COUNT,
    R_OUTBOXES,
    R_PATIENCE,
    R_REMOVED,
    R_ROOM,
    R_ROWS,
    R_TAIL,
    R_TAKEN,
    R_WANTED,
)
from nanokv.device.segment.layout import (
    ANN_TAIL,
    EVICTED,
    HEADER_BYTES,
    READY,
    REMOVED,
    RING_EPOCH_MASK,
    RING_EPOCH_SHIFT,
    RING_HEADER_MASK,
    RING_HEADER_SHIFT,
    RING_KIND_MASK,
    STORED,
    WANTED,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, segment


# --- from hints to rows of the index, whose arrays are private memory of the owner's host ------
# `host_poller.intake` does the same with numpy, where a segment lies in a GPU's memory, and under the checker. Here it
# is one function, so that a host whose segment lies in its own memory polls without the interpreter's lock.
#
# Guarantees
# - A row of the index is a whole header that was READY in the epoch of the row (`reclaim.snapshot`).
# - Hints of removals are taken before those of new objects: else the next object of a slot would tell that the last one
#   is gone, and not how.
#
# Why the orderings suffice: those of `ring.drain` and `reclaim.snapshot`. The index is private memory.
@triton.jit
def raise_to(at: tl.int64, value: tl.int64) -> None:
    """Let a private word be at least `value`."""
    old = load64(at, "relaxed")
    store64(at, select(old < value, value, old), "relaxed")


@triton.jit
def count_in(at: tl.int64, more: tl.int64) -> None:
    """Add to a private word."""
    store64(at, load64(at, "relaxed") + more, "relaxed")


@triton.jit
def copy_header(of: tl.int64, to: tl.int64) -> None:
    """Copy a header in private memory."""
    at = word(0)
    while at < HEADER_BYTES:
        store64(to + at, load64(of + at, "relaxed"), "relaxed")
        at += WORD_BYTES


@triton.jit
def outbox(box: tl.int64, i: tl.int64) -> Any:
    """The address of an OUTBOX."""
    return load64(load64(box + R_OUTBOXES, "relaxed") + i * WORD_BYTES, "relaxed")


@triton.jit
def note_change(box: tl.int64, kind: tl.int64, slot: tl.int64, header: tl.int64) -> None:
    """Write down a change of the index, with the header that went or came, for all who want that."""
    changes = load64(box + R_CHANGES, "relaxed")
    if changes != 0:
        count = load64(box + R_CHANGED, "relaxed")
        change = changes + count * CHANGE_BYTES
        store64(change + CHANGE_KIND, kind, "relaxed")
        store64(change + CHANGE_SLOT, slot, "relaxed")
        copy_header(header, change + CHANGE_HEADER)
        store64(box + R_CHANGED, count + 1, "relaxed")
    i = word(0)
    while i < load64(box + R_OUTBOX_COUNT, "relaxed"):
        tell(outbox(box, i), kind, slot, header)
        i += 1


@triton.jit
def take_removal(world: World, box: tl.int64, said: tl.int64) -> None:
    """Drop the row that a hint of a removal is about, and count hints that mean nothing, or that the host must hear."""
    kind = said & RING_KIND_MASK
    slot = (said >> RING_HEADER_SHIFT) & RING_HEADER_MASK
    if (kind == WANTED) & (slot < world.n_classes):
        raise_to(box + R_WANTED, slot + 1)
    elif (kind == WANTED) | (kind < STORED) | (kind > EVICTED) | (slot >= world.hdr_count):
        count_in(box + R_CORRUPT, word(1))
    elif kind != STORED:
        epoch = (said >> RING_EPOCH_SHIFT) & RING_EPOCH_MASK
        life = load64(box + R_LIVES, "relaxed") + slot * WORD_BYTES
        if load64(life, "relaxed") == state_word(READY, epoch):
            note_change(box, kind, slot, load64(box + R_ROWS, "relaxed") + slot * HEADER_BYTES)
            store64(life, NO_ROW, "relaxed")
        count_in(box + R_REMOVED, select(kind == REMOVED, word(1), word(0)))


@triton.jit
def take_object(world: World, seg: tl.int64, box: tl.int64, said: tl.int64) -> None:
    """Write the row of the object that a STORED hint is about, unless the index has it, or it is gone again."""
    slot = (said >> RING_HEADER_SHIFT) & RING_HEADER_MASK
    if ((said & RING_KIND_MASK) == STORED) & (slot < world.hdr_count):
        ready = state_word(READY, (said >> RING_EPOCH_SHIFT) & RING_EPOCH_MASK)
        life = load64(box + R_LIVES, "relaxed") + slot * WORD_BYTES
        row = load64(box + R_ROWS, "relaxed") + slot * HEADER_BYTES
        had = load64(life, "relaxed")
        header = box + R_HEADER
        if had != ready:
            if snapshot(world, seg, said, header) != 0:
                if had != NO_ROW:
                    note_change(box, word(REMOVED), slot, row)
                copy_header(header, row)
                store64(life, ready, "relaxed")
                note_change(box, word(STORED), slot, row)


@triton.jit
def ingest(world: World, owner: tl.int64, box: tl.int64) -> Any:
    """Take hints from the ring into the index, as many as there is room for (ROUNDS record at `box`).

    Adds to `taken`, `removed`, `corrupt`, `wanted` and `changed`. Returns (head, hole): see `ring.drain`.
    """
    hints = load64(box + R_HINTS, "relaxed")
    tail, room = load64(box + R_TAIL, "relaxed"), load64(box + R_ROOM, "relaxed")
    taken, head, hole = drain(world, owner, tail, hints, room)
    i = word(0)
    while i < taken:
        take_removal(world, box, load64(hints + i * WORD_BYTES, "relaxed"))
        i += 1
    seg = segment(world, owner)
    i = word(0)
    while i < taken:
        take_object(world, seg, box, load64(hints + i * WORD_BYTES, "relaxed"))
        i += 1
    count_in(box + R_TAKEN, taken)
    if taken > 0:
        i = word(0)
        while i < load64(box + R_OUTBOX_COUNT, "relaxed"):
            wake_reader(outbox(box, i))
            i += 1
    return head, hole


# --- the rounds -------------------------------------------------------------------------------
@triton.jit
def advance(box: tl.int64, head: tl.int64, hole: tl.int64, now: tl.int64) -> None:
    """`Position.advanced`."""
    waits = load64(box + R_HOLE, "relaxed")
    tail = head
    if hole == head:
        waits = word(NO_HOLE)
    elif (waits == NO_HOLE) | (waits < load64(box + R_TAIL, "relaxed")):
        tail, waits = hole, hole
        store64(box + R_HOLE_SINCE, now, "relaxed")
        store64(box + R_HOLE_HEAD, head, "relaxed")
    elif now - load64(box + R_HOLE_SINCE, "relaxed") > load64(box + R_HOLE_PATIENCE, "relaxed"):
        tail, waits = load64(box + R_HOLE_HEAD, "relaxed"), word(NO_HOLE)
    else:
        tail = load64(box + R_TAIL, "relaxed")
    store64(box + R_HOLE, waits, "relaxed")
    store64(box + R_TAIL, tail, "relaxed")


@triton.jit
def one_round(world: World, owner: tl.int64, box: tl.int64, now: tl.int64) -> Any:
    """Take hints once, and let producers have the ring slots back. Returns how many."""
    before = load64(box + R_TAKEN, "relaxed")
    tail = load64(box + R_TAIL, "relaxed")
    head, hole = ingest(world, owner, box)
    store64(box + R_HEAD, head, "relaxed")
    if head != tail:
        advance(box, head, hole, now)
        store64(segment(world, owner) + ANN_TAIL, load64(box + R_TAIL, "relaxed"), "relaxed")
    return load64(box + R_TAKEN, "relaxed") - before


@triton.jit
def rounds(world: World, owner: tl.int64, box: tl.int64) -> Any:
    """Take hints, round after round, until the host has something to do (ROUNDS record at `box`).

    That is: the time is over, somebody asks for the end, there are changes that a listener waits for, a producer was
    refused, or no hint came for a while: then 1, else 0.
    """
    now = monotonic_ns()
    quiet_since = now
    pause = load64(box + R_LEAST_PAUSE, "relaxed")
    idle = word(0)
    ends = word(0)
    while ends == 0:
        taken = one_round(world, owner, box, now)
        if taken > 0:
            quiet_since = now
            pause = load64(box + R_LEAST_PAUSE, "relaxed")
        idle = select(now - quiet_since >= load64(box + R_PATIENCE, "relaxed"), word(1), word(0))
        late = now >= load64(box + R_END, "relaxed")
        heard = (load64(box + R_CHANGED, "relaxed") | load64(box + R_WANTED, "relaxed")) != 0
        asked = load64(load64(box + R_ASKED, "relaxed"), "relaxed") != 0
        ends = select((idle != 0) | late | heard | asked, word(1), word(0))
        if ends == 0:
            if taken < load64(box + R_ROOM, "relaxed"):  # else there are more
                nap(pause)
                if now != quiet_since:
                    most = load64(box + R_MOST_PAUSE, "relaxed")
                    pause = select(pause * 2 > most, most, pause * 2)
            now = monotonic_ns()
    return idle
