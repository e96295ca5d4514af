"""Remove: READY to DEAD in one compare-and-swap, then everything that the object held goes back.

Source: Harris' linked lists (2001): first mark the object, then unlink it.

Guarantees: of several removers exactly one makes the object DEAD, and frees it: entry, pages, slot, hint (`retire`). If
it dies on the way, the owner's sweeper goes on from the header. A pinned object stays (I8).

Why the orderings suffice: see `header` (kill) and `retire`.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.directory import entry_header, entry_owner, find_state
from nanokv.device.protocol.header import epoch_of, kill, state_word
from nanokv.device.protocol.retire import count_eviction, retire
from nanokv.device.protocol.status import MISS, OK, PINNED
from nanokv.device.segment.layout import EVICTED, PIN_BITS, READY, REMOVED
from nanokv.device.segment.world_table import World, header_at, segment


@triton.jit
def remove_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, kind: tl.int64) -> Any:
    """Make one READY object DEAD, and free it: OK, PINNED, or MISS if it has gone away (or never was READY).

    `kind`: REMOVED, or EVICTED, which is counted.
    """
    seg = segment(world, owner)
    phase = enter(world, seg)
    header = header_at(world, seg, slot)
    seen = kill(header, READY, epoch)
    status = word(MISS)
    if seen == state_word(READY, epoch):
        retire(world, seg, owner, slot, epoch, kind)
        if kind == EVICTED:
            count_eviction(world, seg)
        status = word(OK)
    elif (seen & ~PIN_BITS) == state_word(READY, epoch):
        status = word(PINNED)
    leave(world, seg, phase)
    return status


@triton.jit
def remove(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Remove a READY object. Returns (status, owner): OK, MISS, NOT_READY, PINNED or CORRUPT."""
    status, entry, state = find_state(world, key_hash, key_check)
    owner = word(0)
    if status == OK:
        owner = entry_owner(entry)
        status = remove_slot(world, owner, entry_header(entry), epoch_of(state), REMOVED)
    return status, owner
