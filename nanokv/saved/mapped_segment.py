"""The Source of a world that is seen from outside (`fsck.inspect_world`): mapped read-only, living or dead.

Nothing here changes the segment, so a reader cannot order its loads by a read-modify-write, as a rank does. The bytes
are hashed between their copy and the second look at the STATE word: no processor looks that far ahead.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import FLAG_CHECKSUM, PIN_BITS, READY, STATE_MASK
from nanokv.device.segment.views import SegmentView
from nanokv.fsck.contents import has_right_checksum
from nanokv.saved.source import Ready

_LASTING = np.uint64(~PIN_BITS.value & (1 << 64) - 1)  #: the bits of a STATE word that a reader does not change


class MappedSegment:
    """The Source of a mapped segment."""

    def __init__(self, view: SegmentView, rank: int) -> None:
        self.rank = rank
        self.clock = max(now_ns(), int(view.ctl["swept_at"][0]))  # the second: the machine has started anew since
        self._view = view

    def ready(self) -> Ready:
        before = self._view.states.copy() & _LASTING
        headers = self._view.headers.copy()
        stayed = before == self._view.states & _LASTING
        slots = np.flatnonzero(stayed & (before & np.uint64(STATE_MASK.value) == READY.value))
        return Ready(slots, headers[slots])

    def descriptor(self, slot: int) -> Any:
        return self._view.descriptors[slot].copy()

    def label(self, slot: int) -> Any:
        return self._view.labels[slot].copy()

    def read(self, offset: int, to: npt.NDArray[np.uint8]) -> None:
        to[:] = self._view.raw[offset : offset + len(to)]

    def verdict(self, slot: int, header: Any) -> int:
        right = not header["flags"] & FLAG_CHECKSUM.value or has_right_checksum(
            self._view.raw, header, self._view.descriptors[slot]
        )
        was = (int(header["epoch"]) << 32 | int(header["state"])) & int(_LASTING)
        if int(self._view.states[slot] & _LASTING) != was:
            return Status.TORN
        return Status.OK if right else Status.CORRUPT

    def layouts(self) -> npt.NDArray[Any]:
        copied: npt.NDArray[Any] = self._view.layouts.copy()
        return copied
