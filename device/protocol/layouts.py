"""The table of layouts: which identities have put objects into a segment, and how those are laid out.

A row belongs to one identity for ever. Its first word is that identity's, taken by compare-and-swap; all other words
follow from the identity, so any number of hosts of one identity may write them at once, and one that died in between is
completed by the next one. The last word is a hash of the others: a reader believes a row only if it is right.

Guarantees
- An identity has one row: rows are taken in their order and never given back, so two hosts of one identity meet at the
  same row.
- Only hosts write rows, once per cache and segment; no put or get reads them.

Why the orderings suffice: no word of a row is read for the sake of another word. The hash tells whether they belong
together, so relaxed loads and stores are enough.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, load64, store64, word
from nanokv.device.protocol.status import DUPLICATE, FULL, OK
from nanokv.device.segment.layout import LAYOUT_BYTES, LAYOUT_TAG_SHIFT, LAYOUTS_A_RANK, WORD_BYTES
from nanokv.device.segment.world_table import World, segment


@triton.jit
def write_layout(world: World, owner: tl.int64, row: tl.int64) -> Any:
    """Write the row at the address `row` (a LAYOUT, in private memory) into a segment's table, unless it is there.

    OK; FULL: no row is left; DUPLICATE: another identity has the same tag.
    """
    at = segment(world, owner) + world.layouts_base
    end = at + world.world_size * (LAYOUTS_A_RANK * LAYOUT_BYTES)
    mine = load64(row, "relaxed")
    status = word(FULL)
    while (status == FULL) & (at < end):
        seen = cas64(at, 0, mine, "relaxed")
        if (seen == 0) | (seen == mine):
            status = word(OK)
            i = word(WORD_BYTES)
            while i < LAYOUT_BYTES:
                store64(at + i, load64(row + i, "relaxed"), "relaxed")
                i += WORD_BYTES
        elif (seen ^ mine) >> LAYOUT_TAG_SHIFT == 0:
            status = word(DUPLICATE)
        at += LAYOUT_BYTES
    return status
