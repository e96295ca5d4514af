"""Joins neighbouring free extents, so that small ones become large ones again.

The lists are detached whole, one CAS each, and so are the pages that were never used: a free extent beside them is a
neighbour too. All this belongs to this host until it is pushed back. A producer that comes meanwhile may find nothing:
`joining` tells it that FULL may be an accident. If this process dies between, the audit finds the pages.
"""

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import SIZE_CLASSES


def carve_runs(geometry: Geometry, pages: Words) -> tuple[Words, Words]:
    """Cut sorted page numbers into the largest extents that fit: (first pages, classes)."""
    classes = [(k, n) for k, n in enumerate(geometry.class_pages) if n][::-1]
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    starts = np.concatenate([[0], cuts]).astype(np.int64)
    ends = np.concatenate([cuts, [len(pages)]]).astype(np.int64)
    firsts: list[int] = []
    kinds: list[int] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        at, left = int(pages[start]) if end > start else 0, end - start
        for k, size in classes:
            count = left // size
            firsts.extend(range(at, at + count * size, size))
            kinds.extend([k] * count)
            at, left = at + count * size, left - count * size
    return np.array(firsts, np.int64), np.array(kinds, np.int64)


def join_free_extents(machine: Machine, owner: int) -> int:
    """Join what is free in a segment. Returns the pages of the largest extent that is free afterwards.

    Any host that maps the segment may do it, several at once too: each holds what it detached.
    """
    geometry = machine.geometry
    phase = machine.enter(owner)
    machine.joining(owner, 1)
    try:
        lists = [machine.detach(owner, k) for k in range(SIZE_CLASSES)]
        spans = [
            (first[:, None] + np.arange(size, dtype=np.int64)).ravel()
            for first, size in zip(lists, geometry.class_pages, strict=True)
        ]
        pages = np.unique(np.concatenate([*spans, machine.detach_rest(owner)]))  # twice, if links are corrupt
        if not len(pages):
            return 0
        firsts, kinds = carve_runs(geometry, pages)
        machine.push_extents(owner, firsts, kinds)
        return max(int(geometry.class_pages[k]) for k in set(kinds.tolist()))
    finally:
        machine.joining(owner, -1)
        machine.leave(owner, phase)
