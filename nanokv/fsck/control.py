"""Checks of identity, control words, activity words and the announce ring."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.geometry import MODES
from nanokv.device.segment.layout import SIZE_CLASSES, WANTED
from nanokv.device.segment.views import SegmentView
from nanokv.fsck.look import Look, WorldLook, field
from nanokv.fsck.report import FORGOTTEN, RECOVER, REMAKE, WAIT, Finding, find

#: nodes: a producer that finds a bump pointer at its end has moved it past the end, by one (`extent.bump`)
_MOST_PAST = 1 << 20

_IDENTITY = "this is no segment of this world: check the name and the build; nothing else in it was read"


def check_identity(views: list[SegmentView], mode: str) -> Iterator[Finding]:
    """I10: every segment is one of this build, of this geometry, world, rank and mode."""
    world_id = views[0].ctl["world_id"][0]
    for rank, view in enumerate(views):
        row = view.ctl[0]
        why = view.geometry.mismatch(view.ctl)
        if why:
            yield Finding("I10", rank, why, "HeapCtl", _IDENTITY)
            continue
        for name, want in (("rank", rank), ("world_id", world_id), ("mode", MODES.index(mode))):
            if row[name] != want:
                yield Finding("I10", rank, f"{name} is {row[name]}, not {want}", f"HeapCtl.{name}", _IDENTITY)


def check_control(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I9, I5, I6: the words of HeapCtl are inside their bounds, always; nobody joins or splits free extents at rest."""
    row, slots, page = look.ctl[0], look.geometry.hdr_count, look.geometry.page_bytes
    base, limit = look.geometry.offsets["heap_base"], look.geometry.offsets["heap_limit"]
    bump, head = int(row["bump_ptr"]), int(row["hdr_head"])
    inside = base <= bump <= limit + _MOST_PAST * page
    ahead = f"ann_tail {row['ann_tail']} is past ann_head {row['ann_head']}: the poller misses hints"
    for invariant, name, wrong, what in (
        ("I9", "bump_ptr", not inside, f"bump_ptr is {bump}, the arena is {base} to {limit}"),
        ("I9", "bump_ptr", inside and (bump - base) % page, f"bump_ptr is {bump}, not on a page of {page} bytes"),
        ("I9", "hdr_head", head > slots + _MOST_PAST, f"hdr_head is {head}, there are {slots} slots"),
        ("I5", "ann_tail", row["ann_tail"] > row["ann_head"], ahead),
        ("I6", "grace_phase", row["grace_phase"] > 1, f"grace_phase is {row['grace_phase']}, not 0 or 1"),
    ):
        if wrong:
            yield Finding(invariant, look.rank, what, f"HeapCtl.{name}", REMAKE)
    joiner = int(field("JOINING", "producer", row["joining"]))
    if world.quiescent and joiner:
        ended = world.producer_ended(joiner)
        what = "a host is marked to join free extents at rest"
        yield Finding("I6", look.rank, what, "HeapCtl.joining", RECOVER if ended else REMAKE, not ended)
    splits = int(field("SPLITTING", "under_way", row["splitting"]))
    if world.quiescent and splits:
        what = f"{splits} splits of free extents are counted under way at rest: producers that find none wait for them"
        yield Finding("I6", look.rank, what, "HeapCtl.splitting", WAIT, not world.somebody_ended)


def check_activity(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I6: at rest no operation of a living rank or guest is counted in flight, or grace periods never end."""
    if not world.quiescent:
        return
    for rank, row in enumerate(look.activity):
        words = [int(row[name].astype(np.int64)) for name in ("in_flight0", "in_flight1")]
        if words == [0, 0]:
            continue
        guest = rank - look.geometry.world_size
        who = f"rank {rank}" if guest < 0 else f"guest {guest}"
        what = f"{words[0]} + {words[1]} operations of {who} are counted in flight at rest"
        if world.ended(rank, int(row["incarnation"])) and min(words) >= 0:
            what += ", which has ended"
            remedy = RECOVER if guest < 0 else FORGOTTEN
            yield Finding("I6", look.rank, what, f"activity of {who}", remedy, breach=False)
        else:
            remedy = f"nothing in quarantine is freed until {who} ends: restart it"
            yield Finding("I6", look.rank, what, f"activity of {who}", remedy)


def check_ring(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I10, I7: a hint names a slot that exists, in an epoch that the slot has reached. Holds at any moment."""
    kind, slot, epoch = (field("RING", name, look.ring) for name in ("kind", "header", "epoch"))
    filled = look.ring != 0
    named = np.where(kind == WANTED.value, SIZE_CLASSES, look.geometry.hdr_count)
    wild = filled & ((kind == 0) | (kind > WANTED.value) | (slot >= named))
    remedy = "the poller passes over it; if it happens again, " + REMAKE
    yield from find("I10", look.rank, "invalid hints", "ring slot", wild, remedy)
    tickets = np.flatnonzero(filled & ~wild & (kind != WANTED.value))
    ahead = tickets[epoch[tickets] > look.epoch[slot[tickets]]]
    what = "hints of an epoch that their header has not reached: an epoch went back"
    yield from find("I7", look.rank, what, "ring slot", ahead)
