"""Joins neighbouring free extents, so that small ones become large ones again.

The host detaches each free list with one CAS, and the pages that were never used with another: a free extent beside
them is a neighbour too. They belong to this host until it pushes them back. A producer may find nothing meanwhile:
`joining` tells it that FULL may be an accident. If this process dies in between, the audit finds the pages.
"""

from collections.abc import Callable

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.space.free_pages import pages_in


def carve_runs(geometry: Geometry, pages: Words) -> tuple[Words, Words]:
    """Cut sorted page numbers, at least one, into the largest extents that fit: (first pages, classes).

    The smallest lie last in each run, as in `extent.give_pages`. So the first extent of a run is the largest that the
    run can hold. Pages of a run that is no multiple of the smallest class, which only corrupt links make, are left out.
    """
    classes = [(k, n) for k, n in enumerate(geometry.class_pages) if n][::-1]
    firsts: list[int] = []
    kinds: list[int] = []
    for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
        at, left = int(run[0]), len(run)
        for k, size in classes:
            count = left // size
            firsts.extend(range(at, at + count * size, size))
            kinds.extend([k] * count)
            at, left = at + count * size, left - count * size
    return np.array(firsts, np.int64), np.array(kinds, np.int64)


def join_free_extents(
    machine: Machine,
    owner: int,
    over: int = 0,
    *,
    end: int | None = None,
    before_end: Callable[[], None] | None = None,
    if_all: Callable[[], None] | None = None,
) -> int:
    """Join the free extents of a segment. Any host that maps the segment may call it.

    Args:
        over: the mark of a host that is dead, or too slow, and is not waited for.
        end: the number of the first page that has no memory, if not all have. Pages that were never used are not joined
            then: they get memory in their order, as they are used.
        before_end: called while free pages from `end` on are in no list. The answer is 0 then.
        if_all: called if every page of the segment was free. No page is given back then: no producer gets one any more.
            No audit of the segment may be under way, nor begin: it would find them. If this process dies before the
            caller has made use of them, the next one's audit does.

    Returns:
        The pages of the largest extent that is free afterwards, or -1: another host joins them, and nothing was done.
    """
    geometry = machine.geometry
    phase = machine.enter(owner)
    mark = machine.begin_join(owner, over)
    try:
        if not mark:
            return -1
        firsts, kinds = machine.detach_all(owner)
        sizes = np.array(geometry.class_pages, np.int64)[kinds]
        pages = pages_in(firsts, sizes)
        if end is None:
            pages = np.concatenate([pages, machine.detach_rest(owner)])
        pages = np.unique(pages)  # corrupt links may name a page twice
        if before_end is not None:
            have = pages < (geometry.n_pages if end is None else end)
            if have.any():
                machine.push_extents(owner, *carve_runs(geometry, pages[have]))
            try:
                before_end()
            finally:
                if not have.all():
                    machine.push_extents(owner, *carve_runs(geometry, pages[~have]))
            return 0
        if not len(pages):
            return 0
        if if_all is not None and len(pages) == geometry.n_pages:
            if_all()
            return 0
        firsts, kinds = carve_runs(geometry, pages)
        machine.push_extents(owner, firsts, kinds)
        return geometry.class_pages[int(kinds.max())]
    finally:
        if mark:
            machine.end_join(owner, mark)
        machine.leave(owner, phase)
