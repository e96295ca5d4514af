"""One pass over the headers of a segment, slice by slice: what each slice shows, and what only all of them show.

A slice fits in a core's cache, and numpy works on it without the interpreter's lock. So neither the ring nor the other
threads of this process wait for a pass over a million headers.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import DEAD, OBJ_HEADER, PIN_BITS, READY, RESERVED, STATE_MASK, WORD, WRITING
from nanokv.host_poller.index import NO_ROW, Records, Slots

SLICE = 8 * 1024  #: slots, 512 KiB: what one slice takes stays with the process


class Life(NamedTuple):
    """One use of a header slot."""

    slot: int
    epoch: int


class Slice(NamedTuple):
    """A copy of some headers, and those of them that are not as the index has them. Slots count within the slice."""

    first: int  #: the slot of the first header
    headers: Records
    indexed: npt.NDArray[np.int64]  #: of each header, as `HeaderIndex.lives`
    gone: Slots  #: of rows whose object is READY no more
    missed: Slots  #: READY, without a row
    unfinished: Slots
    holding: Slots  #: DEAD, and with pages

    @staticmethod
    def of(first: int, headers: Records, indexed: npt.NDArray[np.int64]) -> "Slice":
        """From OBJ_HEADER records."""
        words = headers.view(np.int64)[OBJ_HEADER.offsets["state"] // WORD :: OBJ_HEADER.size // WORD]
        odd = np.flatnonzero(words & ~PIN_BITS.value != indexed)  # few: all else looks at these only
        some = headers[odd]
        state = some["state"] & STATE_MASK.value
        chosen = (
            indexed[odd] != NO_ROW,
            state == READY.value,
            (state == WRITING.value) | ((state == RESERVED.value) & (some["epoch"] > 0)),
            (state == DEAD.value) & (some["n_pages"] > 0),
        )
        return Slice(first, headers, indexed, *(odd[these] for these in chosen))

    def life(self, at: int) -> Life:
        """The use of the slot at a place in the slice."""
        return Life(self.first + at, int(self.headers["epoch"][at]))


class Totals(NamedTuple):
    """What a whole pass has found."""

    held_pages: int  #: pages of all extents that headers hold
    largest: int  #: pages of the largest object that holds any
    holding: dict[Life, Any]  #: DEAD headers that hold pages
    unfinished: dict[Life, float]  #: since when each was seen, in seconds


class HeaderPass:
    """A pass under way.

    Args:
        slots: how many to look at, from the first one on.
    """

    def __init__(self, geometry: Geometry, slots: int) -> None:
        self.slots = slots
        self.at = 0  #: the next slot
        self.unfinished: dict[Life, float] = {}
        self._holding: dict[Life, Any] = {}
        self._most = max(geometry.class_pages)
        self._sizes = geometry.extent_pages(np.arange(self._most + 1))
        self._counts = np.zeros(self._most + 1, np.int64)  # of headers with so many pages

    @property
    def ended(self) -> bool:
        """Whether every slot was looked at."""
        return self.at >= self.slots

    def add(self, part: Slice) -> None:
        """Count in the next slice."""
        self.at += len(part.headers)
        self._counts += np.bincount(np.minimum(part.headers["n_pages"], self._most), minlength=self._most + 1)
        self._holding |= {part.life(at): part.headers[at] for at in part.holding.tolist()}

    def totals(self) -> Totals:
        """What was found, once the pass has ended."""
        largest = int(np.flatnonzero(self._counts).max(initial=0))
        return Totals(int(self._counts @ self._sizes), largest, self._holding, self.unfinished)
