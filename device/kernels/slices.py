"""Slices of objects, scattered into an engine's KV cache: for a reader whose layout is not the writer's.

A launch has a number of *pieces*. A piece is a box `[layers, halves, tokens, heads, dim]` of one object, which lies as
the writer's layout says, and goes to one block of the engine's cache. The same launch looks every object up, copies,
and validates it afterwards, as `many` does for a get: a piece is a request with a ticket, and its status is a get's.

All boxes of a launch have the strides of SLICES; their places and sizes are rows of BOX. They are copied by *strips* of
the innermost dimension, which is without gaps in both: a strip is a power of two of bytes, a multiple of 16. The pieces
have equally many tiles, as many as the largest needs. A CTA takes a run of consecutive tiles.

An object's checksum is of all its bytes. Where it has one, the CTAs of a piece read the whole object for it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.paged import L_COLS, L_STRIPS, words_of
from nanokv.device.kernels.shares import TILE_BYTES, first_tile, worker_of
from nanokv.device.memory.triton import pointer64, store64, table64, word
from nanokv.device.protocol.cooperative import NOT_LAST, begin_get_part, finish_get_part, sum_get_part
from nanokv.device.protocol.request import Q_BYTES, REQUEST_BYTES
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.ticket import TICKET_BYTES
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.record import Field, Record
from nanokv.device.segment.world_table import World, open_world, segment

SLICES = Record(
    "Slices",
    8,
    [
        Field("tiles", "<i8", "tiles of each piece, at least 1"),
        Field("boxes", "<i8", "address of the BOX of the first piece"),
        Field("halves", "<i8", "2 where K and V are apart, else 1"),
        Field("of_layer", "<i8", "bytes from a layer of an object to its next one"),
        Field("of_half", "<i8", "bytes from K to V in an object"),
        Field("of_token", "<i8", "bytes from a token of an object to its next one"),
        Field("of_head", "<i8", "bytes from a head of an object to its next one"),
        Field("to_block", "<i8", "bytes from a block of the engine's cache to its next one"),
        Field("to_token", "<i8", "bytes from a token of a block to its next one"),
        Field("to_head", "<i8", "bytes from a head of a block to its next one"),
    ],
)
S_TILES = SLICES.at("tiles")
S_BOXES = SLICES.at("boxes")
S_HALVES = SLICES.at("halves")
S_OF_LAYER = SLICES.at("of_layer")
S_OF_HALF = SLICES.at("of_half")
S_OF_TOKEN = SLICES.at("of_token")
S_OF_HEAD = SLICES.at("of_head")
S_TO_BLOCK = SLICES.at("to_block")
S_TO_TOKEN = SLICES.at("to_token")
S_TO_HEAD = SLICES.at("to_head")
S_PLANES = tl.constexpr(SLICES.size)  # the addresses of the engine's planes follow: K and V of each layer

BOX = Record(
    "Box",
    8,
    [
        Field("offset", "<i8", "bytes from the object's beginning to the box"),
        Field("block", "<i8", "the block of the engine's cache"),
        Field("plane", "<i8", "the plane of the first layer"),
        Field("token", "<i8", "the token of the block where the box begins"),
        Field("head", "<i8", "the head of the engine's cache where the box begins"),
        Field("layers", "<i8", "layers of the box"),
        Field("tokens", "<i8", "tokens of the box"),
        Field("heads", "<i8", "heads of the box"),
    ],
)
BOX_BYTES = tl.constexpr(BOX.size)
B_OFFSET = BOX.at("offset")
B_BLOCK = BOX.at("block")
B_PLANE = BOX.at("plane")
B_TOKEN = BOX.at("token")
B_HEAD = BOX.at("head")
B_LAYERS = BOX.at("layers")
B_TOKENS = BOX.at("tokens")
B_HEADS = BOX.at("heads")


@triton.jit
def narrow(address: tl.int64) -> Any:
    """A small word of a private table, in 32 bits: a division of 64 is a long call."""
    return table64(address).to(tl.int32)


@triton.jit
def strips_in(slices: tl.int64, box: tl.int64, layout: tl.constexpr) -> Any:
    """How many strips a box has: int32."""
    rows = narrow(box + B_LAYERS) * narrow(slices + S_HALVES) * narrow(box + B_TOKENS) * narrow(box + B_HEADS)
    return rows * layout[L_STRIPS]


@triton.jit
def copy_box_tile(payload: tl.int64, slices: tl.int64, box: tl.int64, tile: tl.int64, layout: tl.constexpr) -> None:
    """Copy one tile of a box of the object at the address `payload`. `layout`: (L_COLS, L_STRIPS) as in `paged`."""
    size: tl.constexpr = layout[L_COLS] * WORD_BYTES
    count: tl.constexpr = TILE_BYTES // size
    strip = (tile * count).to(tl.int32) + tl.arange(0, count)
    mask = strip < strips_in(slices, box, layout)
    row = strip // layout[L_STRIPS]
    heads = narrow(box + B_HEADS)
    head = row % heads
    row = row // heads
    tokens = narrow(box + B_TOKENS)
    token = row % tokens
    row = row // tokens
    halves = narrow(slices + S_HALVES)
    half = row % halves
    layer = row // halves
    within = (strip % layout[L_STRIPS]).to(tl.int64) * size
    of = payload + table64(box + B_OFFSET) + within
    of += layer.to(tl.int64) * table64(slices + S_OF_LAYER) + half.to(tl.int64) * table64(slices + S_OF_HALF)
    of += token.to(tl.int64) * table64(slices + S_OF_TOKEN) + head.to(tl.int64) * table64(slices + S_OF_HEAD)
    plane = table64(box + B_PLANE) + row.to(tl.int64)
    to = tl.load(pointer64(slices + S_PLANES) + plane, mask=mask, other=0) + within
    to += table64(box + B_BLOCK) * table64(slices + S_TO_BLOCK)
    to += (table64(box + B_TOKEN) + token.to(tl.int64)) * table64(slices + S_TO_TOKEN)
    to += (table64(box + B_HEAD) + head.to(tl.int64)) * table64(slices + S_TO_HEAD)
    every = mask[:, None] & (tl.arange(0, layout[L_COLS])[None, :] >= 0)
    value = tl.load(words_of(of, layout), mask=every, cache_modifier=".cg")
    tl.store(words_of(to, layout), value, mask=every)


@triton.jit
def sum_share(
    ticket: tl.int64,
    flagged: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    tile: tl.int64,
    end: tl.int64,
    tiles: tl.int64,
) -> None:
    """Add this CTA's share of the object's bytes to the sum that is compared with its checksum, if it has one."""
    if flagged != 0:
        share = ((nbytes + WORD_BYTES - 1) // WORD_BYTES + tiles - 1) // tiles  # words per tile
        first = tl.minimum(tile * share * WORD_BYTES, nbytes)
        last = tl.minimum(end * share * WORD_BYTES, nbytes)
        sum_get_part(ticket, flagged, payload + first, last - first, tile * share)


@triton.jit
def get_piece(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    slices: tl.int64,
    box: tl.int64,
    now: tl.int64,
    tile: tl.int64,
    end: tl.int64,
    parts: tl.int64,
    layout: tl.constexpr,
) -> Any:
    """Copy the tiles from `tile` to before `end` of one piece, as one of `parts` CTAs: NOT_LAST, or the status."""
    status, found, flagged = begin_get_part(world, request, ticket, parts)
    if status == OK:
        payload = segment(world, found.owner) + found.payload
        at = tile + 0
        while at < end:
            copy_box_tile(payload, slices, box, at, layout)
            at += 1
        sum_share(ticket, flagged, payload, table64(request + Q_BYTES), tile, end, table64(slices + S_TILES))
    return finish_get_part(world, request, ticket, parts, now, status, found, flagged)


@triton.jit
def get_slices_kernel(
    table: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    control: tl.int64,
    slices: tl.int64,
    layout: tl.constexpr,
) -> None:
    """Get pieces, one per request. Fills `statuses`, int64 [count]. `control`: as for `many.move_many_kernel`."""
    world = open_world(table)
    count = table64(control)
    now = table64(control + WORD_BYTES)
    tiles = table64(slices + S_TILES)
    total = count * tiles
    ctas = tl.num_programs(0).to(tl.int64)
    me = tl.program_id(0).to(tl.int64)
    workers = tl.minimum(ctas, total)
    tile = first_tile(me, total, ctas)
    end = first_tile(me + 1, total, ctas)
    while tile < end:
        at = tile // tiles
        first = at * tiles
        upto = tl.minimum(end, first + tiles)
        parts = word(1)
        if (first < tile) | (first + tiles > end):
            parts = worker_of(first + tiles - 1, total, workers) - worker_of(first, total, workers) + 1
        request = requests + at * REQUEST_BYTES
        ticket = tickets + at * TICKET_BYTES
        box = table64(slices + S_BOXES) + at * BOX_BYTES
        status = get_piece(world, request, ticket, slices, box, now, tile - first, upto - first, parts, layout)
        if status != NOT_LAST:
            store64(statuses + at * WORD_BYTES, status, "relaxed")
        tile = upto
