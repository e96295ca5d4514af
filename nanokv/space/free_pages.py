"""The free pages of a segment, as the links of its pages show them: one copy, no walk through the lists.

Producers take and give back extents meanwhile. So this is what was free a moment ago, for estimates and statistics:
nobody takes a page because of it.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import SIZE_CLASSES, unpack


class FreePages(NamedTuple):
    """Free extents, and the pages at the end of the arena that were never used (v2)."""

    class_pages: Words  #: pages of each size class that exists, ascending
    sizes: Words  #: pages of each free extent
    runs: Words  #: pages of each run of free neighbours, among them those that were never used
    unused: int  #: pages that were never used

    @staticmethod
    def of(geometry: Geometry, links: npt.NDArray[Any], bump_ptr: int) -> "FreePages":
        """From the links of all pages and the word `bump_ptr`, both of which may be corrupt."""
        count = geometry.n_pages
        marks = unpack("LINK", "mark", links).astype(np.int64)
        firsts = np.flatnonzero((marks > 0) & (marks <= SIZE_CLASSES))
        sizes = np.array(geometry.class_pages, np.int64)[marks[firsts] - 1]
        inside = firsts + sizes <= count
        firsts, sizes = firsts[inside], sizes[inside]
        bumped = (bump_ptr - geometry.offsets["heap_base"]) // geometry.page_bytes
        unused = count - bumped if 0 <= bumped <= count else 0
        free = covered(count, firsts, sizes)
        free[count - unused :] = True
        return FreePages(np.array([*filter(None, geometry.class_pages)], np.int64), sizes, run_lengths(free), unused)

    @property
    def total(self) -> int:
        """How many pages are free."""
        return int(self.runs.sum())

    @property
    def largest(self) -> int:
        """Pages of the largest extent that a producer finds now; 0 if it finds none."""
        of_unused = self.class_pages[self.class_pages <= self.unused].max(initial=0)
        return int(self.sizes.max(initial=of_unused))

    def in_extents_of(self, size: int) -> int:
        """Pages of all extents of `size` pages, a size class, that free extents hold, each by itself."""
        return int((self.sizes // size * size).sum()) + self.unused // size * size

    def joined_to(self, size: int) -> int:
        """The free pages once all free neighbours are joined and cut into the largest extents that fit."""
        left, found = self.runs, 0
        for pages in self.class_pages[::-1].tolist():
            found += int((left // pages).sum()) * (pages // size * size)
            left = left % pages
        return found


@lru_cache(maxsize=1024)
def most_lost(class_pages: tuple[int, ...], size: int, pages: int) -> int:
    """How much `in_extents_of(pages)` falls at most when an extent of `size` is taken.

    The rest of an extent that is split is cut into the largest classes that fit, which may hold fewer of `pages`.
    """
    classes = np.array([*filter(None, class_pages)], np.int64)
    lost = -(-size // pages) * pages  # of pages that were never used
    for extent in classes[classes >= size].tolist():
        rest = FreePages(classes, classes[:0], np.array([extent - size], np.int64), 0)
        lost = max(lost, extent // pages * pages - rest.joined_to(pages))
    return lost


def pages_in(firsts: Words, sizes: Words) -> Words:
    """The pages of extents, one extent after the other: int64."""
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + (firsts - before).repeat(sizes)


def covered(count: int, firsts: Words, sizes: Words) -> npt.NDArray[np.bool_]:
    """Which of `count` pages are in runs that begin at `firsts` and have `sizes` pages; all lie inside."""
    begun, ended = (np.bincount(at, minlength=count + 1) for at in (firsts, firsts + sizes))
    inside: npt.NDArray[np.bool_] = np.cumsum(begun[:count] - ended[:count]) > 0
    return inside


def run_lengths(chosen: npt.NDArray[np.bool_]) -> Words:
    """How many pages each run of chosen neighbours has: int64."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return edges[1::2] - edges[::2]
