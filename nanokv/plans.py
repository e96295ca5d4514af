"""Objects that a kernel of the caller's writes: opened by this rank, not yet committed."""

import threading

from nanokv.allocation.base import Path, Write
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import OBJ_HEADER
from nanokv.errors import KeyNotFound
from nanokv.status_errors import shown
from nanokv.transfer.descriptors import RAW
from nanokv.types import Key, KeyDigest, WritePlan


def header_offset(geometry: Geometry, slot: int) -> int:
    """The offset of a header slot from its segment's base."""
    return geometry.offsets["hdr_base"] + slot * OBJ_HEADER.size


class Plans:
    """The open plans of one cache."""

    def __init__(self, path: Path, geometry: Geometry) -> None:
        self._path = path
        self._geometry = geometry
        self._lock = threading.Lock()
        self._open: dict[KeyDigest, Write] = {}

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None) -> WritePlan | int:
        """Claim and allocate: the plan, or the status that says why not."""
        write = self._path.begin(key, nbytes, preferred, RAW, plan=True)
        if write.status != Status.OK:
            return write.status
        with self._lock:
            self._open[key] = write
        page_bytes = self._geometry.page_bytes
        return WritePlan(
            key_hash=key.key_hash,
            dst_rank=write.owner,
            header_off=header_offset(self._geometry, write.slot),
            payload_base=write.payload,
            page_bytes=page_bytes,
            n_pages=-(-nbytes // page_bytes),
            bytes_total=nbytes,
            epoch=write.epoch,
        )

    def take(self, digest: KeyDigest, key: Key) -> Write:
        """Take a plan out, to commit or abort it.

        Raises:
            KeyNotFound: this cache has not opened it, or it was committed or aborted already.
        """
        with self._lock:
            write = self._open.pop(digest, None)
        if write is None:
            raise KeyNotFound(f"there is no open plan of this cache for key {shown(key)}")
        return write

    def abort_all(self) -> None:
        """Give all open plans up."""
        with self._lock:
            left, self._open = self._open, {}
        for digest, write in left.items():
            self._path.abort(digest, write)
