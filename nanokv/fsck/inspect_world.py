"""A world of this host, seen from outside, living or dead: what `stats` and `fsck` of the command line look through."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import PRODUCER_INC_MASK
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable
from nanokv.fsck import Report, check_segments
from nanokv.heap.shm import inspect
from nanokv.statistics import snapshot

if TYPE_CHECKING:
    from nanokv.device.machines.base import Machine


class Inspected:
    """The segments of a world, mapped read-only; nothing here changes it.

    Raises:
        HeapUnavailable: there is no such world, or not all of its ranks have ever attached.
        SegmentCorrupt: it is damaged, or of another build.
    """

    def __init__(self, name: str) -> None:
        info = inspect(name)
        absent = [rank for rank, there in enumerate(info.initialised) if not there]
        if absent:
            raise HeapUnavailable(f"world {name!r} is not complete: ranks {absent} have never attached")
        self.name = info.name
        self.mode = info.mode
        self.geometry = info.geometry
        self.living = info.alive  #: whether each rank's process lives
        self.views = [SegmentView(raw, info.geometry) for raw in info.segments]

    def alive(self, rank: int, incarnation: int) -> bool:
        """False if this incarnation of a rank has certainly ended."""
        if not 0 <= rank < len(self.living):
            return False
        now = max(int(view.activity["incarnation"][rank]) for view in self.views)
        return self.living[rank] and not (now ^ incarnation) & PRODUCER_INC_MASK.value

    def check(self) -> Report:
        """fsck: of everything if the world is dead or at rest, else of what must always hold."""
        quiescent = None if any(self.living) else True
        return check_segments(self.views, mode=self.mode, quiescent=quiescent, alive=self.alive)

    def stats(self) -> dict[str, Any]:
        """The world, and a HeapSnapshot of each rank, as plain data."""
        ranks = [
            {"rank": rank, "alive": living, "incarnation": int(self.views[rank].activity["incarnation"][rank])}
            | snapshot(cast("Machine", self), rank, self.mode).as_dict()
            for rank, living in enumerate(self.living)
        ]
        return {
            "name": self.name,
            "alloc": self.mode,
            "world_size": self.geometry.world_size,
            "page_bytes": self.geometry.page_bytes,
            "ranks": ranks,
        }

    # the two looks of a Machine that `snapshot` takes
    def control(self, owner: int) -> npt.NDArray[Any]:
        """A copy of a rank's HeapCtl."""
        return self.views[owner].ctl.copy()

    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        """A copy of some of a rank's headers."""
        return np.array(self.views[owner].headers[start : start + count])
