"""The loop of a poller's rounds in native code: see `machines.ring_rounds`."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.clock import monotonic_ns, nap
from nanokv.device.native.ingest import ingest
from nanokv.device.segment.host_records import (
    NO_HOLE,
    R_ASKED,
    R_CHANGED,
    R_END,
    R_HEAD,
    R_HOLE,
    R_HOLE_HEAD,
    R_HOLE_PATIENCE,
    R_HOLE_SINCE,
    R_LEAST_PAUSE,
    R_MOST_PAUSE,
    R_PATIENCE,
    R_ROOM,
    R_TAIL,
    R_TAKEN,
    R_WANTED,
)
from nanokv.device.segment.layout import ANN_TAIL
from nanokv.device.segment.world_table import World, segment


@triton.jit
def advance(box: tl.int64, head: tl.int64, hole: tl.int64, now: tl.int64) -> None:
    """`Position.advanced`."""
    waits = load64(box + R_HOLE, "relaxed")
    tail = head
    if hole == head:
        waits = word(NO_HOLE)
    elif (waits == NO_HOLE) | (waits < load64(box + R_TAIL, "relaxed")):
        tail, waits = hole, hole
        store64(box + R_HOLE_SINCE, now, "relaxed")
        store64(box + R_HOLE_HEAD, head, "relaxed")
    elif now - load64(box + R_HOLE_SINCE, "relaxed") > load64(box + R_HOLE_PATIENCE, "relaxed"):
        tail, waits = load64(box + R_HOLE_HEAD, "relaxed"), word(NO_HOLE)
    else:
        tail = load64(box + R_TAIL, "relaxed")
    store64(box + R_HOLE, waits, "relaxed")
    store64(box + R_TAIL, tail, "relaxed")


@triton.jit
def one_round(world: World, owner: tl.int64, box: tl.int64, now: tl.int64) -> Any:
    """Take hints once, and let producers have the ring slots back. Returns how many."""
    before = load64(box + R_TAKEN, "relaxed")
    tail = load64(box + R_TAIL, "relaxed")
    head, hole = ingest(world, owner, box)
    store64(box + R_HEAD, head, "relaxed")
    if head != tail:
        advance(box, head, hole, now)
        store64(segment(world, owner) + ANN_TAIL, load64(box + R_TAIL, "relaxed"), "relaxed")
    return load64(box + R_TAKEN, "relaxed") - before


@triton.jit
def rounds(world: World, owner: tl.int64, box: tl.int64) -> Any:
    """Take hints, round after round, until the host has something to do (ROUNDS record at `box`).

    That is: the time is over, somebody asks for the end, there are changes that a listener waits for, a producer was
    refused, or no hint came for a while: then 1, else 0.
    """
    now = monotonic_ns()
    quiet_since = now
    pause = load64(box + R_LEAST_PAUSE, "relaxed")
    idle = word(0)
    ends = word(0)
    while ends == 0:
        taken = one_round(world, owner, box, now)
        if taken > 0:
            quiet_since = now
            pause = load64(box + R_LEAST_PAUSE, "relaxed")
        idle = select(now - quiet_since >= load64(box + R_PATIENCE, "relaxed"), word(1), word(0))
        late = now >= load64(box + R_END, "relaxed")
        heard = (load64(box + R_CHANGED, "relaxed") | load64(box + R_WANTED, "relaxed")) != 0
        asked = load64(load64(box + R_ASKED, "relaxed"), "relaxed") != 0
        ends = select((idle != 0) | late | heard | asked, word(1), word(0))
        if ends == 0:
            if taken < load64(box + R_ROOM, "relaxed"):  # else there are more
                nap(pause)
                if now != quiet_since:
                    most = load64(box + R_MOST_PAUSE, "relaxed")
                    pause = select(pause * 2 > most, most, pause * 2)
            now = monotonic_ns()
    return idle
