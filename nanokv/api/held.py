"""What is true of an object that exists: its terms, its copies in other segments, where it lies."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nanokv.api.world import World
from nanokv.arguments import seconds
from nanokv.changed_terms import change_terms
from nanokv.device.machines.records import Found, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import InvalidArgument
from nanokv.groups import drop_group
from nanokv.pinned import Pin, Pinned
from nanokv.terms import Hold, change_to
from nanokv.transfer.single import TRIES
from nanokv.types import Key, ObjMeta


class Held(World):
    """Terms, copies, places and pins."""

    def hold(self, keys: Sequence[Key], hold: float | Hold) -> list[bool]:
        """Give objects that exist other terms, as `put(..., hold=hold)` does; per key False if there is none (yet).

        Seconds lease an object, and leave its priority alone. A Hold gives it that priority, and leaves its lease alone
        if it has no seconds. Best effort: an eviction that has begun already may still take the object.

        Raises:
            InvalidArgument: `hold` is neither a positive number of seconds nor a Hold.
        """
        self._check_open()
        change = change_to(hold, self._hasher.group)
        return [change_terms(self._machine, self._allocation, digest, change) for digest in self._digests(keys)]

    def drop_group(self, group: str) -> int:
        """Remove the objects that were put with `Hold(group=group)` in this identity and namespace, from all segments.

        Pinned objects stay, and those that are not READY yet. Returns the number of objects removed.

        Raises:
            InvalidArgument: `group` is no name of a group.
        """
        self._check_open()
        if not (isinstance(group, str) and group):
            raise InvalidArgument(f"group must be a non-empty str, not {group!r}")
        return drop_group(self._machine, self._allocation, self._hasher.group(group))

    # --- copies in other segments ---
    def replicate(self, key: Key, rank: int | None = None) -> bool:
        """Copy an object into the segment of a rank, by default this one.

        True if this call made the copy, False if that segment had the object.

        Raises:
            KeyNotFound, NotReady, OutOfMemory, SegmentCorrupt, WriteLost, PeerLost: there is no copy.
            InvalidArgument: there is no such rank, the object has no bytes, or this cache has `alloc="host"`.
        """
        self._check_open()
        status = self._replicas.copy(self._hash(key), rank)
        if status == Status.INVALID:
            raise InvalidArgument(f"the object of key {key!r} has no bytes, and so no copies")
        if status not in (Status.OK, Status.DUPLICATE):
            raise self._error(status, key)
        return status == Status.OK

    def copies(self, key: Key) -> list[int]:
        """The ranks whose segments have the object of a key, the nearest first; without one, none.

        Raises:
            InvalidArgument: this cache has `alloc="host"`.
        """
        self._check_open()
        return self._replicas.ranks(self._hash(key))

    # --- in place ---
    def get_location(self, key: Key, *, timeout: float = 0.0) -> ObjMeta:
        """Where a READY object lies. It may be removed or evicted at any time: `pin` it, or validate after use.

        Raises:
            KeyNotFound, NotReady: after `timeout` seconds.
        """
        return self._meta(key, self._found(key, timeout).place)

    def pin(self, key: Key, *, timeout: float = 0.0) -> Pinned:
        """Hold an object in place: `with cache.pin(key) as tensor:` gives its bytes without a copy.

        Raises:
            KeyNotFound, NotReady, OutOfMemory (the pin ledger is full), SegmentCorrupt.
        """
        deadline = time.monotonic() + seconds("timeout", timeout)
        for _ in range(TRIES):
            found = self._found(key, max(deadline - time.monotonic(), 0.0))
            status, line = self._machine.pin(found.place)
            if status != Status.MISS:
                break
        if status != Status.OK:
            raise self._error(status, key)
        self._machine.touch(found.place, now_ns())
        payload, owner = self._pins.payload(found.place)
        tensor = self._single.view(found, payload)
        meta = self._meta(key, found.place)
        shown = tensor if tensor is not None else payload
        pinned = Pinned(self._pins, Pin(found.place, line), owner, shown, meta)
        if tensor is None or not self._single.is_right_in_place(self._hash(key), found):
            pinned.release()
            raise self._error(Status.CORRUPT, key)
        return pinned

    def _found(self, key: Key, timeout: float) -> Found:
        self._check_open()
        digest = self._hash(key)
        timeout = seconds("timeout", timeout)
        if timeout > 0:
            self._wait_for([digest], timeout)
        found = self._allocation.locate(digest)
        if found.status:
            raise self._error(found.status, key)
        return found

    def _meta(self, key: Key, place: Place) -> ObjMeta:
        return ObjMeta(
            **self._hash(key)._asdict(),
            owner_rank=place.owner,
            header_off=self._geometry.header_offset(place.slot),
            payload_off=place.payload,
            bytes_total=place.nbytes,
            page_bytes=self._geometry.page_bytes,
            n_pages=self._geometry.pages_of(place.nbytes),
            epoch=place.epoch,
        )
