"""The name of a world's file, and the records at its beginning."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nanokv.device.segment.geometry import PAYLOAD_ALIGN, Geometry
from nanokv.device.segment.layout import HEAP_CTL
from nanokv.device.segment.record import LINE, Field, Record
from nanokv.errors import InvalidArgument

WORLD_MAGIC = 0x444C_574F_4E41_4E00  # "\0NANOWLD"
WORLD_VERSION = 2
TEXT_BYTES = 1024  #: of each text in the header
PREFIX = "nanokv."
BESIDE = "nanokv-*.{:016x}.*"  #: directories that ranks of a world make beside it, by its `world_id`
_MAX_NAME = 255  # NAME_MAX of Linux' file systems

HEADER = Record(
    "WorldHeader",
    LINE,
    [
        Field("magic", "<u8", "WORLD_MAGIC, written last: a file without it is not finished"),
        Field("version", "<u4", "WORLD_VERSION"),
        Field("world_size", "<u4", "ranks in the world"),
        Field("world_id", "<u8", "random; the same in each HeapCtl"),
        Field("segments_base", "<u8", "offset of the segment of rank 0"),
        Field("segment_bytes", "<u8", "bytes that each rank has in this file: a segment, or only its control block"),
        Field("waiting", "<u4", "1 while a rank waits for a hint in any segment (`futex`); changed by all ranks"),
        Field("refusals", "<u8", "ranks that were refused because their options differ; under the world lock"),
        Field("refusal", "u1", "why the last one was refused: UTF-8, then zeros", repeat=TEXT_BYTES),
        Field("options", "u1", "what all ranks ask for (`WorldSpec.options`): JSON, then zeros", repeat=TEXT_BYTES),
        Field("clock_ahead", "<i8", "ns that the clock of the ranks' time namespace is ahead of the host's"),
    ],
)

RANK = Record(
    "WorldRank",
    LINE,
    [
        # written only by this rank
        Field("met", "<u8", "attaches that ended with all ranks there; written under the world lock"),
        Field("barrier", "<u8", "barriers that it has come to"),
        Field("pid", "<u4", "its process, for messages"),
        Field("heap_offset", "<u8", "of its segment in the heap of a memory library; 0 if segments are in this file"),
        # changed by whoever puts into this rank's segment
        Field("backed", "<u8", "elastic worlds: offset in its segment up to which the payload has memory (`backing`)"),
    ],
)


class FileKind(NamedTuple):
    """How the names of a kind of worlds' files begin, and how many bytes of such a file each rank has."""

    prefix: str
    rank_bytes: Callable[[Geometry], int]


SEGMENTS = FileKind(PREFIX, lambda geometry: geometry.segment_bytes)  #: the file has the segments
CARDS = FileKind("nanokv-cards.", lambda geometry: HEAP_CTL.size)  #: the file has only their HeapCtl


def directory() -> Path:
    """The folder of worlds: NANOKV_SHM_DIR, else /dev/shm. Absolute: the process may go to another folder meanwhile."""
    return Path(os.environ.get("NANOKV_SHM_DIR") or "/dev/shm").absolute()


def path_of(name: str, prefix: str = PREFIX) -> Path:
    """The file of a world.

    Raises:
        InvalidArgument: the name cannot be part of a file name.
    """
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        raise InvalidArgument(f"the name of a world must be a non-empty string without '/' and NUL, not {name!r}")
    try:
        size = len(os.fsencode(prefix + name))
    except UnicodeEncodeError:
        raise InvalidArgument(f"the name of a world must be encodable, not {name!r}") from None
    if size > _MAX_NAME:
        raise InvalidArgument(
            f"the name of a world has at most {_MAX_NAME - len(prefix)} bytes, not {size - len(prefix)}"
        )
    return directory() / (prefix + name)


def segments_base(world_size: int) -> int:
    """Offset of the first segment."""
    return -(-(HEADER.size + world_size * RANK.size) // PAYLOAD_ALIGN) * PAYLOAD_ALIGN
