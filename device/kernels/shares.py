"""How the CTAs of one launch share objects of different sizes: each CTA computes its own part.

The tiles of all objects are numbered consecutively, and each CTA takes an equal run of them: many CTAs share a large
object, one CTA does many small ones. A CTA finds its run from the sizes in the table of requests, by one load if
there are few: so a replayed graph follows the table, and no word is contended.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import copy_bytes, pointer64, select, table64, word
from nanokv.device.protocol.request import Q_BYTES, Q_FLAGS, Q_LEASE, Q_OWNER, REQUEST_BYTES
from nanokv.device.protocol.runs import RUN
from nanokv.device.segment.layout import WORD_BYTES

TILE_WORDS = tl.constexpr(1024)  # 8 KiB: with one warp, sixteen 16-byte loads of each thread are in flight
TILE_BYTES = tl.constexpr(8 * 1024)
ONE_WARP = tl.constexpr(256)  # elements of one step of `copy_bytes`
REQUESTS = tl.constexpr(128)  # whose sizes are read in one step
FEW = tl.constexpr(32)  # requests that one load of a warp covers
RUN_TILES = tl.constexpr(64)  # of the objects of one run (`protocol/runs.py`), unless it is one object
PLAIN_BITS = tl.constexpr(38)  # of plain sizes: 32 of them have fewer than 2**31 tiles


@triton.jit
def copy_tile(dst: tl.int64, src: tl.int64, words: tl.constexpr) -> None:
    """Copy `words` words, a power of two, between addresses that are multiples of 16."""
    lanes = tl.arange(0, words)
    of = tl.cast(tl.multiple_of(src, 16), tl.pointer_type(tl.int64)) + lanes
    to = tl.cast(tl.multiple_of(dst, 16), tl.pointer_type(tl.int64)) + lanes
    of = tl.max_contiguous(tl.multiple_of(of, 16), words)
    to = tl.max_contiguous(tl.multiple_of(to, 16), words)
    tl.store(to, tl.load(of, cache_modifier=".cg"))


@triton.jit
def tiles_of(nbytes: tl.tensor) -> Any:
    """The number of tiles of objects; an object without bytes has one too, so that a CTA puts it."""
    return tl.maximum((nbytes + TILE_BYTES - 1) // TILE_BYTES, 1)


@triton.jit
def some_tiles(requests: tl.int64, count: tl.int64, start: tl.int64) -> Any:
    """The numbers of tiles of the requests from `start` on, 0 after the last one: int64 [REQUESTS]."""
    at = start + tl.arange(0, REQUESTS).to(tl.int64)
    sizes = tl.load(pointer64(requests + Q_BYTES) + at * (REQUEST_BYTES // WORD_BYTES), mask=at < count, other=0)
    return tl.where(at < count, tiles_of(sizes), 0)


@triton.jit
def all_tiles(requests: tl.int64, count: tl.int64) -> Any:
    """The number of tiles of all requests."""
    total = word(0)
    start = word(0)
    while start < count:
        total += tl.sum(some_tiles(requests, count, start), 0)
        start += REQUESTS
    return total


@triton.jit
def request_of(requests: tl.int64, count: tl.int64, tile: tl.int64) -> Any:
    """The request that a tile belongs to, and the first tile of that request."""
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
def first_tile(me: tl.int64, total: tl.int64, ctas: tl.int64) -> Any:
    """The first tile of the CTA `me` of `ctas`. No more CTAs work than there are tiles: the others get empty runs."""
    workers = tl.maximum(tl.minimum(ctas, total), 1)
    return tl.minimum(me, workers) * total // workers


@triton.jit
def share_of_few(requests: tl.int64, count: tl.int64, me: tl.int64, ctas: tl.int64) -> Any:
    """`share_of` for at most FEW requests of plain sizes, whose tiles 32 bits count; for others `total` is -1."""
    at = tl.arange(0, FEW)
    sizes = tl.load(pointer64(requests + Q_BYTES) + at * (REQUEST_BYTES // WORD_BYTES), mask=at < count, other=0)
    odd = tl.sum(((sizes >> PLAIN_BITS) != 0).to(tl.int32), 0)
    tiles = tl.where(at < count, tiles_of(sizes), 0).to(tl.int32)
    ends = tl.cumsum(tiles, 0)
    total = tl.sum(tiles, 0).to(tl.int64)
    before = (ends <= first_tile(me, total, ctas)) & (tiles > 0)
    first = tl.max(tl.where(before, ends, 0), 0).to(tl.int64)
    total = select((odd == 0) & (count <= FEW), total, word(-1))
    return total, tl.sum(before.to(tl.int32), 0).to(tl.int64), first


@triton.jit(noinline=True)
def share_of_many(requests: tl.int64, count: tl.int64, me: tl.int64, ctas: tl.int64) -> Any:
    """`share_of` for any number of requests."""
    total = all_tiles(requests, count)
    at, first = request_of(requests, count, first_tile(me, total, ctas))
    return total, at, first


@triton.jit
def share_of(requests: tl.int64, count: tl.int64, me: tl.int64, ctas: tl.int64) -> Any:
    """(tiles of all requests, request of the first tile of the CTA `me` of `ctas`, first tile of that request)."""
    total, at, first = share_of_few(requests, count, me, ctas)
    if total < 0:
        total, at, first = share_of_many(requests, count, me, ctas)
    return total, at, first


@triton.jit
def worker_of(tile: tl.int64, total: tl.int64, workers: tl.int64) -> Any:
    """The CTA that takes a tile, where CTA c takes the tiles from c * total // workers on."""
    return ((tile + 1) * workers - 1) // total


@triton.jit
def agree(requests: tl.int64, most: tl.int64, field: tl.constexpr) -> Any:
    """Which of the first `most` requests have the same word at the offset `field` as the first one: int1 [RUN]."""
    lane = tl.arange(0, RUN).to(tl.int64)
    words = pointer64(requests + field) + lane * (REQUEST_BYTES // WORD_BYTES)
    return (lane < most) & (tl.load(words, mask=lane < most, other=0) == table64(requests + field))


@triton.jit
def alike(requests: tl.int64, most: tl.int64) -> Any:
    """How many requests of a table agree with the first one in owner, size, flags and lease; at most `most` and RUN."""
    same = agree(requests, most, Q_OWNER) & agree(requests, most, Q_BYTES)
    same = same & agree(requests, most, Q_FLAGS) & agree(requests, most, Q_LEASE)
    return tl.min(tl.where(same, RUN, tl.arange(0, RUN)), 0).to(tl.int64)


@triton.jit
def run_of(requests: tl.int64, count: tl.int64, tiles: tl.int64, room: tl.int64) -> Any:
    """How many of the first of `count` requests a CTA puts as one run, into `room` tiles; the first has `tiles`."""
    return alike(requests, tl.minimum(tl.minimum(room, RUN_TILES) // tiles, count))


@triton.jit
def part_bytes(nbytes: tl.int64, tile: tl.int64, end: tl.int64) -> Any:
    """The bytes in the tiles from `tile` to before `end` of an object of `nbytes`."""
    return tl.minimum(end * TILE_BYTES, nbytes) - tile * TILE_BYTES


@triton.jit
def copy_tiles(dst: tl.int64, src: tl.int64, nbytes: tl.int64, tile: tl.int64, end: tl.int64) -> None:
    """Copy the tiles from `tile` to before `end` of an object of `nbytes`, whose last tile may be smaller."""
    aligned = ((dst | src) & 15) == 0
    while tile < end:
        at = tile * TILE_BYTES
        count = part_bytes(nbytes, tile, tile + 1)
        if aligned & (count == TILE_BYTES):
            copy_tile(dst + at, src + at, TILE_WORDS)
        else:
            copy_bytes(dst + at, src + at, count, ONE_WARP)
        tile += 1
