"""Put: the whole protocol of a producer, in order.

`begin` takes a header slot, claims the key, takes an extent (by eviction if it must) and publishes WRITING; the
producer stores the payload; `finish` commits, announces and counts the operation out. Neither waits.

Source: RCU's publication (McKenney 2006): allocate, write, then make it visible by one release. The parts name theirs.

Guarantees
- A duplicate is refused before a byte is allocated or copied, and no object becomes READY that cannot be found: the
  producer claims the key first. It looks at the directory before all else, so that no other access waits for that look.
- A `begin` that fails gives back everything that it took, last taken first. FULL is an answer (I9).
- An object becomes READY when all its bytes are stored, or never (I3); a producer that was too slow is told LOST.

Why the orderings suffice: see `header` (publish, commit), `claim` (a key) and `freelist` (hand-over).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, checksum_bytes, copy_bytes, load64, select, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.checksum import seal, wanted
from nanokv.device.protocol.claim import claim_at, erase, survey
from nanokv.device.protocol.directory import home_of, look
from nanokv.device.protocol.extent import class_of
from nanokv.device.protocol.header import (
    acknowledge,
    commit_state,
    describe,
    give_slot,
    kill,
    publish,
    reserve,
    state_word,
)
from nanokv.device.protocol.lifetimes import lifetime, new_access
from nanokv.device.protocol.retire import retire
from nanokv.device.protocol.ring import announce, asleep
from nanokv.device.protocol.shards import home_for
from nanokv.device.protocol.status import FULL, LOST, NO_HEADER, OK, TOO_LARGE
from nanokv.device.protocol.structs import Begun, Descriptor, Key
from nanokv.device.protocol.take_or_evict import take_header, take_pages
from nanokv.device.segment.layout import (
    COUNT_LOST,
    COUNT_REFUSED,
    H_STATE,
    PIN_BITS,
    READY,
    REMOVED,
    RESERVED,
    STORED,
    WRITING,
)
from nanokv.device.segment.world_table import World, header_at, is_inside, segment


@triton.jit
def undo(world: World, seg: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Give up a slot that is still RESERVED. False if the sweeper was faster: then the sweeper frees it."""
    mine = kill(header_at(world, seg, slot), RESERVED, epoch) == state_word(RESERVED, epoch)
    if mine:
        give_slot(world, seg, slot)
    return mine


@triton.jit
def extent_for(world: World, nbytes: tl.int64) -> Any:
    """What an object of `nbytes` needs: (pages, size class of the extent), the class -1 if none is large enough."""
    fits = is_inside(world, world.heap_base, nbytes)
    n_pages = (select(fits, nbytes, word(0)) + world.page_bytes - 1) // world.page_bytes
    return n_pages, select(fits, class_of(world, n_pages), word(-1))


@triton.jit
def allocate(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    size_class: tl.int64,
    n_pages: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    key: Key,
    access: tl.int64,
) -> Any:
    """Take pages for a RESERVED header whose key is claimed, and publish WRITING. `access`: the ACCESS word.

    Returns (status, payload offset): OK, FULL, or LOST if the sweeper gave the slot up.
    """
    status = word(OK)
    page = word(0)
    if n_pages > 0:
        page = take_pages(world, seg, owner, size_class, home_for(world, key.hash), slot, now)
        if page < 0:
            status = word(FULL)
    payload = world.heap_base + page * world.page_bytes
    if status == OK:
        if not publish(world, seg, slot, epoch, n_pages, payload, nbytes, access):
            add64(seg + COUNT_LOST, 1, "relaxed")
            acknowledge(header_at(world, seg, slot), epoch)
            status = word(LOST)
    else:
        add64(seg + COUNT_REFUSED, 1, "relaxed")
    return status, payload


@triton.jit
def begin(world: World, owner: tl.int64, key: Key, nbytes: tl.int64, flags: tl.int64, now: tl.int64) -> Any:
    """Begin an object of `nbytes` in the segment of `owner`: a header that is WRITING, and pages to fill.

    Returns (status, Begun): OK, DUPLICATE, FULL, NO_HEADER, NO_ENTRY, TOO_LARGE or LOST. After OK the caller stores the
    payload and calls `finish`, or `abort` and `activity.leave`; after any other status there is nothing to do. The slot
    still has the descriptor of its last object: `describe` the new one.

    Args:
        flags: FLAG_PLAN, or 0.
        now: the time in ns, for `last_access`, and for the leases of objects that might be evicted.
    """
    seg = segment(world, owner)
    n_pages, size_class = extent_for(world, nbytes)
    home = segment(world, home_of(world, key.check))
    tagged, empty = look(world, home, key)  # early: nothing waits for it yet
    life = lifetime(seg)  # early too
    phase = enter(world, seg)
    status = select(size_class >= 0, word(OK), word(TOO_LARGE))
    start = word(0)
    if status == OK:
        status, start = survey(world, home, key, tagged, empty)
    slot = word(-1)
    epoch = word(0)
    payload = word(0)
    if status == OK:
        access = new_access(world, seg, key.hash, now, life)
        slot, epoch = take_header(world, seg, owner, home_for(world, key.hash), now)
        if slot < 0:
            status = word(NO_HEADER)
            add64(seg + COUNT_REFUSED, 1, "relaxed")
        else:
            reserve(world, seg, slot, epoch, key, flags)
            status = claim_at(world, home, start, owner, slot, epoch, key)
            if status == OK:
                status, payload = allocate(
                    world, seg, owner, slot, epoch, size_class, n_pages, nbytes, now, key, access
                )
                if status == FULL:
                    # the entry goes first: the key must not lead to the next object of the slot
                    erase(world, owner, slot, epoch, key)
            if (status != OK) & (status != LOST):
                if not undo(world, seg, slot, epoch):
                    acknowledge(header_at(world, seg, slot), epoch)
    if status != OK:
        leave(world, seg, phase)
    return status, Begun(slot, epoch, payload, phase)


@triton.jit
def begin_described(
    world: World, owner: tl.int64, key: Key, nbytes: tl.int64, flags: tl.int64, now: tl.int64, descriptor: Descriptor
) -> Any:
    """`begin`, and after OK `describe`. Returns what `begin` returns."""
    status, begun = begin(world, owner, key, nbytes, flags, now)
    if status == OK:
        describe(world, segment(world, owner), begun.slot, descriptor)
    return status, begun


@triton.jit
def commit_in(world: World, seg: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`commit` in the segment at the address `seg`."""
    header = header_at(world, seg, slot)
    seen = commit_state(header, epoch)
    status = word(LOST)
    if (seen == state_word(WRITING, epoch)) | ((seen & ~PIN_BITS) == state_word(READY, epoch)):
        status = word(OK)
        announce(world, seg, STORED, slot, epoch)
    else:
        acknowledge(header, epoch)
        add64(seg + COUNT_LOST, 1, "relaxed")
    return status


@triton.jit
def commit(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """WRITING -> READY, and announce: OK, or LOST if the slot was given up. A slot that is READY already is OK."""
    return commit_in(world, segment(world, owner), slot, epoch)


@triton.jit
def is_writing(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """True if an object is neither committed nor given up yet."""
    header = header_at(world, segment(world, owner), slot)
    # acquire: one atomic per CTA, so that all of its warps branch alike; after an old WRITING the commit fails (kept)
    return load64(header + H_STATE, "acquire") == state_word(WRITING, epoch)


@triton.jit
def seal_payload(
    world: World, owner: tl.int64, key: Key, begun: Begun, nbytes: tl.int64, descriptor: Descriptor
) -> None:
    """Give an object that is WRITING a checksum over the bytes in its pages, before `commit`; else do nothing.

    All arguments are those that `begin` took and returned: the words in the header are not believed.
    """
    if is_writing(world, owner, begun.slot, begun.epoch):
        seg = segment(world, owner)
        payload_sum = checksum_bytes(seg + begun.payload, nbytes, 0)
        seal(world, seg, begun.slot, key, nbytes, payload_sum, descriptor)


@triton.jit
def finish_in(world: World, seg: tl.int64, begun: Begun) -> Any:
    """`finish` in the segment at the address `seg`."""
    status = commit_in(world, seg, begun.slot, begun.epoch)
    leave(world, seg, begun.phase)
    return status


@triton.jit
def finish(world: World, owner: tl.int64, begun: Begun) -> Any:
    """Commit an object that `begin` began, and count the operation out: OK or LOST."""
    return finish_in(world, segment(world, owner), begun)


@triton.jit
def abort(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Give up an object that is WRITING, and free it: OK, or LOST if the sweeper gave it up before.

    Only after the last store to its pages.
    """
    seg = segment(world, owner)
    header = header_at(world, seg, slot)
    status = word(OK)
    if kill(header, WRITING, epoch) == state_word(WRITING, epoch):
        retire(world, seg, owner, slot, epoch, REMOVED)
    else:
        acknowledge(header, epoch)
        status = word(LOST)
    return status


@triton.jit
def put(
    world: World, owner: tl.int64, key: Key, src: tl.int64, nbytes: tl.int64, now: tl.int64, descriptor: Descriptor
) -> Any:
    """A whole put of `nbytes` from the address `src`: begin, describe, copy, finish.

    Returns (status, 1 if the owner's poller sleeps and must be woken).
    """
    status, begun = begin_described(world, owner, key, nbytes, word(0), now, descriptor)
    seg = segment(world, owner)
    if status == OK:
        if wanted(world):
            seal(world, seg, begun.slot, key, nbytes, checksum_bytes(src, nbytes, 0), descriptor)
        copy_bytes(seg + begun.payload, src, nbytes)
        status = finish(world, owner, begun)
    return status, asleep(seg)
