"""One object, put or read in parts by many CTAs, each of which comes with the same request and the same ticket.

    begin_*_part     the first CTA begins the object (or looks it up); all get its answer and the payload's address
    (each CTA stores its part of the payload, or copies it)
    finish_*_part    the last CTA commits and announces (or validates); it gets the status of the whole

Each CTA keeps the answer in registers for `finish_*_part`: one that does the whole object by itself needs no ticket.

Source: see `ticket`, `put` and `get`.

Guarantees: those of `put`, `get` and `ticket` together. An object becomes READY when every part is stored, not before.
A read is OK only if the same object was there while every part was copied.

Why the orderings suffice: a CTA stores its part before it arrives, and arriving releases. The last CTA acquires what
all the others released, and its commit releases it again. For the same reason its validation comes after all copies.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import checksum_bytes, select, table64, word
from nanokv.device.protocol.activity import leave
from nanokv.device.protocol.checksum import has_checksum, seal, wanted
from nanokv.device.protocol.get import is_described, judged, lookup, validate
from nanokv.device.protocol.header import describe
from nanokv.device.protocol.label import has_label, label_request
from nanokv.device.protocol.lease import lease, touch
from nanokv.device.protocol.put import abort, begin, finish_in
from nanokv.device.protocol.request import (
    Q_BYTES,
    Q_FLAGS,
    Q_KEY_CHECK,
    Q_KEY_HASH,
    Q_LEASE,
    Q_OWNER,
    is_possible,
    what_of,
)
from nanokv.device.protocol.status import BUSY, INVALID, OK, SIZE, TORN
from nanokv.device.protocol.ticket import (
    add_part,
    await_answer,
    clear,
    is_first,
    is_last,
    is_spoiled,
    share,
    shared,
    whole_sum,
)
from nanokv.device.segment.world_table import (
    World,
    header_at,
    open_world,
    segment,
)

NOT_LAST = tl.constexpr(-1)
MANY = tl.constexpr(2)  # parts: at least so many


# --- put --------------------------------------------------------------------------------------
@triton.jit
def begin_request(world: World, request: tl.int64, now: tl.int64) -> Any:
    """`begin`, and after OK `describe`, `lease` and `label`, as a request says; INVALID if it is not possible.

    Returns what `begin` returns, and the address of its segment. The descriptor, 16 registers, is read late; the
    lease early: no branch waits for it.
    """
    status = word(INVALID)
    slot = word(-1)
    epoch = word(0)
    payload = word(0)
    phase = word(0)
    seg = word(0)
    owner = table64(request + Q_OWNER)
    terms = table64(request + Q_LEASE)
    key_hash, key_check = table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK)
    nbytes, flags = table64(request + Q_BYTES), table64(request + Q_FLAGS)
    if is_possible(world, request) & (now >= 0):
        seg = segment(world, owner)
        status, slot, epoch, payload, phase = begin(world, owner, key_hash, key_check, nbytes, flags, now)
    if status == OK:
        kind, d0, d1, d2, d3, d4, d5, d6 = what_of(request)
        describe(world, seg, slot, kind, d0, d1, d2, d3, d4, d5, d6)
        if terms != 0:
            lease(world, owner, slot, terms)
        if has_label(request):
            label_request(world.table, request, slot)
    return status, slot, epoch, payload, phase, seg


@triton.jit
def put_answer(ticket: tl.int64) -> Any:
    """What the first CTA of a put has shared: (status, slot, epoch, phase, address of the segment)."""
    return shared(ticket, 0), shared(ticket, 1), shared(ticket, 2), shared(ticket, 4), shared(ticket, 5)


@triton.jit
def begin_put_part(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64, now: tl.int64) -> Any:
    """Begin an object, or learn that another CTA has.

    Returns (status, address of the payload if OK, slot, epoch, phase, address of the segment).

    `parts`: how many CTAs come; MANY if the caller does not know it yet.

    The status is that of `begin_request`, or BUSY if the first CTA did not share it in time. After OK the caller stores
    its part; in any case it calls `finish_put_part`.
    """
    status = word(BUSY)
    slot = word(-1)
    epoch = word(0)
    payload = word(0)
    phase = word(0)
    seg = word(0)
    if is_first(ticket, parts):
        status, slot, epoch, payload, phase, seg = begin_request(world, request, now)
        share(ticket, parts, status, slot, epoch, payload, phase, seg)
    elif await_answer(ticket):
        status, slot, epoch, phase, seg = put_answer(ticket)
        payload = shared(ticket, 3)
    return status, seg + payload, slot, epoch, phase, seg


@triton.jit
def sum_put_part(world: World, ticket: tl.int64, src: tl.int64, nbytes: tl.int64, first: tl.int64) -> None:
    """Add stored bytes to the object's checksum, if it has one. `first`: the number of their first word in the object.

    `nbytes` is a multiple of 8, except in the object's last part.
    """
    if wanted(world):
        add_part(ticket, checksum_bytes(src, nbytes, first))


@triton.jit(noinline=True)
def seal_parts(table: tl.int64, request: tl.int64, ticket: tl.int64, slot: tl.int64) -> None:
    """Give the object in `slot` the checksum of its parts; for the last CTA."""
    world = open_world(table)
    seg = segment(world, table64(request + Q_OWNER))
    key_hash = table64(request + Q_KEY_HASH)
    key_check = table64(request + Q_KEY_CHECK)
    nbytes = table64(request + Q_BYTES)
    kind, d0, d1, d2, d3, d4, d5, d6 = what_of(request)
    seal(world, seg, slot, key_hash, key_check, nbytes, whole_sum(ticket), kind, d0, d1, d2, d3, d4, d5, d6)


@triton.jit(noinline=True)
def abort_parts(table: tl.int64, request: tl.int64, ticket: tl.int64) -> Any:
    """Give up the object of which a part was not stored. Returns the first CTA's status, but BUSY for OK."""
    world = open_world(table)
    status, slot, epoch, phase, seg = put_answer(ticket)  # the last CTA may be the one that did not wait for it
    if status == OK:
        abort(world, table64(request + Q_OWNER), slot, epoch)
        leave(world, seg, phase)
        status = word(BUSY)
    return status


@triton.jit
def finish_put_part(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    parts: tl.int64,
    began: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    phase: tl.int64,
    seg: tl.int64,
) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole put.

    `began`: the status of `begin_put_part`; the words after it are that function's other answers.
    """
    status = word(NOT_LAST)
    if is_last(ticket, parts):
        status = began + 0
        if is_spoiled(ticket, parts):
            status = abort_parts(world.table, request, ticket)
        elif began == OK:
            if wanted(world):
                seal_parts(world.table, request, ticket, slot)
            status = finish_in(world, seg, slot, epoch, phase)
        clear(ticket, parts)
    return status


# --- get --------------------------------------------------------------------------------------
@triton.jit
def is_wanted(world: World, seg: tl.int64, slot: tl.int64, nbytes: tl.int64, request: tl.int64) -> Any:
    """Whether an object has the size that the request has room for, and the descriptor that it names, if any."""
    right = nbytes == table64(request + Q_BYTES)
    kind, d0, d1, d2, d3, d4, d5, d6 = what_of(request)
    return right & is_described(world, seg, slot, kind, d0, d1, d2, d3, d4, d5, d6)


@triton.jit
def get_answer(ticket: tl.int64) -> Any:
    """What the first CTA of a get has shared: (status, slot, epoch, owner, 1 if the object has a checksum)."""
    return shared(ticket, 0), shared(ticket, 1), shared(ticket, 2), shared(ticket, 4), shared(ticket, 5)


@triton.jit
def begin_get_part(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64) -> Any:
    """Look an object up, or learn what another CTA found.

    Returns (status, address of the payload or 0 unless OK, slot, epoch, owner, 1 if the object has a checksum).
    `parts`: as in `begin_put_part`.

    The status is that of `get.lookup`, SIZE or TORN if the object is not as wanted, or BUSY if the first CTA did not
    share it in time. After OK the caller copies its part; in any case it calls `finish_get_part`.
    """
    status = word(BUSY)
    slot = word(-1)
    epoch = word(0)
    owner = word(0)
    payload = word(0)
    flagged = word(0)
    if is_first(ticket, parts):
        status, owner, slot, epoch, payload, nbytes = lookup(
            world, table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK)
        )
        if status == OK:
            if not is_wanted(world, segment(world, owner), slot, nbytes, request):
                status = select(validate(world, owner, slot, epoch) == OK, word(SIZE), word(TORN))
        if status == OK:
            flagged = select(has_checksum(header_at(world, segment(world, owner), slot)), word(1), word(0))
        share(ticket, parts, status, slot, epoch, payload, owner, flagged)
    elif await_answer(ticket):
        status, slot, epoch, owner, flagged = get_answer(ticket)
        payload = shared(ticket, 3)
    address = word(0)
    if status == OK:
        address = segment(world, owner) + payload
    return status, address, slot, epoch, owner, flagged


@triton.jit
def sum_get_part(ticket: tl.int64, flagged: tl.int64, copy: tl.int64, nbytes: tl.int64, first: tl.int64) -> None:
    """Add copied bytes to the sum that is compared with the object's checksum, if it has one; see `sum_put_part`."""
    if flagged != 0:
        add_part(ticket, checksum_bytes(copy, nbytes, first))


@triton.jit
def finish_get_part(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    parts: tl.int64,
    now: tl.int64,
    found: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    owner: tl.int64,
    flagged: tl.int64,
) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole get.

    `found`: the status of `begin_get_part`; the words after it are that function's other answers.
    """
    status = word(NOT_LAST)
    if is_last(ticket, parts):
        status = found + 0
        if is_spoiled(ticket, parts):
            first = shared(ticket, 0)
            status = select(first == OK, word(BUSY), first)
        elif found == OK:
            key_hash = table64(request + Q_KEY_HASH)
            key_check = table64(request + Q_KEY_CHECK)
            nbytes = table64(request + Q_BYTES)
            whole = whole_sum(ticket)
            status = judged(world, owner, slot, epoch, key_hash, key_check, nbytes, flagged != 0, whole)
            if status == OK:
                touch(world, owner, slot, epoch, now)
        clear(ticket, parts)
    return status
