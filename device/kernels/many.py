"""Many objects in one launch: put_many, get_many, find_many.

The tiles of all objects are numbered one after the other, and each CTA takes an equal run of them: a large object is
shared by many CTAs, a CTA does many small ones. Where a run begins each CTA finds out for itself, from the sizes in the
table of requests: so a graph that is replayed follows the table. Each object has a ticket (`device/parts.py`): the
first CTA that comes to it allocates, all stream tiles, the last one commits. No word is contended by more CTAs than
work on one object, and no order of CTAs is assumed.

Every kernel of this file runs with ONE warp a CTA: what allocates must (`device/memory.py`), and on AMD what publishes
must (`transfer`). There are as many more CTAs instead.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.directory import find
from nanokv.device.kernels.transfer import TILE_BYTES, TILE_WORDS, copy_tile
from nanokv.device.layout import WORD_BYTES
from nanokv.device.memory import copy_bytes, pointer64, store64, table64, word
from nanokv.device.parts import (
    NOT_LAST,
    begin_get_part,
    begin_put_part,
    finish_get_part,
    finish_put_part,
    sum_get_part,
    sum_put_part,
)
from nanokv.device.request import Q_ADDRESS, Q_BYTES, Q_KEY_CHECK, Q_KEY_HASH, REQUEST_BYTES
from nanokv.device.status import OK
from nanokv.device.ticket import TICKET_BYTES, clear, is_last

REQUESTS = tl.constexpr(128)  # of which the sizes are read in one step


@triton.jit
def tiles_of(nbytes: tl.tensor) -> Any:
    """Tiles of objects; one also of an object without bytes: somebody must put it."""
    return tl.maximum((nbytes + TILE_BYTES - 1) // TILE_BYTES, 1)


@triton.jit
def some_tiles(requests: tl.int64, count: tl.int64, start: tl.int64) -> Any:
    """Tiles of the requests from `start` on, and 0 behind the last one: int64 [REQUESTS]."""
    at = start + tl.arange(0, REQUESTS).to(tl.int64)
    sizes = tl.load(pointer64(requests + Q_BYTES) + at * (REQUEST_BYTES // WORD_BYTES), mask=at < count, other=0)
    return tl.where(at < count, tiles_of(sizes), 0)


@triton.jit
def all_tiles(requests: tl.int64, count: tl.int64) -> Any:
    """Tiles of all requests."""
    total = word(0)
    start = word(0)
    while start < count:
        total += tl.sum(some_tiles(requests, count, start), 0)
        start += REQUESTS
    return total


@triton.jit
def request_of(requests: tl.int64, count: tl.int64, tile: tl.int64) -> Any:
    """Which request a tile belongs to, and that request's first tile."""
    at = word(0)
    first = word(0)
    total = word(0)
    start = word(0)
    while (start < count) & (total <= tile):
        tiles = some_tiles(requests, count, start)
        ends = total + tl.cumsum(tiles, 0)
        before = (ends <= tile) & (tiles > 0)
        at += tl.sum(before.to(tl.int64), 0)
        first = tl.maximum(first, tl.max(tl.where(before, ends, 0), 0))
        total += tl.sum(tiles, 0)
        start += REQUESTS
    return at, first


@triton.jit
def worker_of(tile: tl.int64, total: tl.int64, workers: tl.int64) -> Any:
    """Which CTA a tile falls to, where CTA c takes the tiles from c * total // workers on."""
    return ((tile + 1) * workers - 1) // total


@triton.jit
def copy_tiles(dst: tl.int64, src: tl.int64, nbytes: tl.int64, tile: tl.int64, end: tl.int64) -> None:
    """Copy some tiles of an object of `nbytes`; the last one of an object may be smaller."""
    whole = nbytes // TILE_BYTES
    aligned = ((dst | src) & 15) == 0
    while tile < end:
        at = tile * TILE_BYTES
        if tile == whole:
            copy_bytes(dst + at, src + at, nbytes - at)
        elif aligned:
            copy_tile(dst + at, src + at)
        else:
            copy_bytes(dst + at, src + at, word(TILE_BYTES))
        tile += 1


@triton.jit
def part_bytes(nbytes: tl.int64, tile: tl.int64, end: tl.int64) -> Any:
    """Bytes of some tiles of an object of `nbytes`."""
    return tl.minimum(end * TILE_BYTES, nbytes) - tile * TILE_BYTES


@triton.jit
def put_many_kernel(
    world: tl.int64, requests: tl.int64, tickets: tl.int64, statuses: tl.int64, control: tl.int64
) -> None:
    """Put objects. `control`: the address of two words: how many, and the time of day in ns. Fills `statuses`."""
    count = table64(control)
    now = table64(control + WORD_BYTES)
    total = all_tiles(requests, count)
    workers = tl.minimum(tl.num_programs(0).to(tl.int64), total)
    me = tl.program_id(0).to(tl.int64)
    if me < workers:
        tile = me * total // workers
        end = (me + 1) * total // workers
        at, first = request_of(requests, count, tile)
        while tile < end:
            request = requests + at * REQUEST_BYTES
            ticket = tickets + at * TICKET_BYTES
            nbytes = table64(request + Q_BYTES)
            source = table64(request + Q_ADDRESS)
            last = first + tiles_of(nbytes)
            upto = tl.minimum(end, last)
            status, payload = begin_put_part(world, request, ticket, now)
            if status == OK:
                copy_tiles(payload, source, nbytes, tile - first, upto - first)
                part = part_bytes(nbytes, tile - first, upto - first)
                from_word = (tile - first) * TILE_WORDS
                sum_put_part(world, ticket, source + (tile - first) * TILE_BYTES, part, from_word)
            parts = worker_of(last - 1, total, workers) - worker_of(first, total, workers) + 1
            status = finish_put_part(world, request, ticket, parts)
            if status != NOT_LAST:
                store64(statuses + at * WORD_BYTES, status, "relaxed")
            tile = upto
            first = last
            at += 1


@triton.jit
def get_many_kernel(
    world: tl.int64, requests: tl.int64, tickets: tl.int64, statuses: tl.int64, control: tl.int64
) -> None:
    """Get objects. `control`: the address of two words: how many, and the time of day in ns. Fills `statuses`."""
    count = table64(control)
    now = table64(control + WORD_BYTES)
    total = all_tiles(requests, count)
    workers = tl.minimum(tl.num_programs(0).to(tl.int64), total)
    me = tl.program_id(0).to(tl.int64)
    if me < workers:
        tile = me * total // workers
        end = (me + 1) * total // workers
        at, first = request_of(requests, count, tile)
        while tile < end:
            request = requests + at * REQUEST_BYTES
            ticket = tickets + at * TICKET_BYTES
            nbytes = table64(request + Q_BYTES)
            target = table64(request + Q_ADDRESS)
            last = first + tiles_of(nbytes)
            upto = tl.minimum(end, last)
            status, payload = begin_get_part(world, request, ticket)
            if status == OK:
                copy_tiles(target, payload, nbytes, tile - first, upto - first)
                part = part_bytes(nbytes, tile - first, upto - first)
                from_word = (tile - first) * TILE_WORDS
                sum_get_part(ticket, target + (tile - first) * TILE_BYTES, part, from_word)
            parts = worker_of(last - 1, total, workers) - worker_of(first, total, workers) + 1
            status = finish_get_part(world, request, ticket, parts, now)
            if status != NOT_LAST:
                store64(statuses + at * WORD_BYTES, status, "relaxed")
            tile = upto
            first = last
            at += 1


@triton.jit
def first_missing(statuses: tl.int64, count: tl.int64) -> Any:
    """The first request that is not OK, or `count`: how long a prefix of a chain of keys is there."""
    first = count + 0
    start = word(0)
    while start < count:
        at = start + tl.arange(0, REQUESTS).to(tl.int64)
        # .cg: other CTAs stored them, and this one's L1 may hold what was there before
        said = tl.load(pointer64(statuses) + at, mask=at < count, other=OK, cache_modifier=".cg")
        first = tl.minimum(first, tl.min(tl.where(said != OK, at, count), 0))
        start += REQUESTS
    return first


@triton.jit
def find_many_kernel(
    world: tl.int64, requests: tl.int64, tickets: tl.int64, statuses: tl.int64, control: tl.int64, prefix: tl.int64
) -> None:
    """Look keys up: a status each, as `find` says it, and in the word `prefix` how many of the first ones are there."""
    count = table64(control)
    step = tl.num_programs(0).to(tl.int64)
    at = tl.program_id(0).to(tl.int64)
    while at < count:
        request = requests + at * REQUEST_BYTES
        status, _ = find(world, table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK))
        store64(statuses + at * WORD_BYTES, status, "relaxed")
        at += step
    if is_last(tickets, step):
        store64(prefix, first_missing(statuses, count), "relaxed")
        clear(tickets)
