"""Objects: the whole protocol in order, for any producer and any reader.

Put: `begin` takes a header slot, claims the key, takes an extent (evicting if it must) and publishes WRITING; the
producer stores the payload; `finish` commits, announces and counts the operation out. Get: `lookup`, copy, `validate`.
Remove: `remove`. Each answers with a status; nothing here waits for anybody.

Guarantees
- A duplicate is refused before a byte is allocated or copied, and nothing ever becomes READY that cannot be found: the
  key is claimed first.
- Whatever `begin` took before it failed, it gives back, last taken first. FULL is an answer (I9).
- A reader returns the bytes of the key it asked for, whole, or not at all (I4): the copy counts only if the header was
  READY in the same epoch after it, and if its checksum is right, where there is one (`checksum`).
- Who makes an object DEAD frees it, alone: entry out of the directory, pages out of the header, extent, slot, hint. If
  it dies on the way, the owner's sweeper goes on from the header.

Why the orderings suffice: see `header` (publish, commit, validate), `directory` (claim) and `freelist` (hand-over).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.activity import enter, leave
from nanokv.device.checksum import has_checksum, is_right, seal, wanted
from nanokv.device.directory import claim, entry_header, entry_owner, erase, find
from nanokv.device.evict import take_header, take_pages
from nanokv.device.extent import class_of, hold, is_held
from nanokv.device.header import (
    acknowledge,
    commit_state,
    describe,
    descriptor,
    epoch_of,
    give_slot,
    is_key,
    kill,
    pages_of,
    phase_of,
    publish,
    reserve,
    state_word,
    still_ready,
)
from nanokv.device.layout import (
    COUNT_CORRUPT,
    COUNT_LOST,
    COUNT_REFUSED,
    H_ACCESS,
    H_BYTES,
    H_PAYLOAD,
    H_STATE,
    PIN_BITS,
    READY,
    RESERVED,
    STORED,
    WRITING,
)
from nanokv.device.memory import add64, checksum_bytes, copy_bytes, load64, select, store64, table64, word
from nanokv.device.retire import retire
from nanokv.device.ring import announce, asleep
from nanokv.device.status import (
    CORRUPT,
    FULL,
    LOST,
    MISS,
    NO_HEADER,
    OK,
    PINNED,
    SIZE,
    TOO_LARGE,
    TORN,
)
from nanokv.device.world import (
    W_HEAP_BASE,
    W_HEAP_LIMIT,
    W_PAGE_BYTES,
    header_at,
    segment,
)


# --- put --------------------------------------------------------------------------------------
@triton.jit
def undo(world: tl.int64, seg: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """Give up a slot that is still RESERVED. False if the sweeper was faster: then it frees the slot."""
    mine = kill(header_at(world, seg, index), RESERVED, epoch) == state_word(RESERVED, epoch)
    if mine:
        give_slot(world, seg, index)
    return mine


@triton.jit
def allocate(
    world: tl.int64,
    seg: tl.int64,
    owner: tl.int64,
    index: tl.int64,
    epoch: tl.int64,
    size_class: tl.int64,
    n_pages: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
) -> Any:
    """Take pages for a RESERVED header whose key is claimed, and publish WRITING. Returns (status, payload offset)."""
    status = word(OK)
    page = word(0)
    if n_pages > 0:
        page = take_pages(world, seg, owner, size_class)
        if page < 0:
            status = word(FULL)
        else:
            hold(world, seg, page, size_class, index)
    payload = table64(world + W_HEAP_BASE) + page * table64(world + W_PAGE_BYTES)
    if status == OK:
        if not publish(world, seg, index, epoch, n_pages, payload, nbytes, now):
            add64(seg + COUNT_LOST, 1, "relaxed")
            acknowledge(header_at(world, seg, index), epoch)
            status = word(LOST)
    else:
        add64(seg + COUNT_REFUSED, 1, "relaxed")
    return status, payload


@triton.jit
def begin(
    world: tl.int64,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    nbytes: tl.int64,
    flags: tl.int64,
    now: tl.int64,
) -> Any:
    """Begin an object of `nbytes` in the segment of `owner`: a header that is WRITING and pages to fill.

    Returns (status, header slot, epoch, payload offset, phase). After OK the caller stores the payload and calls
    `finish`, or `abort`; after anything else there is nothing to do.
    """
    seg = segment(world, owner)
    phase = enter(world, seg)
    fits = is_inside(world, table64(world + W_HEAP_BASE), nbytes)
    n_pages = (select(fits, nbytes, word(0)) + table64(world + W_PAGE_BYTES) - 1) // table64(world + W_PAGE_BYTES)
    size_class = class_of(world, n_pages)
    status = select(fits & (size_class >= 0), word(OK), word(TOO_LARGE))
    index = word(-1)
    epoch = word(0)
    payload = word(0)
    if status == OK:
        index = take_header(world, seg, owner)
        if index < 0:
            status = word(NO_HEADER)
            add64(seg + COUNT_REFUSED, 1, "relaxed")
        else:
            epoch = reserve(world, seg, index, key_hash, key_check, flags)
            status = claim(world, owner, index, epoch, key_hash, key_check)
            if status == OK:
                status, payload = allocate(world, seg, owner, index, epoch, size_class, n_pages, nbytes, now)
                if status == FULL:
                    # the entry goes first: whoever takes the slot next must not be found by this key
                    erase(world, owner, index, epoch, key_hash, key_check)
            if (status != OK) & (status != LOST):
                if not undo(world, seg, owner, index, epoch):
                    acknowledge(header_at(world, seg, index), epoch)
    if status != OK:
        leave(world, seg, phase)
    return status, index, epoch, payload, phase


@triton.jit
def commit(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """WRITING -> READY and announce: OK, or LOST if the slot was given up. A slot that is READY already is OK."""
    seg = segment(world, owner)
    header = header_at(world, seg, index)
    seen = commit_state(header, epoch)
    status = word(LOST)
    if (seen == state_word(WRITING, epoch)) | ((seen & ~PIN_BITS) == state_word(READY, epoch)):
        status = word(OK)
        announce(world, seg, STORED, index, epoch)
    else:
        acknowledge(header, epoch)
        add64(seg + COUNT_LOST, 1, "relaxed")
    return status


@triton.jit
def is_writing(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """True if an object is not committed yet, nor given up."""
    header = header_at(world, segment(world, owner), index)
    return load64(header + H_STATE, "acquire") == state_word(WRITING, epoch)


@triton.jit
def seal_payload(
    world: tl.int64,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    index: tl.int64,
    epoch: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> None:
    """Give a checksum of what lies in its pages to an object that is WRITING, before `commit`; else do nothing.

    All arguments are as `begin` took and gave them: what stands in the header is not believed.
    """
    if is_writing(world, owner, index, epoch):
        seg = segment(world, owner)
        payload_sum = checksum_bytes(seg + payload, nbytes, 0)
        seal(world, seg, index, key_hash, key_check, nbytes, payload_sum, kind, d0, d1, d2, d3, d4, d5, d6)


@triton.jit
def finish(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64, phase: tl.int64) -> Any:
    """Commit an object that `begin` began, and count the operation out: OK or LOST."""
    status = commit(world, owner, index, epoch)
    leave(world, segment(world, owner), phase)
    return status


@triton.jit
def abort(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """Give up an object that is WRITING and free it: OK, or LOST if the sweeper gave it up before.

    Only when nothing will be written to its pages any more.
    """
    seg = segment(world, owner)
    header = header_at(world, seg, index)
    status = word(OK)
    if kill(header, WRITING, epoch) == state_word(WRITING, epoch):
        retire(world, seg, owner, index, epoch)
    else:
        acknowledge(header, epoch)
        status = word(LOST)
    return status


@triton.jit
def put(
    world: tl.int64,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    src: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """The whole put by one producer: begin, describe, copy, finish. Returns (status, 1 if the poller sleeps)."""
    status, index, epoch, payload, phase = begin(world, owner, key_hash, key_check, nbytes, 0, now)
    seg = segment(world, owner)
    if status == OK:
        describe(world, seg, index, kind, d0, d1, d2, d3, d4, d5, d6)
        if wanted(world):
            payload_sum = checksum_bytes(src, nbytes, 0)
            seal(world, seg, index, key_hash, key_check, nbytes, payload_sum, kind, d0, d1, d2, d3, d4, d5, d6)
        copy_bytes(seg + payload, src, nbytes)
        status = finish(world, owner, index, epoch, phase)
    return status, asleep(seg)


# --- get --------------------------------------------------------------------------------------
@triton.jit
def is_inside(world: tl.int64, payload: tl.int64, nbytes: tl.int64) -> Any:
    """True if there can be so many bytes at an offset."""
    limit = table64(world + W_HEAP_LIMIT)
    placed = (payload >= table64(world + W_HEAP_BASE)) & (payload <= limit)
    return placed & (nbytes >= 0) & (nbytes <= limit - select(placed, payload, limit))


@triton.jit
def is_extent(world: tl.int64, seg: tl.int64, index: tl.int64, payload: tl.int64, nbytes: tl.int64) -> Any:
    """True if a header that is READY can hold so many bytes at an offset: its pages are that many, and say so.

    What a header says of its bytes stands in three words, and the extent's link names the slot: one that is wrong does
    not lead to the bytes of another object.
    """
    size = table64(world + W_PAGE_BYTES)
    inside = is_inside(world, payload, nbytes)
    offset = select(inside, payload, table64(world + W_HEAP_BASE)) - table64(world + W_HEAP_BASE)
    page = offset // size
    n_pages = pages_of(header_at(world, seg, index))
    right = inside & (offset == page * size) & (n_pages == (select(inside, nbytes, word(0)) + size - 1) // size)
    if right & (n_pages > 0):
        right = is_held(world, seg, page, class_of(world, n_pages), index)
    return right


@triton.jit
def lookup(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Find a READY object. Returns (status, owner, header slot, epoch, payload offset, bytes).

    OK, MISS, NOT_READY or CORRUPT. What is returned beside OK is true only if `validate` says so afterwards.
    """
    status, entry = find(world, key_hash, key_check)
    owner = word(0)
    index = word(0)
    epoch = word(0)
    payload = word(0)
    nbytes = word(0)
    if status == OK:
        owner = entry_owner(entry)
        index = entry_header(entry)
        seg = segment(world, owner)
        header = header_at(world, seg, index)
        state = load64(header + H_STATE, "acquire")
        epoch = epoch_of(state)
        payload = load64(header + H_PAYLOAD, "relaxed")
        nbytes = load64(header + H_BYTES, "relaxed")
        same = is_key(header, key_hash, key_check) & (phase_of(state) == READY)
        if not same:
            status = word(MISS)
        # a header that is still READY in this epoch and names no possible bytes is broken, not in motion
        elif not is_extent(world, seg, index, payload, nbytes):
            status = select(still_ready(header, epoch), word(CORRUPT), word(MISS))
            add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status, owner, index, epoch, payload, nbytes


@triton.jit
def lookup_described(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`lookup`, and the descriptor: (status, owner, header slot, epoch, payload, bytes, kind, seven dimensions)."""
    status, owner, index, epoch, payload, nbytes = lookup(world, key_hash, key_check)
    kind, d0, d1, d2, d3, d4, d5, d6 = descriptor(world, segment(world, owner), index)
    return status, owner, index, epoch, payload, nbytes, kind, d0, d1, d2, d3, d4, d5, d6


@triton.jit
def validate(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """After a copy: OK if the object was there all the while, TORN if not."""
    header = header_at(world, segment(world, owner), index)
    return select(still_ready(header, epoch), word(OK), word(TORN))


@triton.jit
def touch(world: tl.int64, owner: tl.int64, index: tl.int64, now: tl.int64) -> None:
    """Note that an object was read: best effort, for eviction."""
    store64(header_at(world, segment(world, owner), index) + H_ACCESS, now, "relaxed")


@triton.jit
def judged(
    world: tl.int64,
    owner: tl.int64,
    index: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    nbytes: tl.int64,
    flagged: tl.int64,
    payload_sum: tl.int64,
) -> Any:
    """After a copy: OK, TORN if the object was not there all the while, CORRUPT if it was and the checksum is wrong."""
    seg = segment(world, owner)
    right = is_right(world, seg, index, key_hash, key_check, nbytes, flagged, payload_sum)
    status = validate(world, owner, index, epoch)
    if (status == OK) & (not right):
        status = word(CORRUPT)
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status


@triton.jit
def verify(
    world: tl.int64,
    owner: tl.int64,
    index: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    copy: tl.int64,
    nbytes: tl.int64,
) -> Any:
    """After a copy to the address `copy` (or of a pinned object, in place): OK, TORN or CORRUPT."""
    flagged = has_checksum(header_at(world, segment(world, owner), index))
    payload_sum = word(0)
    if flagged:
        payload_sum = checksum_bytes(copy, nbytes, 0)
    return judged(world, owner, index, epoch, key_hash, key_check, nbytes, flagged, payload_sum)


@triton.jit
def read(
    world: tl.int64,
    owner: tl.int64,
    index: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    dst: tl.int64,
    now: tl.int64,
) -> Any:
    """Copy what `lookup` found of a key to `dst`, and verify: OK, TORN or CORRUPT."""
    copy_bytes(dst, segment(world, owner) + payload, nbytes)
    status = verify(world, owner, index, epoch, key_hash, key_check, dst, nbytes)
    if status == OK:
        touch(world, owner, index, now)
    return status


@triton.jit
def get(world: tl.int64, key_hash: tl.int64, key_check: tl.int64, dst: tl.int64, room: tl.int64, now: tl.int64) -> Any:
    """Look up and read an object of exactly `room` bytes into `dst`: OK, MISS, NOT_READY, TORN, SIZE or CORRUPT."""
    status, owner, index, epoch, payload, nbytes = lookup(world, key_hash, key_check)
    if status == OK:
        if nbytes == room:
            status = read(world, owner, index, epoch, key_hash, key_check, payload, nbytes, dst, now)
        else:
            status = select(validate(world, owner, index, epoch) == OK, word(SIZE), word(TORN))
    return status


# --- remove -----------------------------------------------------------------------------------
@triton.jit
def remove_slot(world: tl.int64, owner: tl.int64, index: tl.int64, epoch: tl.int64) -> Any:
    """Make one READY object DEAD and free it: OK, PINNED, or MISS if it went away (or was never READY) meanwhile."""
    seg = segment(world, owner)
    phase = enter(world, seg)
    header = header_at(world, seg, index)
    seen = kill(header, READY, epoch)
    status = word(MISS)
    if seen == state_word(READY, epoch):
        retire(world, seg, owner, index, epoch)
        status = word(OK)
    elif (seen & ~PIN_BITS) == state_word(READY, epoch):
        status = word(PINNED)
    leave(world, seg, phase)
    return status


@triton.jit
def remove(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Remove a READY object. Returns (status, owner): OK, MISS, NOT_READY, PINNED or CORRUPT."""
    status, entry = find(world, key_hash, key_check)
    owner = word(0)
    if status == OK:
        owner = entry_owner(entry)
        index = entry_header(entry)
        state = load64(header_at(world, segment(world, owner), index) + H_STATE, "acquire")
        mine = is_key(header_at(world, segment(world, owner), index), key_hash, key_check)
        status = word(MISS)
        if mine & (phase_of(state) == READY):
            status = remove_slot(world, owner, index, epoch_of(state))
    return status, owner
