"""The contract of an allocator, which `producer` (v2) and `compat_v1.host_allocation` (v1) fulfil."""

from typing import TYPE_CHECKING, Protocol

from nanokv.device.machines.records import Begun, Descriptor, Found, Place, What, Words
from nanokv.keys.digests import Digests
from nanokv.types import KeyDigest

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.engine_cache import Pages


class Allocation(Protocol):
    """How objects are allocated, found and removed.

    Every method may raise `PeerLost`. All answer with a `Status`; FULL, MISS and the like are never raised.
    """

    alloc: str  #: "device" or "host"

    def owner_of(self, key: KeyDigest, preferred: int | None) -> int:
        """The rank whose segment gets a new object: see `Routing.owner_of`.

        Raises:
            OutOfMemory, ReuseViolation: as `stored_layouts.writer`.
        """
        ...

    def put(self, key: KeyDigest, src: int, what: What, preferred: int | None) -> int:
        """Store the contiguous bytes at the address `src`: begin, copy, seal and finish. Answers as `begin`."""
        ...

    def put_refused(self, key: KeyDigest, src: int, what: What, preferred: int | None, owner: int) -> int:
        """`put`, of which a first try in the segment of `owner` was answered FULL: make room, then try again."""
        ...

    def get(self, key: KeyDigest, dst: int, what: What) -> int:
        """Read an object that `Found.suits` to the address `dst`: OK, MISS, NOT_READY, TORN, CORRUPT or SIZE."""
        ...

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, descriptor: Descriptor, *, plan: bool) -> Begun:
        """Claim the key, allocate in the preferred segment (else by the key), publish WRITING.

        `plan`: a kernel that no activity word counts will write the bytes (`open_for_write`).
        """
        ...

    def finish(self, key: KeyDigest, begun: Begun) -> int:
        """WRITING -> READY, announce: OK or LOST."""
        ...

    def abort(self, key: KeyDigest, begun: Begun) -> int:
        """Give up an unfinished object and free it: OK or LOST."""
        ...

    def locate(self, key: KeyDigest) -> Found:
        """Where a READY object lies: OK, MISS, NOT_READY or CORRUPT. It holds only if validated after use."""
        ...

    def exists(self, key: KeyDigest) -> int:
        """OK, NOT_READY or MISS. Does not touch `last_access`."""
        ...

    # many keys in one call: a status each, int64 [n]; None: each key takes a call of its own
    def exist_each(self, keys: Digests) -> Words:
        """`exists` for each key."""
        ...

    def put_each(self, keys: Digests, sources: Words, what: What, preferred: int | None) -> Words | None:
        """`put` for each key and address (int64 [n]), without making room: FULL where there is none yet."""
        ...

    def get_each(self, keys: Digests, targets: Words, what: What) -> Words | None:
        """`get` for each key and address (int64 [n])."""
        ...

    def remove_each(self, keys: Digests) -> Words:
        """`remove` for each key."""
        ...

    def writer_of(self, key: KeyDigest) -> tuple[int, int] | None:
        """The rank and the incarnation that write the object of a key; None if it is READY, or there is none."""
        ...

    def remove(self, key: KeyDigest) -> int:
        """Remove a READY object: OK, MISS, NOT_READY or PINNED."""
        ...

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Remove the object in a header slot: OK, MISS or PINNED."""
        ...

    def evict_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Evict the READY object in a header slot: OK, MISS, or PINNED if a pin or a lease holds it."""
        ...

    def evicted(self) -> int:
        """How many objects the operations of this rank have evicted, from any segment."""
        ...

    def batch(self, capacity: int, pages: "Pages | None" = None) -> "Batch | None":
        """A table of requests that one launch puts, gets, finds or removes; None if every key takes its own call."""
        ...

    def close(self) -> None:
        """End threads and connections. Idempotent."""
        ...


NOWHERE = Place(0, 0, 0)  #: the place of an object that was refused or not found
