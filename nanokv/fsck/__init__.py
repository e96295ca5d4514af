"""fsck: checks the invariants I1 to I10 (docs/design.md) on the segments of a world. It only reads.

inspect_world  a world of this host, seen from outside, for the command line
recovery       a look at a dead world before it is taken over
look           copies of segments that belong together, also while producers are at work
report         findings, each with a remedy
control        checks of identity, control words, activity words, the announce ring
slots          checks of header slots, and of the extents that headers name
pins           checks of the pin ledger against the STATE words
pages          checks of payload pages: each is in one place
layouts        checks of the table of layouts
contents       checks of descriptors, and of checksums over the bytes of objects
directory      checks of directory entries and keys
find_key       where an object lies, for `nanokv key`
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.segment.views import SegmentView
from nanokv.fsck import contents, control, directory, layouts, pages, pins, slots
from nanokv.fsck.look import Alive, Look, WorldLook, fingerprint, take_looks
from nanokv.fsck.report import Finding, Report, find

if TYPE_CHECKING:
    from nanokv.cache.cache import NanoKVCache
    from nanokv.heap.base import Heap

__all__ = ["Alive", "Finding", "Report", "check_cache", "check_segments"]

SEGMENT_CHECKS: tuple[Callable[[WorldLook, Look], Iterator[Finding]], ...] = (
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
    layouts.check_layouts,
    contents.check_descriptors,
)
WORLD_CHECKS = (directory.check_directory, directory.check_keys)


def check_segments(
    views: Sequence[SegmentView],
    *,
    mode: str,
    quiescent: bool | None = True,
    alive: Alive | None = None,
    quick: bool = False,
) -> Report:
    """Check all segments of a world.

    Args:
        views: one per rank, in the order of ranks.
        mode: "device" or "host": who allocates. In host mode the master keeps free lists and directory, so that only
            headers, the ring and the pin ledger are checked.
        quiescent: True: the caller knows that nothing is under way; all is checked. False: only what must hold at any
            moment. None: find out, by looking twice.
        alive: (rank, incarnation) -> False if it has certainly ended. Without it every rank counts as alive, and
            leftovers of the dead as breaches.

        quick: do not read the bytes of objects: no checksum is compared.

    Raises:
        ValueError: not one segment per rank.
    """
    views = list(views)
    if not views or len(views) != views[0].geometry.world_size:
        raise ValueError(f"views must be the segments of a world, one per rank, not {len(views)}")
    foreign = tuple(control.check_identity(views, mode))
    if foreign:
        return Report(mode, bool(quiescent), len(views), 0, foreign, ("all else: the segments are not of one world",))
    looks = take_looks(views)
    resting = quiescent if quiescent is not None else _at_rest(looks, views, alive)
    world = WorldLook(looks, mode, resting, alive)
    checks = SEGMENT_CHECKS if quick else (*SEGMENT_CHECKS, contents.check_checksums)
    found = [check(world, look) for check in checks for look in looks]
    findings = tuple(chain(*found, *(check(world) for check in WORLD_CHECKS)))
    if quiescent is None and resting and findings and not _same(looks, views):
        return check_segments(views, mode=mode, quiescent=False, alive=alive, quick=quick)
    objects = sum(int(np.count_nonzero(look.ready)) for look in looks)
    return Report(mode, resting, len(views), objects, findings, tuple(_unseen(world, quick)))


def _unseen(world: WorldLook, quick: bool) -> Iterator[str]:
    """What the checks did not look at."""
    objects = sum(int(np.count_nonzero(look.ready)) for look in world.looks)
    summed = sum(int(np.count_nonzero(contents.summed(look))) for look in world.looks)
    if not world.quiescent:
        yield "the world is at work: what must hold only at rest"
    if not world.allocates:
        yield "alloc='host': the free pages and the keys, which the master keeps in its own memory"
    if quick and summed:
        yield f"the bytes of {summed} objects with checksums"
    if objects > summed:
        yield f"the bytes of {objects - summed} objects without checksums"


def _at_rest(looks: list[Look], views: list[SegmentView], alive: Alive | None) -> bool:
    world = WorldLook(looks, "", False, alive)
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

    The caller has flushed the caches, and nothing else uses the world. Segments on a GPU are copied here first.

    Args:
        patience: seconds to wait for the pollers to come to rest. After that everything is checked all the same.
    """
    many = list(caches) if isinstance(caches, Sequence) else [caches]
    heap, mode = many[0].engine.heap, many[0].alloc
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
    """I5: the index of a cache has exactly the READY objects of its segment."""
    look = take_looks([view])[0]
    wrong = cache.engine.poller.index.epochs() != np.where(look.ready, look.epoch, -1)
    what, remedy = "the index and the headers do not agree", "call flush() first: if it stays, report a bug"
    yield from find("I5", cache.rank, what, "slot", wrong, remedy)
