"""Checks of payload pages: every page is in exactly one place."""

from collections.abc import Generator, Iterator

import numpy as np

from nanokv.device.segment.layout import HELD, SIZE_CLASSES, unpack
from nanokv.fsck.look import Look, Numbers, WorldLook, nonempty, walk
from nanokv.fsck.report import RECOVER, REMAKE, SHOWN, Finding, find, runs_of


class _Places:
    """The extents of a segment, and the owner of each."""

    def __init__(self, n_pages: int) -> None:
        self._changes = np.zeros(n_pages + 1, np.int64)
        self._all: list[tuple[str, Numbers, Numbers]] = []

    def add(self, owner: str, first: Numbers, size: Numbers) -> None:
        """Add extents of one kind of owner. They must be inside the arena."""
        np.add.at(self._changes, first, 1)
        np.add.at(self._changes, first + size, -1)
        self._all.append((owner, first, size))

    def counts(self) -> Numbers:
        """How many places each page is in."""
        return np.cumsum(self._changes)[:-1]

    def owners(self, page: int) -> str:
        """All places of a page."""
        found = []
        for owner, first, size in self._all:
            hits = first[(first <= page) & (page < first + size)]
            found += [f"{owner} of page {start}" for start in hits.tolist()]
        return ", ".join(found)


def check_links(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I2: no link leads out of its arena. Holds at any moment."""
    if not world.allocates:
        return
    held = unpack("LINK", "mark", look.page_links) >= HELD.value  # such a link names a header slot
    most = np.where(held, look.geometry.hdr_count, look.geometry.n_pages)
    for unit, links, last in ("page", look.page_links, most), ("slot", look.header_links, look.geometry.hdr_count):
        wild = unpack("LINK", "next", links) > last
        yield from find("I2", look.rank, "links lead out of the arena", f"{unit} link", wild)


def check_pages(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I1, I2: no page is in two places, at any moment for READY objects; at rest none is in no place either."""
    places = _Places(look.geometry.n_pages)
    for holder, chosen in world.holders(look).items():
        extents, _ = look.extents(chosen, whole=world.allocates)
        places.add(holder, extents.first, extents.size)
    broken = False
    if world.quiescent and world.allocates:
        broken = yield from _add_free(look, places)
        beyond = np.array([look.bumped], np.int64)
        places.add("never allocated, run", beyond, look.geometry.n_pages - beyond)
    counts = places.counts()
    yield from _overlaps(look, places, np.flatnonzero(counts > 1))
    if world.quiescent and world.allocates and not broken:
        yield from _leaks(world, look, np.flatnonzero(counts == 0))


def _add_free(look: Look, places: _Places) -> Generator[Finding, None, bool]:
    broken = False
    links = unpack("LINK", "next", look.page_links).tolist()
    for k in range(SIZE_CLASSES):
        size = look.geometry.class_pages[k]
        for shard, head in nonempty(look.ctl[f"free_head{k}"][0]):
            pages, why = walk(head, links)
            first = np.array(pages, np.int64)
            cut = first + size > look.geometry.n_pages
            if not size and len(first):
                why = "there is no such size class"
            elif not look.geometry.is_shard(shard) and len(first):
                why = f"there are {look.geometry.shards} lists of each class, and this is none"
            elif cut.any():
                why = f"the extent of page {first[cut][0]} ends outside of the arena"
            if why:
                broken = True
                what = f"the free list of {size}-page extents is broken: {why}"
                yield Finding("I2", look.rank, what, f"HeapCtl.free_head{k}[{shard}]", REMAKE)
            if size:
                places.add(f"free {size}-page extent", first[~cut], np.full(np.count_nonzero(~cut), size, np.int64))
    return broken


def _overlaps(look: Look, places: _Places, pages: Numbers) -> Iterator[Finding]:
    runs = runs_of(pages)
    for run in runs[:SHOWN]:
        what = f"pages are in more than one place: {places.owners(int(run[0]))}"
        yield from find("I1", look.rank, what, "page", run)
    more = np.concatenate([pages[:0], *runs[SHOWN:]])
    yield from find("I1", look.rank, f"{len(runs) - SHOWN} more runs of pages are in more than one place", "page", more)


def _leaks(world: WorldLook, look: Look, pages: Numbers) -> Iterator[Finding]:
    what = f"{len(pages)} pages of {look.geometry.page_bytes} bytes are in no place: a leak"
    ended = world.somebody_ended
    yield from find("I2", look.rank, what, "page", pages, RECOVER if ended else REMAKE, not ended)
