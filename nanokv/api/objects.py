"""One object: put, get, remove; and the same in the background."""

from __future__ import annotations

import sys
from typing import Any, TypeVar, overload

import torch

from nanokv.api.base import CacheBase
from nanokv.arguments import integer
from nanokv.background import Handle
from nanokv.device.machines.own_memory import plainly
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_WAIT
from nanokv.terms import Hold
from nanokv.transfer.descriptors import describe
from nanokv.transfer.object_calls import NO_DEFAULT
from nanokv.types import Key

_OK = int(Status.OK)
D = TypeVar("D")


class Objects(CacheBase):
    """Calls about one key."""

    def put(
        self,
        key: Key,
        tensor: torch.Tensor,
        *,
        preferred_segment: int | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
        replicas: int = NO_COPIES,
    ) -> None:
        """Store a tensor. It can be read at once.

        Args:
            tensor: dense, on any device, with any strides, of at most seven dimensions.
            preferred_segment: the rank in whose segment it is stored. Default: the key's home rank, or, if that one has
                closed or died, another one that the key chooses.
            exist_ok: a key that exists, or is being written, is no error. The value that it has stays: nothing is
                stored.
            hold: a lease in seconds: until its first read, or until so much time is over, the object is not evicted.
                Where nothing else can go, other puts are answered OutOfMemory. Or a `Hold`, with a priority.
            timeout: seconds to wait for room in a segment in which nothing may go. 0: OutOfMemory is raised at once.
            replicas: copies in the segments of the next living ranks after the owner, at most seven. A copy that finds
                no room there is left out (`stats()["replicas_refused"]`). `hold` is for all of them; a read ends the
                lease of the copy that it reads.

        Raises:
            DuplicateKey, OutOfMemory, InvalidArgument, PeerLost, WriteLost: nothing was stored.
        """
        self._calls.put(key, tensor, preferred_segment, exist_ok, hold, timeout, replicas)

    @overload
    def get(self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False) -> torch.Tensor: ...
    @overload
    def get(
        self, key: Key, default: D, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> torch.Tensor | D: ...
    def get(
        self, key: Key, default: Any = NO_DEFAULT, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> Any:
        """Read an object: a new tensor of the dtype and shape that were put, or into `dst`, which is returned.

        Args:
            default: returned if the key has no object (yet), instead of KeyNotFound and NotReady.
            dst: contiguous, on the heap's device, of the object's dtype and shape. The bytes of an object that a kernel
                wrote (`open_for_write`) have neither: any `dst` of that size will do.
            reinterpret: copy the bytes into a `dst` of any dtype and shape, of exactly the object's number of bytes.

        Raises:
            KeyNotFound, NotReady, SegmentCorrupt, PeerLost: the contents of `dst` are undefined.
            InvalidArgument: `dst` does not suit the object; nothing was copied.
        """
        return self._calls.get(key, default, dst, reinterpret)

    def get_part(self, key: Key, offset: int, nbytes: int, *, dst: torch.Tensor | None = None) -> torch.Tensor:
        """Read `nbytes` bytes of an object from the byte `offset` on: a new uint8 tensor, or into `dst`.

        It ends the lease of the object, as any read does. `pin` reads parts without looking the key up each time.

        Args:
            dst: contiguous, on the heap's device, of `nbytes` bytes, of any dtype and shape. It is returned.

        Raises:
            KeyNotFound, NotReady, SegmentCorrupt, PeerLost: the contents of `dst` are undefined.
            InvalidArgument: the object ends before, or `dst` is not as above; nothing was copied.
        """
        self._check_open()
        digest = self._hash(key)
        offset, nbytes = integer("offset", offset, 0, sys.maxsize), integer("nbytes", nbytes, 0, sys.maxsize)
        started = self._traffic.get_starts()
        if dst is None:
            if nbytes > self._geometry.n_pages * self._geometry.page_bytes:
                raise InvalidArgument(f"no object has {nbytes} bytes")
            with plainly():
                dst = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        elif describe(dst)[0] != nbytes:
            raise InvalidArgument(f"dst has {dst.nbytes} bytes, {nbytes} are asked for")
        found = self._single.get_part(digest, offset, dst) or dst
        self._count_get(found, started)
        if isinstance(found, torch.Tensor):
            return found
        raise self._error(found, key)

    def _count_get(self, found: torch.Tensor | int, started: int = 0) -> None:
        if isinstance(found, int):
            self._traffic.get(found, 0)
        else:
            self._traffic.get(_OK, found.nbytes, started)

    def remove(self, key: Key) -> None:
        """Remove an object.

        Raises:
            KeyNotFound: there is none.
            NotReady, ObjectPinned: it is there, being written or held in place by a reader. Of an object with copies
                some may be gone, where a pin or other calls of its key came while the removal was under way.
            PeerLost: v1's master did not answer; it may have removed the object.
        """
        self._calls.remove(key)

    def exists(self, key: Key) -> bool:
        """True if the object can be read now. For eviction this is not a use of it."""
        return self._calls.exists(key)

    __contains__ = exists

    # --- asynchronous ---
    def put_async(
        self,
        key: Key,
        tensor: torch.Tensor,
        *,
        preferred_segment: int | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
        replicas: int = NO_COPIES,
    ) -> Handle[None]:
        """`put` in the background, in the order of the calls; the tensor must not change before the handle is done.

        `timeout`: as for `put`, from its beginning on; those after it wait too. `close` ends the wait: CacheClosed.
        """
        self._check_open()
        more: dict[str, Any] = {"exist_ok": exist_ok, "hold": hold, "timeout": timeout, "replicas": replicas}
        return self._worker.submit(lambda: self.put(key, tensor, preferred_segment=preferred_segment, **more), tensor)

    def get_async(
        self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> Handle[torch.Tensor]:
        """`get` in the background, in the order of the calls."""
        self._check_open()
        return self._worker.submit(lambda: self.get(key, dst=dst, reinterpret=reinterpret), dst)
