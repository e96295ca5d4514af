"""A world of this host, living or dead, seen from outside: for `stats` and `fsck` of the command line."""

from dataclasses import asdict
from typing import Any

from nanokv.allocation.stored_layouts import StoredLayout, stored_in
from nanokv.device.segment.layout import PRODUCER_INC_MASK
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable
from nanokv.fsck import Report, check_segments
from nanokv.heap.shm_tools import inspect
from nanokv.statistics import HeapSnapshot


class InspectedWorld:
    """The segments of a world, mapped read-only; nothing here changes it.

    Raises:
        HeapUnavailable: there is no such world, or not all of its ranks have ever attached.
        SegmentCorrupt: it is damaged, or of another build.
    """

    def __init__(self, name: str) -> None:
        info = inspect(name)
        missing = [rank for rank, there in enumerate(info.initialised) if not there]
        if missing:
            raise HeapUnavailable(f"world {name!r} is not complete: ranks {missing} have never attached")
        self.name = info.name
        self.mode = info.mode
        self.options = info.options  #: as its ranks stated them
        self.geometry = info.geometry
        self.living = info.alive  #: whether each rank's process lives
        self._producers = [*info.alive, *info.guests]
        self.absent = info.absent  #: whether each rank has not come yet, or has left for good
        self.views = [SegmentView(raw, info.geometry) for raw in info.segments]

    def alive(self, rank: int, incarnation: int) -> bool:
        """False if this incarnation of a rank, or of a guest, has certainly ended."""
        if not 0 <= rank < len(self._producers):
            return False
        now = max(int(view.activity["incarnation"][rank]) for view in self.views)
        return self._producers[rank] and not (now ^ incarnation) & PRODUCER_INC_MASK.value

    def check(self, *, quick: bool = False) -> Report:
        """fsck: of everything if the world is dead or at rest, else of what must always hold. `quick`: no checksums."""
        quiescent = None if any(self._producers) else True
        return check_segments(self.views, mode=self.mode, quiescent=quiescent, alive=self.alive, quick=quick)

    def stats(self) -> dict[str, Any]:
        """The world, and a HeapSnapshot and the layouts of each rank, as plain data."""
        ranks = [
            {
                "rank": rank,
                "alive": living,
                "absent": self.absent[rank],
                "incarnation": int(view.activity["incarnation"][rank]),
            }
            | self._holds(view).as_dict()
            | {"layouts": [_shown(row) for row in stored_in(rank, view.layouts.copy(), None, "")]}
            for rank, (living, view) in enumerate(zip(self.living, self.views, strict=True))
        ]
        return {
            "name": self.name,
            "alloc": self.mode,
            "world_size": self.geometry.world_size,
            "page_bytes": self.geometry.page_bytes,
            "ranks": ranks,
        }

    def _holds(self, view: SegmentView) -> HeapSnapshot:
        control, headers, links = view.ctl.copy()[0], view.headers.copy(), view.page_links.copy()
        return HeapSnapshot.of(self.geometry, control, headers, view.activity, links, self.mode)


def _shown(row: StoredLayout) -> dict[str, Any]:
    return {"identity": f"{row.tag:08x}"} | asdict(row.layout)
