"""The room that a get works in: what it fetches, the rows of its transfers, and memory for the lines they bring."""

from typing import Any

import numpy as np

from nanokv.cluster.links.base import Link
from nanokv.device.fabric.records import FETCH, LOOK_LINE, LOOKS_A_KEY, ROW, WORK
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import words_of

MOST_KEYS = 1024  #: of one pass of four rounds
SMALL = 64 * 1024  #: bytes: an object of so many goes through the workspace
_MOST_LOOKS = LOOKS_A_KEY * MOST_KEYS
_MOST_LINES = 1 << 16  #: 4 MiB, for what is read over: the directory of 100,000 objects goes as a whole
_GAP = 256  #: lines: to read over so many takes about as long as another descriptor of a transfer
_BYTE_GAP = _GAP * LOOK_LINE
_PAGE = 4096
_CONTROLS, _BASE = (WORK.offsets[name] // WORD for name in ("controls", "base"))


def page_aligned(nbytes: int) -> Any:
    """New memory, uint8, zeroed, at the beginning of a page."""
    raw = np.zeros(nbytes + _PAGE, np.uint8)
    start = -int(raw.ctypes.data) % _PAGE
    return raw[start : start + nbytes]


class Workspace:
    """Memory for a pass of at most MOST_KEYS keys. One thread uses it at a time.

    Attributes:
        fetches: FETCH records. words: the same as words (a memoryview of int64).
        rows: of the next transfer: an int64 [n, 3] of ROWs.
        work: the address of the WORK record. candidates: of the room for entries.
        small: address of the room for the bytes of a SMALL object.
        room: where the bytes of the pass go instead.
        timeout: seconds of each transfer of the pass.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.fetches = np.zeros(MOST_KEYS, FETCH.dtype)
        self.words = words_of(self.fetches)
        self._looks, self._places = (np.zeros(_MOST_LOOKS, np.int64) for _ in range(2))
        self._candidates = np.zeros(2 * _MOST_LOOKS, np.int64)
        self.rows = np.zeros((2 * _MOST_LOOKS, len(ROW.fields)), np.int64)
        self._memory = page_aligned(_MOST_LINES * LOOK_LINE + SMALL)
        self.small = int(self._memory.ctypes.data) + _MOST_LINES * LOOK_LINE
        self.room: Any = None
        self.timeout = 0.0
        self._work = np.zeros(1, WORK.dtype)
        row = self._work[0]
        for name in ("fetches", "looks", "places", "rows"):
            row[name] = getattr(self, name if name in ("fetches", "rows") else f"_{name}").ctypes.data
        row["lines"], row["most_lines"], row["most_looks"] = self._memory.ctypes.data, _MOST_LINES, _MOST_LOOKS
        row["gap"], row["byte_gap"] = _GAP, _BYTE_GAP
        self.work, self.candidates = int(self._work.ctypes.data), int(self._candidates.ctypes.data)
        self._work_words = words_of(self._work)
        link.register(int(self._memory.ctypes.data), self._memory.nbytes, shared=False)

    def aim(self, controls: int) -> None:
        """Let the next pass compare control blocks with the lines at an address (`RemoteWorld.controls`)."""
        self._work_words[_CONTROLS] = controls

    def into(self, room: Any) -> None:
        """Let the bytes of the next pass go to a room, which the workspace keeps; None: its own, for a SMALL object."""
        self.room = room
        self._work_words[_BASE] = self.small if room is None else room.address

    def close(self) -> None:
        """Let go of the memory. No transfer may be under way."""
        self._link.deregister(int(self._memory.ctypes.data))
