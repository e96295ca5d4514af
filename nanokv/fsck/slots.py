"""Checks of header slots: each is in one place, and what headers name can be."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.layout import DEAD, ENTRY_EPOCH_MASK, READY, RESERVED, unpack
from nanokv.fsck.look import Look, Mask, Numbers, World
from nanokv.fsck.report import RECOVER, REMAKE, WAIT, Finding, named


def check_state_words(world: World) -> Iterator[Finding]:
    """I10, I8: a STATE word is one of the four states, and only READY objects are pinned. Holds at any moment."""
    for look in world.looks:
        wild = np.flatnonzero(look.phase > DEAD.value)
        if len(wild):
            yield Finding("I10", look.rank, "states that do not exist", named("slot", wild), REMAKE)
        pinned = unpack("STATE", "pins", look.states) > 0
        loose = np.flatnonzero(pinned & (look.phase != READY.value))
        if len(loose):
            what = "objects are pinned and not READY: somebody reads what may be reused"
            yield Finding("I8", look.rank, what, named("slot", loose), REMAKE)


def check_slots(world: World) -> Iterator[Finding]:
    """I2, I1: each slot below `hdr_head` is free once, or in use, or in quarantine; none beyond it was ever taken."""
    if not (world.quiescent and world.allocates):
        return
    for look in world.looks:
        for shard, why in look.broken_slot_lists:
            what = f"the free list of header slots is broken: {why}"
            yield Finding("I2", look.rank, what, f"HeapCtl.hdr_free[{shard}]", REMAKE)
        beyond = np.arange(look.geometry.hdr_count) >= look.used_slots
        yield from _check_free(look, beyond)
        if not look.broken_slot_lists:
            yield from _check_loose(world, look, beyond)


def _check_free(look: Look, beyond: Mask) -> Iterator[Finding]:
    in_use = np.flatnonzero(look.free_slots & (look.ready | look.unfinished))
    if len(in_use):
        what = "header slots are free and in use: the next producer overwrites them"
        yield Finding("I1", look.rank, what, named("slot", in_use), REMAKE)
    holding = np.flatnonzero(look.free_slots & look.quarantined)
    if len(holding):
        what = "header slots are free and still name pages: the next producer forgets them"
        yield Finding("I2", look.rank, what, named("slot", holding), REMAKE)
    twice = np.flatnonzero(beyond & (look.free_slots | (look.states != 0)))
    if len(twice):
        what = "header slots beyond hdr_head were taken: they will be handed out a second time"
        yield Finding("I1", look.rank, what, named("slot", twice), REMAKE)


def _check_loose(world: World, look: Look, beyond: Mask) -> Iterator[Finding]:
    unmarked = (look.phase == RESERVED.value) & (look.epoch == 0)
    empty = (look.phase == DEAD.value) & (look.headers["n_pages"] == 0)
    loose = look.stable & (unmarked | empty) & ~look.free_slots & ~beyond
    waiting = loose & _named_by_an_entry(world, look)  # given up before it had pages: the sweeper holds it
    leaked = np.flatnonzero(loose & ~waiting)
    if len(leaked):
        what = f"{len(leaked)} header slots are in no place"
        ended = world.somebody_ended
        yield Finding("I2", look.rank, what, named("slot", leaked), RECOVER if ended else REMAKE, not ended)
    if waiting.any() and world.rank_ended(look.rank):
        yield Finding("I6", look.rank, "slots were given up", named("slot", np.flatnonzero(waiting)), RECOVER, False)


def _named_by_an_entry(world: World, look: Look) -> Mask:
    """Slots of a segment whose epoch some directory entry names."""
    found = np.zeros(look.geometry.hdr_count, np.bool_)
    for other in world.looks:
        entries = other.directory[other.directory != 0]
        slot = unpack("ENTRY", "header", entries).astype(np.int64)
        mine = (unpack("ENTRY", "rank", entries) == look.rank) & (slot < len(found))
        slot, entries = slot[mine], entries[mine]
        same = unpack("ENTRY", "epoch", entries) == (look.epoch[slot] & ENTRY_EPOCH_MASK.value)
        found[slot[same]] = True
    return found


def check_headers(world: World) -> Iterator[Finding]:
    """I10, I3: the extent of a header is inside the arena, and a READY object has exactly the pages of its bytes."""
    for look in world.looks:
        chosen = look.ready.copy()
        if world.quiescent:
            chosen |= look.unfinished
            if world.allocates:
                chosen |= look.quarantined
        _, wild = look.extents(chosen, whole=world.allocates)
        if len(wild):
            yield Finding("I10", look.rank, "headers name pages that cannot be", named("slot", wild), REMAKE)
        slots = np.setdiff1d(np.flatnonzero(look.ready), wild)
        yield from _check_sizes(look, slots)


def _check_sizes(look: Look, slots: Numbers) -> Iterator[Finding]:
    headers, page = look.headers[slots], look.geometry.page_bytes
    pages = headers["n_pages"].astype(np.uint64)
    sizes = headers["page_size"] != page
    if sizes.any():
        what = f"objects of another page size than {page}"
        yield Finding("I10", look.rank, what, named("slot", slots[sizes]), REMAKE)
    total = headers["bytes_total"]
    misfit = (total // np.uint64(page)) + (total % np.uint64(page) > 0) != pages
    if misfit.any():
        what = "READY objects whose bytes are not those of their pages"
        yield Finding("I3", look.rank, what, named("slot", slots[misfit]), REMAKE)
    at, payload = look.geometry.offsets, headers["payload_base"]
    outside = (pages == 0) & ((payload < at["heap_base"]) | (payload > at["heap_limit"]))
    if outside.any():
        yield Finding("I10", look.rank, "empty objects outside of the arena", named("slot", slots[outside]), REMAKE)


def check_unfinished(world: World) -> Iterator[Finding]:
    """I6: objects whose producer ended before they were READY, and pages in quarantine whose owner has ended."""
    if not world.quiescent:
        return
    for look in world.looks:
        slots = np.flatnonzero(look.unfinished)
        orphans = [slot for slot in slots.tolist() if world.producer_ended(int(look.headers["producer"][slot]))]
        owner_ended = world.rank_ended(look.rank)
        remedy = RECOVER if owner_ended else WAIT
        if orphans:
            what = f"{len(orphans)} objects are unfinished, and their producers have ended"
            yield Finding("I6", look.rank, what, named("slot", orphans), remedy, breach=False)
        if world.allocates and owner_ended and look.quarantined.any():
            where = named("slot", np.flatnonzero(look.quarantined))
            what = "pages are in quarantine, and their owner has ended"
            yield Finding("I6", look.rank, what, where, remedy, breach=False)
