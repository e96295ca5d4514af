"""Checks of the table of layouts: its rows are whole, and no two are of one tag."""

from collections.abc import Iterator

import numpy as np

from nanokv.allocation.stored_layouts import layout_in, tag_in
from nanokv.fsck.look import Look, WorldLook
from nanokv.fsck.report import REMAKE, Finding, find

_COMPLETED = "none is needed: the next cache of that identity completes the row before it puts an object"


def check_layouts(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I4: a row is right, or it is not finished, which no reader believes; and a tag has one row."""
    taken = look.layouts["identity"] != 0
    whole = np.array([layout_in(row) is not None for row in look.layouts], np.bool_)
    unfinished = taken & (look.layouts["check"] == 0)
    yield from find("I4", look.rank, "rows of the table of layouts are wrong", "row", taken & ~whole & ~unfinished)
    if world.quiescent:
        what = "a host ended while it wrote rows of the table of layouts"
        yield from find("I4", look.rank, what, "row", unfinished, _COMPLETED, not world.somebody_ended)
    tags = np.array([tag_in(row) for row in look.layouts], np.int64)
    numbers, counts = np.unique(tags[taken], return_counts=True)
    again = taken & np.isin(tags, numbers[counts > 1])
    yield from find("I4", look.rank, "rows of the table of layouts have one tag", "row", again, REMAKE)
