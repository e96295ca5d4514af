"""Objects that the caller's kernel writes: opened by this rank, not yet committed."""

import threading

from nanokv.allocation.base import Allocation
from nanokv.allocation.status_errors import shown
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import NO_TERMS, Begun, Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import KeyNotFound
from nanokv.transfer.descriptors import RAW
from nanokv.types import Key, KeyDigest, WritePlan

_OK = int(Status.OK)


def plan_of(key: KeyDigest, place: Place, geometry: Geometry) -> WritePlan:
    """The plan of an object for the kernel that writes it."""
    return WritePlan(
        key_hash=key.key_hash,
        key_check=key.key_check,
        dst_rank=place.owner,
        header_off=geometry.header_offset(place.slot),
        payload_base=place.payload,
        page_bytes=geometry.page_bytes,
        n_pages=geometry.pages_of(place.nbytes),
        bytes_total=place.nbytes,
        epoch=place.epoch,
    )


class Plans:
    """The open plans of one cache."""

    def __init__(self, allocation: Allocation, machine: Machine) -> None:
        self._allocation = allocation
        self._machine = machine
        self._lock = threading.Lock()
        self._open: dict[KeyDigest, Begun] = {}

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, terms: Terms = NO_TERMS) -> WritePlan | int:
        """Claim and allocate: the plan, or the status of the refusal. `terms`: of the object."""
        begun = self._allocation.begin(key, nbytes, preferred, RAW, plan=True)
        if begun.status != _OK:
            return begun.status
        if terms is not NO_TERMS:
            self._machine.set_terms(begun.place, terms)
        with self._lock:
            self._open[key] = begun
        return plan_of(key, begun.place, self._machine.geometry)

    def take(self, digest: KeyDigest, key: Key) -> Begun:
        """Take a plan out, to commit or abort it.

        Raises:
            KeyNotFound: this cache has not opened it, or it was committed or aborted already.
        """
        with self._lock:
            begun = self._open.pop(digest, None)
        if begun is None:
            raise KeyNotFound(f"there is no open plan of this cache for key {shown(key)}")
        return begun

    def abort_all(self) -> None:
        """Abort all open plans."""
        with self._lock:
            left, self._open = self._open, {}
        for digest, begun in left.items():
            self._allocation.abort(digest, begun)
