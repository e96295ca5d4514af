"""Freeing what a DEAD header holds: its entry in the directory, its pages, its slot; and a hint to the host.

Guarantees
- Only the rank that made the object DEAD frees it, in this order: entry, pages, slot. The entry goes first, so that the
  key never leads to the next object of the slot.
- If that rank dies on the way, the header names what is left, and the owner's sweeper goes on (`reclaim.release`). The
  audit finds what was already taken out of the header.

Why the orderings suffice: the compare-and-swap to DEAD has acquired everything that was done to the object, and no
other rank acts on a DEAD header of this epoch; each hand-over to a free list releases (`freelist`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, select, store64, word
from nanokv.device.protocol.claim import erase
from nanokv.device.protocol.extent import class_of, give, is_held
from nanokv.device.protocol.header import (
    give_slot,
    key_of,
    pages_of,
)
from nanokv.device.protocol.ring import announce
from nanokv.device.segment.layout import (
    COUNT_CORRUPT,
    COUNT_EVICTED,
    H_PAGES,
    H_PAYLOAD,
)
from nanokv.device.segment.world_table import World, class_pages, evicted_at, header_at


@triton.jit
def take_out(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """Take the extent out of a DEAD header: (first page or -1, size class).

    Pages that cannot exist, or that were not taken for this slot, are left alone: the header is corrupt.
    """
    header = header_at(world, seg, slot)
    n_pages = pages_of(header)
    payload = load64(header + H_PAYLOAD, "relaxed")
    base = world.heap_base
    placed = (payload >= base) & (payload <= world.heap_limit)
    offset = select(placed, payload, base) - base
    page = offset // world.page_bytes
    size_class = class_of(world, n_pages)
    if n_pages > 0:
        # relaxed: the pushes of `give` and `give_slot` release it
        store64(header + H_PAGES, word(0), "relaxed")
        whole = class_pages(world, select(size_class < 0, word(0), size_class))
        beyond = (page + whole > world.n_pages) | (offset != page * world.page_bytes)
        wild = (not placed) | (size_class < 0) | beyond
        if not wild:
            wild = not is_held(world, seg, page, size_class, slot)
        if wild:
            add64(seg + COUNT_CORRUPT, 1, "relaxed")
            page = word(-1)
    else:
        page = word(-1)
    return page, size_class


@triton.jit
def retire(world: World, seg: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, kind: tl.int64) -> None:
    """Free everything that a header holds which the caller made DEAD, and leave a hint: REMOVED or EVICTED."""
    header = header_at(world, seg, slot)
    erase(world, owner, slot, epoch, key_of(header, epoch))
    page, size_class = take_out(world, seg, slot)
    if page >= 0:
        give(world, seg, page, size_class)
    give_slot(world, seg, slot)
    announce(world, seg, kind, slot, epoch)


@triton.jit
def count_eviction(world: World, seg: tl.int64) -> None:
    """Count an object that this rank has evicted, in the segment and in this rank's record there."""
    add64(seg + COUNT_EVICTED, 1, "relaxed")  # relaxed: statistics
    add64(evicted_at(world, seg), 1, "relaxed")
