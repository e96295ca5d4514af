"""Ghosts: keys that were evicted lately, so that the policy learns from what comes back.

An eviction leaves a GHOST word: a part of the key, and how many evictions of its kind there were before. A producer
that puts an object looks for its ghost. An object whose ghost is young lives as one that was used again.

Source: the ghost lists of ARC (Megiddo and Modha 2003), kept as tags in buckets, as the cuckoo filters' (Fan et al.
2014), because device code has no lists.

Guarantees: none but bounds. A ghost may be lost, found twice, or taken for another key's: then an object lives longer
or shorter than it should. There are four words per header slot, and a search looks at eight.

Why the orderings suffice: all accesses are relaxed, since no word hands anything over.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.segment.layout import (
    GHOST_STAMP_MASK,
    GHOST_TAG_MASK,
    GHOST_TAG_SHIFT,
    GHOST_USED_MASK,
    GHOST_USED_SHIFT,
    GHOSTS_A_SLOT,
    GONE_NEW,
    GONE_USED,
    POSITIVE,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World

PLACES = tl.constexpr(8)  # words that may hold the ghost of a key: two slots' words


@triton.jit
def place_of(world: World, seg: tl.int64, key_hash: tl.int64, number: tl.int64) -> Any:
    """The address of one of the PLACES words that may hold the ghost of a key."""
    total = world.hdr_count * GHOSTS_A_SLOT
    first = ((key_hash & POSITIVE) % world.hdr_count) * GHOSTS_A_SLOT
    return seg + world.ghosts_base + ((first + number) % total) * WORD_BYTES


@triton.jit
def ghost_word(key_hash: tl.int64, used: tl.int64, stamp: tl.int64) -> Any:
    """A GHOST word."""
    tag = ((key_hash >> GHOST_TAG_SHIFT) & GHOST_TAG_MASK) << GHOST_TAG_SHIFT
    return tag | (used << GHOST_USED_SHIFT) | (stamp & GHOST_STAMP_MASK)


@triton.jit
def age_of(ghost: tl.int64, gone_new: tl.int64, gone_used: tl.int64) -> Any:
    """How many objects of its kind were evicted since. `gone_new`, `gone_used`: how many there were so far."""
    used = (ghost >> GHOST_USED_SHIFT) & GHOST_USED_MASK
    return (select(used == 1, gone_used, gone_new) - ghost) & GHOST_STAMP_MASK


@triton.jit
def remember(world: World, seg: tl.int64, key_hash: tl.int64, used: tl.int64) -> None:
    """Leave the ghost of an object that goes, in the place of the oldest. `used`: 1 if it was used again, else 0."""
    gone_new, gone_used = load64(seg + GONE_NEW, "relaxed"), load64(seg + GONE_USED, "relaxed")
    best = word(0)
    oldest = word(-1)
    for i in range(0, PLACES):
        ghost = load64(place_of(world, seg, key_hash, i), "relaxed")
        age = select(ghost == 0, word(GHOST_STAMP_MASK), age_of(ghost, gone_new, gone_used))
        better = age > oldest
        best = select(better, word(i), best)
        oldest = select(better, age, oldest)
    stamp = select(used == 1, gone_used, gone_new)
    store64(place_of(world, seg, key_hash, best), ghost_word(key_hash, used, stamp), "relaxed")


@triton.jit
def recall(world: World, seg: tl.int64, key_hash: tl.int64) -> Any:
    """Take the ghost of a key away: (its age in evictions of its kind, or -1; 1 if the object had been used again)."""
    gone_new, gone_used = load64(seg + GONE_NEW, "relaxed"), load64(seg + GONE_USED, "relaxed")
    wanted = ghost_word(key_hash, word(0), word(0))
    found = word(-1)
    age = word(-1)
    used = word(0)
    for i in range(0, PLACES):
        ghost = load64(place_of(world, seg, key_hash, i), "relaxed")
        same = (ghost != 0) & (((ghost ^ wanted) >> GHOST_TAG_SHIFT) == 0)
        found = select(same, word(i), found)
        age = select(same, age_of(ghost, gone_new, gone_used), age)
        used = select(same, (ghost >> GHOST_USED_SHIFT) & GHOST_USED_MASK, used)
    if found >= 0:
        store64(place_of(world, seg, key_hash, found), word(0), "relaxed")
    return age, used
