"""How a rank comes into a world of processes, and how it goes: all under the world lock (`world_file`)."""

import contextlib
import os
import time
from typing import Any

from nanokv.device.segment.clock import offset_ns
from nanokv.device.segment.geometry import MODES, Geometry
from nanokv.device.segment.last_access import NS
from nanokv.device.segment.layout import CLOSED
from nanokv.errors import HeapUnavailable, NanoKVError, RankTaken, SegmentCorrupt
from nanokv.heap.world_file import WorldFile
from nanokv.heap.world_file_layout import SEGMENTS, FileKind
from nanokv.heap.world_spec import STORED, WorldSpec, differing

_POLL = 0.002  #: seconds between two looks for guests
_LEAVE_SECONDS = 5.0  #: how long a leaving rank waits for the world lock


def enter(spec: WorldSpec, rank: int, deadline: float, kind: FileKind = SEGMENTS) -> WorldFile:
    """Open or make the world's file, and take the rank's lock. Returns with the world lock held.

    Raises: see `ShmHeap.attach`.
    """
    while True:
        file = WorldFile.open_locked(spec.name, deadline, create=True, kind=kind)
        try:
            first = not file.anybody_alive()
            if _settle(file, spec):
                _check_fits(file, spec, rank, first)
                if first and file.has_guests():
                    _check_time(file, deadline)
                    file.locks.close()  # others may look at the world, or remove it, meanwhile
                    time.sleep(_POLL)
                    continue
                if first:
                    _examine(file, spec)
                if not file.locks.try_lock(rank):
                    pid = file.rank_record(rank)["pid"]
                    raise RankTaken(f"rank {rank} of world {spec.name!r} is taken by a living process ({pid})")
                return file
        except BaseException:
            if file.is_new:
                file.remove()
            file.locks.close()
            raise
        file.locks.close()


def _settle(file: WorldFile, spec: WorldSpec) -> bool:
    """Make the world if there is none; decide about a stale one. False if the file was removed: begin again."""
    if file.anybody_alive():
        return True
    replace = spec.on_stale == "replace"
    try:
        head = file.header()
    except NanoKVError:
        if not replace or not file.is_world():
            raise
        head = None
    if head is None and os.fstat(file.locks.fd).st_size == 0:
        file.create(spec)
        return True
    if head is None or replace or file.holds_nothing(head):
        file.remove()
        return False
    if spec.on_stale == "error":
        raise HeapUnavailable(
            f"the name {file.name!r} is that of a world whose ranks have all died; `nanokv rm {file.name}` removes it, "
            "on_stale='recover' takes it over with what it holds, on_stale='replace' begins an empty one"
        )
    return True


def _check_time(file: WorldFile, deadline: float) -> None:
    """Raise HeapUnavailable if guests that the dead ranks of a world have left are still there at `deadline`.

    They see the end of the ranks at once, and end what they have begun.
    """
    if time.monotonic() >= deadline:
        raise HeapUnavailable(
            f"world {file.name!r} is not taken over: its ranks have died, and guests still work in its memory (is one "
            "of their processes stopped?)"
        )


def _examine(file: WorldFile, spec: WorldSpec) -> None:
    """Look at a dead world that is about to be taken over. Raises what `spec.examine` raises."""
    head = file.header()
    if (
        spec.examine is not None
        and not file.holds_nothing(head)
        and all(ctl is not None for ctl in file.controls(head))
    ):
        spec.examine(file.name, file.map(writable=False).parts, spec.geometry, spec.mode)


def _check_fits(file: WorldFile, spec: WorldSpec, rank: int, first: bool) -> None:
    """Compare what the file states with the world that this rank asks for.

    Args:
        first: no rank is alive. Then this one states the options that may change while the world keeps its objects.

    Raises:
        HeapUnavailable: the ranks ask for different worlds; it names the options and both values. The ranks that wait
            raise the same.
        SegmentCorrupt: a control block contradicts itself, or is of another build.
    """
    where, world_size = f"world {file.name!r}", spec.geometry.world_size
    head = file.header()
    if head is None:
        raise SegmentCorrupt(f"{where} has ranks and no header")
    _check_options(file, head, spec, rank, first)
    _check_clock(file, int(head["clock_ahead"]), rank, first)
    if int(head["world_size"]) != world_size:
        raise SegmentCorrupt(f"{where}: world_size is {head['world_size']}, not {world_size}")
    for other, ctl in enumerate(file.controls(head)):
        if ctl is not None:
            _check_control(f"{where}, segment {other}", ctl, {"rank": other, "world_id": int(head["world_id"])}, spec)
    wanted = file.kind.rank_bytes(spec.geometry)
    if int(head["segment_bytes"]) != wanted:
        raise SegmentCorrupt(f"{where}: segment_bytes is {head['segment_bytes']}, not {wanted}")


def _check_options(file: WorldFile, head: Any, spec: WorldSpec, rank: int, first: bool) -> None:
    theirs, ours = file.options(head), spec.options()
    names = [name for name in differing(theirs, ours) if name in STORED or not first]
    if names:
        has, asks = (", ".join(f"{name}={given.get(name)!r}" for name in names) for given in (theirs, ours))
        why = f"world {file.name!r} has {has}; rank {rank} asks for {asks}: all ranks must ask for the same"
        file.refuse(why)
        raise HeapUnavailable(why)
    if first:
        file.state_options(ours)


def _check_clock(file: WorldFile, theirs: int, rank: int, first: bool) -> None:
    ours = offset_ns()
    if theirs == ours:
        return
    if not first:
        why = (
            f"the process of rank {rank} is in another time namespace than those of world {file.name!r}: its clock "
            f"(CLOCK_BOOTTIME) shows {(ours - theirs) / NS:+g} s, so leases and lifetimes would end at other times"
        )
        file.refuse(why)
        raise HeapUnavailable(why)
    file.state_clock(ours)  # `ShmHeap` moves the times of the segments


def _check_control(where: str, ctl: Any, identity: dict[str, int], spec: WorldSpec) -> None:
    why = spec.geometry.mismatch(ctl)
    if why:
        try:
            Geometry.stored_in(ctl)
        except ValueError:
            raise SegmentCorrupt(f"{where}: {why}") from None
        raise HeapUnavailable(f"{where}: {why}")
    for field, wanted in identity.items():
        if int(ctl[0][field]) != wanted:
            raise SegmentCorrupt(f"{where}: {field} is {ctl[0][field]}, not {wanted}")
    mode = int(ctl[0]["mode"])
    if mode != MODES.index(spec.mode):
        raise HeapUnavailable(f"{where}: mode is {dict(enumerate(MODES)).get(mode, mode)!r}, not {spec.mode!r}")


def leave(file: WorldFile, rank: int, closed: Any) -> None:
    """Give a rank back; the last one removes the file. In a child of a fork: nothing, because the rank is the parent's.

    Args:
        closed: the `closed` word of the rank's HeapCtl, an array of one, to be set; None before the rank wrote one.
    """
    if file.locks.fd < 0:
        return
    try:
        with contextlib.suppress(NanoKVError):  # then the file may stay; the next rank that comes finds it stale
            file.lock_world(time.monotonic() + _LEAVE_SECONDS)
        if closed is not None and not closed[0]:  # an ABSENT segment stays one
            closed[0] = CLOSED
        file.locks.unlock(rank)
        if file.world_locked and not file.anybody_alive():
            file.remove()
    finally:
        file.locks.close()
