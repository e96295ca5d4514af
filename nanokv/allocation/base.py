"""The two ways to allocate behind one API: `device_path` (v2) and `compat_v1.host_path` (v1) both are a Path."""

from typing import NamedTuple, Protocol

from nanokv.device.machines.base import Descriptor, Found
from nanokv.types import KeyDigest


class Write(NamedTuple):
    """An object that is being written. `status` is a `device.status.Status`; the rest is true after OK alone."""

    status: int
    owner: int
    slot: int
    epoch: int
    payload: int  #: offset of the payload in the owner's segment
    nbytes: int
    phase: int  #: the grace phase to leave; -1 if no operation is counted (plans, v1)


class Path(Protocol):
    """How objects are allocated, found and removed. Bytes are moved by the caller, between `begin` and `finish`.

    Every method may raise `PeerLost`. All answer with a `Status`; none raises for FULL, MISS and the like.
    """

    alloc: str  #: "device" or "host"

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, what: Descriptor, *, plan: bool) -> Write:
        """Claim the key, allocate in the preferred segment (else by the key), publish WRITING.

        `plan`: the bytes will come from a kernel that nobody counts (`open_for_write`).
        """
        ...

    def finish(self, key: KeyDigest, write: Write) -> int:
        """WRITING -> READY, announce: OK or LOST."""
        ...

    def abort(self, key: KeyDigest, write: Write) -> int:
        """Give up an unfinished object and free it: OK or LOST."""
        ...

    def locate(self, key: KeyDigest) -> Found:
        """Where a READY object lies: OK, MISS, NOT_READY or CORRUPT. True only if validated after use."""
        ...

    def exists(self, key: KeyDigest) -> int:
        """OK, NOT_READY or MISS. Does not touch `last_access`."""
        ...

    def remove(self, key: KeyDigest) -> int:
        """Remove a READY object: OK, MISS, NOT_READY or PINNED."""
        ...

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Remove the object in a header slot (eviction by the host): OK, MISS or PINNED."""
        ...

    def close(self) -> None:
        """Let go of threads and connections. Idempotent."""
        ...
