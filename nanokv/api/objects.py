"""One object: put, get, remove; and the same in the background."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, TypeVar, overload

import torch

from nanokv.api.base import CacheBase
from nanokv.arguments import integer, seconds
from nanokv.background import Handle
from nanokv.device.machines.own_memory import plainly
from nanokv.device.machines.records import NO_TERMS
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_ROOM, NO_WAIT, until_room
from nanokv.statistics import TIMED
from nanokv.terms import Hold
from nanokv.transfer.descriptors import describe
from nanokv.transfer.direct import LEFT_TO_CALLER
from nanokv.types import Key, KeyDigest

MISSING = (Status.MISS, Status.NOT_READY)
_NO_DEFAULT: Any = object()
_OK, _TORN, _FULL = int(Status.OK), int(Status.TORN), int(Status.FULL)  # the enumeration takes 0.1 us each time
_LEFT = (LEFT_TO_CALLER, _FULL)
_TRY_AGAIN = (LEFT_TO_CALLER, _TORN)
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
        preferred_segment = self._checked_segment(preferred_segment)
        if exist_ok is not False and exist_ok is not True:
            raise InvalidArgument(f"exist_ok must be True or False, not {exist_ok!r}")
        if timeout is not NO_WAIT:
            timeout = seconds("timeout", timeout)
        traffic = self._traffic
        started = traffic.put_starts() if traffic.puts % TIMED == 1 else 0
        if hold is None and replicas is NO_COPIES and not timeout:
            direct = self._direct
            if direct is None or preferred_segment is None:
                status = LEFT_TO_CALLER
            else:
                status = direct.put(key, tensor, preferred_segment)
            if status and status in _LEFT:
                refused = status == _FULL
                status = self._single.put(self._hash(key), tensor, preferred_segment, refused=refused)
            if not status and not started:
                traffic.puts += 1
                traffic.bytes_tx += tensor.nbytes
                return
        else:
            copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
            put = partial(self._put_once, self._hash(key), tensor, preferred_segment, hold, copies)
            status = put()
            if status in NO_ROOM and timeout:
                status = until_room(self._heap, timeout, put, self._check_stays)
        traffic.put(status, tensor.nbytes, started)
        if status and not (exist_ok and status == Status.DUPLICATE):
            raise self._error(status, key, tensor.nbytes, preferred_segment)

    def _put_once(
        self, digest: KeyDigest, tensor: torch.Tensor, preferred: int | None, hold: float | Hold | None, copies: int
    ) -> int:
        terms = NO_TERMS if hold is None else self._terms(hold)
        if copies:
            return self._replicas.put(digest, tensor, preferred, terms, copies)
        return self._single.put(digest, tensor, preferred, terms)

    @overload
    def get(self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False) -> torch.Tensor: ...
    @overload
    def get(
        self, key: Key, default: D, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> torch.Tensor | D: ...
    def get(
        self, key: Key, default: Any = _NO_DEFAULT, *, dst: torch.Tensor | None = None, reinterpret: bool = False
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
        if not self._open:
            self._check_open()
        if reinterpret is not False:
            check_reinterpret(reinterpret, dst)
        traffic = self._traffic
        started = traffic.get_starts() if traffic.gets % TIMED == 1 else 0
        found: torch.Tensor | int
        if dst is None:
            found = self._single.get(self._hash(key))
        else:
            direct = self._direct
            status = LEFT_TO_CALLER if direct is None or reinterpret else direct.get(key, dst)
            if status in _TRY_AGAIN:
                torn = status == _TORN
                status = self._single.get_into(self._hash(key), dst, reinterpret=reinterpret, torn=torn)
            found = status or dst
        if not isinstance(found, int):
            if started:
                traffic.get(_OK, found.nbytes, started)
            else:
                traffic.gets += 1
                traffic.bytes_rx += found.nbytes
            if self._promotion is not None:
                self._promotion.note(self._hash(key))
            return found
        traffic.get(found, 0)
        if default is not _NO_DEFAULT and found in MISSING:
            return default
        raise self._error(found, key)

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
        self._check_open()
        status = self._allocation.remove(self._hash(key))
        if status:
            raise self._error(status, key)

    def exists(self, key: Key) -> bool:
        """True if the object can be read now. For eviction this is not a use of it."""
        if not self._open:
            self._check_open()
        status = LEFT_TO_CALLER if self._direct is None else self._direct.exists(key)
        return (status if status != LEFT_TO_CALLER else self._exists(self._hash(key))) == _OK

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


def check_reinterpret(reinterpret: bool, dst: object) -> None:
    if reinterpret is not True or dst is None:
        raise InvalidArgument(f"reinterpret must be False, or True with a dst, not {reinterpret!r}")
