"""A file of saved objects, checked as a whole before anything of it is used; each payload is checked as it is read."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from nanokv.allocation.stored_layouts import layout_in
from nanokv.device.segment.layout import LAYOUT
from nanokv.errors import FileUnusable, InvalidArgument, NanoKVError, SegmentCorrupt
from nanokv.fsck.contents import is_possible
from nanokv.saved.layout import ALIGN, CHUNK_BYTES, HEADER, OBJECT, SAVED_MAGIC, SAVED_VERSION, padded
from nanokv.saved.save import Rows, check_of
from nanokv.saved.times import Moment


class DamagedObject(Exception):
    """The payload of one object is not the one that was saved."""


class SavedFile:
    """An open file whose header, rows, layouts and options are right.

    Attributes:
        moment: when it was saved.
        rows: OBJECT records.
        layouts: LAYOUT records.
        options: `WorldSpec.options` of the world that was saved.
    """

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file = file
        self._name = name
        self._buffer = np.empty(CHUNK_BYTES, np.uint8)
        raw = file.read(HEADER.size).ljust(HEADER.size, b"\0")
        counts = self._counts(raw, size)
        self.moment = Moment.stated_in(counts)
        tail = self._tail(raw, counts)
        rows_bytes, layouts_bytes = counts["objects"] * OBJECT.size, counts["layouts"] * LAYOUT.size
        self.rows: Rows = np.frombuffer(tail[:rows_bytes], OBJECT.dtype)
        self.layouts = np.frombuffer(tail[rows_bytes:][:layouts_bytes], LAYOUT.dtype)
        self.options = self._parsed(tail[rows_bytes + layouts_bytes :])
        self._check_rows(counts["payload_bytes"])

    def _wrong(self, why: str) -> SegmentCorrupt:
        return SegmentCorrupt(f"{self._name}: {why}")

    def _counts(self, raw: bytes, size: int) -> dict[str, int]:
        """The words of the header. `size`: of the file."""
        header = np.frombuffer(raw, HEADER.dtype)[0]
        counts = {field: int(header[field]) for field in HEADER.offsets}
        if counts["magic"] != SAVED_MAGIC:
            raise self._wrong("this is no file of saved objects")
        if counts["version"] != SAVED_VERSION:
            raise self._wrong(f"it is of version {counts['version']}, this build reads {SAVED_VERSION}")
        if counts["file_bytes"] != size:
            raise self._wrong(f"it has {size} bytes, its header says {counts['file_bytes']}: it was cut or changed")
        return counts

    def _tail(self, header: bytes, counts: dict[str, int]) -> bytes:
        """All that stands behind the payloads."""
        start = HEADER.size + counts["payload_bytes"]
        nbytes = counts["objects"] * OBJECT.size + counts["layouts"] * LAYOUT.size + counts["options_bytes"]
        if start + nbytes != counts["file_bytes"]:
            raise self._wrong("the sizes in its header contradict each other: it was changed")
        self._file.seek(start)
        tail = self._file.read(nbytes)
        if check_of(header, tail) != counts["check"]:
            raise self._wrong("the checksum of its header and rows is wrong: it was changed")
        return tail

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            options = json.loads(text)
        except ValueError as error:
            raise self._wrong(f"options: {error}") from None
        if not isinstance(options, dict):
            raise self._wrong(f"options are {options!r}")
        return options

    def _check_rows(self, payload_bytes: int) -> None:
        """The checksum is right; but a file may have been written to deceive."""
        sizes, offsets, end = self.rows["bytes_total"], self.rows["offset"], HEADER.size + payload_bytes
        if (sizes > payload_bytes).any() or (offsets > end).any():
            raise self._wrong("a payload lies where none can be")
        bounds = np.concatenate([offsets, [np.uint64(end)]])
        starts = np.concatenate([[np.uint64(HEADER.size)], offsets + padded(sizes)])
        if not np.array_equal(bounds, starts):
            raise self._wrong("its payloads do not follow one another")
        kinds = np.unique(self.rows[["format", "dims", "bytes_total"]])
        if not all(is_possible(kind, int(kind["bytes_total"])) for kind in kinds):
            raise self._wrong("the dtype and shape of an object do not make its bytes")
        if any(layout_in(row) is None for row in self.layouts):
            raise self._wrong("a layout is wrong")

    def parts(self, row: Any) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The payload of a row, part by part, each with where it begins. A part is valid until the next one.

        Raises:
            DamagedObject: after the last part; or as soon as the file is found to be cut.
        """
        nbytes, hashed = int(row["bytes_total"]), xxhash.xxh3_64()
        self._file.seek(int(row["offset"]))
        for start in range(0, nbytes, CHUNK_BYTES):
            part = self._buffer[: min(CHUNK_BYTES, nbytes - start)]
            if self._file.readinto(part.data) != len(part):  # type: ignore[attr-defined]
                raise DamagedObject
            hashed.update(part.data)
            yield start, part
        hashed.update(self._file.read(-nbytes % ALIGN))
        if hashed.intdigest() != row["checksum"]:
            raise DamagedObject


@contextmanager
def open_saved(path: Path) -> Iterator[SavedFile]:
    """Open and check a file.

    Raises:
        InvalidArgument: it is no regular file.
        FileUnusable: it cannot be read.
        SegmentCorrupt: it is no file of saved objects of this version, or it was cut or changed.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe would keep us waiting
            raise InvalidArgument(f"{path} is no regular file")
        with path.open("rb") as file:
            yield SavedFile(file, str(path), os.fstat(file.fileno()).st_size)
    except NanoKVError:
        raise
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read: {error}") from error
