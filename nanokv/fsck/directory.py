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
    ENTRY_REPLICA,
    ENTRY_TAG_MASK,
    ENTRY_TENTATIVE,
    NEAR_BUCKETS,
    RESERVED,
    WRITING,
    key_checks,
)
from nanokv.fsck.look import Look, Mask, Numbers, WorldLook, field
from nanokv.fsck.report import REMAKE, WAIT, Finding, find


class _Headers(NamedTuple):
    """The headers of all segments: arrays of [world_size, hdr_count]."""

    phase: Numbers
    epoch: Numbers
    key_hash: npt.NDArray[np.uint64]
    key_check: npt.NDArray[np.uint64]
    ready: Mask


class _Entries(NamedTuple):
    """The valid entries of one directory: parallel arrays."""

    place: Numbers  #: entry number in the directory
    phase: Numbers
    tag: Numbers
    rank: Numbers
    slot: Numbers
    epoch: Numbers


def _headers(world: WorldLook) -> _Headers:
    rows = [(at.phase, at.epoch, at.headers["key_hash"], key_checks(at.headers), at.ready) for at in world.looks]
    return _Headers(*map(np.stack, zip(*rows, strict=True)))


def _entries(look: Look) -> tuple[_Entries, Numbers]:
    """The entries that are not empty: the valid ones, and the places of those that name no slot or have no phase."""
    place = np.flatnonzero(look.directory)
    words = look.directory[place]
    entries = _Entries(place, *(field("ENTRY", name, words) for name in ("phase", "tag", "rank", "header", "epoch")))
    valid = (entries.rank < look.geometry.world_size) & (entries.slot < look.geometry.hdr_count)
    valid &= np.isin(entries.phase, (ENTRY_FINAL.value, ENTRY_TENTATIVE.value, ENTRY_REPLICA.value))
    return _Entries(*(column[valid] for column in entries)), place[~valid]


def _belongs(look: Look, entries: _Entries, headers: _Headers) -> Mask:
    """Whether entries stand where the key of their header may stand: tag, home rank and bucket."""
    at = entries.rank, entries.slot
    key_hash, key_check = headers.key_hash[at], headers.key_check[at]
    buckets = np.uint64(look.geometry.dir_buckets - 1)
    one = key_hash & buckets
    two = one ^ (((key_hash >> np.uint64(32)) & buckets & np.uint64(NEAR_BUCKETS.value - 1)) | np.uint64(1))
    bucket = (entries.place // ENTRIES_PER_BUCKET.value).astype(np.uint64)
    home = look.geometry.home_rank(key_check)
    tagged = (key_check & np.uint64(ENTRY_TAG_MASK.value)) == entries.tag.astype(np.uint64)
    here: Mask = tagged & (home == look.rank) & ((bucket == one) | (bucket == two))
    return here


def check_directory(world: WorldLook) -> Iterator[Finding]:
    """I4, I5, I10: entries are valid, stand where their key may stand, and find each READY object exactly once."""
    if not world.allocates:
        return
    headers = _headers(world)
    finds = np.zeros(headers.phase.shape, np.int64)
    for look in world.looks:
        entries, wild = _entries(look)
        what = "invalid directory entries: readers are answered SegmentCorrupt"
        yield from find("I10", look.rank, what, "entry", wild)
        at = entries.rank, entries.slot
        same = (headers.epoch[at] & ENTRY_EPOCH_MASK.value) == entries.epoch
        sure = entries.phase != ENTRY_TENTATIVE.value
        judged = headers.ready[at] & same & sure
        if world.quiescent:
            judged = _alive(headers, entries) & same & sure
            yield from _check_idle(world, look, entries, headers, same)
        here = _belongs(look, entries, headers)
        what = "directory entries stand where their key is not looked for, or with another key's tag"
        yield from find("I4", look.rank, what, "entry", entries.place[judged & ~here])
        found = judged & here
        np.add.at(finds, (entries.rank[found], entries.slot[found]), 1)
    yield from _check_finds(world, headers, finds)


def _alive(headers: _Headers, entries: _Entries) -> Mask:
    at = entries.rank, entries.slot
    never = (headers.phase[at] == RESERVED.value) & (headers.epoch[at] == 0)
    found: Mask = (headers.phase[at] != DEAD.value) & ~never
    return found


def _check_idle(world: WorldLook, look: Look, entries: _Entries, headers: _Headers, same: Mask) -> Iterator[Finding]:
    """At rest: no entry is TENTATIVE, and none is left of an object that went away."""
    tentative = entries.phase == ENTRY_TENTATIVE.value
    breach = not _all_ended(world, entries, tentative)
    what = "directory entries are TENTATIVE at rest: their keys may be refused"
    yield from find("I6", look.rank, what, "entry", entries.place[tentative], REMAKE if breach else WAIT, breach)
    # the entry of an object that was given up goes when its slot is freed: until then the slot is not taken again
    given_up = same & (headers.phase[entries.rank, entries.slot] == DEAD.value) & ~_is_free(world, entries)
    stale = ~tentative & ~(_alive(headers, entries) & same) & ~given_up
    what = "directory entries are left of objects that are gone: they take room from their buckets for ever"
    yield from find("I5", look.rank, what, "entry", entries.place[stale])


def _all_ended(world: WorldLook, entries: _Entries, chosen: Mask) -> bool:
    """Whether the producers of all headers that chosen entries name have ended."""
    slots = zip(entries.rank[chosen].tolist(), entries.slot[chosen].tolist(), strict=True)
    return all(world.producer_ended(int(world.looks[rank].headers["producer"][slot])) for rank, slot in slots)


def _is_free(world: WorldLook, entries: _Entries) -> Mask:
    free = np.stack([look.free_slots for look in world.looks])
    found: Mask = free[entries.rank, entries.slot]
    return found


def _check_finds(world: WorldLook, headers: _Headers, finds: Numbers) -> Iterator[Finding]:
    wanted = headers.ready | ((headers.phase == WRITING.value) & world.quiescent)
    for rank, (want, times) in enumerate(zip(wanted, finds, strict=True)):
        lost = np.flatnonzero(want & (times == 0))
        lost = lost[~_given_up_early(world, headers, rank, lost)]
        what = "objects are READY or WRITING, and no directory entry finds them"
        yield from find("I5", rank, what, "slot", lost)
        yield from find("I4", rank, "objects have several directory entries", "slot", times > 1)


def _given_up_early(world: WorldLook, headers: _Headers, rank: int, slots: Numbers) -> Mask:
    """Copies that were WRITING and had no entry yet when their producer ended."""
    producers = world.looks[rank].headers["producer"]
    ended = [world.producer_ended(int(producers[slot])) for slot in slots.tolist()]
    found: Mask = ~headers.ready[rank, slots] & np.array(ended, np.bool_)
    return found


def check_keys(world: WorldLook) -> Iterator[Finding]:
    """I4: of the READY objects of a key at most one is no copy, and all are alike. Holds at any moment."""
    headers = _headers(world)
    ranks, slots = np.nonzero(headers.ready)
    keys = np.stack([headers.key_hash[ranks, slots], headers.key_check[ranks, slots]], axis=1)
    _, which, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    several = np.flatnonzero(times[which] > 1)
    ranks, slots, which = ranks[several], slots[several], which[several]
    primary = ~_copies(world, headers)[ranks, slots]
    repeated = primary & (np.bincount(which[primary], minlength=len(times))[which] > 1)
    unlike = _unlike(world, ranks, slots, which)
    for rank in np.unique(ranks).tolist():
        what = "objects whose key has more than one READY object in the world, of which they are no copies"
        yield from find("I4", rank, what, "slot", slots[repeated & (ranks == rank)])
        what = "copies that differ from another object of their key in size, dtype, shape or checksum"
        yield from find("I4", rank, what, "slot", slots[unlike & ~repeated & (ranks == rank)])


def _copies(world: WorldLook, headers: _Headers) -> Mask:
    """READY objects that a REPLICA entry finds; none in host mode, which has no copies."""
    found = np.zeros(headers.phase.shape, np.bool_)
    for look in world.looks if world.allocates else []:
        entries, _ = _entries(look)
        at = entries.rank, entries.slot
        same = (headers.epoch[at] & ENTRY_EPOCH_MASK.value) == entries.epoch
        chosen = (entries.phase == ENTRY_REPLICA.value) & headers.ready[at] & same & _belongs(look, entries, headers)
        found[entries.rank[chosen], entries.slot[chosen]] = True
    return found


def _unlike(world: WorldLook, ranks: Numbers, slots: Numbers, which: Numbers) -> Mask:
    """Objects that differ from the first one of their key."""
    first: dict[int, tuple[int, bytes]] = {}
    differs = []
    for rank, slot, key in zip(ranks.tolist(), slots.tolist(), which.tolist(), strict=True):
        look = world.looks[rank]
        form = int(look.headers["bytes_total"][slot]), look.descriptors[slot].tobytes()
        differs.append(first.setdefault(key, form) != form)
    return np.array(differs, np.bool_)
