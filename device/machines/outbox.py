"""What becomes of the objects in one rank's segment, for the thread that tells other nodes: whole arrays, no objects of
Python.

The poller writes, in native code (`native/telling.py`): nobody waits for a reader that is slow, and what there is no
room for is counted. The reader sleeps without the interpreter's lock.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Words
from nanokv.device.segment.host_records import SECOND
from nanokv.device.segment.layout import OBJ_HEADER
from nanokv.device.segment.location import LOCATION, OUTBOX

_LONGEST = 0.5  #: seconds of one sleep


class Told(NamedTuple):
    """What a reader has taken."""

    rows: npt.NDArray[Any]  #: LOCATIONs, in the order of what happened; valid until the next call
    lost: int  #: rows for which there was no room, and before which no other waits any more


class Outbox:
    """The queue of one reader. `Poller.tell_to` lets a poller write to it.

    Args:
        rank: whose segment the rows are about.
        room: rows that may wait for the reader, a power of two. Their memory is taken when it is used first.
        most: rows that the reader takes at once.
        futex: the number of the system call, or None: the reader looks every millisecond.
    """

    def __init__(self, rank: int, room: int, most: int, futex: int | None) -> None:
        assert room & (room - 1) == 0
        code = fabric_code()
        self._take, self._tell_each, self._wake = (code[name] for name in ("take_told", "tell_each", "wake_reader"))
        self._rows, self._taken = np.zeros(room, LOCATION.dtype), np.zeros(most, LOCATION.dtype)
        self._record = np.zeros(1, OUTBOX.dtype)
        self._record["rows"], self._record["room"], self._record["rank"] = self._rows.ctypes.data, room, rank
        self._record["futex"] = futex or 0
        self.address = int(self._record.ctypes.data)  #: of the OUTBOX record
        self._to, self._most = int(self._taken.ctypes.data), most
        # of the reader: how many rows it has taken; rows that were lost: all before the `_mark`-th, and later ones
        self._seen = self._lost = self._mark = self._lost_later = 0

    # --- the writer: the poller's thread ---
    def tell(self, kind: int, slots: Words, records: npt.NDArray[Any]) -> None:
        """Tell of objects that came or went, by their headers: STORED, REMOVED or EVICTED."""
        if len(slots):
            assert slots.dtype == np.int64 and records.dtype == OBJ_HEADER.dtype
            slots, records = np.ascontiguousarray(slots), np.ascontiguousarray(records)
            self._tell_each(self.address, kind, slots.ctypes.data, records.ctypes.data, len(slots))

    # --- the reader: one thread ---
    def take(self, rest: float) -> Told:
        """Pause for `rest` seconds, less than one, and take rows: none after half a second without any, or `end`.

        A loss is told behind the rows before it: who then looks what there is, and goes on with rows, ends well.
        """
        count, lost = self._take(self.address, self._to, self._most, int(rest * SECOND), int(_LONGEST * SECOND))
        self._seen += count
        self._lost_later += lost
        if self._lost_later and not self._lost:
            self._lost, self._lost_later, self._mark = self._lost_later, 0, self.told
        told = self._lost if self._seen >= self._mark else 0
        self._lost -= told
        return Told(self._taken[:count], told)

    # --- any thread ---
    def end(self) -> None:
        """Let the reader wait no more, now and later."""
        self._record["over"] = 1
        self._wake(self.address)

    @property
    def told(self) -> int:
        """Rows that were written, since ever."""
        return int(self._record["written"][0])

    @property
    def lost(self) -> int:
        """Rows for which there was no room, since ever."""
        return int(self._record["lost"][0])
