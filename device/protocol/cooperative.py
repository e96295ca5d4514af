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
    Q_LEASE,
    Q_OWNER,
    descriptor_in,
    is_possible,
    key_in,
)
from nanokv.device.protocol.status import BUSY, INVALID, OK, SIZE, TORN
from nanokv.device.protocol.structs import Begun, Found
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

    Returns (status, Begun, address of the segment). The descriptor, 16 registers, is read late; the
    lease early: no branch waits for it.
    """
    status = word(INVALID)
    begun = Begun(word(-1), word(0), word(0), word(0))
    seg = word(0)
    owner = table64(request + Q_OWNER)
    terms = table64(request + Q_LEASE)
    key, nbytes, flags = key_in(request), table64(request + Q_BYTES), table64(request + Q_FLAGS)
    if is_possible(world, request) & (now >= 0):
        seg = segment(world, owner)
        status, begun = begin(world, owner, key, nbytes, flags, now)
    if status == OK:
        describe(world, seg, begun.slot, descriptor_in(request))
        if terms != 0:
            lease(world, owner, begun.slot, terms)
        if has_label(request):
            label_request(world.table, request, begun.slot)
    return status, begun, seg


@triton.jit
def put_answer(ticket: tl.int64) -> Any:
    """What the first CTA of a put has shared: (status, Begun, address of the segment)."""
    begun = Begun(shared(ticket, 1), shared(ticket, 2), shared(ticket, 3), shared(ticket, 4))
    return shared(ticket, 0), begun, shared(ticket, 5)


@triton.jit
def begin_put_part(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64, now: tl.int64) -> Any:
    """Begin an object, or learn that another CTA has.

    Returns (status, Begun, address of the segment). `parts`: how many CTAs come; MANY if the caller does not know it.

    The status is that of `begin_request`, or BUSY if the first CTA did not share it in time. After OK the caller stores
    its part; in any case it calls `finish_put_part`.
    """
    status = word(BUSY)
    begun = Begun(word(-1), word(0), word(0), word(0))
    seg = word(0)
    if is_first(ticket, parts):
        status, begun, seg = begin_request(world, request, now)
        share(ticket, parts, status, begun.slot, begun.epoch, begun.payload, begun.phase, seg)
    elif await_answer(ticket):
        status, begun, seg = put_answer(ticket)
    return status, begun, seg


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
    nbytes = table64(request + Q_BYTES)
    seal(world, seg, slot, key_in(request), nbytes, whole_sum(ticket), descriptor_in(request))


@triton.jit(noinline=True)
def abort_parts(table: tl.int64, request: tl.int64, ticket: tl.int64) -> Any:
    """Give up the object of which a part was not stored. Returns the first CTA's status, but BUSY for OK."""
    world = open_world(table)
    status, begun, seg = put_answer(ticket)  # the last CTA may be the one that did not wait for it
    if status == OK:
        abort(world, table64(request + Q_OWNER), begun.slot, begun.epoch)
        leave(world, seg, begun.phase)
        status = word(BUSY)
    return status


@triton.jit
def finish_put_part(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    parts: tl.int64,
    began: tl.int64,
    begun: Begun,
    seg: tl.int64,
) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole put.

    `began`, `begun`, `seg`: what `begin_put_part` has answered.
    """
    status = word(NOT_LAST)
    if is_last(ticket, parts):
        status = began + 0
        if is_spoiled(ticket, parts):
            status = abort_parts(world.table, request, ticket)
        elif began == OK:
            if wanted(world):
                seal_parts(world.table, request, ticket, begun.slot)
            status = finish_in(world, seg, begun)
        clear(ticket, parts)
    return status


# --- get --------------------------------------------------------------------------------------
@triton.jit
def is_wanted(world: World, seg: tl.int64, slot: tl.int64, nbytes: tl.int64, request: tl.int64) -> Any:
    """Whether an object has the size that the request has room for, and the descriptor that it names, if any."""
    right = nbytes == table64(request + Q_BYTES)
    return right & is_described(world, seg, slot, descriptor_in(request))


@triton.jit
def has_sum(ticket: tl.int64) -> Any:
    """1 if the object that the first CTA of a get has found, and shared, has a checksum."""
    return shared(ticket, 5)


@triton.jit
def get_answer(request: tl.int64, ticket: tl.int64) -> Any:
    """What the first CTA of a get has shared: (status, Found, 1 if the object has a checksum).

    The size of what was found is the request's.
    """
    nbytes = table64(request + Q_BYTES)
    found = Found(shared(ticket, 4), shared(ticket, 1), shared(ticket, 2), shared(ticket, 3), nbytes)
    return shared(ticket, 0), found, has_sum(ticket)


@triton.jit
def begin_get_part(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64) -> Any:
    """Look an object up, or learn what another CTA found.

    Returns (status, Found, 1 if the object has a checksum). `parts`: as in `begin_put_part`.

    The status is that of `get.lookup`, SIZE or TORN if the object is not as wanted, or BUSY if the first CTA did not
    share it in time. After OK the caller copies its part; in any case it calls `finish_get_part`.
    """
    status = word(BUSY)
    found = Found(word(0), word(0), word(0), word(0), word(0))
    flagged = word(0)
    if is_first(ticket, parts):
        status, found = lookup(world, key_in(request))
        if status == OK:
            if not is_wanted(world, segment(world, found.owner), found.slot, found.nbytes, request):
                valid = validate(world, found.owner, found.slot, found.epoch)
                status = select(valid == OK, word(SIZE), word(TORN))
        if status == OK:
            header = header_at(world, segment(world, found.owner), found.slot)
            flagged = select(has_checksum(header), word(1), word(0))
        share(ticket, parts, status, found.slot, found.epoch, found.payload, found.owner, flagged)
    elif await_answer(ticket):
        status, found, flagged = get_answer(request, ticket)
    return status, found, flagged


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
    looked: tl.int64,
    found: Found,
    flagged: tl.int64,
) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole get.

    `looked`, `found`, `flagged`: what `begin_get_part` has answered.
    """
    status = word(NOT_LAST)
    if is_last(ticket, parts):
        status = looked + 0
        if is_spoiled(ticket, parts):
            first = shared(ticket, 0)
            status = select(first == OK, word(BUSY), first)
        elif looked == OK:
            status = judged(world, found, key_in(request), flagged != 0, whole_sum(ticket))
            if status == OK:
                touch(world, found.owner, found.slot, found.epoch, now)
        clear(ticket, parts)
    return status
