"""Many objects in one launch: put and get (`move_many`), look up, find, remove.

The source or destination is contiguous bytes, or pages of an engine's KV cache (`paged`, chosen by `layout`). CTAs
share the objects by tiles (`shares`). Each object has a ticket (`device/protocol/cooperative.py`): the first CTA to
arrive allocates, all stream tiles, the last one commits. Only the CTAs of one object contend for its words, and no
order of CTAs is assumed. Equal objects that one CTA puts alone are a run (`device/protocol/runs.py`).

Every kernel of NanoKV runs with one warp per CTA, and more CTAs instead. With several warps, each look at a shared word
goes through shared memory, and on AMD every wave waits for its stores before each release (`memory.triton`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.paged import copy_paged_tiles
from nanokv.device.kernels.shares import (
    REQUESTS,
    TILE_BYTES,
    TILE_WORDS,
    copy_tiles,
    first_tile,
    part_bytes,
    run_of,
    share_of,
    tiles_of,
    worker_of,
)
from nanokv.device.memory.triton import pointer64, select, store64, table64, word
from nanokv.device.protocol.cooperative import (
    NOT_LAST,
    begin_get_part,
    begin_put_part,
    finish_get_part,
    finish_put_part,
    sum_get_part,
    sum_put_part,
)
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.host_calls import host_lookup
from nanokv.device.protocol.remove import remove
from nanokv.device.protocol.request import (
    Q_ADDRESS,
    Q_BLOCK,
    Q_BYTES,
    Q_KEY_CHECK,
    Q_KEY_HASH,
    Q_OWNER,
    Q_PLANE,
    REQUEST_BYTES,
    key_in,
)
from nanokv.device.protocol.runs import begin_member, begin_run, commit_member, finish_run, seal_member
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.ticket import TICKET_BYTES, clear, is_last
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World, open_world, segment

REGISTERS = 255  #: of a thread on NVIDIA: left alone, the compiler takes 168 for put_many, and spills 400 bytes
FOUND_WORDS = tl.constexpr(14)  # of an answer of lookup_many: the fields of `records.Found`, flat


@triton.jit
def move_tiles(
    request: tl.int64,
    theirs: tl.int64,
    nbytes: tl.int64,
    payload: tl.int64,
    tile: tl.int64,
    end: tl.int64,
    pages: tl.int64,
    is_put: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Copy the tiles from `tile` to before `end` of one object, from (put) or to the request's address or block.

    `theirs`: the address, which a request with a block does not have.
    """
    if len(layout) > 0:
        block = table64(request + Q_BLOCK)
        plane = table64(request + Q_PLANE)
        copy_paged_tiles(payload, nbytes, tile, end, pages, block, plane, is_put, layout)
    elif is_put:
        copy_tiles(payload, theirs, nbytes, tile, end)
    else:
        copy_tiles(theirs, payload, nbytes, tile, end)


@triton.jit
def summed(theirs: tl.int64, payload: tl.int64, layout: tl.constexpr) -> Any:
    """The address of the bytes to sum: the producer's or the reader's own; with a paged cache, the object's."""
    return payload if len(layout) > 0 else theirs


@triton.jit
def move_part(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    now: tl.int64,
    tile: tl.int64,
    end: tl.int64,
    parts: tl.int64,
    pages: tl.int64,
    is_put: tl.constexpr,
    layout: tl.constexpr,
) -> Any:
    """Put or get some tiles of one object, as one of `parts` CTAs: NOT_LAST, or in the last CTA the status."""
    theirs, nbytes = table64(request + Q_ADDRESS), table64(request + Q_BYTES)  # early: no copy waits for them
    if is_put:
        status, begun, seg = begin_put_part(world, request, ticket, parts, now)
    else:
        status, found, flagged = begin_get_part(world, request, ticket, parts)
    if status == OK:
        payload = seg + begun.payload if is_put else segment(world, found.owner) + found.payload
        move_tiles(request, theirs, nbytes, payload, tile, end, pages, is_put, layout)
        mine = summed(theirs, payload, layout) + tile * TILE_BYTES
        if is_put:
            sum_put_part(world, ticket, mine, part_bytes(nbytes, tile, end), tile * TILE_WORDS)
        else:
            sum_get_part(ticket, flagged, mine, part_bytes(nbytes, tile, end), tile * TILE_WORDS)
    if is_put:
        status = finish_put_part(world, request, ticket, parts, status, begun, seg)
    else:
        status = finish_get_part(world, request, ticket, parts, now, status, found, flagged)
    return status


@triton.jit(noinline=True)
def put_run(
    table: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    count: tl.int64,
    tiles: tl.int64,
    now: tl.int64,
    pages: tl.int64,
    layout: tl.constexpr,
) -> Any:
    """Put the first of `count` objects that are alike, of `tiles` tiles each, as the only CTA. Returns how many."""
    world = open_world(table)
    common, members, claimed, phase, n_pages, size_class = begin_run(world, requests, tickets, count, now)
    owner = select(common == OK, table64(requests + Q_OWNER), word(0))
    seg = segment(world, owner)
    hand = word(-1)
    left = word(0)
    stored = word(0)
    nbytes = table64(requests + Q_BYTES)
    i = word(0)
    while i < members:
        status = common
        if common == OK:
            request = requests + i * REQUEST_BYTES
            ticket = tickets + i * TICKET_BYTES
            status, payload, hand, left, claimed = begin_member(
                world, seg, owner, request, ticket, n_pages, size_class, now, hand, left, claimed
            )
            if status == OK:
                theirs = table64(request + Q_ADDRESS)
                move_tiles(request, theirs, nbytes, seg + payload, word(0), tiles, pages, True, layout)
                seal_member(world, request, ticket, summed(theirs, seg + payload, layout))
                status = commit_member(world, seg, owner, request, ticket)
            stored += select(status == OK, word(1), word(0))
        store64(statuses + i * WORD_BYTES, status, "relaxed")
        i += 1
    if common == OK:
        finish_run(world, seg, tickets, members, stored, phase)
    return members


@triton.jit
def move_many_kernel(
    table: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    control: tl.int64,
    pages: tl.int64,
    is_put: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Put or get objects. Fills `statuses`, int64 [count].

    `table`: the address of the world table. `control`: the address of two words, the number of requests and the time
    of day in ns. `pages`, `layout`: see `paged`; 0 and () if the requests have addresses.
    """
    if not is_put:
        world = open_world(table)
    count = table64(control)
    now = table64(control + WORD_BYTES)
    me = tl.program_id(0).to(tl.int64)
    ctas = tl.num_programs(0).to(tl.int64)
    total, at, first = share_of(requests, count, me, ctas)
    workers = tl.minimum(ctas, total)
    tile = first_tile(me, total, ctas)
    end = first_tile(me + 1, total, ctas)
    while tile < end:
        request = requests + at * REQUEST_BYTES
        ticket = tickets + at * TICKET_BYTES
        tiles = tiles_of(table64(request + Q_BYTES))
        last = first + tiles
        run = word(1)
        if is_put:
            if (first == tile) & (last < end):
                run = run_of(request, count - at, tiles, end - tile)
        if is_put and run > 1:
            out = statuses + at * WORD_BYTES
            members = put_run(table, request, ticket, out, run, tiles, now, pages, layout)
            first = tile + members * tiles
            tile = first
            at += members
        else:
            upto = tl.minimum(end, last)
            parts = word(1)
            if (first < tile) | (last > end):
                parts = worker_of(last - 1, total, workers) - worker_of(first, total, workers) + 1
            if is_put:
                world = open_world(table)
            status = move_part(world, request, ticket, now, tile - first, upto - first, parts, pages, is_put, layout)
            if status != NOT_LAST:
                store64(statuses + at * WORD_BYTES, status, "relaxed")
            tile = upto
            first = last
            at += 1


@triton.jit
def lookup_many_kernel(table: tl.int64, requests: tl.int64, found: tl.int64, control: tl.int64) -> None:
    """Look keys up. Fills `found`, int64 [count, FOUND_WORDS], with the answers of `host_lookup`."""
    world = open_world(table)
    count = table64(control)
    at = tl.program_id(0).to(tl.int64)
    while at < count:
        request = requests + at * REQUEST_BYTES
        answer = host_lookup(world, table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK))
        out = found + at * (FOUND_WORDS * WORD_BYTES)
        for i in tl.static_range(FOUND_WORDS):
            store64(out + i * WORD_BYTES, answer[i], "relaxed")
        at += tl.num_programs(0).to(tl.int64)


@triton.jit
def remove_many_kernel(table: tl.int64, requests: tl.int64, statuses: tl.int64, control: tl.int64) -> None:
    """Remove the objects of keys. Fills `statuses`, int64 [count].

    A CTA removes neighbours: their slots and pages often go back to the list that a run took them from (`runs`).
    """
    world = open_world(table)
    count = table64(control)
    each = tl.cdiv(count.to(tl.int32), tl.num_programs(0)).to(tl.int64)  # 32 bits: a division of 64 is a long call
    at = tl.program_id(0).to(tl.int64) * each
    end = tl.minimum(at + each, count)
    while at < end:
        request = requests + at * REQUEST_BYTES
        status, _ = remove(world, key_in(request))
        store64(statuses + at * WORD_BYTES, status, "relaxed")
        at += 1


@triton.jit
def first_missing(statuses: tl.int64, count: tl.int64) -> Any:
    """The first request that is not OK, or `count`: the length of the prefix of a chain of keys that was found."""
    first = count + 0
    start = word(0)
    while start < count:
        at = start + tl.arange(0, REQUESTS).to(tl.int64)
        # .cg: other CTAs stored them, and this one's L1 may hold older words
        status = tl.load(pointer64(statuses) + at, mask=at < count, other=OK, cache_modifier=".cg")
        first = tl.minimum(first, tl.min(tl.where(status != OK, at, count), 0))
        start += REQUESTS
    return first


@triton.jit
def find_many_kernel(
    table: tl.int64, requests: tl.int64, tickets: tl.int64, statuses: tl.int64, control: tl.int64, prefix: tl.int64
) -> None:
    """Find keys. Fills `statuses`, int64 [count], as `find` answers, and the word `prefix` as `first_missing` does."""
    world = open_world(table)
    count = table64(control)
    step = tl.num_programs(0).to(tl.int64)
    at = tl.program_id(0).to(tl.int64)
    while at < count:
        request = requests + at * REQUEST_BYTES
        status, _ = find(world, key_in(request))
        store64(statuses + at * WORD_BYTES, status, "relaxed")
        at += step
    if is_last(tickets, step):
        store64(prefix, first_missing(statuses, count), "relaxed")
        clear(tickets, step)
