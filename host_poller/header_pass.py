"""One pass over the headers of a segment, slice by slice: what each slice shows, and what only all of them show.

A slice fits in a core's cache, and numpy works on it without the interpreter's lock. So neither the ring nor the other
threads of this process wait for a pass over a million headers.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import DEAD, READY, RESERVED, STATE_MASK, WRITING
from nanokv.host_poller.index import Records, Slots

SLICE = 16 * 1024  #: slots


class Life(NamedTuple):
    """One use of a header slot."""

    slot: int
    epoch: int


class Slice(NamedTuple):
    """A copy of some headers, and what it shows. Arrays have one item per header, except for those of slots."""

    first: int  #: the slot of the first header
    headers: Records
    epochs: npt.NDArray[np.int64]
    n_pages: npt.NDArray[np.int64]
    ready: npt.NDArray[np.bool_]
    unfinished: Slots  #: within the slice
    holding: Slots  #: DEAD, and with pages; within the slice

    @staticmethod
    def of(first: int, headers: Records) -> "Slice":
        """From OBJ_HEADER records."""
        state = headers["state"] & STATE_MASK.value
        epochs, n_pages = headers["epoch"].astype(np.int64), headers["n_pages"].astype(np.int64)
        unfinished = (state == WRITING.value) | ((state == RESERVED.value) & (epochs > 0))
        holding = (state == DEAD.value) & (n_pages > 0)
        slots = (np.flatnonzero(each) for each in (unfinished, holding))
        return Slice(first, headers, epochs, n_pages, state == READY.value, *slots)

    def life(self, at: int) -> Life:
        """The use of the slot at a place in the slice."""
        return Life(self.first + at, int(self.epochs[at]))


class Totals(NamedTuple):
    """What a whole pass has found."""

    held_pages: int  #: pages of all extents that headers hold
    largest: int  #: pages of the largest READY object
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
        self._held = self._largest = 0

    @property
    def ended(self) -> bool:
        """Whether every slot was looked at."""
        return self.at >= self.slots

    def add(self, part: Slice) -> None:
        """Count in the next slice."""
        self.at += len(part.headers)
        counts = np.bincount(np.minimum(part.n_pages, self._most), minlength=self._most + 1)
        self._held += int(counts @ self._sizes)
        self._largest = max(self._largest, int(np.where(part.ready, part.n_pages, 0).max(initial=0)))
        self._holding |= {part.life(at): part.headers[at] for at in part.holding.tolist()}

    def totals(self) -> Totals:
        """What was found, once the pass has ended."""
        return Totals(self._held, self._largest, self._holding, self.unfinished)
