"""Scenarios of one object that several CTAs put or get in parts, with a ticket."""

from functools import cache, partial
from typing import Any

import numpy as np
import triton
import triton.language as tl

from nanokv.check.protocol.model.scenario import A, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.device.memory.triton import word
from nanokv.device.protocol.cooperative import (
    NOT_LAST,
    begin_get_part,
    begin_put_part,
    finish_get_part,
    finish_put_part,
)
from nanokv.device.protocol.request import REQUEST
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.structs import Begun, Found
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.world_table import World, segment

# mypy: disallow-untyped-decorators=false
PART_WORDS = 2
WORLD = small(2, 1, ranks=2)  #: one object, and room for a ticket


# --- what a simulated CTA calls: functions of words ---
@triton.jit
def begin_put(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64, now: tl.int64) -> Any:
    """`begin_put_part`: (status, address of the payload, slot, epoch, phase, address of the segment)."""
    status, begun, seg = begin_put_part(world, request, ticket, parts, now)
    return status, seg + begun.payload, begun.slot, begun.epoch, begun.phase, seg


@triton.jit
def finish_put(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    parts: tl.int64,
    status: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    phase: tl.int64,
    seg: tl.int64,
) -> Any:
    """`finish_put_part`."""
    return finish_put_part(world, request, ticket, parts, status, Begun(slot, epoch, word(0), phase), seg)


@triton.jit
def begin_get(world: World, request: tl.int64, ticket: tl.int64, parts: tl.int64) -> Any:
    """`begin_get_part`: (status, address of the payload, owner, slot, epoch, bytes, 1 if there is a checksum)."""
    status, found, flagged = begin_get_part(world, request, ticket, parts)
    payload = segment(world, found.owner) + found.payload
    return status, payload, found.owner, found.slot, found.epoch, found.nbytes, flagged


@triton.jit
def finish_get(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    parts: tl.int64,
    now: tl.int64,
    status: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    nbytes: tl.int64,
    flagged: tl.int64,
) -> Any:
    """`finish_get_part`."""
    found = Found(owner, slot, epoch, word(0), nbytes)
    return finish_get_part(world, request, ticket, parts, now, status, found, flagged)


# --- the scenarios ---
def _ticket(world: SmallWorld) -> int:
    """A ticket lies in memory of the launching rank: here in the arena of rank 1, which nobody else uses."""
    return world.address("heap_base", rank=1)


@cache
def _row(words: int) -> Any:
    row = np.zeros(REQUEST.size // WORD, np.int64)  # owner 0, raw bytes
    row[:4] = [0, *digest(A), words * WORD]
    return row


def _request(world: SmallWorld, words: int) -> int:
    """A request for key A, as a private table."""
    row = _row(words)
    world.simulation.table(row.ctypes.data, row.tolist())
    return int(row.ctypes.data)


def _put_in_parts(world: SmallWorld, ctas: int) -> None:
    begin, finish = world.function(begin_put), world.function(finish_put)
    source = world.payload(A, 2, ctas * PART_WORDS)
    request, ticket, table = _request(world, ctas * PART_WORDS), _ticket(world), world.segments.table(0)

    def part(number: int) -> int:
        status, payload, *begun = begin(table, request, ticket, ctas, 7)
        if status == Status.OK:
            at = number * PART_WORDS * WORD
            world.copy(payload + at, source.ctypes.data + at, PART_WORDS * WORD)
        answer: int = finish(table, request, ticket, ctas, status, *begun)
        world.ended()
        return answer

    for number in range(ctas):
        world.spawn(f"cta{number}", partial(part, number))


def _get_in_parts(world: SmallWorld, ctas: int = 2) -> None:
    begin, finish = world.function(begin_get), world.function(finish_get)
    room = np.zeros(ctas * PART_WORDS, np.int64)
    request, ticket, table = _request(world, len(room)), _ticket(world), world.segments.table(0)

    def part(number: int) -> int:
        status, payload, *found = begin(table, request, ticket, ctas)
        if status == Status.OK:
            at = number * PART_WORDS * WORD
            world.copy(room.ctypes.data + at, payload + at, PART_WORDS * WORD)
        answer: int = finish(table, request, ticket, ctas, 7, status, *found)
        if answer == Status.OK:
            world.results["version"] = world.check(A, room)
        world.ended()
        return answer

    for number in range(ctas):
        world.spawn(f"cta{number}", partial(part, number))


def _answer(world: SmallWorld) -> int:
    """The answer of the last CTA; the ticket must be clear."""
    answers = [answer for name, answer in world.results.items() if name.startswith("cta")]
    last = [answer for answer in answers if answer != NOT_LAST.value]
    expect(len(last) == 1, f"{answers}: one CTA is the last")
    left = [world.simulation.memory.newest(_ticket(world) + at * WORD) for at in range(3)]
    expect(not any(left), f"the ticket is left with {left}")
    return int(last[0])


# --- get --------------------------------------------------------------------------------------
def _size_or_busy(world: SmallWorld) -> None:
    status = _answer(world)
    expect(status in (Status.SIZE, Status.BUSY), f"a get in parts of an object of another size is answered {status}")


Scenario(
    "get-parts-size",
    "two CTAs read an object of another size",
    WORLD,
    _size_or_busy,
    stored(A, words=PART_WORDS),
)(_get_in_parts)


# --- put --------------------------------------------------------------------------------------
def _put_whole(world: SmallWorld) -> None:
    status = _answer(world)
    expect(status in (Status.OK, Status.BUSY), f"a put in parts is answered {status}")  # BUSY: one did not wait
    there = world.get(A)
    expect(there == ((Status.OK, 2) if status == Status.OK else (Status.MISS, 0)), f"{status}, and then {there}")


@Scenario("put-parts", "one object put by three CTAs", WORLD, _put_whole)
def _three_put(world: SmallWorld) -> None:
    _put_in_parts(world, 3)


@Scenario("put-alone", "one object put by one CTA with a ticket, and read meanwhile", WORLD, _put_whole)
def _one_puts_one_reads(world: SmallWorld) -> None:
    _put_in_parts(world, 1)
    world.spawn("reader", lambda: [world.get(A) for _ in range(2)])


@Scenario("put-parts-read", "one object put by two CTAs, and read meanwhile", WORLD, _put_whole)
def _two_put_one_reads(world: SmallWorld) -> None:
    _put_in_parts(world, 2)
    world.spawn("reader", lambda: [world.get(A) for _ in range(2)])


# --- get, while the object is replaced --------------------------------------------------------
def _got_or_torn(world: SmallWorld) -> None:
    status = _answer(world)
    allowed = (Status.OK, Status.MISS, Status.TORN, Status.NOT_READY, Status.BUSY)
    expect(status in allowed, f"a get in parts is answered {status}")


@Scenario(
    "get-parts",
    "one object read by two CTAs while it is replaced",
    WORLD,
    _got_or_torn,
    stored(A, words=2 * PART_WORDS),
)
def _get_and_replace(world: SmallWorld) -> None:
    _get_in_parts(world)
    world.spawn("writer", lambda: (world.remove(A), world.put(A, 3, 2 * PART_WORDS)))
