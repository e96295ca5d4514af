"""Steps of the owner's host on its own segment: look at headers, give up stuck objects, free what dead ranks held.

The sweeper (`host_poller/sweeper.py`) decides when to take which step. Two things wait for a grace period (`activity`),
and for nothing else, because the passing of time proves nothing:
- quarantine: the pages of an object that was given up while its producer may still write to them. `give_up` makes the
  header DEAD; the header names the pages until `release`;
- the audit: a page or slot that is in no place in four looks, each a grace period apart, and did not change hands in
  between, belongs to no living rank (`host_poller/audit.py` says why four).

Source: quiescent-state-based reclamation, as in RCU (McKenney 2006); see `activity`.

Guarantees
- No page is freed while its producer could still write to it.
- A slot that has moved on is left alone: `give_up` and `release` compare state and epoch. No living producer is given
  up for a dead one that had the slot before: the word that names the producer names its epoch too.

Why the orderings suffice: `give_up` and `release` run before and after a grace period, which orders them against every
operation that could still touch the header; the read-modify-write in `release` sees whether the slot was taken again
since then.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, select, store64, word
from nanokv.device.protocol.claim import erase
from nanokv.device.protocol.extent import bump_rest, give
from nanokv.device.protocol.freelist import detach
from nanokv.device.protocol.header import epoch_of, give_slot, key_of, kill, state_word, still_ready
from nanokv.device.protocol.retire import retire
from nanokv.device.protocol.shards import extent_list, shard_at, slot_list
from nanokv.device.segment.layout import (
    DEAD,
    H_FLAGS,
    H_STATE,
    HEADER_BYTES,
    LOW32,
    PIN_BITS,
    READY,
    REMOVED,
    RESERVED,
    RING_EPOCH_MASK,
    RING_EPOCH_SHIFT,
    RING_HEADER_MASK,
    RING_HEADER_SHIFT,
    RING_KIND_MASK,
    STORED,
    WORD_BYTES,
    WRITING,
)
from nanokv.device.segment.world_table import World, header_at, header_links, page_links, segment


@triton.jit
def snapshot(world: World, seg: tl.int64, said: tl.int64, out: tl.int64) -> Any:
    """Copy the header that a STORED hint is about to `out`: 1 if it is whole, 0 if it is not READY in that epoch."""
    slot = (said >> RING_HEADER_SHIFT) & RING_HEADER_MASK
    epoch = (said >> RING_EPOCH_SHIFT) & RING_EPOCH_MASK
    good = word(0)
    if ((said & RING_KIND_MASK) == STORED) & (slot < world.hdr_count):
        header = header_at(world, seg, slot)
        state = load64(header + H_STATE, "acquire")  # acquire: the header of this epoch (scenario swept)
        if (state & ~PIN_BITS) == state_word(READY, epoch):
            at = word(0)
            while at < HEADER_BYTES:
                store64(out + at, load64(header + at, "relaxed"), "relaxed")
                at += WORD_BYTES
            good = select(still_ready(header, epoch), word(1), word(0))
    return good


@triton.jit
def snapshots(
    world: World, owner: tl.int64, hints: tl.int64, count: tl.int64, records: tl.int64, good: tl.int64
) -> None:
    """`snapshot` for `count` hints: a record of 64 bytes each, and a word that is 1 if the record is whole."""
    seg = segment(world, owner)
    i = word(0)
    while i < count:
        said = load64(hints + i * WORD_BYTES, "relaxed")
        ok = snapshot(world, seg, said, records + i * HEADER_BYTES)
        store64(good + i * WORD_BYTES, ok, "relaxed")
        i += 1


@triton.jit
def give_up(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Make an unfinished object DEAD: 1, or 0 if it moved on. The header keeps its pages: quarantine."""
    header = header_at(world, segment(world, owner), slot)
    done = kill(header, WRITING, epoch) == state_word(WRITING, epoch)
    if not done:
        done = kill(header, RESERVED, epoch) == state_word(RESERVED, epoch)
    return select(done, word(1), word(0))


@triton.jit
def release(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Free a DEAD header that no operation holds, and its pages, after a grace period: 1, or 0 if it moved on.

    A read-modify-write reads the state: a load may be old, while the slot is READY again with other pages.
    """
    seg = segment(world, owner)
    header = header_at(world, seg, slot)
    # release: or LLVM makes it a load; acquire: the header is read after it (both kept)
    state = add64(header + H_STATE, 0, "acq_rel")
    load64(header + H_FLAGS, "acquire")  # acquire: after FLAG_ACK, all that a plan's producer stored (kept)
    same = state == state_word(DEAD, epoch)
    if same:
        retire(world, seg, owner, slot, epoch, REMOVED)
    return select(same, word(1), word(0))


@triton.jit
def adopt_slot(world: World, owner: tl.int64, slot: tl.int64) -> None:
    """Give back a leaked header slot, which the audit found in no place, and remove the entry that may be left."""
    seg = segment(world, owner)
    header = header_at(world, seg, slot)
    epoch = epoch_of(load64(header + H_STATE, "relaxed"))
    key = key_of(header, epoch)
    erase(world, owner, slot, epoch, key)
    store64(header + H_STATE, state_word(DEAD, epoch), "relaxed")
    give_slot(world, seg, slot)


@triton.jit
def push_extents(world: World, owner: tl.int64, pages: tl.int64, classes: tl.int64, count: tl.int64) -> None:
    """Give `count` extents back, named by the words at `pages` (first pages) and `classes`, in private memory."""
    seg = segment(world, owner)
    i = word(0)
    while i < count:
        size_class = load64(classes + i * WORD_BYTES, "relaxed")
        give(world, seg, load64(pages + i * WORD_BYTES, "relaxed"), size_class)
        i += 1


@triton.jit
def detach_rest(world: World, owner: tl.int64) -> Any:
    """Take all pages that were never used: the first of them, or -1. They then belong to the caller."""
    return bump_rest(world, segment(world, owner))


@triton.jit
def detach_class(world: World, owner: tl.int64, size_class: tl.int64, firsts: tl.int64) -> None:
    """Take all free lists of a size class: the first page of each, or -1, as words at `firsts`.

    The chains then belong to the caller. `firsts`: one word per list of a kind, in private memory.
    """
    seg = segment(world, owner)
    i = word(0)
    while i < world.shards:
        head = extent_list(world, seg, size_class, shard_at(world, i))
        store64(firsts + i * WORD_BYTES, detach(head), "relaxed")
        i += 1


@triton.jit
def walk(links: tl.int64, head: tl.int64, count: tl.int64, value: tl.int64, marks: tl.int64) -> None:
    """Write `value` into the word at `marks` of each node of a list. Bounded, whatever it reads.

    Producers push and pop meanwhile: the walk may see a node that has just left, and miss one that has just come.
    """
    node = load64(head, "acquire") & LOW32  # acquire: the links that were pushed; only the host waits for it (kept)
    seen = word(0)
    while (node != 0) & (node <= count) & (seen < count):
        store64(marks + (node - 1) * WORD_BYTES, value, "relaxed")
        node = load64(links + (node - 1) * WORD_BYTES, "relaxed") & LOW32
        seen += 1


@triton.jit
def walk_class(world: World, seg: tl.int64, size_class: tl.int64, count: tl.int64, marks: tl.int64) -> None:
    """Mark the first page of each free extent of a size class with the class plus 1."""
    i = word(0)
    while i < world.shards:
        head = extent_list(world, seg, size_class, shard_at(world, i))
        walk(page_links(world, seg), head, count, size_class + 1, marks)
        i += 1


@triton.jit
def walk_pages(world: World, owner: tl.int64, count: tl.int64, marks: tl.int64) -> None:
    """Mark the first page of each free extent with its size class plus 1."""
    size_class = word(0)
    while size_class < world.n_classes:
        walk_class(world, segment(world, owner), size_class, count, marks)
        size_class += 1


@triton.jit
def walk_slots(world: World, owner: tl.int64, count: tl.int64, marks: tl.int64) -> None:
    """Mark each free header slot with 1."""
    seg = segment(world, owner)
    i = word(0)
    while i < world.shards:
        walk(header_links(world, seg), slot_list(world, seg, shard_at(world, i)), count, word(1), marks)
        i += 1


@triton.jit
def store_control(world: World, owner: tl.int64, offset: tl.int64, value: tl.int64) -> None:
    """Store a word of HeapCtl that only the owner's host writes."""
    store64(segment(world, owner) + offset, value, "relaxed")
