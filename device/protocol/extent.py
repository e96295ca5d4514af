"""Payload pages: extents of a few sizes, split when a smaller one is needed, bumped when none is free.

An extent is a run of pages, named by its first page; it may begin at any page. The smallest size class divides all
others, so that every run of pages consists of whole extents: it is cut into the largest that fit, greedily
(`give_pages`). With the default classes that are three at most.

The link of each page (LINK bits) says what the page is, independently of the lists and the headers:

    word 0                                  never used
    (slot + 1, stamp, class + 25)           first page of an extent that a header slot holds
    (next + 1, stamp, class + 1)            first page of a free extent
    (any, stamp, 0)                         any other page

Source: segregated free lists with four sizes per doubling, as jemalloc's (Evans 2006), and splitting as in the buddy
system (Knowlton 1965), but without alignment. Free neighbours are not joined when an extent is given back, but later,
by a host (`nanokv/space/coalesce.py`).

Guarantees
- A page is in exactly one place: beyond `bump_ptr`, in one free extent, or with the rank that took it (I2).
- No producer gets a page beyond the end of the arena, even if the heap is full and every producer tries at once. A
  producer adds to `bump_ptr` only if it sees room, and looks at what the add returns: the word passes the end by at
  most one page per producer. Extents of many pages are taken by a CAS to a checked value (I9).
- A producer is refused only if, at the end of its last look, every page that was free for it had been given back while
  it looked: no other producer takes more than it keeps, and one that splits an extent is waited for (`splitting`).
- A corrupt list or `bump_ptr` hands out no page that is held: the link of a popped extent must say free, the link of a
  bumped page must say never used. This detects one wrong word; two that fit together can deceive it.
- Between the step that takes an extent and the header that names it, the extent is in no place, and so are the pieces
  of one that is split until they are pushed. A producer that dies there leaks them until the audit
  (`host_poller/audit.py`) finds them.

Why the orderings suffice: the lists order what they hand over (`freelist`). `bump_ptr` hands over bytes that no rank
has ever owned, so there is nothing to order before it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, count_below, load64, select, store64, word
from nanokv.device.protocol.freelist import SPIN_LIMIT, pop_linked, push_marked, stamp, stamped
from nanokv.device.protocol.shards import extent_list, next_filled
from nanokv.device.protocol.splitting import begin_split, end_split
from nanokv.device.segment.layout import (
    BUMP_PTR,
    COUNT_CORRUPT,
    FREE,
    HELD,
    LOW32,
    MARK_MASK,
    MARK_SHIFT,
    MAX_SHARDS,
    SIZE_CLASSES,
    STAMP_BITS,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import (
    CLASS_PAGES,
    World,
    class_pages,
    page_links,
    retries_at,
)

N_CLASSES = tl.constexpr(SIZE_CLASSES)
ROWS = tl.constexpr(8)  # size classes whose lists a producer looks at at once: the words are in registers


@triton.jit
def class_of(world: World, n_pages: tl.int64) -> Any:
    """The smallest size class that holds `n_pages` (at least 1), or -1."""
    smaller = count_below(world.table + CLASS_PAGES, world.n_classes, n_pages)
    return select(smaller < world.n_classes, smaller, word(-1))


@triton.jit
def class_within(world: World, n_pages: tl.int64) -> Any:
    """The largest size class whose extents fit into `n_pages`, or -1."""
    return count_below(world.table + CLASS_PAGES, world.n_classes, n_pages + 1) - 1


@triton.jit
def pages_marked(world: World, value: tl.int64) -> Any:
    """Pages of the extent whose first page has this mark; 0 if it marks no first page, or is corrupt."""
    size_class = value - select(value >= HELD, word(HELD), word(FREE))
    exists = (size_class >= 0) & (size_class < world.n_classes)
    return select(exists, class_pages(world, select(exists, size_class, word(0))), word(0))


@triton.jit
def link_of(world: World, seg: tl.int64, page: tl.int64) -> Any:
    """The link of a page."""
    return load64(page_links(world, seg) + page * WORD_BYTES, "relaxed")


@triton.jit
def marked(link: tl.int64, value: tl.int64, said: tl.int64) -> Any:
    """A link with another mark and another lower half."""
    return (link & STAMP_BITS) | (value << MARK_SHIFT) | said


@triton.jit
def mark(world: World, seg: tl.int64, page: tl.int64, value: tl.int64, said: tl.int64) -> None:
    """Write the mark and the lower half of a first page's link."""
    link = link_of(world, seg, page)
    store64(page_links(world, seg) + page * WORD_BYTES, marked(link, value, said), "relaxed")


@triton.jit
def hold(world: World, seg: tl.int64, page: tl.int64, size_class: tl.int64, slot: tl.int64) -> None:
    """Note in the link of an extent that the caller has taken which header slot will name it."""
    mark(world, seg, page, HELD + size_class, slot + 1)


@triton.jit
def is_held(world: World, seg: tl.int64, page: tl.int64, size_class: tl.int64, slot: tl.int64) -> Any:
    """True if the extent was taken for this header slot."""
    link = link_of(world, seg, page)
    return (((link >> MARK_SHIFT) & MARK_MASK) == HELD + size_class) & ((link & LOW32) == slot + 1)


@triton.jit
def bump(world: World, seg: tl.int64, size_class: tl.int64) -> Any:
    """Take an extent of pages that were never used: its first page, or -1 if too few are left.

    The link of every page below `bump_ptr` says that it was used; a corrupt pointer that went back leads to one of
    them. One page is taken by an add, which hundreds of CTAs at once need not repeat.
    """
    base = world.heap_base
    pages = class_pages(world, size_class)
    size = pages * world.page_bytes
    last = world.heap_limit - size
    old = load64(seg + BUMP_PTR, "relaxed")
    fits = (old >= base) & (old <= last)
    if fits & (pages == 1):
        old = add64(seg + BUMP_PTR, size, "relaxed")  # relaxed: nobody has owned these bytes
        fits = (old >= base) & (old <= last)
    elif fits:
        tries = word(0)
        more = fits
        while more:
            got = cas64(seg + BUMP_PTR, old, old + size, "relaxed")  # relaxed: as above
            tries += 1
            more = got != old
            old = got
            fits = (old >= base) & (old <= last) & (tries < SPIN_LIMIT)
            more = more & fits
        lost = tries - select(fits, word(1), word(0))
        if lost > 0:
            add64(retries_at(world, seg), lost, "relaxed")
    page = select(fits, (old - base) // world.page_bytes, word(-1))
    if page >= 0:
        if link_of(world, seg, page) == 0:
            stamp(page_links(world, seg), page, pages)
        else:
            add64(seg + COUNT_CORRUPT, 1, "relaxed")
            page = word(-1)
    return page


@triton.jit
def bump_rest(world: World, seg: tl.int64) -> Any:
    """Take all pages that were never used: the first of them, or -1 if none is left."""
    base = world.heap_base
    limit = world.heap_limit
    old = load64(seg + BUMP_PTR, "relaxed")
    tries = word(0)
    left = (old >= base) & (old < limit)
    more = left
    while more:
        got = cas64(seg + BUMP_PTR, old, limit, "relaxed")  # relaxed: as in `bump`
        tries += 1
        more = got != old
        old = got
        left = (old >= base) & (old < limit) & (tries < SPIN_LIMIT)
        more = more & left
    count = world.n_pages
    page = select(left, (old - base) // world.page_bytes, count)
    fresh = page + 0
    while (fresh < count) & (link_of(world, seg, select(fresh < count, fresh, word(0))) != 0):
        fresh += 1
    if fresh > page:
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return select(fresh < count, fresh, word(-1))


@triton.jit
def give(world: World, seg: tl.int64, page: tl.int64, size_class: tl.int64) -> None:
    """Give an extent back to the list that belongs to its number."""
    links = page_links(world, seg)
    pages = class_pages(world, size_class)
    link = link_of(world, seg, page)
    stamp(links, page + 1, pages - 1)
    free = marked(stamped(link), FREE + size_class, word(0))
    number = page
    if pages > 1:
        number = page // pages
    push_marked(extent_list(world, seg, size_class, number), links, page, page, free, retries_at(world, seg))


@triton.jit
def give_pages(world: World, seg: tl.int64, first: tl.int64, end: tl.int64) -> None:
    """Give the pages from `first` to before `end` back, in the largest extents that fit: the smallest lie last.

    Their number is a multiple of the smallest class. When such a run is split again and again, from its beginning, what
    is too small stays together at its end, where a host can join it.
    """
    page = first + 0
    while page < end:
        size_class = class_within(world, end - page)
        if size_class >= 0:
            give(world, seg, page, size_class)
            page += class_pages(world, size_class)
        else:
            page = end + 0


@triton.jit
def carve(world: World, seg: tl.int64, page: tl.int64, have: tl.int64, want: tl.int64) -> None:
    """Split an extent of class `have`: keep its first extent of class `want`, and give the rest back."""
    give_pages(world, seg, page + class_pages(world, want), page + class_pages(world, have))


@triton.jit
def places_of(world: World, size_class: tl.int64) -> Any:
    """How many pages may be the first of an extent of this class; 0 if there is no such class."""
    pages = class_pages(world, size_class)
    return select(pages > 0, world.n_pages - pages + 1, word(0))


@triton.jit
def hold_free(world: World, seg: tl.int64, page: tl.int64, link: tl.int64, size_class: tl.int64, slot: tl.int64) -> Any:
    """`hold` an extent that came out of a list of this class with this link: its first page, or -1 if it was not free.

    Then the list is corrupt, and the extent is left alone.
    """
    if ((link >> MARK_SHIFT) & MARK_MASK) == FREE + size_class:
        held = marked(link, HELD + size_class, slot + 1)
        store64(page_links(world, seg) + page * WORD_BYTES, held, "relaxed")
    else:
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
        page = word(-1)
    return page


@triton.jit
def pop_free(world: World, seg: tl.int64, size_class: tl.int64, number: tl.int64, slot: tl.int64) -> Any:
    """Take a free extent out of one list of this class, and `hold` it: its first page, or -1.

    An extent that does not fit into the arena is not believed, nor one that is not free (`hold_free`).
    """
    head = extent_list(world, seg, size_class, number)
    page, link = pop_linked(head, page_links(world, seg), places_of(world, size_class), retries_at(world, seg))
    if page >= 0:
        page = hold_free(world, seg, page, link, size_class, slot)
    return page


@triton.jit
def take_elsewhere(world: World, seg: tl.int64, size_class: tl.int64, home: tl.int64, slot: tl.int64) -> Any:
    """`take`, after the list `home` was found empty: from another list, by splitting a larger extent, or by `bump`."""
    page = word(-1)
    rows = extent_list(world, seg, size_class, word(0))
    place = word(0)  # the list that was asked last: this class's, at home
    while (page < 0) & (place >= 0):
        place = next_filled(world, rows, world.n_classes - size_class, home, place, ROWS)
        if place >= 0:
            level = size_class + place // MAX_SHARDS
            if level > size_class:
                begin_split(seg)
            page = pop_free(world, seg, level, home + place, slot)
            if page >= 0:
                carve(world, seg, page, level, size_class)
                hold(world, seg, page, size_class, slot)
            if level > size_class:
                end_split(seg)
    if page < 0:
        page = bump(world, seg, size_class)
        if page >= 0:
            hold(world, seg, page, size_class, slot)
    return page


@triton.jit
def take(world: World, seg: tl.int64, size_class: tl.int64, home: tl.int64, slot: tl.int64) -> Any:
    """Take an extent, and `hold` it for a header slot: its first page, or -1 if the heap has none of the size.

    `home`: the list that is asked first.
    """
    page = pop_free(world, seg, size_class, home, slot)
    if page < 0:
        page = take_elsewhere(world, seg, size_class, home, slot)
    return page
