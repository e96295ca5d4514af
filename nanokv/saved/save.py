"""From segments to a file: each object is copied into it, then kept if it was there all the time.

At most CHUNK_BYTES of payloads are in memory. An object that went away is overwritten in the file by the next one.
"""

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from nanokv.allocation.stored_layouts import layout_in
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.last_access import time_of
from nanokv.device.segment.layout import FLAG_LABEL, LAYOUT, LOW32, WORD, unpack
from nanokv.errors import FileUnusable, InvalidArgument, NanoKVError
from nanokv.fsck.contents import is_possible
from nanokv.host_poller.index import key_of
from nanokv.saved.layout import CHUNK_BYTES, HEADER, OBJECT, SAVED_MAGIC, SAVED_VERSION, padded
from nanokv.saved.source import Source
from nanokv.saved.times import Moment
from nanokv.types import KeyDigest, Saved

# --- A file that takes an older one's place when it is whole, or not at all -------------------
_PREFIX = ".nanokv-save-"  #: of the file before it has its name


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file to write, which gets the name `path` at the end of the block. Its user alone may read it.

    It is on the disk before it gets its name. If the block raises, it is removed, and what had the name is as it was.
    A process that is killed leaves it behind, under a name that begins with `.nanokv-save-`.

    Raises:
        InvalidArgument: the name is that of something else than a file.
        FileUnusable: the file cannot be made or written: no such folder, no permission, no space.
    """
    try:
        target = path.resolve()  # a symbolic link stays one
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise InvalidArgument(f"{path} is no file: nothing is saved there")
        with _temporary(target) as file:
            yield file
    except NanoKVError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FileUnusable(f"{path} cannot be written: {error}") from error


@contextmanager
def _temporary(target: Path) -> Iterator[BinaryIO]:
    fd, name = tempfile.mkstemp(prefix=_PREFIX, dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power, where the file system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# --- saving -----------------------------------------------------------------------------------
Progress = Callable[[int, int], None]  #: bytes that are done, of so many
Rows = npt.NDArray[Any]  #: OBJECT records


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def save(
    path: Path,
    sources: Sequence[Source],
    geometry: Geometry,
    options: Mapping[str, Any],
    progress: Progress = no_progress,
) -> Saved:
    """Save what is READY in segments of one world now; least recently used objects come first, segment by segment.

    Of several copies of an object one is saved.

    Args:
        options: `WorldSpec.options` of the world.

    Raises:
        InvalidArgument, FileUnusable: as `replacing`; a file that had the name is as it was.
    """
    ready = [source.ready() for source in sources]
    total = sum(int(each.headers["bytes_total"].sum()) for each in ready)
    with replacing(path) as file:
        writer = _Writer(file, geometry, lambda done: progress(done, total))
        for source, (slots, headers) in zip(sources, ready, strict=True):
            for i in time_of(headers["last_access"]).argsort(kind="stable").tolist():
                writer.add(source, int(slots[i]), headers[i])
        writer.finish([source.layouts() for source in sources], options)  # objects that were found have theirs by now
    return writer.counts


class _Writer:
    """Writes one file."""

    def __init__(self, file: BinaryIO, geometry: Geometry, done: Callable[[int], None]) -> None:
        self._file = file
        self._geometry = geometry
        self._done = done
        self._seen = 0
        self._end = HEADER.size  # of the payloads so far
        self._rows: list[Rows] = []
        self._keys: set[KeyDigest] = set()  # of the rows
        self._buffer = np.empty(CHUNK_BYTES, np.uint8)
        self._moment = Moment.now()
        self.counts = Saved(0, 0, 0, 0)

    def add(self, source: Source, slot: int, header: Any) -> None:
        """Append an object, or count it as one that went away or is damaged; nothing, if a copy of it is there."""
        if key_of(header) in self._keys:
            self._pass_over(int(header["bytes_total"]))
            return
        row = self._row(source, slot, header)
        verdict = Status.CORRUPT
        if self._is_inside(header):
            row["checksum"] = self._copy(source, header)
            verdict = Status(source.verdict(slot, header))
        if verdict == Status.OK and not is_possible(row[0], int(header["bytes_total"])):
            verdict = Status.CORRUPT
        nbytes, counts = int(header["bytes_total"]), self.counts
        if verdict == Status.OK:
            self._rows.append(row)
            self._keys.add(key_of(header))
            self._end += padded(nbytes)
            self.counts = counts._replace(objects=counts.objects + 1, bytes=counts.bytes + nbytes)
        elif verdict == Status.CORRUPT:
            self.counts = counts._replace(damaged=counts.damaged + 1)
        else:
            self.counts = counts._replace(left_out=counts.left_out + 1)
        self._pass_over(nbytes)

    def _pass_over(self, nbytes: int) -> None:
        self._seen += nbytes
        self._done(self._seen)

    def _row(self, source: Source, slot: int, header: Any) -> Rows:
        row, descriptor, key = np.zeros(1, OBJECT.dtype), source.descriptor(slot), key_of(header)
        row["key_hash"], row["key_check"] = np.array(key, np.int64).view(np.uint64)
        row["format"] = descriptor["format"] & np.uint64(LOW32.value)  # without the checksum
        row["dims"] = descriptor["dims"]
        row["bytes_total"], row["offset"] = header["bytes_total"], self._end
        moment = self._moment._replace(clock=source.clock)
        row["last_used"] = moment.to_wall(int(time_of(header["last_access"])))
        row["rank"] = source.rank
        row["priority"] = unpack("ACCESS", "priority", header["last_access"])
        if header["flags"] & FLAG_LABEL.value:
            label = source.label(slot)
            row["group"], row["until"] = label["group"], moment.to_wall(int(label["until"]))
        return row

    def _is_inside(self, header: Any) -> bool:
        """Whether the payload lies where payloads can; not so in a corrupt segment."""
        at, payload, nbytes = self._geometry.offsets, int(header["payload_base"]), int(header["bytes_total"])
        return not nbytes or at["heap_base"] <= payload <= payload + nbytes <= at["heap_limit"]

    def _copy(self, source: Source, header: Any) -> int:
        """Write the bytes of an object, and zeros up to the next one. Returns their checksum."""
        payload, nbytes, hashed = int(header["payload_base"]), int(header["bytes_total"]), xxhash.xxh3_64()
        self._file.seek(self._end)
        for start in range(0, nbytes, CHUNK_BYTES):
            part = self._buffer[: min(CHUNK_BYTES, nbytes - start)]
            source.read(payload + start, part)
            hashed.update(part.data)
            self._file.write(part.data)
        zeros = bytes(padded(nbytes) - nbytes)
        hashed.update(zeros)
        self._file.write(zeros)
        return hashed.intdigest()

    def finish(self, layouts: Sequence[npt.NDArray[Any]], options: Mapping[str, Any]) -> None:
        """Write the rows behind the payloads, and the header."""
        rows = b"".join(row.tobytes() for row in self._rows)
        found = dict.fromkeys(_plain(row) for table in layouts for row in table if layout_in(row) is not None)
        text = json.dumps(dict(options)).encode()
        header = np.zeros(1, HEADER.dtype)
        header["magic"], header["version"] = SAVED_MAGIC, SAVED_VERSION
        header["saved_wall"], header["saved_clock"], header["saved_boot"] = self._moment
        header["payload_bytes"] = self._end - HEADER.size
        header["objects"], header["layouts"], header["options_bytes"] = len(self._rows), len(found), len(text)
        tail = b"".join((rows, *found, text))
        header["file_bytes"] = self._end + len(tail)
        header["check"] = check_of(header.tobytes(), tail)
        self._file.seek(self._end)
        self._file.write(tail)
        self._file.truncate()  # what is left of an object that went away
        self._file.seek(0)
        self._file.write(header.tobytes())


def check_of(header: bytes, tail: bytes) -> int:
    """The word `check` of a header, of itself and of all that stands behind the payloads."""
    at = HEADER.offsets["check"]
    hashed = xxhash.xxh3_64(header[:at] + bytes(WORD) + header[at + WORD :])
    hashed.update(tail)
    return hashed.intdigest()


def _plain(row: Any) -> bytes:
    """A LAYOUT record without what numpy may leave between its fields."""
    plain = np.zeros(1, LAYOUT.dtype)
    plain[0] = row
    return plain.tobytes()
