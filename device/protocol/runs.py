"""A run: objects that are alike, which one CTA puts one after another. They are begun and announced together.

    begin_run      counts the operation in and claims the keys of the first members, of all if it can
    begin_member   takes pages for one member: WRITING
    (the CTA stores the payload)
    commit_member  READY
    finish_run     leaves the hints, and counts the operation out

Alike are consecutive requests of one owner, size, flags and lease. What is the same for all is computed once; slots
and extents come out of the free lists several at a time (`freelist.pop_run`), and one addition takes the tickets of all
hints. Until then the first word of the answer in a member's ticket keeps its hint; a word of kind 0 says, in the place
of the header, with which status the member was refused.

Source: batched allocation from a free list, as the magazines of Bonwick and Adams (2001), but filled with exactly what
the run needs.

Guarantees: those of `put`, and
- A CTA takes no more slots than it has keys to claim, and no more extents than it has claimed keys: what it has in its
  hands becomes part of an object, unless its put fails. So a producer is refused only as beside puts of one object.
- A member that finds no slot ends the run before it, unless it is the first: it begins anew once the members before it
  are READY, and may evict them. A member that finds no pages takes its pages when the members before it are READY. So a
  run that is larger than the heap evicts its own objects, as puts one after another do.
- A run waits for nobody, and counts itself in for at most RUN objects: it delays a grace period as one longer put does.
- A CTA that dies with a run in its hands leaves headers that are RESERVED or WRITING to the owner's sweeper, slots and
  extents in no place to the audit, and objects that are READY without a hint to the sweep over the headers.

Why the orderings suffice: as for single puts. `enter` comes before the first step of a run, `leave` after the last. A
word of a ticket is stored before an atomic with a barrier, which shows it to all lanes of the CTA.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, checksum_bytes, load64, select, store64, table64, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.checksum import seal, wanted
from nanokv.device.protocol.claim import claim, erase
from nanokv.device.protocol.extent import hold_free, link_of, places_of
from nanokv.device.protocol.freelist import pop_run
from nanokv.device.protocol.header import acknowledge, believed, commit_state, describe, publish, reserve, state_word
from nanokv.device.protocol.label import has_label, label_request
from nanokv.device.protocol.lease import lease
from nanokv.device.protocol.lifetimes import lifetime, new_access
from nanokv.device.protocol.put import extent_for, undo
from nanokv.device.protocol.request import (
    Q_BYTES,
    Q_FLAGS,
    Q_KEY_HASH,
    Q_LEASE,
    Q_OWNER,
    REQUEST_BYTES,
    descriptor_in,
    is_possible,
    key_in,
)
from nanokv.device.protocol.ring import announce_run
from nanokv.device.protocol.shards import extent_list, home_for, slot_list
from nanokv.device.protocol.status import FULL, INVALID, LOST, NO_HEADER, OK, TOO_LARGE
from nanokv.device.protocol.take_or_evict import take_header_elsewhere, take_pages_elsewhere
from nanokv.device.protocol.ticket import T_ANSWER, TICKET_BYTES
from nanokv.device.segment.layout import (
    COUNT_LOST,
    COUNT_REFUSED,
    LOW32,
    RING_EPOCH_MASK,
    RING_EPOCH_SHIFT,
    RING_HEADER_MASK,
    RING_HEADER_SHIFT,
    RING_KIND_MASK,
    STORED,
    WORD_BYTES,
    WRITING,
)
from nanokv.device.segment.world_table import (
    World,
    header_at,
    header_links,
    open_world,
    page_links,
    retries_at,
    segment,
)

RUN = tl.constexpr(16)  # members at most: the hints of the first ones wait for the last


@triton.jit
def slot_in(said: tl.int64) -> Any:
    """The header slot that a hint is about."""
    return (said >> RING_HEADER_SHIFT) & RING_HEADER_MASK


@triton.jit
def epoch_in(said: tl.int64) -> Any:
    """The epoch that a hint is about."""
    return (said >> RING_EPOCH_SHIFT) & RING_EPOCH_MASK


@triton.jit(noinline=True)
def drop_member(
    table: tl.int64,
    seg: tl.int64,
    owner: tl.int64,
    request: tl.int64,
    ticket: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    status: tl.int64,
) -> None:
    """Give a member up that got another status than OK after it had a slot. Its hint goes first: see above."""
    world = open_world(table)
    store64(ticket + T_ANSWER, status << RING_HEADER_SHIFT, "relaxed")
    if status == LOST:
        add64(seg + COUNT_LOST, 1, "relaxed")
        acknowledge(header_at(world, seg, slot), epoch)
    else:
        if status == FULL:
            add64(seg + COUNT_REFUSED, 1, "relaxed")
            # the entry goes first: the key must not lead to the next object of the slot
            erase(world, owner, slot, epoch, key_in(request))
        if not undo(world, seg, slot, epoch):
            acknowledge(header_at(world, seg, slot), epoch)


@triton.jit
def next_slot(world: World, seg: tl.int64, home: tl.int64, hand: tl.int64, left: tl.int64, wanted: tl.int64) -> Any:
    """Take a slot from the caller's hand, which the list `home` fills if it is empty.

    The hand is a chain of `left` slots, of which `hand` is the first. Returns (slot or -1, epoch of its next use, hand,
    left). `wanted`: how many slots the caller still needs.
    """
    if left == 0:
        hand, left = pop_run(
            slot_list(world, seg, home), header_links(world, seg), world.hdr_count, wanted, retries_at(world, seg)
        )
    slot, epoch = believed(world, seg, hand)
    if left > 1:
        hand = (load64(header_links(world, seg) + hand * WORD_BYTES, "relaxed") & LOW32) - 1
        left = select((hand >= 0) & (hand < world.hdr_count), left - 1, word(0))
    else:
        left = word(0)
    return slot, epoch, hand, left


@triton.jit
def claim_keys(
    world: World, seg: tl.int64, owner: tl.int64, requests: tl.int64, tickets: tl.int64, count: tl.int64, now: tl.int64
) -> Any:
    """Take slots for the first members of a run, as many as there are, and claim their keys: (members, claimed)."""
    flags = table64(requests + Q_FLAGS)
    hand = word(-1)
    left = word(0)
    claimed = word(0)
    i = word(0)
    more = count > 0
    while more:
        request = requests + i * REQUEST_BYTES
        key = key_in(request)
        home = home_for(world, key.hash)
        slot, epoch, hand, left = next_slot(world, seg, home, hand, left, count - i)
        if slot < 0:
            slot, epoch = take_header_elsewhere(world, seg, owner, home, now)
        more = slot >= 0
        if more:
            reserve(world, seg, slot, epoch, key, flags)
            ticket = tickets + i * TICKET_BYTES
            said = word(STORED) | (slot << RING_HEADER_SHIFT) | (epoch << RING_EPOCH_SHIFT)
            store64(ticket + T_ANSWER, said, "relaxed")
            status = claim(world, owner, slot, epoch, key)
            if status == OK:
                claimed += 1
            else:
                drop_member(world.table, seg, owner, request, ticket, slot, epoch, status)
            i += 1
            more = i < count
    return i, claimed


@triton.jit
def begin_run(world: World, requests: tl.int64, tickets: tl.int64, count: tl.int64, now: tl.int64) -> Any:
    """Begin the first objects of a run of `count` requests that are alike.

    Returns (status, members, claimed, phase, pages, size class). After OK each of the first `members` requests goes on
    with `begin_member`, in their order; `claimed` of them have claimed their keys; `finish_run` ends the run. Any other
    status is the answer to that many requests, and there is nothing to do.
    """
    status = word(INVALID)
    members = count + 0
    claimed = word(0)
    phase = word(0)
    n_pages = word(0)
    size_class = word(-1)
    if is_possible(world, requests) & (now >= 0):
        owner = table64(requests + Q_OWNER)
        n_pages, size_class = extent_for(world, table64(requests + Q_BYTES))
        status = word(TOO_LARGE)
        if size_class >= 0:
            seg = segment(world, owner)
            phase = enter(world, seg)
            members, claimed = claim_keys(world, seg, owner, requests, tickets, count, now)
            status = word(OK)
            if members == 0:
                add64(seg + COUNT_REFUSED, 1, "relaxed")
                leave(world, seg, phase)
                members = word(1)
                status = word(NO_HEADER)
    return status, members, claimed, phase, n_pages, size_class


@triton.jit
def next_page(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    size_class: tl.int64,
    home: tl.int64,
    slot: tl.int64,
    now: tl.int64,
    hand: tl.int64,
    left: tl.int64,
    wanted: tl.int64,
) -> Any:
    """Take an extent for a header slot from the caller's hand, as `next_slot` does: (first page or -1, hand, left).

    From an empty list `home` it goes on as a single put does (`take_pages_elsewhere`).
    """
    if left == 0:
        hand, left = pop_run(
            extent_list(world, seg, size_class, home),
            page_links(world, seg),
            places_of(world, size_class),
            wanted,
            retries_at(world, seg),
        )
    page = word(-1)
    if left > 0:
        link = link_of(world, seg, hand)
        page = hold_free(world, seg, hand, link, size_class, slot)
        hand = (link & LOW32) - 1
        sound = (page >= 0) & (hand >= 0) & (hand < world.n_pages)
        left = select(sound, left - 1, word(0))
    if page < 0:
        page = take_pages_elsewhere(world, seg, owner, size_class, home, slot, now)
    return page, hand, left


@triton.jit
def begin_member(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    request: tl.int64,
    ticket: tl.int64,
    n_pages: tl.int64,
    size_class: tl.int64,
    now: tl.int64,
    hand: tl.int64,
    left: tl.int64,
    claimed: tl.int64,
) -> Any:
    """Take pages for a member of a run and publish WRITING. Returns (status, payload offset, hand, left, claimed).

    `hand`, `left`: the extents that the caller has taken out of a list, -1 and 0 before the first member. `claimed`:
    how many members that have claimed their keys have no pages yet. After OK the caller stores the payload and calls
    `commit_member`; after any other status there is nothing to do.
    """
    said = load64(ticket + T_ANSWER, "relaxed")
    life = lifetime(seg)
    status = said >> RING_HEADER_SHIFT
    payload = word(0)
    if (said & RING_KIND_MASK) == STORED:
        slot, epoch = slot_in(said), epoch_in(said)
        page = word(0)
        if n_pages > 0:
            home = home_for(world, table64(request + Q_KEY_HASH))
            page, hand, left = next_page(world, seg, owner, size_class, home, slot, now, hand, left, claimed)
        claimed -= 1
        payload = world.heap_base + page * world.page_bytes
        status = word(FULL)
        if page >= 0:
            nbytes = table64(request + Q_BYTES)
            access = new_access(world, seg, table64(request + Q_KEY_HASH), now, life)
            published = publish(world, seg, slot, epoch, n_pages, payload, nbytes, access)
            status = select(published, word(OK), word(LOST))
        if status == OK:
            describe(world, seg, slot, descriptor_in(request))
            if table64(request + Q_LEASE) != 0:
                lease(world, owner, slot, table64(request + Q_LEASE))
            if has_label(request):
                label_request(world.table, request, slot)
        else:
            drop_member(world.table, seg, owner, request, ticket, slot, epoch, status)
    return status, payload, hand, left, claimed


@triton.jit(noinline=True)
def seal_whole(table: tl.int64, request: tl.int64, slot: tl.int64, src: tl.int64) -> None:
    """Give an object the checksum over its bytes at the address `src`, before its commit."""
    world = open_world(table)
    seg = segment(world, table64(request + Q_OWNER))
    nbytes = table64(request + Q_BYTES)
    payload_sum = checksum_bytes(src, nbytes, 0)
    seal(world, seg, slot, key_in(request), nbytes, payload_sum, descriptor_in(request))


@triton.jit
def seal_member(world: World, request: tl.int64, ticket: tl.int64, src: tl.int64) -> None:
    """Give a member a checksum, if this rank's objects have checksums. `src`: the address of its bytes."""
    if wanted(world):
        seal_whole(world.table, request, slot_in(load64(ticket + T_ANSWER, "relaxed")), src)


@triton.jit
def commit_member(world: World, seg: tl.int64, owner: tl.int64, request: tl.int64, ticket: tl.int64) -> Any:
    """WRITING -> READY: OK, or LOST if the slot was given up."""
    said = load64(ticket + T_ANSWER, "relaxed")
    slot, epoch = slot_in(said), epoch_in(said)
    status = word(OK)
    if commit_state(header_at(world, seg, slot), epoch) != state_word(WRITING, epoch):
        status = word(LOST)
        drop_member(world.table, seg, owner, request, ticket, slot, epoch, status)
    return status


@triton.jit
def finish_run(
    world: World, seg: tl.int64, tickets: tl.int64, members: tl.int64, stored: tl.int64, phase: tl.int64
) -> None:
    """Announce the `stored` objects of a run of `members`, and count the operation out."""
    if stored > 0:
        announce_run(world, seg, tickets + T_ANSWER, word(TICKET_BYTES), members, stored)
    leave(world, seg, phase)
