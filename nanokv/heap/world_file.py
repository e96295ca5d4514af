"""The one file that a world of processes shares: opening, header, locks, making, removing and mapping it.

    WorldHeader | WorldRank for each rank | segment of rank 0 | segment of rank 1 | ...

The header is written once, its magic last, and read, both under the world lock; only the ranks' options and clock, the
word by which ranks wait, and the note about a refused rank change later. Lock bytes (see `locks`): rank r holds byte r
as long as it lives; byte MAX_RANKS is the world lock, which a rank or a tool holds only while it enters, leaves, or
removes the file; a guest holds the byte of its number (`guest_lock`), and has no part in the rest. The file is made,
replaced and removed only under the world lock. A process that gets that lock on a file that no longer has the name
starts over.
"""

import contextlib
import json
import mmap
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.clock import offset_ns
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ABSENT, HEAP_CTL, MAX_PRODUCERS, MAX_RANKS, WORD
from nanokv.errors import HeapUnavailable, PeerLost, SegmentCorrupt
from nanokv.heap.locks import LockFile
from nanokv.heap.world_file_layout import (
    BESIDE,
    HEADER,
    PREFIX,
    RANK,
    SEGMENTS,
    TEXT_BYTES,
    WORLD_MAGIC,
    WORLD_VERSION,
    FileKind,
    directory,
    path_of,
    segments_base,
)
from nanokv.heap.world_spec import WorldSpec

__all__ = ["HEADER", "PREFIX", "RANK", "WorldFile", "directory", "path_of"]

_WORLD_LOCK = MAX_RANKS
_GUEST_LOCKS = MAX_RANKS + 1


def guest_lock(guest: int) -> int:
    """The byte that a guest locks while it is there. guest: from 0."""
    found: int = _GUEST_LOCKS + guest
    return found


class WorldMap(NamedTuple):
    """A world's file in the memory of this process.

    Attributes:
        area: the mapping.
        header: the WorldHeader, an array of one.
        ranks: the WorldRank of each rank.
        parts: the bytes that each rank has in the file, uint8: its segment, or its card.
    """

    area: mmap.mmap
    header: npt.NDArray[Any]
    ranks: npt.NDArray[Any]
    parts: list[npt.NDArray[np.uint8]]

    def options(self) -> dict[str, Any]:
        """What all ranks ask for (`WorldSpec.options`); {}: it is not stated."""
        text = self.header[0]["options"].tobytes().rstrip(b"\0")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found


class WorldFile:
    """A world's file, opened by one rank or by a tool. Made by `open_locked`."""

    def __init__(self, name: str, path: Path, fd: int, kind: FileKind) -> None:
        self.name = name
        self.what, self.folder = f"world {name!r}", str(path.parent)  #: for messages
        self.kind = kind
        self.path = path
        self.locks = LockFile(fd)
        self.world_locked = False
        self.is_new = False  #: made by this process

    # --- opening and the world lock ---
    @staticmethod
    def open_locked(name: str, deadline: float, *, create: bool, kind: FileKind = SEGMENTS) -> "WorldFile":
        """Open a world's file, holding the world lock.

        Raises:
            HeapUnavailable: there is none and `create` is False, or the file system refuses.
            PeerLost: the world lock was not free by `deadline`.
        """
        path = path_of(name, kind.prefix)
        while True:
            file = WorldFile(name, path, _open(name, path, create), kind)
            try:
                file.lock_world(deadline)
                if file.has_name():
                    return file
            except BaseException:
                file.locks.close()
                raise
            file.locks.close()  # it was removed or replaced in the meantime

    def lock_world(self, deadline: float) -> None:
        """Take the world lock. Raises PeerLost after `deadline`."""
        try:
            self.world_locked = self.world_locked or self.locks.lock(_WORLD_LOCK, deadline)
        except OSError as error:
            raise HeapUnavailable(f"{self.path.parent} has no open-file-description locks: {error}") from None
        if not self.world_locked:
            raise PeerLost(f"another process holds the lock of world {self.name!r}, and did not give it back in time")

    def unlock_world(self) -> None:
        """Give the world lock back."""
        self.locks.unlock(_WORLD_LOCK)
        self.world_locked = False

    def has_name(self) -> bool:
        """True if the name still means this file."""
        try:
            return os.path.samestat(self.path.stat(follow_symlinks=False), os.fstat(self.locks.fd))
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the name, if it still means this file, and what dead ranks left beside it. Under the world lock."""
        if not self.has_name():
            return
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(SegmentCorrupt, OSError):  # OSError: no descriptor is left to look into the folder
            head = None if self.anybody_alive() else self.header()
            if head is not None:
                for left in self.path.parent.glob(BESIDE.format(int(head["world_id"]))):
                    shutil.rmtree(left, ignore_errors=True)

    def anybody_alive(self) -> bool:
        """True if another open file holds the lock of any rank."""
        return self.locks.held(0, MAX_RANKS)

    def has_guests(self) -> bool:
        """True if another open file holds the lock of any guest."""
        return self.locks.held(guest_lock(0), MAX_PRODUCERS)

    # --- the header ---
    def header(self) -> Any | None:
        """The WorldHeader, or None if the file is not finished.

        Raises:
            SegmentCorrupt: the file is no world of this version, or its size is not the one in its header.
        """
        raw = os.pread(self.locks.fd, HEADER.size, 0)
        head = np.frombuffer(raw.ljust(HEADER.size, b"\0"), HEADER.dtype)[0]
        if head["magic"] == 0:
            return None
        for field, wanted in (("magic", WORLD_MAGIC), ("version", WORLD_VERSION)):
            if head[field] != wanted:
                raise SegmentCorrupt(f"{self.path}: {field} is {int(head[field]):#x}, not {wanted:#x}")
        world_size, size = int(head["world_size"]), os.fstat(self.locks.fd).st_size
        if not 1 <= world_size <= MAX_RANKS or int(head["segments_base"]) != segments_base(world_size):
            raise SegmentCorrupt(f"{self.path}: world_size is {world_size}, segments_base {int(head['segments_base'])}")
        stated = int(head["segments_base"]) + world_size * int(head["segment_bytes"])
        if size != stated:
            raise SegmentCorrupt(f"{self.path} is {size} bytes, its header says {stated}")
        return head

    def is_world(self) -> bool:
        """True if the file has the magic of a world, whether the rest is sound or not."""
        return os.pread(self.locks.fd, WORD, 0) == WORLD_MAGIC.to_bytes(WORD, "little")

    def rank_record(self, rank: int) -> Any:
        """The current WorldRank of a rank."""
        raw = os.pread(self.locks.fd, RANK.size, HEADER.size + rank * RANK.size)
        return np.frombuffer(raw, RANK.dtype)[0]

    def options(self, head: Any) -> dict[str, Any]:
        """The options of the world's ranks (`WorldSpec.options`). Raises SegmentCorrupt if there are none."""
        try:
            found = json.loads(head["options"].tobytes().rstrip(b"\0"))
        except ValueError as error:
            raise SegmentCorrupt(f"{self.path}: options: {error}") from None
        if not isinstance(found, dict):
            raise SegmentCorrupt(f"{self.path}: options are {found!r}")
        return found

    def state_options(self, options: dict[str, Any]) -> None:
        """Write the options of the world's ranks. Under the world lock."""
        self._write_text("options", json.dumps(options))

    def state_clock(self, ahead: int) -> None:
        """Write `clock_ahead`. Under the world lock, while no rank lives."""
        os.pwrite(self.locks.fd, ahead.to_bytes(WORD, "little", signed=True), HEADER.offsets["clock_ahead"])

    def refuse(self, why: str) -> None:
        """Tell the ranks that wait for others why one was refused. Under the world lock."""
        self._write_text("refusal", why)
        at = HEADER.offsets["refusals"]
        count = int.from_bytes(os.pread(self.locks.fd, WORD, at), "little")
        os.pwrite(self.locks.fd, (count + 1).to_bytes(WORD, "little"), at)

    def _write_text(self, field: str, text: str) -> None:
        raw = text.encode(errors="replace")[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        os.pwrite(self.locks.fd, raw, HEADER.offsets[field])

    def create(self, spec: WorldSpec) -> None:
        """Reserve the memory of a world and write its header. Under the world lock, on an unfinished file.

        Of an elastic world only the control regions are reserved, and every segment is ABSENT: their directories are in
        use from now on, and each rank that comes reserves its payload (`reserve_payload`).

        Raises:
            HeapUnavailable: there is not enough memory. Nothing is left behind.
        """
        geometry = spec.geometry
        try:
            self._reserve(geometry, sparse=spec.elastic)
            head = np.zeros(1, HEADER.dtype)
            row = head[0]
            row["version"], row["world_size"] = WORLD_VERSION, geometry.world_size
            row["world_id"] = secrets.randbits(63) | 1
            row["segments_base"] = segments_base(geometry.world_size)
            row["segment_bytes"] = self.kind.rank_bytes(geometry)
            row["clock_ahead"] = offset_ns()
            os.pwrite(self.locks.fd, head.tobytes(), 0)
            self.state_options(spec.options())
            for rank in range(geometry.world_size if spec.elastic else 0):
                ctl = spec.absent_block(rank, int(row["world_id"]))
                os.pwrite(self.locks.fd, ctl.tobytes(), self._segment_at(geometry, rank))
            os.pwrite(self.locks.fd, WORLD_MAGIC.to_bytes(WORD, "little"), HEADER.offsets["magic"])
            self.is_new = True
        except BaseException:
            self.remove()
            raise

    def reserve_payload(self, geometry: Geometry, rank: int) -> None:
        """Allocate the blocks of a rank's payload in an elastic world. Raises HeapUnavailable if there is no memory."""
        at = geometry.offsets
        start = self._segment_at(geometry, rank) + at["heap_base"]
        what = f"segment {rank} of world {self.name!r}"
        self._allocate([(start, geometry.segment_bytes - at["heap_base"])], what)

    def free_bytes(self) -> int:
        """How many bytes the folder of worlds has left."""
        return self.locks.free_bytes()

    def reserve(self, geometry: Geometry, rank: int, start: int, end: int) -> bool:
        """Allocate the blocks of a part of a rank's segment. False if there is not enough memory."""
        return self.locks.allocate(self._segment_at(geometry, rank) + start, end - start)

    def _segment_at(self, geometry: Geometry, rank: int) -> int:
        return segments_base(geometry.world_size) + rank * self.kind.rank_bytes(geometry)

    def _reserve(self, geometry: Geometry, *, sparse: bool) -> None:
        """Give the file its size, and allocate its blocks; of a sparse one those of the control regions."""
        os.ftruncate(self.locks.fd, 0)  # drops what a creator that died has written
        ranks, size = range(geometry.world_size), self._segment_at(geometry, geometry.world_size)
        spans = [(0, size)]
        if sparse:
            control = geometry.offsets["heap_base"]
            spans = [(0, segments_base(len(ranks))), *((self._segment_at(geometry, r), control) for r in ranks)]
        self._allocate(spans, f"world {self.name!r} of {len(ranks)} segments")
        try:
            os.ftruncate(self.locks.fd, size)
        except OSError as error:
            raise HeapUnavailable(f"{self.path} cannot have {size} bytes: {error}") from None

    def _allocate(self, spans: list[tuple[int, int]], what: str) -> None:
        """Allocate blocks of the file, by (offset, bytes): a page that is missing later would be a SIGBUS."""
        needed = sum(nbytes for _, nbytes in spans)
        about = os.fstatvfs(self.locks.fd)
        free = about.f_bavail * about.f_frsize
        try:
            if needed > free:
                raise OSError("not enough space")
            for start, nbytes in spans:
                os.posix_fallocate(self.locks.fd, start, nbytes)
        except (OSError, OverflowError) as error:
            raise HeapUnavailable(
                f"{what} needs {needed} bytes, {free} are free in {self.path.parent}: {error}"
            ) from None

    def control(self, head: Any, rank: int) -> Any | None:
        """The HeapCtl of a rank's segment (an array of one), or None if it is not initialised."""
        at = int(head["segments_base"]) + rank * int(head["segment_bytes"])
        raw = os.pread(self.locks.fd, HEAP_CTL.size, at)
        ctl = np.frombuffer(raw.ljust(HEAP_CTL.size, b"\0"), HEAP_CTL.dtype)
        return None if ctl[0]["magic"] == 0 else ctl

    def controls(self, head: Any) -> list[Any | None]:
        """`control` of every rank."""
        return [self.control(head, rank) for rank in range(int(head["world_size"]))]

    def holds_nothing(self, head: Any) -> bool:
        """True if no rank can have stored anything: one never attached, or, in an elastic world, none is there."""
        controls = [ctl for ctl in self.controls(head) if ctl is not None]
        return len(controls) < int(head["world_size"]) or all(int(ctl[0]["closed"]) == ABSENT for ctl in controls)

    # --- mapping ---
    def map(self, *, writable: bool = True) -> WorldMap:
        """Map the whole file of a finished world. Raises HeapUnavailable if that is not possible."""
        fd = self.opened_again()
        try:
            return map_file(fd, writable=writable)
        except OSError as error:
            raise HeapUnavailable(f"{self.path} cannot be mapped: {error}") from None
        finally:
            os.close(fd)

    def opened_again(self) -> int:
        """Another descriptor of the file, which shares no lock with this one (see `locks`). It is the caller's.

        Raises:
            HeapUnavailable: the file cannot be opened, or the name means another one.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise HeapUnavailable(f"{self.path} cannot be opened: {error}") from None
        try:
            is_same = os.path.samestat(os.fstat(fd), os.fstat(self.locks.fd))
        except OSError:  # this one is closed
            is_same = False
        if not is_same:
            os.close(fd)
            raise HeapUnavailable(f"{self.path} was replaced by hand, or this rank has left the world")
        return fd


def map_file(fd: int, *, writable: bool = True) -> WorldMap:
    """Map the whole of a finished world's file. The descriptor may be closed afterwards. Raises OSError."""
    area = mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    whole = np.frombuffer(area, np.uint8)
    header = whole[: HEADER.size].view(HEADER.dtype)
    first, size, count = (int(header[0][field]) for field in ("segments_base", "segment_bytes", "world_size"))
    ranks = whole[HEADER.size :][: count * RANK.size].view(RANK.dtype)
    return WorldMap(area, header, ranks, [whole[first + r * size :][:size] for r in range(count)])


def _open(name: str, path: Path, create: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise HeapUnavailable(
            f"there is no world {name!r} in {path.parent}" if path.parent.is_dir() else f"{path.parent} is no directory"
        ) from None
    except OSError as error:
        raise HeapUnavailable(f"{path} cannot be opened: {error}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise HeapUnavailable(f"{path} is no regular file")
    return fd
