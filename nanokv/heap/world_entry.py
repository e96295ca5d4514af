"""How a rank comes into a world of processes, and how it goes: all under the world lock (`world_file`)."""

import contextlib
import os
import time
from typing import Any, Literal

from nanokv.device.segment.geometry import MODES, Geometry
from nanokv.errors import HeapUnavailable, InvalidArgument, NanoKVError
from nanokv.heap.world_file import WorldFile
from nanokv.heap.world_file_layout import SEGMENTS, Kind

Stale = Literal["error", "recover", "replace"]
_LEAVE_SECONDS = 5.0  #: how long a leaving rank waits for the world lock


def check_arguments(geometry: Geometry, rank: int, mode: str, on_stale: str) -> None:
    """Raise InvalidArgument for what no world can have."""
    if not 0 <= rank < geometry.world_size:
        raise InvalidArgument(f"rank must be 0 to {geometry.world_size - 1}, not {rank}")
    for field, value, allowed in (("mode", mode, MODES), ("on_stale", on_stale, ("error", "recover", "replace"))):
        if value not in allowed:
            raise InvalidArgument(f"{field} must be one of {allowed}, not {value!r}")


def enter(
    name: str, geometry: Geometry, rank: int, mode: str, on_stale: str, deadline: float, kind: Kind = SEGMENTS
) -> WorldFile:
    """Open or make the world, and take the rank's lock. Returns with the world lock held.

    Raises: see `ShmHeap.attach`.
    """
    while True:
        file = WorldFile.open_locked(name, deadline, create=True, kind=kind)
        try:
            if _settle(file, geometry, on_stale):
                head = file.header()
                file.check(head, geometry, mode)
                if not file.locks.try_lock(rank):
                    pid = file.pid_of(rank)
                    raise HeapUnavailable(f"rank {rank} of world {name!r} is taken by a living process ({pid})")
                return file
        except BaseException:
            file.locks.close()
            raise
        file.locks.close()


def _settle(file: WorldFile, geometry: Geometry, on_stale: str) -> bool:
    """Make the world if there is none; decide about a stale one. False if the file was removed: begin again."""
    if file.anybody_alive():
        return True
    replace = on_stale == "replace"
    try:
        head = file.header()
    except NanoKVError:
        if not replace or not file.is_world():
            raise
        head = None
    if head is None and os.fstat(file.locks.fd).st_size == 0:
        file.create(geometry)
        return True
    if head is None or replace or not file.complete(head):
        file.remove()
        return False
    if on_stale == "error":
        raise HeapUnavailable(
            f"the name {file.name!r} is that of a world whose ranks have all died; `nanokv rm {file.name}` removes it, "
            "on_stale='recover' takes it over with what it holds, on_stale='replace' begins an empty one"
        )
    return True


def leave(file: WorldFile, rank: int, closed: Any) -> None:
    """Give a rank back; the last one removes the file. In a child of a fork: nothing, the rank is the parent's.

    `closed` is the word of its segment that says so, an array of one, or None.
    """
    if file.locks.fd < 0:
        return
    with contextlib.suppress(NanoKVError):  # then the file may stay; the next one to come finds it stale
        file.lock_world(time.monotonic() + _LEAVE_SECONDS)
    if closed is not None:
        closed[0] = 1
    file.locks.unlock(rank)
    if file.world_locked and not file.anybody_alive():
        file.remove()
    file.locks.close()
