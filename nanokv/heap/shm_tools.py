"""Worlds of shared memory seen from outside: list, inspect, remove. For the command line and for fsck."""

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import MODES, Geometry
from nanokv.device.segment.layout import ABSENT
from nanokv.errors import HeapUnavailable, SegmentCorrupt
from nanokv.heap.world_file import PREFIX, WorldFile, directory, guest_lock

_LOCK_SECONDS = 30.0  #: a creator holds the world lock while it reserves memory


@dataclass(frozen=True)
class ShmWorldInfo:
    """A world at the time of `inspect`. The segments are the memory itself, not copies, and stay mapped.

    Attributes:
        segments: each rank's segment, uint8 [geometry.segment_bytes].
        options: as the ranks stated them last (`WorldSpec.options`); empty if they cannot be read.
        geometry, mode: as stored in an initialised segment.
        alive: per rank, whether its process lives. guests: the same per guest.
        absent: per rank of an elastic world, whether it has not come yet, or has left for good.
        initialised: per rank, whether it has ever attached.
    """

    name: str
    path: Path
    world_id: int
    world_size: int
    mode: str
    options: dict[str, Any]
    geometry: Geometry
    segments: list[npt.NDArray[np.uint8]]
    alive: list[bool]
    guests: list[bool]
    initialised: list[bool]
    absent: list[bool]


def inspect(name: str, *, writable: bool = False) -> ShmWorldInfo:
    """Map a world, living or dead, without being a rank of it.

    Args:
        writable: map the segments writable, so that protocol functions may run on them.

    Raises:
        HeapUnavailable: there is no such world, or it is not finished.
        SegmentCorrupt: it is damaged, or of another build.
    """
    file = WorldFile.open_locked(name, time.monotonic() + _LOCK_SECONDS, create=False)
    with closing(file.locks):
        head = file.header()
        if head is None:
            raise HeapUnavailable(f"world {name!r} was never finished; `nanokv rm {name}` removes it")
        controls = file.controls(head)
        geometry, mode = _stored_in(name, controls, int(head["segment_bytes"]))
        return ShmWorldInfo(
            name=name,
            path=file.path,
            world_id=int(head["world_id"]),
            world_size=len(controls),
            mode=mode,
            options=_options(file, head),
            geometry=geometry,
            segments=file.map(writable=writable).parts,
            alive=[file.locks.held(rank) for rank in range(len(controls))],
            guests=[file.locks.held(guest_lock(guest)) for guest in range(geometry.guests)],
            initialised=[ctl is not None for ctl in controls],
            absent=[ctl is not None and int(ctl[0]["closed"]) == ABSENT for ctl in controls],
        )


def _options(file: WorldFile, head: Any) -> dict[str, Any]:
    """The options of the ranks, without those that are damaged: fsck can still look at the segments."""
    with suppress(SegmentCorrupt):
        return file.options(head)
    return {}


def _stored_in(name: str, controls: list[Any], segment_bytes: int) -> tuple[Geometry, str]:
    """Geometry and mode as the first sound control block has them."""
    why = "no segment is initialised"
    for rank, ctl in enumerate(controls):
        if ctl is None:
            continue
        try:
            geometry = Geometry.stored_in(ctl)
            mode = MODES[int(ctl[0]["mode"])]
        except (ValueError, IndexError) as error:
            why = f"segment {rank}: {error}"
            continue
        if (geometry.segment_bytes, geometry.world_size) == (segment_bytes, len(controls)):
            return geometry, mode
        why = f"segment {rank}: segment_bytes is {geometry.segment_bytes}, the file says {segment_bytes}"
    raise SegmentCorrupt(f"world {name!r}: {why}")


def remove_world(name: str, *, force: bool = False) -> None:
    """Remove a world's file. Living ranks keep their memory, and no rank can join them any more.

    Raises:
        HeapUnavailable: there is no such world; or a rank is alive, and `force` is False.
    """
    file = WorldFile.open_locked(name, time.monotonic() + _LOCK_SECONDS, create=False)
    with closing(file.locks):
        if file.anybody_alive() and not force:
            raise HeapUnavailable(f"world {name!r} is in use: a rank of it is alive")
        file.remove()


def taken_by(name: str) -> int:
    """Bytes of memory that a world's file takes: the blocks that it has, not its length.

    Raises:
        HeapUnavailable: there is no such world.
    """
    try:
        return (directory() / f"{PREFIX}{name}").stat().st_blocks * 512
    except OSError as error:
        raise HeapUnavailable(f"world {name!r}: {error.strerror}") from None


def list_worlds() -> list[str]:
    """The names of all worlds of shared memory on this host (in NANOKV_SHM_DIR), living and dead.

    Raises:
        HeapUnavailable: NANOKV_SHM_DIR is no folder, or cannot be read. (A system without /dev/shm has no worlds.)
    """
    try:
        return sorted(p.name.removeprefix(PREFIX) for p in directory().iterdir() if p.name.startswith(PREFIX))
    except OSError as error:
        if "NANOKV_SHM_DIR" not in os.environ:
            return []
        raise HeapUnavailable(f"NANOKV_SHM_DIR is {directory()}: {error.strerror}") from None
