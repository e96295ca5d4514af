"""The words of a segment that are corrupted, and their new values: anything, bounds, and words that look right."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import (
    DEAD,
    HEAP_CTL,
    OBJ_HEADER,
    PIN_HEADER_SHIFT,
    PIN_HELD,
    READY,
    RING_HEADER_SHIFT,
    STORED,
    WORD,
    WRITING,
)
from nanokv.device.segment.views import SegmentView

Words = npt.NDArray[np.uint64]
_WHOLE = 2**64 - 1
_HOT = HEAP_CTL.offsets["bump_ptr"] // WORD  #: words of HeapCtl from here on change while the segment is used
_BYTES, _STATE = OBJ_HEADER.offsets["bytes_total"] // WORD, OBJ_HEADER.offsets["state"] // WORD
_MOST = 6  #: words at once


class Place(NamedTuple):
    """One word of a segment."""

    region: str
    at: int  #: in words, from the region's beginning

    def __str__(self) -> str:
        return f"{self.region}[{self.at}]"


class Corruptor:
    """Writes wrong words into one segment.

    Args:
        rng: decides everything.
        spares: whether one wrong word must not be able to lead to wrong bytes. Then it spares the words whose errors
            only a checksum finds: the descriptor, and an object's own size and state.
    """

    def __init__(self, view: SegmentView, rng: random.Random, *, spares: bool) -> None:
        self._rng = rng
        self._view = view
        self._spares = spares
        self._regions = _regions(view)
        self._looks_right = _words_that_look_right(view, rng)

    def one(self) -> str:
        """Write one wrong word somewhere in the control regions; returns a description."""
        rng = self._rng
        region = rng.choice([name for name in self._regions if not (self._spares and name == "descriptors")])
        words = self._regions[region]
        used = np.flatnonzero(words.copy())  # other threads write meanwhile
        at = int(rng.choice(used)) if len(used) and rng.random() < 0.85 else rng.randrange(len(words))
        if self._spares and region == "headers" and at % (OBJ_HEADER.size // WORD) in (_BYTES, _STATE):
            at -= at % (OBJ_HEADER.size // WORD)  # the key instead
        return self._write(Place(region, at), self._value(int(words[at])))

    def some(self) -> str:
        """Write a few wrong words: anywhere, or all into one header."""
        rng = self._rng
        count = rng.randrange(1, _MOST)
        if rng.random() < 0.3:
            size = OBJ_HEADER.size // WORD
            slot = rng.randrange(len(self._regions["headers"]) // size)
            places = [Place("headers", slot * size + rng.randrange(size)) for _ in range(count)]
            return "; ".join(self._write(at, self._value(int(self._regions[at.region][at.at]))) for at in places)
        return "; ".join(self.one() for _ in range(count))

    def flip(self) -> str:
        """Flip one bit of the payload arena."""
        at, bit = self._rng.randrange(len(self._view.payload)), self._rng.randrange(8)
        self._view.payload[at] ^= 1 << bit
        return f"bit {bit} of payload byte {at}"

    def _write(self, place: Place, value: int) -> str:
        words = self._regions[place.region]
        change = f"{place}: {int(words[place.at]):#x} -> {value:#x}"
        words[place.at] = value
        return change

    def _value(self, old: int) -> int:
        rng = self._rng
        makers: tuple[Callable[[], int], ...] = (
            lambda: rng.getrandbits(64),
            lambda: rng.choice((0, 1, _WHOLE, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1)),
            lambda: old + rng.choice((-1, 1)),
            lambda: old ^ 1 << rng.randrange(64),
            self._from_elsewhere,
            lambda: rng.choice(self._looks_right) + rng.choice((-1, 0, 0, 0, 1)),
            lambda: old & ~0xFFFFFFFF | (rng.choice(self._looks_right) & 0xFFFFFFFF),
        )
        return rng.choice(makers)() & _WHOLE

    def _from_elsewhere(self) -> int:
        words = self._regions[self._rng.choice(list(self._regions))]
        return int(words[self._rng.randrange(len(words))])


def _regions(view: SegmentView) -> dict[str, Words]:
    at, raw = view.geometry.offsets, view.raw
    links = raw[at["links_base"] : at["hdr_base"]].view(np.uint64)
    return {
        "control": raw[_HOT * WORD : HEAP_CTL.size].view(np.uint64),
        "identity": raw[: _HOT * WORD].view(np.uint64),
        "activity": view.activity.view(np.uint64),
        "page links": links[: view.geometry.n_pages],
        "slot links": links[view.geometry.n_pages :][: view.geometry.hdr_count],
        "headers": view.headers.view(np.uint64),
        "descriptors": view.descriptors.view(np.uint64),
        "directory": view.directory,
        "turnstiles": raw[at["turn_base"] :][: view.geometry.dir_buckets * WORD].view(np.uint64),
        "ring": view.ring,
        "pins": view.pins,
        "layouts": view.layouts.view(np.uint64),
    }


def _words_that_look_right(view: SegmentView, rng: random.Random) -> list[int]:
    """Bounds of every region, nodes, offsets of pages, and packed words that name slots of this segment."""
    geometry, at = view.geometry, view.geometry.offsets
    page = at["heap_base"] + rng.randrange(geometry.n_pages) * geometry.page_bytes
    slot = rng.randrange(geometry.hdr_count)
    epoch = int(view.headers["epoch"][slot])
    found: list[Any] = [*at.values(), page, page, page - at["heap_base"]]
    found += [geometry.n_pages, geometry.hdr_count, geometry.ann_capacity, geometry.pin_slots, geometry.page_bytes]
    found += [rng.randrange(1, geometry.n_pages + 1), rng.randrange(1, geometry.n_pages + 1), slot + 1]
    found += [state.value | epoch << 32 for state in (WRITING, READY, DEAD)]
    found += [STORED.value | slot << RING_HEADER_SHIFT.value | epoch << 32]
    found += [PIN_HELD.value | slot << PIN_HEADER_SHIFT.value | int(view.headers["producer"][slot]) << 32]
    found += [int(word) for word in view.directory[view.directory != 0]] + [int(word) for word in view.page_links]
    return [int(value) for value in found]
