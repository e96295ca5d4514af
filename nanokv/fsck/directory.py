"""Checks of the directory: every READY object is found by exactly one entry, and every entry finds something."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import (
    DEAD,
    ENTRIES_PER_BUCKET,
    ENTRY_EPOCH_MASK,
    ENTRY_FINAL,
    ENTRY_TAG_MASK,
    ENTRY_TENTATIVE,
    RESERVED,
    WRITING,
    unpack,
)
from nanokv.fsck.look import Look, Mask, Numbers, World
from nanokv.fsck.report import REMAKE, WAIT, Finding, named


class _Headers(NamedTuple):
    """The headers of all segments: arrays of [world_size, hdr_count]."""

    phase: Numbers
    epoch: Numbers
    key_hash: npt.NDArray[np.uint64]
    key_check: npt.NDArray[np.uint64]
    ready: Mask


class _Entries(NamedTuple):
    """The entries of one directory that are not empty and point at slots that exist: parallel arrays."""

    place: Numbers  #: entry number in the directory
    phase: Numbers
    tag: Numbers
    rank: Numbers
    slot: Numbers
    epoch: Numbers


def _headers(world: World) -> _Headers:
    looks = world.looks
    return _Headers(
        np.stack([look.phase for look in looks]),
        np.stack([look.epoch for look in looks]),
        np.stack([look.headers["key_hash"] for look in looks]),
        np.stack([look.headers["key_check"] for look in looks]),
        np.stack([look.ready for look in looks]),
    )


def _entries(look: Look) -> tuple[_Entries, Numbers]:
    """The entries that can be, and the places of those that cannot."""
    place = np.flatnonzero(look.directory)
    words = look.directory[place]
    phase, tag, rank, slot, epoch = (
        unpack("ENTRY", name, words).astype(np.int64) for name in ("phase", "tag", "rank", "header", "epoch")
    )
    sane = (rank < look.geometry.world_size) & (slot < look.geometry.hdr_count)
    sane &= (phase == ENTRY_FINAL.value) | (phase == ENTRY_TENTATIVE.value)
    fields = (place, phase, tag, rank, slot, epoch)
    return _Entries(*(field[sane] for field in fields)), place[~sane]


def _belongs(look: Look, entries: _Entries, headers: _Headers) -> Mask:
    """Whether entries stand where the key of their header may stand: tag, home rank and bucket."""
    at = entries.rank, entries.slot
    key_hash, key_check = headers.key_hash[at], headers.key_check[at]
    buckets = np.uint64(look.geometry.dir_buckets - 1)
    one = key_hash & buckets
    two = one ^ (((key_hash >> np.uint64(32)) & buckets) | np.uint64(1))
    bucket = (entries.place // ENTRIES_PER_BUCKET.value).astype(np.uint64)
    home = look.geometry.home_rank(key_check)
    tagged = (key_check & np.uint64(ENTRY_TAG_MASK.value)) == entries.tag.astype(np.uint64)
    here: Mask = tagged & (home == look.rank) & ((bucket == one) | (bucket == two))
    return here


def check_directory(world: World) -> Iterator[Finding]:
    """I4, I5, I10: entries can be, stand where their key may, and find each READY object exactly once."""
    if not world.allocates:
        return
    headers = _headers(world)
    finds = np.zeros(headers.phase.shape, np.int64)
    for look in world.looks:
        entries, wild = _entries(look)
        if len(wild):
            what = "directory entries that can be none: readers are answered SegmentCorrupt"
            yield Finding("I10", look.rank, what, named("entry", wild), REMAKE)
        at = entries.rank, entries.slot
        same = (headers.epoch[at] & ENTRY_EPOCH_MASK.value) == entries.epoch
        final = entries.phase == ENTRY_FINAL.value
        judged = headers.ready[at] & same & final
        if world.quiescent:
            judged = _alive(headers, entries) & same & final
            yield from _check_idle(world, look, entries, headers, same)
        here = _belongs(look, entries, headers)
        if (judged & ~here).any():
            what = "directory entries stand where their key is not looked for, or with another key's tag"
            yield Finding("I4", look.rank, what, named("entry", entries.place[judged & ~here]), REMAKE)
        found = judged & here
        np.add.at(finds, (entries.rank[found], entries.slot[found]), 1)
    yield from _check_finds(world, headers, finds)


def _alive(headers: _Headers, entries: _Entries) -> Mask:
    at = entries.rank, entries.slot
    never = (headers.phase[at] == RESERVED.value) & (headers.epoch[at] == 0)
    found: Mask = (headers.phase[at] != DEAD.value) & ~never
    return found


def _check_idle(world: World, look: Look, entries: _Entries, headers: _Headers, same: Mask) -> Iterator[Finding]:
    """At rest: no entry is TENTATIVE, and none is left of an object that went away."""
    tentative = entries.phase == ENTRY_TENTATIVE.value
    if tentative.any():
        where = named("entry", entries.place[tentative])
        breach = not _all_ended(world, entries, tentative)
        what = "directory entries are TENTATIVE at rest: their keys may be refused"
        yield Finding("I6", look.rank, what, where, REMAKE if breach else WAIT, breach)
    # the entry of an object that was given up goes when its slot is freed: until then the slot is not taken again
    given_up = same & (headers.phase[entries.rank, entries.slot] == DEAD.value) & ~_is_free(world, entries)
    stale = ~tentative & ~(_alive(headers, entries) & same) & ~given_up
    if stale.any():
        what = "directory entries are left of objects that are gone: they take room from their buckets for ever"
        yield Finding("I5", look.rank, what, named("entry", entries.place[stale]), REMAKE)


def _all_ended(world: World, entries: _Entries, chosen: Mask) -> bool:
    """Whether the producers of all headers that chosen entries name have ended."""
    slots = zip(entries.rank[chosen].tolist(), entries.slot[chosen].tolist(), strict=True)
    return all(world.producer_ended(int(world.looks[rank].headers["producer"][slot])) for rank, slot in slots)


def _is_free(world: World, entries: _Entries) -> Mask:
    free = np.stack([look.free_slots for look in world.looks])
    found: Mask = free[entries.rank, entries.slot]
    return found


def _check_finds(world: World, headers: _Headers, finds: Numbers) -> Iterator[Finding]:
    wanted = headers.ready | ((headers.phase == WRITING.value) & world.quiescent)
    for rank, (want, times) in enumerate(zip(wanted, finds, strict=True)):
        lost, twice = np.flatnonzero(want & (times == 0)), np.flatnonzero(times > 1)
        if len(lost):
            what = "objects are READY or WRITING, and no directory entry finds them"
            yield Finding("I5", rank, what, named("slot", lost), REMAKE)
        if len(twice):
            yield Finding("I4", rank, "objects have several directory entries", named("slot", twice), REMAKE)


def check_keys(world: World) -> Iterator[Finding]:
    """I4: no key has two READY objects in the world. Holds at any moment, in both modes."""
    headers = _headers(world)
    ranks, slots = np.nonzero(headers.ready)
    keys = np.stack([headers.key_hash[ranks, slots], headers.key_check[ranks, slots]], axis=1)
    _, which, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    repeated = times[which.ravel()] > 1
    for rank in np.unique(ranks[repeated]).tolist():
        where = named("slot", slots[repeated & (ranks == rank)])
        yield Finding("I4", rank, "objects whose key has more than one READY object in the world", where, REMAKE)
