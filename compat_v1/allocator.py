"""Pages and header slots of one segment, kept by the master: free runs, joined with their neighbours at once.

A run is a range of pages. The pages that were never used are the last run: there is no bump pointer. Taking is best
fit, the lowest address among runs of one size, so that large runs stay whole. Finding a run takes O(log n) comparisons;
the list that keeps the order then moves by one memmove.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable


class Runs:
    """Free runs of pages out of `count`. Plain data, no lock.

    Args:
        count: pages.
        taken: (first page, pages) in use from the beginning, in any order.

    Raises:
        ValueError: two of `taken` share a page, or one is not among the `count` pages.
    """

    def __init__(self, count: int, taken: Iterable[tuple[int, int]] = ()) -> None:
        self.count = count
        self.free = 0  #: free pages
        self._ordered: list[tuple[int, int]] = []  # (pages, first)
        self._pages: dict[int, int] = {}  # first -> pages
        self._first: dict[int, int] = {}  # end -> first
        at = 0
        for first, pages in sorted(taken):
            if pages < 0 or first < at or first + pages > count:
                raise ValueError(f"pages {first} to {first + pages} overlap others, or are not among {count}")
            self.give(at, first - at)
            at = first + pages
        self.give(at, count - at)

    @property
    def used(self) -> int:
        """Pages in use."""
        return self.count - self.free

    def runs(self) -> list[tuple[int, int]]:
        """All free runs as (first page, pages), in the order of pages."""
        return sorted(self._pages.items())

    def take(self, pages: int) -> int | None:
        """Take a run: its first page, or None if no free run is as long. A run of 0 pages is always at page 0."""
        if pages == 0:
            return 0
        at = bisect_left(self._ordered, (pages, 0))
        if at == len(self._ordered):
            return None
        have, first = self._ordered[at]
        self._drop(first, have)
        self._add(first + pages, have - pages)
        return first

    def give(self, first: int, pages: int) -> None:
        """Give back a run that `take` returned. It joins its neighbours."""
        before = self._first.get(first)
        if before is not None and pages:
            self._drop(before, first - before)
            first, pages = before, pages + first - before
        after = self._pages.get(first + pages)
        if after is not None and pages:
            self._drop(first + pages, after)
            pages += after
        self._add(first, pages)

    def _add(self, first: int, pages: int) -> None:
        if pages:
            insort(self._ordered, (pages, first))
            self._pages[first], self._first[first + pages] = pages, first
            self.free += pages

    def _drop(self, first: int, pages: int) -> None:
        del self._ordered[bisect_left(self._ordered, (pages, first))]
        del self._pages[first], self._first[first + pages]
        self.free -= pages


class Space:
    """The free payload pages and header slots of one owner's segment.

    Args:
        n_pages, hdr_count: of the geometry.
        taken: (header slot, first page, pages) in use from the beginning.

    Raises:
        ValueError: `taken` contradicts itself.
    """

    def __init__(self, n_pages: int, hdr_count: int, taken: Iterable[tuple[int, int, int]] = ()) -> None:
        held = list(taken)
        self.pages = Runs(n_pages, [(first, pages) for _, first, pages in held if pages])
        self.slots = Runs(hdr_count, [(slot, 1) for slot, _, _ in held])

    def take(self, n_pages: int) -> tuple[int, int] | None:
        """Take a header slot and `n_pages` pages: (slot, first page), or None if either is missing."""
        page = self.pages.take(n_pages)
        slot = self.slots.take(1)
        if page is not None and slot is not None:
            return slot, page
        if page is not None:
            self.pages.give(page, n_pages)
        if slot is not None:
            self.slots.give(slot, 1)
        return None

    def give(self, slot: int, page: int, n_pages: int) -> None:
        """Give back a slot and the pages that `take` returned with it."""
        self.pages.give(page, n_pages)
        self.slots.give(slot, 1)
