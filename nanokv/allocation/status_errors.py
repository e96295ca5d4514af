"""The only place where a status becomes an exception."""

from nanokv import errors
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.types import Key

_SHOWN = 80


def shown(key: Key) -> str:
    """A key for a message, cut after 80 characters."""
    text = repr(key)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(key)} long)"


def error_for(
    status: int, key: Key, geometry: Geometry, *, nbytes: int = 0, owner: str = "its owner"
) -> errors.NanoKVError:
    """The exception that a status other than OK stands for."""
    name = shown(key)
    heap = f"{geometry.n_pages} pages of {geometry.page_bytes} bytes"
    match status:
        case Status.MISS | Status.TORN:
            return errors.KeyNotFound(f"no object has the key {name}")
        case Status.DUPLICATE:
            return errors.DuplicateKey(f"key {name} exists or is being written; objects are immutable: remove it first")
        case Status.NOT_READY:
            return errors.NotReady(f"the object of key {name} is being written")
        case Status.PINNED:
            return errors.ObjectPinned(f"the object of key {name} is pinned by a reader")
        case Status.FULL:
            return errors.OutOfMemory(f"no room for {nbytes} bytes of key {name} in the segment of {owner} ({heap})")
        case Status.NO_HEADER:
            return errors.OutOfMemory(f"all {geometry.hdr_count} header slots of {owner} are in use: raise max_objects")
        case Status.NO_ENTRY:
            return errors.OutOfMemory(f"the directory has no entry left for key {name}: raise max_objects")
        case Status.NO_PIN:
            return errors.OutOfMemory(f"all {geometry.pin_slots} lines of the pin ledger are in use")
        case Status.TOO_LARGE if geometry.pages_of(nbytes) > geometry.n_pages:
            whole = geometry.n_pages * geometry.page_bytes
            return errors.InvalidArgument(f"{nbytes} bytes are more than a segment has, {whole}: raise heap_bytes")
        case Status.TOO_LARGE:
            return errors.InvalidArgument(
                f"{nbytes} bytes are more than the largest object, {geometry.max_object_bytes} bytes: "
                "raise page_bytes, heap_bytes or size_classes"
            )
        case Status.SIZE:
            return errors.InvalidArgument(
                f"the object of key {name} has another size, dtype or shape; {nbytes} bytes fit"
            )
        case Status.INVALID:
            return errors.InvalidArgument(
                f"the request for key {name} is refused: its owner, size, flags, lease or time cannot be"
            )
        case Status.LOST | Status.BUSY:
            return errors.WriteLost(f"the object of key {name} was given up while it was written: raise write_timeout")
        case Status.CORRUPT:
            return errors.SegmentCorrupt(
                f"a word that leads to key {name} points where nothing can be, or its checksum is wrong; "
                "run nanokv fsck"
            )
    return errors.NanoKVError(f"unexpected status {status} for key {name}")
