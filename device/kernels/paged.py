"""Copies between an object and the pages of an engine's KV cache, wherever the engine placed them.

An engine's cache is a number of *planes* of one shape, `[blocks, tokens, heads, dim]`: K and V of each layer. An object
holds one block of consecutive planes, `[planes, tokens, heads, dim]`, without gaps. That form is the same for all
engines, so an engine with another layout can read it. A plane's block consists of *rows*, runs of contiguous bytes as
long as the engine's strides allow: a whole block, a token, or a head of a token.

Everything is a multiple of 16 bytes. The table `pages` lies in device memory: three strides, and the address of each
plane (`PAGES`). The copy is compiled for the tuple `layout` (`L_COLS` and following). There is no staging buffer:
each byte is read once and written once.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.memory.triton import pointer64, table64
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.record import Field, Record

PAGES = Record(
    "Pages",
    8,
    [
        Field("block_stride", "<i8", "bytes from a block of a plane to its next one"),
        Field("outer_stride", "<i8", "bytes from a row to the one `inner` rows on"),
        Field("inner_stride", "<i8", "bytes from a row to the next one among `inner`"),
    ],
)
P_BLOCK = PAGES.at("block_stride")
P_OUTER = PAGES.at("outer_stride")
P_INNER = PAGES.at("inner_stride")
P_PLANES = tl.constexpr(PAGES.size)  # the addresses of the planes follow

# the tuple `layout`; an empty one stands for contiguous bytes instead of an engine's cache
L_COLS = tl.constexpr(0)  # words of a strip, which is addressed as a unit: a power of two, at most a tile
L_STRIPS = tl.constexpr(1)  # strips of a row
L_ROWS = tl.constexpr(2)  # rows of a plane's block
L_INNER = tl.constexpr(3)  # consecutive rows that lie `inner_stride` apart


@triton.jit
def strip_addresses(
    pages: tl.int64, block: tl.int64, plane: tl.int64, strip: tl.tensor, mask: tl.tensor, layout: tl.constexpr
) -> Any:
    """The addresses in the engine's cache of the strips with the numbers `strip` in an object: int64, like `strip`."""
    row = strip // layout[L_STRIPS]
    of_plane = plane + row // layout[L_ROWS]
    row = row % layout[L_ROWS]
    base = tl.load(pointer64(pages + P_PLANES) + of_plane, mask=mask, other=0)
    base += block * table64(pages + P_BLOCK)
    base += (row // layout[L_INNER]) * table64(pages + P_OUTER)
    base += (row % layout[L_INNER]) * table64(pages + P_INNER)
    return base + (strip % layout[L_STRIPS]) * (layout[L_COLS] * WORD_BYTES)


@triton.jit
def words_of(address: tl.tensor, layout: tl.constexpr) -> Any:
    """Pointers to the words of the strips at `address`, multiples of 16: [strips, L_COLS]."""
    cols: tl.constexpr = layout[L_COLS]
    words = tl.cast(address, tl.pointer_type(tl.int64))[:, None] + tl.arange(0, cols)[None, :]
    return tl.max_contiguous(tl.multiple_of(words, (16, 16)), (1, cols))


@triton.jit
def copy_strips(
    payload: tl.int64,
    first: tl.int64,
    end: tl.int64,
    pages: tl.int64,
    block: tl.int64,
    plane: tl.int64,
    is_gather: tl.constexpr,
    is_whole: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Copy the strips of one tile, from the strip `first` on; if not `is_whole`, only those before `end`."""
    size: tl.constexpr = layout[L_COLS] * WORD_BYTES
    strip = first + tl.arange(0, TILE_BYTES // size).to(tl.int64)
    mask = strip < end
    theirs = words_of(strip_addresses(pages, block, plane, strip, mask, layout), layout)
    ours = words_of(payload + strip * size, layout)
    dst = ours if is_gather else theirs
    src = theirs if is_gather else ours
    if is_whole:
        tl.store(dst, tl.load(src, cache_modifier=".cg"))
    else:
        every = mask[:, None] & (tl.arange(0, layout[L_COLS])[None, :] >= 0)
        tl.store(dst, tl.load(src, mask=every, cache_modifier=".cg"), mask=every)


@triton.jit
def copy_paged_tiles(
    payload: tl.int64,
    nbytes: tl.int64,
    tile: tl.int64,
    end: tl.int64,
    pages: tl.int64,
    block: tl.int64,
    plane: tl.int64,
    is_gather: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Copy tiles of an object of `nbytes`, whole rows, from an engine's cache or (not `is_gather`) into it."""
    size: tl.constexpr = layout[L_COLS] * WORD_BYTES
    count: tl.constexpr = TILE_BYTES // size
    all_strips = nbytes // size
    while tile < end:
        first = tile * count
        if first + count <= all_strips:
            copy_strips(payload, first, all_strips, pages, block, plane, is_gather, True, layout)
        else:
            copy_strips(payload, first, all_strips, pages, block, plane, is_gather, False, layout)
        tile += 1
