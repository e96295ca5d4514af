"""What a call will need soon, prefetched: the misses of a put then overlap, where its atomics would let none overlap.

Nothing here changes a word, and nothing is believed: what another thread takes first was prefetched in vain.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.native.prefetch import prefetch
from nanokv.device.protocol.directory import (
    candidate_at,
    entry_header,
    entry_owner,
    first_place,
    home_of,
    in_bounds,
    look,
    turn_at,
)
from nanokv.device.protocol.put import extent_for
from nanokv.device.protocol.ring import ring_slot
from nanokv.device.protocol.shards import home_for, shard_at, shard_of
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import (
    ANN_HEAD,
    BUMP_PTR,
    ENTRIES_PER_BUCKET,
    FREE_HEAD,
    FREE_HEAD_STRIDE,
    HDR_FREE,
    HDR_HEAD,
    LOW32,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import (
    World,
    class_pages,
    descriptor_at,
    header_at,
    header_links,
    page_links,
    segment,
)

LINE = tl.constexpr(64)  #: bytes of a cache line, as most processors have it
MOST_AHEAD = tl.constexpr(1024)  #: bytes of a payload: the processor follows by itself after that


@triton.jit
def foresee_key(world: World, key: Key, claims: tl.constexpr) -> None:
    """Prefetch the buckets of a key, and its turnstile where it `claims` an entry."""
    home = segment(world, home_of(world, key.check))
    prefetch(candidate_at(world, home, key.hash, word(0)))
    prefetch(candidate_at(world, home, key.hash, word(ENTRIES_PER_BUCKET)))
    if claims:
        prefetch(turn_at(world, home, key.hash))


@triton.jit
def likely(world: World, row: tl.int64, home: tl.int64) -> Any:
    """The node that a producer takes next: the first one of its home list in a row of lists, or of one after that."""
    i = word(0)
    node = word(-1)
    while (node < 0) & (i < world.shards):
        head = row + shard_of(world, home + shard_at(world, i)) * WORD_BYTES
        node = (load64(head, "relaxed") & LOW32) - 1
        i += 1
    return node


@triton.jit
def foresee_put(world: World, owner: tl.int64, key_hash: tl.int64, nbytes: tl.int64) -> Any:
    """Prefetch the header slot and the pages that a put takes now, if its home lists have some, and its ring slot.

    True if both are at hand: then the put need not look for them, nor evict anything.
    """
    seg = segment(world, owner)
    home = home_for(world, key_hash)
    slot = likely(world, seg + HDR_FREE, home)
    if slot >= 0:
        prefetch(header_at(world, seg, slot))
        prefetch(descriptor_at(world, seg, slot))
        prefetch(header_links(world, seg) + slot * WORD_BYTES)
    at_hand = (slot >= 0) | (load64(seg + HDR_HEAD, "relaxed") < world.hdr_count)
    n_pages, size_class = extent_for(world, nbytes)
    if (size_class >= 0) & (n_pages > 0):
        page = likely(world, seg + FREE_HEAD + size_class * FREE_HEAD_STRIDE, home)
        if page >= 0:
            prefetch(page_links(world, seg) + page * WORD_BYTES)
            at = seg + world.heap_base + page * world.page_bytes
            end = at + select(nbytes < MOST_AHEAD, nbytes, word(MOST_AHEAD))
            while at < end:
                prefetch(at)
                at += LINE
        else:
            rest = world.heap_limit - load64(seg + BUMP_PTR, "relaxed")
            at_hand = at_hand & (rest >= class_pages(world, size_class) * world.page_bytes)
    prefetch(ring_slot(world, seg, load64(seg + ANN_HEAD, "relaxed")))
    return at_hand


@triton.jit
def foresee_get(world: World, key: Key) -> None:
    """Prefetch the header and the descriptor of the object that a key leads to, if it leads to one."""
    home = segment(world, home_of(world, key.check))
    tagged, _ = look(world, home, key)
    if tagged != 0:
        entry = load64(candidate_at(world, home, key.hash, first_place(tagged)), "relaxed")
        if in_bounds(world, entry):
            seg, slot = segment(world, entry_owner(entry)), entry_header(entry)
            prefetch(header_at(world, seg, slot))
            prefetch(descriptor_at(world, seg, slot))
