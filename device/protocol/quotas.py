"""The quotas of a segment: how many pages the objects of an identity may hold there.

A row (QUOTA bits) belongs to one identity for ever, and names its quota. Hosts write rows, once per cache and segment.
The owner's sweeper counts the pages of those identities, and evicts what is too much (`host_poller/sweeper.py`); no
put or get reads a row.

Guarantees: an identity has one row, since rows are taken in their order and never given back: two hosts of one identity
meet at the same row, and the last one's quota stays.

Why the orderings suffice: a row is one word, and a sweeper that misses it sees it in its next pass.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, word
from nanokv.device.protocol.status import FULL, OK
from nanokv.device.segment.layout import QUOTA_TAG_SHIFT, QUOTAS_A_RANK, QUOTAS_SET, WORD_BYTES
from nanokv.device.segment.world_table import World, segment


@triton.jit
def set_quota(world: World, owner: tl.int64, quota: tl.int64) -> Any:
    """Write a quota (QUOTA bits) into a segment. OK; FULL: no row is left."""
    seg = segment(world, owner)
    at = seg + world.quotas_base
    end = at + world.world_size * (QUOTAS_A_RANK * WORD_BYTES)
    status = word(FULL)
    while (status == FULL) & (at < end):
        seen = load64(at, "relaxed")  # relaxed: if it is old, the CAS fails
        if (seen == 0) | ((seen ^ quota) >> QUOTA_TAG_SHIFT == 0):
            if cas64(at, seen, quota, "relaxed") == seen:
                status = word(OK)
                add64(seg + QUOTAS_SET, 1, "relaxed")  # relaxed: as above
            # else the row is looked at again: another host has taken it, or changed this identity's
        else:
            at += WORD_BYTES
    return status
