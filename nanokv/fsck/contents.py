"""Checks of what READY objects hold: descriptors against sizes, and checksums over their bytes."""

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import FLAG_CHECKSUM, MAX_DIMS, PIN_BITS, key_checks
from nanokv.dtypes import DTYPE_BYTES
from nanokv.fsck.look import Look, Mask, WorldLook, field
from nanokv.fsck.report import Finding, find

_RAW = 0  #: dtype code of an object without dtype and shape
_REMEDY = "a read answers SegmentCorrupt: remove the key, and put it again; if it comes back, test the memory"


def check_descriptors(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I4: dtype and shape of a READY object make its number of bytes. Holds at any moment."""
    slots = np.flatnonzero(look.ready)
    wrong = [
        slot
        for slot in slots.tolist()
        if not is_possible(look.descriptors[slot], int(look.headers["bytes_total"][slot]))
    ]
    what = "descriptors contradict the bytes of their objects"
    yield from find("I4", look.rank, what, "slot", np.array(wrong, np.int64), _REMEDY)


def is_possible(row: Any, nbytes: int) -> bool:
    """Whether the dtype and shape in a record's `format` and `dims` (OBJ_DESC, SavedObject) make `nbytes`."""
    code, ndim = (int(field("FORMAT", name, row["format"])) for name in ("dtype", "ndim"))
    if code == _RAW:
        return True
    if code > len(DTYPE_BYTES) or ndim > MAX_DIMS:
        return False
    shape = [int(extent) for extent in row["dims"][:ndim]]
    return prod(shape) * DTYPE_BYTES[code - 1] == nbytes


def check_checksums(world: WorldLook, look: Look) -> Iterator[Finding]:
    """I4: the bytes of a READY object have its checksum, if it has one. An object that went away meanwhile is left out.

    Runs code that is compiled at its first use, over all bytes of these objects.
    """
    sound, _ = look.extents(look.ready, whole=world.allocates)
    flagged = summed(look)
    wrong = [slot for slot in sound.slots.tolist() if flagged[slot] and not _is_right(look, slot)]
    stayed = [slot for slot in wrong if not (int(look.view.states[slot]) ^ int(look.states[slot])) & ~PIN_BITS.value]
    what = "objects whose bytes, key or descriptor are not those that their checksum was made of"
    yield from find("I4", look.rank, what, "slot", np.array(stayed, np.int64), _REMEDY)


def summed(look: Look) -> Mask:
    """READY objects that have a checksum."""
    found: Mask = look.ready & (look.headers["flags"] & FLAG_CHECKSUM.value > 0)
    return found


def _is_right(look: Look, slot: int) -> bool:
    header = look.headers[slot]
    if int(header["bytes_total"]) > int(header["n_pages"]) * look.geometry.page_bytes:
        return True  # `slots.check_headers` reports it
    return has_right_checksum(look.view.raw, header, look.descriptors[slot])


def has_right_checksum(raw: npt.NDArray[np.uint8], header: Any, row: Any) -> bool:
    """Whether the bytes of an object in a segment make the checksum in its descriptor. They lie inside the segment."""
    at = int(raw.ctypes.data) + int(header["payload_base"])
    words = [int(word.view(np.int64)) for word in (header["key_hash"], key_checks(header))]
    form, dims = row["format"].view(np.int64), row["dims"].view(np.int64)
    value = int(_checksum()(*words, int(header["bytes_total"]), at, int(form), *dims.tolist()))
    return bool(value == int(field("FORMAT", "checksum", row["format"])))


@cache
def _checksum() -> Any:
    from nanokv.device.machines.native_code import native_function  # brings numba, which other checks do not need
    from nanokv.device.protocol.checksum import stored_checksum

    return native_function(stored_checksum)
