"""Checks of header slots: each is in one place, and its header names a valid extent."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.layout import DEAD, ENTRY_EPOCH_MASK, READY, RESERVED, unpack
from nanokv.fsck.look import Look, Mask, Numbers, WorldLook, field
from nanokv.fsck.report import RECOVER, REMAKE, WAIT, Finding, find


def check_state_words(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I10, I8: a STATE word is one of the four states, and only READY objects are pinned. Holds at any moment."""
    yield from find("I10", look.rank, "states that do not exist", "slot", look.phase > DEAD.value)
    pinned = unpack("STATE", "pins", look.states) > 0
    what = "objects are pinned and not READY: somebody reads what may be reused"
    yield from find("I8", look.rank, what, "slot", pinned & (look.phase != READY.value))


def check_slots(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I2, I1: each slot below `hdr_head` is free once, or in use, or in quarantine; none beyond it was ever taken."""
    if not (world.quiescent and world.allocates):
        return
    for shard, why in look.broken_slot_lists:
        what = f"the free list of header slots is broken: {why}"
        yield Finding("I2", look.rank, what, f"HeapCtl.hdr_free[{shard}]", REMAKE)
    beyond = np.arange(look.geometry.hdr_count) >= look.used_slots
    yield from _check_free(look, beyond)
    if not look.broken_slot_lists:
        yield from _check_loose(world, look, beyond)


def _check_free(look: Look, beyond: Mask) -> Iterator[Finding]:
    what = "header slots are free and in use: the next producer overwrites them"
    yield from find("I1", look.rank, what, "slot", look.free_slots & (look.ready | look.unfinished))
    what = "header slots are free and still name pages: the next producer forgets them"
    yield from find("I2", look.rank, what, "slot", look.free_slots & look.quarantined)
    what = "header slots beyond hdr_head were taken: they will be handed out a second time"
    yield from find("I1", look.rank, what, "slot", beyond & (look.free_slots | (look.states != 0)))


def _check_loose(world: WorldLook, look: Look, beyond: Mask) -> Iterator[Finding]:
    unmarked = (look.phase == RESERVED.value) & (look.epoch == 0)
    empty = (look.phase == DEAD.value) & (look.headers["n_pages"] == 0)
    loose = look.stable & (unmarked | empty) & ~look.free_slots & ~beyond
    waiting = loose & _named_by_an_entry(world, look)  # given up before it had pages: the sweeper holds it
    leaked = np.flatnonzero(loose & ~waiting)
    ended = world.somebody_ended
    what = f"{len(leaked)} header slots are in no place"
    yield from find("I2", look.rank, what, "slot", leaked, RECOVER if ended else REMAKE, not ended)
    if world.rank_ended(look.rank):
        yield from find("I6", look.rank, "slots were given up", "slot", waiting, RECOVER, False)


def _named_by_an_entry(world: WorldLook, look: Look) -> Mask:
    """Slots of a segment whose epoch some directory entry names."""
    found = np.zeros(look.geometry.hdr_count, np.bool_)
    for other in world.looks:
        entries = other.directory[other.directory != 0]
        slot = field("ENTRY", "header", entries)
        mine = (unpack("ENTRY", "rank", entries) == look.rank) & (slot < len(found))
        slot, entries = slot[mine], entries[mine]
        same = unpack("ENTRY", "epoch", entries) == (look.epoch[slot] & ENTRY_EPOCH_MASK.value)
        found[slot[same]] = True
    return found


def check_headers(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I10, I3: the extent of a header is inside the arena, and a READY object has exactly the pages of its bytes."""
    chosen = np.any(list(world.holders(look).values()), axis=0)
    _, wild = look.extents(chosen, whole=world.allocates)
    yield from find("I10", look.rank, "headers name pages that cannot be", "slot", wild)
    yield from _check_sizes(look, np.setdiff1d(np.flatnonzero(look.ready), wild))


def _check_sizes(look: Look, slots: Numbers) -> Iterator[Finding]:
    headers, page = look.headers[slots], look.geometry.page_bytes
    pages, total, payload = headers["n_pages"].astype(np.uint64), headers["bytes_total"], headers["payload_base"]
    what = f"objects of another page size than {page}"
    yield from find("I10", look.rank, what, "slot", slots[headers["page_size"] != page])
    needed = (total // np.uint64(page)) + (total % np.uint64(page) > 0)
    what = "READY objects whose bytes are not those of their pages"
    yield from find("I3", look.rank, what, "slot", slots[needed != pages])
    at = look.geometry.offsets
    outside = (pages == 0) & ((payload < at["heap_base"]) | (payload > at["heap_limit"]))
    yield from find("I10", look.rank, "empty objects outside of the arena", "slot", slots[outside])


def check_unfinished(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I6: objects whose producer ended before they were READY, and pages in quarantine whose owner has ended."""
    if not world.quiescent:
        return
    producers = look.headers["producer"]
    orphans = [slot for slot in np.flatnonzero(look.unfinished) if world.producer_ended(int(producers[slot]))]
    owner_ended = world.rank_ended(look.rank)
    remedy = RECOVER if owner_ended else WAIT
    what = f"{len(orphans)} objects are unfinished, and their producers have ended"
    yield from find("I6", look.rank, what, "slot", np.array(orphans, np.int64), remedy, False)
    if world.allocates and owner_ended:
        what = "pages are in quarantine, and their owner has ended"
        yield from find("I6", look.rank, what, "slot", look.quarantined, remedy, False)
