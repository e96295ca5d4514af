"""Payload pages: extents of eight size classes, split when a smaller one is needed, bumped when none is free.

An extent is a run of pages, named by its first page. Each size class is a multiple of the one below it, so that what a
split leaves over is again made of whole extents.

Guarantees
- A page is in exactly one place: beyond `bump_ptr`, in one free extent, or with whoever took it (I2).
- `bump_ptr` never passes the end of the arena, also when the heap is full and every producer tries at once: it moves
  by CAS to a value that was checked, never by a blind add (I9).
- Between the CAS that takes an extent and the header that names it, the extent is in no place. A producer that dies
  there leaks it until the audit (`reclaim`) finds it.

Why the orderings suffice: the lists order what they hand over (`freelist`); `bump_ptr` hands over bytes that nobody has
ever owned, so nothing has to be ordered before it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.freelist import SPIN_LIMIT, pop, push, stamp
from nanokv.device.layout import BUMP_PTR, FREE_HEAD, FREE_HEAD_STRIDE, SIZE_CLASSES
from nanokv.device.memory import cas64, load64, select, table64, word
from nanokv.device.world import W_HEAP_BASE, W_HEAP_LIMIT, W_N_PAGES, W_PAGE_BYTES, class_pages, page_links

N_CLASSES = tl.constexpr(SIZE_CLASSES)


@triton.jit
def class_of(world: tl.int64, n_pages: tl.int64) -> Any:
    """The smallest size class that holds `n_pages` (at least 1), or -1."""
    found = word(-1)
    for k in range(0, N_CLASSES):
        pages = class_pages(world, k)
        found = select((found < 0) & (pages >= n_pages), word(k), found)
    return found


@triton.jit
def free_list(seg: tl.int64, size_class: tl.int64) -> Any:
    """The address of the free list of a size class."""
    return seg + FREE_HEAD + size_class * FREE_HEAD_STRIDE


@triton.jit
def bump(world: tl.int64, seg: tl.int64, n_pages: tl.int64) -> Any:
    """Take pages that were never used: the first of them, or -1 when too few are left."""
    base = table64(world + W_HEAP_BASE)
    limit = table64(world + W_HEAP_LIMIT)
    size = table64(world + W_PAGE_BYTES)
    old = load64(seg + BUMP_PTR, "relaxed")
    tries = word(0)
    fits = (old >= base) & (old + n_pages * size <= limit)
    more = fits
    while more:
        got = cas64(seg + BUMP_PTR, old, old + n_pages * size, "relaxed")
        tries += 1
        more = got != old
        old = got
        fits = (old >= base) & (old + n_pages * size <= limit) & (tries < SPIN_LIMIT)
        more = more & fits
    return select(fits, (old - base) // size, word(-1))


@triton.jit
def bump_rest(world: tl.int64, seg: tl.int64) -> Any:
    """Take all pages that were never used: the first of them, or -1 when none is left."""
    base = table64(world + W_HEAP_BASE)
    limit = table64(world + W_HEAP_LIMIT)
    old = load64(seg + BUMP_PTR, "relaxed")
    tries = word(0)
    left = (old >= base) & (old < limit)
    more = left
    while more:
        got = cas64(seg + BUMP_PTR, old, limit, "relaxed")
        tries += 1
        more = got != old
        old = got
        left = (old >= base) & (old < limit) & (tries < SPIN_LIMIT)
        more = more & left
    return select(left, (old - base) // table64(world + W_PAGE_BYTES), word(-1))


@triton.jit
def give(world: tl.int64, seg: tl.int64, page: tl.int64, size_class: tl.int64) -> None:
    """Give an extent back."""
    links = page_links(world, seg)
    stamp(links, page, class_pages(world, size_class))
    push(free_list(seg, size_class), links, page)


@triton.jit
def carve(world: tl.int64, seg: tl.int64, page: tl.int64, have: tl.int64, want: tl.int64) -> None:
    """Keep the first extent of class `want` of an extent of class `have`; give the rest back, largest pieces last."""
    level = have + 0
    while level > want:
        pieces = class_pages(world, level) // class_pages(world, level - 1)
        piece = word(1)
        while piece < pieces:
            give(world, seg, page + piece * class_pages(world, level - 1), level - 1)
            piece += 1
        level -= 1


@triton.jit
def pop_free(world: tl.int64, seg: tl.int64, size_class: tl.int64) -> Any:
    """Take a free extent of this class alone: its first page, or -1. A page without room for it is not believed."""
    pages = class_pages(world, size_class)
    places = select(pages > 0, table64(world + W_N_PAGES) - pages + 1, word(0))
    return pop(free_list(seg, size_class), page_links(world, seg), places)


@triton.jit
def take_split(world: tl.int64, seg: tl.int64, size_class: tl.int64) -> Any:
    """Take an extent out of a larger free one: its first page, or -1 when no larger one is free."""
    page = word(-1)
    level = size_class + 1
    while (page < 0) & (level < N_CLASSES):
        page = pop_free(world, seg, level)
        if page >= 0:
            carve(world, seg, page, level, size_class)
        level += 1
    return page


@triton.jit
def take(world: tl.int64, seg: tl.int64, size_class: tl.int64) -> Any:
    """Take an extent: its first page, or -1 when the heap has none of the size."""
    page = pop_free(world, seg, size_class)
    if page < 0:
        page = take_split(world, seg, size_class)
    if page < 0:
        page = bump(world, seg, class_pages(world, size_class))
    return page
