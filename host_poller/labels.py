"""Removes the objects whose time is over: `until` of their labels (`device/protocol/label.py`)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FLAG_LABEL, OBJ_HEADER, READY, STATE_MASK, WORD, names_producer
from nanokv.host_poller.header_pass import Slice
from nanokv.host_poller.removal import Removal

NEVER = np.iinfo(np.int64).max


def labelled(headers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Which of the headers (OBJ_HEADER records) are READY and have a label."""
    words = headers.view(np.int64)[OBJ_HEADER.offsets["flags"] // WORD :: OBJ_HEADER.size // WORD]
    some = np.flatnonzero(words & FLAG_LABEL.value)  # mostly none, and all else looks at these only
    chosen = headers[some]
    ready = (chosen["state"] & STATE_MASK.value) == READY.value
    found: npt.NDArray[np.int64] = some[ready & names_producer(chosen)]
    return found


class Labels:
    """The labels of one rank's segment."""

    def __init__(self, machine: Machine, rank: int, removal: Removal) -> None:
        self._machine = machine
        self._rank = rank
        self._removal = removal
        self._first = NEVER  #: the earliest time that the last pass has seen and that is not over yet, in ns
        self._seen = NEVER  #: the same of the pass under way

    def begin_pass(self) -> None:
        """A pass over all headers begins."""
        self._seen = NEVER

    def look(self, part: Slice, now: int) -> int:
        """Remove what is over at the time `now`, in ns, and not pinned. Returns the number of objects removed."""
        places = labelled(part.headers)
        if not len(places):
            return 0
        # after the headers: a label of a later object of the slot removes nothing, as its epoch is another one
        until = self._machine.labels(self._rank, part.first, len(part.headers))["until"][places].astype(np.int64)
        timed = until > 0
        self._seen = min(self._seen, int(until[timed].min(initial=NEVER)))
        over = places[timed & (until <= now)]
        return sum(self._removal.remove_slot(self._rank, *part.life(at)) == Status.OK for at in over.tolist())

    def end_pass(self) -> None:
        """The pass has looked at all headers."""
        self._first = self._seen

    def is_due(self, now: int) -> bool:
        """Whether the time of an object that the last pass saw is over."""
        return self._first <= now
