"""The bytes of a file of saved objects, the only place where they are written down.

    SavedHeader | payload, zeros | payload, zeros | ... | SavedObject rows | LAYOUT rows | options

All numbers are little-endian. Each payload begins at a multiple of ALIGN, right behind the one before it, so that a
reader may map it or read it past the page cache. Zeros fill the file up to there; the next thing begins behind them.
`options` is the JSON of `WorldSpec.options`: how the world was made that the objects come from.

Every byte of the file is under a checksum: SavedHeader, rows and options under `SavedHeader.check`, each payload and
the zeros behind it under `SavedObject.checksum`.

A digest carries the identity and the namespace of its key, so the file needs no keys. Checksums that objects have in a
segment are not stored: a world that wants them makes them anew, after this file's own were compared. So no flag of a
header has to be kept.
"""

from typing import Any

from nanokv.device.segment.layout import MAX_DIMS
from nanokv.device.segment.record import LINE, Field, Record

SAVED_MAGIC = 0x31_45_56_41_53_56_4B_4E  #: "NKVSAVE1" in the file
SAVED_VERSION = 2  #: another one for each change here, of LAYOUT, or of how keys become digests
ALIGN = 4096
CHUNK_BYTES = 8 << 20  #: the most of a payload that is in this process' memory at once

HEADER = Record(
    "SavedHeader",
    ALIGN,
    [
        Field("magic", "<u8", "SAVED_MAGIC"),
        Field("version", "<u8", "SAVED_VERSION"),
        Field("file_bytes", "<u8", "bytes of the whole file"),
        Field("payload_bytes", "<u8", "bytes of all payloads, and of the zeros behind them"),
        Field("objects", "<u8", "SavedObject rows"),
        Field("layouts", "<u8", "LAYOUT rows (`device/segment/layout.py`), one for each identity with a layout"),
        Field("options_bytes", "<u8", "bytes of the options"),
        Field("check", "<u8", "XXH3-64 of this header with 0 in this place, the rows and the options"),
        Field("saved_wall", "<u8", "ns: the wall clock at the saving (`saved.times`); 0 in a file of a build before"),
        Field("saved_clock", "<u8", "ns: the clock of segments at the saving"),
        Field("saved_boot", "<u8", "a digest of the system's name for that start of the machine; 0: unknown"),
    ],
)

OBJECT = Record(
    "SavedObject",
    2 * LINE,
    [
        Field("key_hash", "<u8", "low half of the key's digest"),
        Field("key_check", "<u8", "high half of it; its upper 32 bits name the identity"),
        Field("format", "<u8", "dtype and number of dimensions: FORMAT bits, without a checksum"),
        Field("dims", "<u8", "the shape", repeat=MAX_DIMS),
        Field("bytes_total", "<u8", "bytes of payload"),
        Field("offset", "<u8", "of the payload in the file"),
        Field("checksum", "<u8", "XXH3-64 of the payload and of the zeros behind it"),
        Field("last_used", "<u8", "ns, wall clock: time of the last use in the segment; of a lease, its end"),
        Field("rank", "<u4", "the rank whose segment held it"),
        Field("priority", "<u4", "as in ACCESS"),
        Field("group", "<u8", "as in LABEL"),
        Field("until", "<u8", "ns, wall clock: as in LABEL; 0: never"),
    ],
)


def padded(nbytes: Any) -> Any:
    """The bytes that a payload takes in the file; of an integer, or of each in an array."""
    return (nbytes + ALIGN - 1) // ALIGN * ALIGN
