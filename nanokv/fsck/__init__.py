"""fsck: checks what must always hold (I1 to I10) on the segments of a world. It reads, and never changes anything.

report      findings, and what a user can do about each
look        copies of segments that belong together, also while producers are at work
control     identity, control words, activity, the announce ring
slots       header slots and what headers name
pins        the pin ledger against the STATE words
pages       payload pages
directory   directory entries and keys
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.segment.views import SegmentView
from nanokv.fsck import control, directory, pages, pins, slots
from nanokv.fsck.look import Alive, Look, World, fingerprint, take_looks
from nanokv.fsck.report import Finding, Report, named

if TYPE_CHECKING:
    from nanokv.cache import NanoKVCache
    from nanokv.heap.base import Heap

__all__ = ["Alive", "Finding", "Report", "check_cache", "check_segments"]

CHECKS: tuple[Callable[[World], Iterator[Finding]], ...] = (
    control.check_control,
    control.check_activity,
    control.check_ring,
    slots.check_state_words,
    slots.check_slots,
    slots.check_headers,
    slots.check_unfinished,
    pins.check_pins,
    pages.check_links,
    pages.check_pages,
    directory.check_directory,
    directory.check_keys,
)


def check_segments(
    views: Sequence[SegmentView], *, mode: str, quiescent: bool | None = True, alive: Alive | None = None
) -> Report:
    """Check all segments of a world.

    Args:
        views: one a rank, in the order of ranks.
        mode: "device" or "host": who allocates. In host mode pages, slots and keys have their places with the master,
            so that only what headers, the ring and the pin ledger say is checked.
        quiescent: True: the caller knows that nothing is under way; all is checked. False: only what must hold at any
            moment. None: find out, by looking twice.
        alive: (rank, incarnation) -> False if it has certainly ended. Without it every rank is taken to live, and what
            only an end can explain is a breach.

    Raises:
        ValueError: no segments, or not one a rank.
    """
    views = list(views)
    if not views or len(views) != views[0].geometry.world_size:
        raise ValueError(f"a world's segments are wanted, one a rank, not {len(views)}")
    foreign = tuple(control.check_identity(views, mode))
    if foreign:
        return Report(mode, bool(quiescent), len(views), 0, foreign)
    looks = take_looks(views)
    resting = quiescent if quiescent is not None else _at_rest(looks, views, alive)
    world = World(looks, mode, resting, alive)
    findings = tuple(finding for check in CHECKS for finding in check(world))
    if quiescent is None and resting and findings and not _same(looks, views):
        return check_segments(views, mode=mode, quiescent=False, alive=alive)
    objects = sum(int(np.count_nonzero(look.ready)) for look in looks)
    return Report(mode, resting, len(views), objects, findings)


def _at_rest(looks: list[Look], views: list[SegmentView], alive: Alive | None) -> bool:
    world = World(looks, "", False, alive)
    idle = all(
        world.ended(rank, int(row["incarnation"])) or not (row["in_flight0"] or row["in_flight1"])
        for look in looks
        for rank, row in enumerate(look.activity)
    )
    return idle and all(look.stable.all() for look in looks) and _same(looks, views)


def _same(looks: list[Look], views: list[SegmentView]) -> bool:
    return fingerprint(looks) == fingerprint(take_looks(views))


def check_cache(caches: "NanoKVCache | Sequence[NanoKVCache]", *, patience: float = 2.0) -> Report:
    """Check a world through caches of this process: all its segments, and the index of each cache given.

    The caller has flushed the caches and keeps still. Segments on a GPU are copied here first.

    Args:
        patience: seconds to wait for the pollers to come to rest. After that everything is checked all the same.
    """
    many = list(caches) if isinstance(caches, Sequence) else [caches]
    heap, mode = many[0]._heap, many[0].alloc
    deadline = time.monotonic() + patience
    while True:
        late = time.monotonic() >= deadline
        views = [_view(heap, rank) for rank in range(heap.world_size)]
        report = check_segments(views, mode=mode, quiescent=True if late else None, alive=heap.alive)
        extra = tuple(finding for cache in many for finding in _check_index(cache, views[cache.rank]))
        if late or (report.quiescent and not extra):
            return report._replace(findings=report.findings + extra)
        time.sleep(0.005)


def _view(heap: "Heap", rank: int) -> SegmentView:
    raw = heap.host_view(rank)
    return SegmentView(heap.segment(rank).cpu().numpy() if raw is None else raw, heap.geometry)


def _check_index(cache: "NanoKVCache", view: SegmentView) -> Iterator[Finding]:
    """I5: the index of a cache has the READY objects of its segment, and nothing else."""
    look = take_looks([view])[0]
    want = np.where(look.ready, look.epoch, -1)
    wrong = np.flatnonzero(cache._poller.index.epochs() != want)
    if len(wrong):
        what = "the index and the headers do not say the same"
        yield Finding("I5", cache.rank, what, named("slot", wrong), "call flush() first: if it stays, report a bug")
