"""Checks of identity, control words, activity words and the announce ring."""

from collections.abc import Iterator

import numpy as np

from nanokv.device.segment.geometry import MODES
from nanokv.device.segment.layout import REMOVED, unpack
from nanokv.device.segment.views import SegmentView
from nanokv.fsck.look import World
from nanokv.fsck.report import RECOVER, REMAKE, Finding, named

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
        for name, have, want in (
            ("rank", row["rank"], rank),
            ("world_id", row["world_id"], world_id),
            ("mode", row["mode"], MODES.index(mode)),
        ):
            if have != want:
                yield Finding("I10", rank, f"{name} is {have}, not {want}", f"HeapCtl.{name}", _IDENTITY)


def check_control(world: World) -> Iterator[Finding]:
    """I9, I5, I6: the words of HeapCtl are inside their bounds, always; nobody joins free extents at rest."""
    for look in world.looks:
        at, row = look.geometry.offsets, look.ctl[0]
        bump, head = int(row["bump_ptr"]), int(row["hdr_head"])
        if not at["heap_base"] <= bump <= at["heap_limit"]:
            what = f"bump_ptr is {bump}, the arena is {at['heap_base']} to {at['heap_limit']}"
            yield Finding("I9", look.rank, what, "HeapCtl.bump_ptr", REMAKE)
        elif (bump - at["heap_base"]) % look.geometry.page_bytes:
            what = f"bump_ptr is {bump}, not on a page of {look.geometry.page_bytes} bytes"
            yield Finding("I9", look.rank, what, "HeapCtl.bump_ptr", REMAKE)
        if head > look.geometry.hdr_count:
            what = f"hdr_head is {head}, there are {look.geometry.hdr_count} slots"
            yield Finding("I9", look.rank, what, "HeapCtl.hdr_head", REMAKE)
        if row["ann_tail"] > row["ann_head"]:
            what = f"ann_tail {row['ann_tail']} is past ann_head {row['ann_head']}: the poller misses hints"
            yield Finding("I5", look.rank, what, "HeapCtl.ann_tail", REMAKE)
        if row["grace_phase"] > 1:
            what = f"grace_phase is {row['grace_phase']}, not 0 or 1"
            yield Finding("I6", look.rank, what, "HeapCtl.grace_phase", REMAKE)
        if world.quiescent and row["joining"]:
            what = "somebody is said to join free extents at rest"
            ended = world.producer_ended(int(row["joining"]))
            yield Finding("I6", look.rank, what, "HeapCtl.joining", RECOVER if ended else REMAKE, not ended)


def check_activity(world: World) -> Iterator[Finding]:
    """I6: at rest no operation of a living rank is counted in flight, or grace periods never end."""
    if not world.quiescent:
        return
    for look in world.looks:
        for rank, row in enumerate(look.activity):
            words = [int(row[name].astype(np.int64)) for name in ("in_flight0", "in_flight1")]
            ended = world.ended(rank, int(row["incarnation"]))
            if words == [0, 0]:
                continue
            what = f"{words[0]} + {words[1]} operations of rank {rank} are counted in flight at rest"
            if ended and min(words) >= 0:
                what += ", which has ended"
                yield Finding("I6", look.rank, what, f"activity of rank {rank}", RECOVER, breach=False)
            else:
                remedy = f"nothing in quarantine is freed until rank {rank} ends: restart it"
                yield Finding("I6", look.rank, what, f"activity of rank {rank}", remedy)


def check_ring(world: World) -> Iterator[Finding]:
    """I10, I7: a hint names a slot that exists, in an epoch that the slot has reached. Holds at any moment."""
    for look in world.looks:
        kind, slot, epoch = (unpack("RING", name, look.ring).astype(np.int64) for name in ("kind", "header", "epoch"))
        said = look.ring != 0
        wild = said & ((kind == 0) | (kind > REMOVED.value) | (slot >= look.geometry.hdr_count))
        remedy = "the poller passes over it; if it happens again, " + REMAKE
        if wild.any():
            where = named("ring slot", np.flatnonzero(wild))
            yield Finding("I10", look.rank, "hints that can be none", where, remedy)
        tickets = np.flatnonzero(said & ~wild)
        ahead = tickets[epoch[tickets] > look.epoch[slot[tickets]]]
        if len(ahead):
            what = "hints of an epoch that their header has not reached: an epoch went back"
            yield Finding("I7", look.rank, what, named("ring slot", ahead), REMAKE)
