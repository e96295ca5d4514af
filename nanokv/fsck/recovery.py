"""A look at a dead world before its ranks take it over (`on_stale="recover"`)."""

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import SegmentCorrupt
from nanokv.fsck import check_segments

_log = logging.getLogger("nanokv.recovery")


def examine(name: str, segments: Sequence[npt.NDArray[np.uint8]], geometry: Geometry, mode: str) -> None:
    """fsck's quick look at the segments of a world whose ranks are all dead.

    The leftovers of the dead are logged: the sweepers of their owners take them back.

    Raises:
        SegmentCorrupt: an invariant does not hold, so that the world must not be used.
    """
    views = [SegmentView(raw, geometry) for raw in segments]
    report = check_segments(views, mode=mode, quiescent=True, alive=lambda rank, incarnation: False, quick=True)
    if report.breaches:
        raise SegmentCorrupt(
            f"world {name!r} is not taken over: fsck finds {len(report.breaches)} breaches, the first is: "
            f"{report.breaches[0]}. `nanokv fsck {name}` shows all; on_stale='replace' begins an empty world"
        )
    if report.leftovers:
        found = "; ".join(f"rank {each.rank}: {each.what} ({each.where})" for each in report.leftovers)
        _log.warning("world %r is taken over; its sweepers take back what its dead ranks left: %s", name, found)
