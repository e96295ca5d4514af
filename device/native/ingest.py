"""Takes hints from the ring into the index of the owner's host, whose arrays are private memory of that host.

`host_poller.intake` does the same with numpy, where a segment lies in a GPU's memory, and under the checker. Here it is
one function, so that a host whose segment lies in its own memory polls without the interpreter's lock.

Guarantees
- A row of the index is a whole header that was READY in the epoch of the row (`reclaim.snapshot`).
- Hints of removals are taken before those of new objects: else the next object of a slot would tell that the last one
  is gone, and not how.

Why the orderings suffice: those of `ring.drain` and `reclaim.snapshot`. The index is private memory.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.protocol.header import state_word
from nanokv.device.protocol.reclaim import snapshot
from nanokv.device.protocol.ring import drain
from nanokv.device.segment.host_records import (
    CHANGE_BYTES,
    CHANGE_HEADER,
    CHANGE_KIND,
    CHANGE_SLOT,
    NO_ROW,
    R_CHANGED,
    R_CHANGES,
    R_CORRUPT,
    R_HEADER,
    R_HINTS,
    R_LIVES,
    R_REMOVED,
    R_ROOM,
    R_ROWS,
    R_TAIL,
    R_TAKEN,
    R_WANTED,
)
from nanokv.device.segment.layout import (
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
def note_change(box: tl.int64, kind: tl.int64, slot: tl.int64, header: tl.int64) -> None:
    """Write down a change of the index, with the header that went or came, if anybody wants that."""
    changes = load64(box + R_CHANGES, "relaxed")
    if changes != 0:
        count = load64(box + R_CHANGED, "relaxed")
        change = changes + count * CHANGE_BYTES
        store64(change + CHANGE_KIND, kind, "relaxed")
        store64(change + CHANGE_SLOT, slot, "relaxed")
        copy_header(header, change + CHANGE_HEADER)
        store64(box + R_CHANGED, count + 1, "relaxed")


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
    return head, hole
