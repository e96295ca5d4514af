"""Leases: a removal that is not forced is refused for some time after a read, because programs count on that.

NanoKV's own reads need none. A lease is the time of the last read, which each read leaves in the object's header.
"""

import os

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Found, Place
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import ACCESS_TIME, unpack
from nanokv.types import KeyDigest

LEASE_VARIABLE = "NANOKV_MOONCAKE_LEASE_MS"
_DEFAULT_LEASE = 10_000  #: milliseconds, as the real master's
_NS_PER_MS = 1_000_000


class Leases:
    """Tells whether objects are under a lease. The variable NANOKV_MOONCAKE_LEASE_MS says how long one takes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ns = int(os.environ.get(LEASE_VARIABLE) or _DEFAULT_LEASE) * _NS_PER_MS

    def holds(self, digest: KeyDigest, found: Found) -> bool:
        """Whether a read of the object that was found, or of a copy of it, protects it at this moment."""
        now = now_ns()
        return self._is_used(found.place, now) or any(
            self._is_used(place, now) for place in self._machine.find_copies(digest)
        )

    def access(self, place: Place) -> int:
        """The ACCESS word of an object."""
        return int(self._machine.headers(place.owner, place.slot, 1)["last_access"][0])

    def _is_used(self, place: Place, now: int) -> bool:
        access = self.access(place)
        return bool(unpack("ACCESS", "use", access)) and (access & ACCESS_TIME.value) + self._ns > now
