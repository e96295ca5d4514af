"""NanoKVCache: the public API, one object per rank.

Objects are immutable and named by keys. Any rank puts into any rank's segment and reads from any; the same calls work
whether the producer allocates (`alloc="device"`, v2) or the master does (`alloc="host"`, v1).

A call checks what it is told, and hands it to a part of the rank's engine (`nanokv.cache.engine`), which it names.
put, get, exists and remove of one object are native calls where the machine has them (`nanokv.transfer.object_calls`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, cast, get_args, overload

import torch

from nanokv.allocation.groups import drop_group
from nanokv.allocation.host_eviction import evict_until_below
from nanokv.allocation.producer import ProducerAllocation
from nanokv.allocation.room import NO_ROOM, NO_WAIT
from nanokv.allocation.stored_layouts import StoredLayout, stored_in
from nanokv.allocation.terms import Hold, change_to
from nanokv.arguments import FOREVER, integer, listed, number, seconds
from nanokv.background import Handle
from nanokv.cache.changed_terms import change_terms
from nanokv.cache.ending import Gone, end_when_dropped, forked
from nanokv.cache.engine import Engine, attach, heap_kind, plan_geometry, world_spec
from nanokv.config import CacheOptions, Options, given_name, make_options, rank_from_env, world_size_from_env
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import NO_TERMS, Found, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from nanokv.heap.base import ElasticHeap, Heap
from nanokv.host_poller.events import Listener
from nanokv.keys.digests import Digests
from nanokv.leaving.empty import Evacuation, Fate
from nanokv.leaving.leave import adopt_segment, leave_world
from nanokv.saved.load import load
from nanokv.saved.own_segment import OwnSegment
from nanokv.saved.reading import open_saved
from nanokv.saved.save import save
from nanokv.space.make_room import make_room
from nanokv.statistics import Stats, held_pages, snapshot
from nanokv.transfer.batched import Outcome
from nanokv.transfer.descriptors import RAW, describe
from nanokv.transfer.object_calls import MISSING, NO_DEFAULT, ObjectCalls, PythonCalls, check_reinterpret
from nanokv.transfer.pinned import Pin, Pinned
from nanokv.transfer.replicas import NO_COPIES
from nanokv.transfer.single import TRIES
from nanokv.types import Key, KeyDigest, Left, Loaded, ObjMeta, Saved, WritePlan

if TYPE_CHECKING:
    from nanokv.transfer.cache_writer import CacheWriter
    from nanokv.transfer.paged import Hooks, PagedKV

_MIB = 1 << 20
_OK = int(Status.OK)
_nbytes = attrgetter("nbytes")
D = TypeVar("D")


class NanoKVCache:
    """One rank of a distributed KV cache.

    Args:
        heap_bytes: payload bytes of each rank's segment, the same on all ranks.
        master_rank: the rank that allocates in v1.
        page_bytes: bytes of a page; every object takes whole pages.
        name: the name of the world on this host; ranks meet by it. Default: NANOKV_NAME, else one that the ranks of a
            torchrun job share. Without a name and with one rank the heap is private to this process.
        rank, world_size: default: RANK and WORLD_SIZE, as torchrun sets them.
        options: fields of `nanokv.config.Options`.

    Raises:
        InvalidArgument: an argument is wrong.
        HeapUnavailable: this machine does not have that kind of heap, or the name cannot be used; or a rank of that
            name asks for other options.
        SegmentCorrupt: the memory under that name is not a valid world.
        PeerLost: the other ranks did not attach within `attach_timeout`.

    A cache may be used from any thread. `close` it, or use it in a `with` block. Once it is closed it still tells
    `rank`, `world_size`, `alloc`, `device`, `closed` and digests; every other use raises CacheClosed. It is true in a
    condition, empty or not. `key in cache` asks for the object in any segment; `segment_keys` and `segment_count` are
    about this rank's own.
    """

    def __init__(
        self,
        heap_bytes: int,
        master_rank: int = 0,
        page_bytes: int = 256 * 1024,
        *,
        name: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[CacheOptions],
    ) -> None:
        chosen = make_options(options)
        world_size = integer("world_size", world_size_from_env() if world_size is None else world_size, 1)
        rank = integer("rank", rank_from_env() if rank is None else rank, 0, world_size - 1)
        master_rank = integer("master_rank", master_rank, 0, world_size - 1)
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidArgument(f"name must be a non-empty str, not {name!r}")
        name = given_name() if name is None else name
        kind = heap_kind(name, world_size, chosen)
        geometry = plan_geometry(heap_bytes, page_bytes, world_size, chosen, kind)
        heap = attach(kind, name, geometry, rank, chosen, master_rank)
        self._begin(Engine(heap, master_rank, chosen))

    @classmethod
    def on_heap(cls, heap: Heap, master_rank: int, options: Options) -> NanoKVCache:
        """A cache on a heap that is there: for worlds within one process, and heaps of a caller's making."""
        cache = cls.__new__(cls)
        cache._begin(Engine(heap, master_rank, options))
        return cache

    def _begin(self, engine: Engine) -> None:
        #: its parts, for the rest of the project; once the cache is closed, every use of it raises
        self.engine = engine
        self.options = engine.options
        self._calls = engine.calls
        for name, call in engine.calls.native.items():
            if getattr(type(self), name) is _METHODS[name]:  # no subclass has its own, and nobody has wrapped it
                vars(self)[name] = call  # spares a call the frame of a method
        self._hasher = engine.hasher
        self._hash = engine.hasher.__call__
        heap = engine.heap
        self._name, self._rank, self._ranks, self._device = heap.name, heap.rank, heap.world_size, heap.device
        self._end = end_when_dropped(self, engine.ends, heap)

    # --- the end ---
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return isinstance(self.engine, Gone)

    def close(self) -> None:
        """Leave the world. Open plans are aborted; the objects in this rank's segment go with it. Idempotent.

        Operations in the background are done before; one that waits for room raises CacheClosed.

        The memory goes back to the system with the last rank in this process, pinned object, or `paged_kv`.
        """
        engine = self.engine
        if not self.closed:
            self._end.detach()
            try:
                engine.close()
            finally:
                self._lose(partial(CacheClosed, f"rank {self._rank} of {self._name!r} was closed"))

    def disown(self, process: int) -> None:
        """Give up, in a child of a fork, a cache that is that of its parent, `process`, and cannot be used here."""
        if not self.closed:
            self.engine.disown(process)
            self._lose(partial(forked, process))

    def _lose(self, error: Callable[[], NanoKVError]) -> None:
        for name in self._calls.native:
            vars(self).pop(name, None)
        gone = Gone(error)
        self.engine, self._calls = cast(Engine, gone), cast(ObjectCalls, gone)

    def __enter__(self) -> Self:
        self.engine.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- identity and addresses ---
    def __repr__(self) -> str:
        engine = self.engine
        place = f"NanoKVCache {self._name!r}, rank {self.rank} of {self.world_size}, alloc={self.alloc!r}"
        if self.closed:
            return f"<{place}, closed>"
        pages = held_pages(engine.geometry, self.alloc, engine.poller.index.rows()[1]["n_pages"]).sum()
        used, total = (pages * engine.geometry.page_bytes / _MIB for pages in (pages, engine.geometry.n_pages))
        return f"<{place}, {len(engine.poller.index)} objects, {used:.1f} of {total:.1f} MiB used>"

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            "a cache cannot be copied or sent to another process: let that process attach as a rank of its own, "
            "NanoKVCache(heap_bytes, name=..., rank=..., world_size=...)"
        )

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Ranks in the world."""
        return self._ranks

    @property
    def alloc(self) -> str:
        """ "device" (v2) or "host" (v1)."""
        return self.options.alloc

    @property
    def device(self) -> torch.device:
        """The device of the segments, and of the tensors that `get` returns."""
        return self._device

    @property
    def heap_bases_tensor(self) -> torch.Tensor:
        """int64 [world_size]: every rank's segment base in this process, as Iris' device functions take it."""
        engine = self.engine
        engine.check_open()
        with torch.inference_mode(False):
            return torch.tensor(engine.heap.bases, dtype=torch.int64, device=engine.heap.device)

    @property
    def world_table(self) -> int:
        """The address of this rank's private world table: the `world` of the device functions (`nanokv.device`)."""
        self.engine.check_open()
        return self.engine.machine.table_address

    def symmetric_ptr(self, rank: int, offset: int) -> int:
        """The pointer to pass to iris-style device functions for `offset` in the segment of `rank`.

        Those functions translate a pointer of the calling rank: remote = bases[rank] + (pointer - bases[self.rank]). So
        this is the address of the offset in this rank's *own* segment; `rank` is only checked. For plain loads and
        stores take `remote_ptr`.

        Raises:
            InvalidArgument: no such rank, or the offset is outside of the segment.
        """
        engine = self.engine
        _, offset = self._checked_place(rank, offset)
        return engine.heap.bases[engine.heap.rank] + offset

    def device_ptr(self, rank: int, offset: int) -> int:
        """`symmetric_ptr` under its first name: an address in this rank's *own* segment, which iris translates.

        It is not the address in the segment of `rank`: that is `remote_ptr`.
        """
        return self.symmetric_ptr(rank, offset)

    def remote_ptr(self, rank: int, offset: int) -> int:
        """The address of `offset` in the segment of `rank`, as this process sees it, for plain loads and stores.

        Raises:
            InvalidArgument: no such rank, or the offset is outside of the segment.
        """
        rank, offset = self._checked_place(rank, offset)
        return self.engine.heap.bases[rank] + offset

    def _checked_place(self, rank: int, offset: int) -> tuple[int, int]:
        self.engine.check_open()
        last = self.engine.geometry.segment_bytes - 1
        return integer("rank", rank, 0, self.world_size - 1), integer("offset", offset, 0, last)

    def digest(self, key: Key) -> KeyDigest:
        """The digest of a key in this cache's identity and namespace; accepted wherever a key is.

        Raises:
            ReuseViolation: `key` is a digest of another identity or namespace. So answers every call that takes a key.
        """
        return self._hash(key)

    def digests(self, keys: Iterable[Key]) -> Digests:
        """The digests of many keys as one sequence. A call about many keys takes it as it is: nothing is hashed again.

        Raises:
            ReuseViolation, InvalidArgument: as `digest`, for the first such key.
        """
        return self._hasher.each(_listed_keys(keys))

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
        self._calls.put(
            key,
            tensor,
            preferred_segment=preferred_segment,
            exist_ok=exist_ok,
            hold=hold,
            timeout=timeout,
            replicas=replicas,
        )

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
        return self._calls.get(key, default, dst=dst, reinterpret=reinterpret)

    def get_part(self, key: Key, offset: int, nbytes: int, *, dst: torch.Tensor | None = None) -> torch.Tensor:
        """Read `nbytes` bytes of an object from the byte `offset` on: a new uint8 tensor, or into `dst`.

        It ends the lease of the object, as any read does. `pin` reads parts without looking the key up each time.

        Args:
            dst: contiguous, on the heap's device, of `nbytes` bytes, of any dtype and shape. It is returned.

        Raises:
            KeyNotFound, NotReady, SegmentCorrupt, PeerLost: the contents of `dst` are undefined.
            InvalidArgument: the object ends before, or `dst` is not as above; nothing was copied.
        """
        engine = self.engine
        engine.check_open()
        digest = self._hash(key)
        offset, nbytes = integer("offset", offset, 0, sys.maxsize), integer("nbytes", nbytes, 0, sys.maxsize)
        started = engine.traffic.get_starts()
        if dst is None:
            if nbytes > engine.geometry.n_pages * engine.geometry.page_bytes:
                raise InvalidArgument(f"no object has {nbytes} bytes")
            with plainly():
                dst = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        elif describe(dst)[0] != nbytes:
            raise InvalidArgument(f"dst has {dst.nbytes} bytes, {nbytes} are asked for")
        found = engine.single.get_part(digest, offset, dst) or dst
        self._count_get(found, started)
        if isinstance(found, torch.Tensor):
            return found
        raise engine.error(found, key)

    def _count_get(self, found: torch.Tensor | int, started: int = 0) -> None:
        engine = self.engine
        if isinstance(found, int):
            engine.traffic.get(found, 0)
        else:
            engine.traffic.get(_OK, found.nbytes, started)

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
        self.engine.check_open()
        more: dict[str, Any] = {"exist_ok": exist_ok, "hold": hold, "timeout": timeout, "replicas": replicas}
        return self.engine.worker.submit(
            lambda: self.put(key, tensor, preferred_segment=preferred_segment, **more), tensor
        )

    def get_async(
        self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> Handle[torch.Tensor]:
        """`get` in the background, in the order of the calls."""
        self.engine.check_open()
        return self.engine.worker.submit(lambda: self.get(key, dst=dst, reinterpret=reinterpret), dst)

    def put_many(
        self,
        keys: Sequence[Key],
        tensors: Sequence[torch.Tensor] | torch.Tensor,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
        replicas: int = NO_COPIES,
    ) -> list[NanoKVError | None]:
        """Put each tensor; returns per key an error or None. Raises only if the call as a whole is wrong.

        Args:
            tensors: one per key; or one tensor of the rows [n, ...], which is the fastest: an object of each.
            preferred_segment, hold, replicas: as for `put`.
            timeout: seconds to wait for room, for all together.

        Raises:
            InvalidArgument, PeerLost: as for `put`; or there are not as many keys as tensors.
        """
        engine = self.engine
        keys, tensors = _listed_keys(keys), listed_tensors("tensors", tensors)
        if len(keys) != len(tensors):
            raise InvalidArgument(f"{len(keys)} keys and {len(tensors)} tensors")
        preferred_segment = engine.checked_segment(preferred_segment)
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        digests = engine.hasher.each(keys)
        copies = engine.replicas.checked(replicas) if replicas is not NO_COPIES else 0
        outcomes: list[Outcome]
        if copies:
            outcomes = engine.replicas.put_many(digests, tensors, preferred_segment, engine.terms(hold), copies)
        else:
            outcomes = engine.batched.put(digests, tensors, preferred_segment, engine.terms(hold))
        if not any(outcomes):
            engine.traffic.put_all(len(outcomes), _bytes_of(tensors))
            return [None] * len(outcomes)
        for i in [i for i, outcome in enumerate(outcomes) if outcome in NO_ROOM] if timeout > 0 else ():
            again = partial(engine.python_calls.put_once, digests[i], tensors[i], preferred_segment, hold, copies)
            outcomes[i] = engine.room(deadline - time.monotonic(), again)
        return [
            outcome
            if isinstance(outcome, NanoKVError)
            else engine.judge_put(outcome, key, tensor.nbytes, preferred_segment)
            for key, tensor, outcome in zip(keys, tensors, outcomes, strict=True)
        ]

    @overload
    def get_many(
        self, keys: Sequence[Key], *, dsts: Sequence[torch.Tensor] | None = None, reinterpret: bool = False
    ) -> list[torch.Tensor | None]: ...
    @overload
    def get_many(self, keys: Sequence[Key], *, dsts: torch.Tensor, reinterpret: bool = False) -> list[bool]: ...
    def get_many(
        self,
        keys: Sequence[Key],
        *,
        dsts: Sequence[torch.Tensor] | torch.Tensor | None = None,
        reinterpret: bool = False,
    ) -> list[torch.Tensor | None] | list[bool]:
        """Get each object; None for a key that has none (yet).

        Args:
            dsts: as `dst` of `get`, one per key. Or one tensor [n, ...], whose rows are filled: the fastest. Then the
                answers are per key whether its row was filled.
            reinterpret: as for `get`.

        Raises:
            InvalidArgument, SegmentCorrupt, PeerLost: as `get`.
        """
        engine = self.engine
        engine.check_open()
        if reinterpret is not False:
            check_reinterpret(reinterpret, dsts)
        keys = _listed_keys(keys)
        digests = engine.hasher.each(keys)
        if dsts is None and "get" in self._calls.native:
            get = self._calls.get
            return [get(key, None) for key in keys]
        if dsts is None:
            found = engine.batched.get(digests)
            self._settle(keys, digests, [each if isinstance(each, int) else _OK for each in found], found)
            return [None if isinstance(each, int) else each for each in found]
        rows = listed_tensors("dsts", dsts)
        if len(keys) != len(rows):
            raise InvalidArgument(f"{len(keys)} keys and {len(rows)} dsts")
        statuses = engine.batched.get_into(digests, rows, reinterpret=reinterpret)
        self._settle(keys, digests, statuses, rows)
        if isinstance(rows, torch.Tensor):
            return [not status for status in statuses]
        return [None if status else dst for status, dst in zip(statuses, rows, strict=True)]

    def _settle(self, keys: Sequence[Key], digests: Digests, statuses: list[int], tensors: Any) -> None:
        """Count the gets, and raise the error of the first one that found neither an object nor none."""
        engine = self.engine
        if engine.replicas.promotion is None and not any(statuses):
            engine.traffic.get_all(len(statuses), _bytes_of(tensors))
            return
        for i, status in enumerate(statuses):
            engine.traffic.get(status, 0 if status else tensors[i].nbytes)
            if engine.replicas.promotion is not None and not status:
                engine.replicas.promotion.note(digests[i])
            if status and status not in MISSING:
                raise engine.error(status, keys[i])

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now."""
        engine = self.engine
        engine.check_open()
        found: list[bool] = (engine.batched.find(engine.digests(keys)) == _OK).tolist()
        return found

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain."""
        engine = self.engine
        engine.check_open()
        return engine.batched.prefix(engine.digests(keys))

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object; per key False if there was none, or if it is being written or pinned."""
        engine = self.engine
        engine.check_open()
        removed: list[bool] = (engine.batched.remove(engine.digests(keys)) == _OK).tolist()
        return removed

    def hold(self, keys: Sequence[Key], hold: float | Hold) -> list[bool]:
        """Give objects that exist other terms, as `put(..., hold=hold)` does; per key False if there is none (yet).

        Seconds lease an object, and leave its priority alone. A Hold gives it that priority, and leaves its lease alone
        if it has no seconds. Best effort: an eviction that has begun already may still take the object.

        Raises:
            InvalidArgument: `hold` is neither a positive number of seconds nor a Hold.
        """
        engine = self.engine
        engine.check_open()
        change = change_to(hold, engine.hasher.group)
        return [change_terms(engine.machine, engine.allocation, digest, change) for digest in engine.digests(keys)]

    def drop_group(self, group: str) -> int:
        """Remove the objects that were put with `Hold(group=group)` in this identity and namespace, from all segments.

        Pinned objects stay, and those that are not READY yet. Returns the number of objects removed.

        Raises:
            InvalidArgument: `group` is no name of a group.
        """
        engine = self.engine
        engine.check_open()
        if not (isinstance(group, str) and group):
            raise InvalidArgument(f"group must be a non-empty str, not {group!r}")
        return drop_group(engine.machine, engine.allocation, engine.hasher.group(group))

    # --- copies in other segments ---
    def replicate(self, key: Key, rank: int | None = None) -> bool:
        """Copy an object into the segment of a rank, by default this one.

        True if this call made the copy, False if that segment had the object.

        Raises:
            KeyNotFound, NotReady, OutOfMemory, SegmentCorrupt, WriteLost, PeerLost: there is no copy.
            InvalidArgument: there is no such rank, the object has no bytes, or this cache has `alloc="host"`.
        """
        engine = self.engine
        engine.check_open()
        status = engine.replicas.copy(self._hash(key), rank)
        if status == Status.INVALID:
            raise InvalidArgument(f"the object of key {key!r} has no bytes, and so no copies")
        if status not in (Status.OK, Status.DUPLICATE):
            raise engine.error(status, key)
        return status == Status.OK

    def copies(self, key: Key) -> list[int]:
        """The ranks whose segments have the object of a key, the nearest first; without one, none.

        Raises:
            InvalidArgument: this cache has `alloc="host"`.
        """
        self.engine.check_open()
        return self.engine.replicas.ranks(self._hash(key))

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
        engine = self.engine
        deadline = time.monotonic() + seconds("timeout", timeout)
        for _ in range(TRIES):
            found = self._found(key, max(deadline - time.monotonic(), 0.0))
            status, line = engine.machine.pin(found.place)
            if status != Status.MISS:
                break
        if status != Status.OK:
            raise engine.error(status, key)
        engine.machine.touch(found.place, now_ns())
        payload, owner = engine.pins.payload(found.place)
        tensor = engine.single.view(found, payload)
        meta = self._meta(key, found.place)
        shown = tensor if tensor is not None else payload
        pinned = Pinned(engine.pins, Pin(found.place, line), owner, shown, meta)
        if tensor is None or not engine.single.is_right_in_place(self._hash(key), found):
            pinned.release()
            raise engine.error(Status.CORRUPT, key)
        return pinned

    def _found(self, key: Key, timeout: float) -> Found:
        engine = self.engine
        engine.check_open()
        digest = self._hash(key)
        timeout = seconds("timeout", timeout)
        if timeout > 0:
            engine.wait_for([digest], timeout)
        found = engine.allocation.locate(digest)
        if found.status:
            raise engine.error(found.status, key)
        return found

    def _meta(self, key: Key, place: Place) -> ObjMeta:
        engine = self.engine
        return ObjMeta(
            **self._hash(key)._asdict(),
            owner_rank=place.owner,
            header_off=engine.geometry.header_offset(place.slot),
            payload_off=place.payload,
            bytes_total=place.nbytes,
            page_bytes=engine.geometry.page_bytes,
            n_pages=engine.geometry.pages_of(place.nbytes),
            epoch=place.epoch,
        )

    def alive(self, rank: int) -> bool:
        """False if a rank has closed its cache, or its process has ended (seen some milliseconds later).

        Raises:
            InvalidArgument: there is no such rank.
        """
        self.engine.check_open()
        return not self.engine.heap.peer_closed(integer("rank", rank, 0, self.world_size - 1))

    def wait(self, keys: Key | Iterable[Key], *, timeout: float | None) -> None:
        """Wait until every object can be read. Returns within microseconds of a put by a host, in any process.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeout: after `timeout` seconds; the message gives the number of missing objects.
            PeerLost: the rank that was writing one of them has ended; or v1's master has.
            InvalidArgument: a listener calls it (`subscribe`) for an object that is not there.
        """
        engine = self.engine
        engine.check_open()
        digests = [self._hash(keys)] if isinstance(keys, str | bytes | KeyDigest) else list(engine.digests(keys))
        engine.wait_for(digests, FOREVER if timeout is None else seconds("timeout", timeout))

    def flush(self, *, timeout: float = 10.0) -> None:
        """Wait until this rank's index (keys, stats, events) includes every commit in its segment before this call.

        Raises:
            WaitTimeout: after `timeout` seconds.
            InvalidArgument: a listener calls it (`subscribe`): the index is kept by the thread that calls listeners.
        """
        engine = self.engine
        engine.check_open()
        with engine.traffic.counting_timeouts():
            engine.poller.flush(seconds("timeout", timeout))

    # --- elastic membership ---
    def members(self) -> list[int]:
        """The ranks that live, ascending."""
        self.engine.check_open()
        return [rank for rank in range(self.world_size) if not self.engine.heap.peer_closed(rank)]

    def leave(self, keys: Fate = "move", *, timeout: float = 60.0) -> Left:
        """Leave an elastic world for good, and close (docs/elastic.md). The rank may join again, with an empty segment.

        Operations that are under way in this rank's segment are waited for, and so are pins; its open plans are
        aborted. The memory of the segment goes back to the system.

        Args:
            keys: "move": its objects go to the segments of the other ranks, those that were used last first, and
                nothing is evicted for them. What finds no room, or no other rank, is dropped. "drop": all are.
            timeout: seconds.

        Raises:
            InvalidArgument: the world is not elastic, or `keys` is something else; or a listener calls it.
            WaitTimeout: objects were pinned or being written all the time. The rank stays, and can be used on, without
                the objects that were moved or dropped so far, and without its open plans.
        """
        engine = self.engine
        heap, emptying = self._emptying(self.rank, keys)
        engine.poller.refuse_own_thread("leave")
        timeout = seconds("timeout", timeout)
        assert isinstance(engine.allocation, ProducerAllocation)
        with engine.leave_lock:
            engine.check_open()
            engine.plans.abort_all()
            engine.pins.give_back_dropped()
            go_around = engine.allocation.routing.leave_out_this_rank
            left = leave_world(heap, engine.machine, engine.poller, emptying, go_around, timeout)
            self.close()
        return left

    def adopt(self, rank: int, keys: Fate = "move", *, timeout: float = 60.0) -> Left:
        """Let a rank leave that has crashed, or closed without leaving (docs/elastic.md). Any rank may do that.

        Meanwhile the rank cannot come back. Afterwards it can, with an empty segment.

        Args:
            keys, timeout: as for `leave`.

        Raises:
            InvalidArgument: as `leave`; or there is no such rank.
            HeapUnavailable: the rank is there, or absent already, or is being adopted.
            WaitTimeout: objects were pinned or being written all the time. The rank is as it was, without the objects
                that were moved or dropped so far.
        """
        engine = self.engine
        engine.check_open()
        rank = integer("rank", rank, 0, self.world_size - 1)
        heap, emptying = self._emptying(rank, keys)
        timeout = seconds("timeout", timeout)
        with engine.leave_lock:
            engine.check_open()
            return adopt_segment(heap, engine.machine, emptying, rank, timeout)

    def _emptying(self, rank: int, keys: Fate) -> tuple[ElasticHeap, Evacuation]:
        """What takes the objects out of a segment."""
        engine = self.engine
        engine.check_open()
        if not engine.heap.elastic:
            raise InvalidArgument("leave needs a world made with elastic=True; `close` ends a rank of any other")
        if keys not in get_args(Fate):
            raise InvalidArgument(f"keys must be one of {get_args(Fate)}, not {keys!r}")
        emptying = Evacuation(engine.heap, engine.machine, engine.allocation, engine.single, rank, keys)
        return cast(ElasticHeap, engine.heap), emptying

    # --- plans: the caller's kernel writes ---
    def open_for_write(
        self,
        key: Key,
        bytes_total: int,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
    ) -> WritePlan:
        """Claim a key and allocate; the caller's kernel writes the bytes. The kernel or `commit` makes it READY.

        The object reads back as flat uint8. If it is not READY after `write_timeout`, it is given up; its pages stay
        reserved until this rank calls `commit` or `abort` (which then raise WriteLost), or its process ends. `hold`: as
        for `put`, from this call on. `timeout`: as for `put`.

        Raises:
            DuplicateKey, OutOfMemory, InvalidArgument, PeerLost: nothing was allocated.
        """
        engine = self.engine
        preferred_segment = engine.checked_segment(preferred_segment)
        bytes_total = integer("bytes_total", bytes_total, 0, sys.maxsize)
        timeout = seconds("timeout", timeout)
        digest = self._hash(key)
        terms = NO_TERMS if hold is None else engine.terms(hold)
        plan = engine.plans.begin(digest, bytes_total, preferred_segment, terms)
        if timeout and plan in NO_ROOM:
            again = partial(engine.plans.begin, digest, bytes_total, preferred_segment)
            plan = engine.room(timeout, lambda: again(engine.terms(hold)))
        if isinstance(plan, WritePlan):
            return plan
        raise engine.error(plan, key, bytes_total, preferred_segment)

    def commit(self, key: Key) -> None:
        """Make an object READY that this rank opened. Succeeds also if its kernel has done so already.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it took longer than `write_timeout`.
        """
        engine = self.engine
        engine.check_open()
        digest = self._hash(key)
        begun = engine.plans.take(digest, key)
        engine.single.seal(digest, begun.place, RAW)
        status = engine.allocation.finish(digest, begun)
        if status:
            raise engine.error(status, key)
        engine.traffic.planned(begun.place.nbytes)

    def abort(self, key: Key) -> None:
        """Give up an object that this rank opened. To be called only after its kernel has ended.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it was given up already.
        """
        engine = self.engine
        engine.check_open()
        digest = self._hash(key)
        status = engine.allocation.abort(digest, engine.plans.take(digest, key))
        if status:
            raise engine.error(status, key)

    def make_room(self, rank: int, nbytes: int) -> bool:
        """Make room for an object of `nbytes` in the segment of a rank, as a refused put from the host does by itself.

        For kernels of yours, whose puts are answered FULL where a host could still join free extents, or evict around
        them. Returns True if a put is worth another try: others may take the room before it comes.

        Raises:
            InvalidArgument: no such rank; no object can be that large; or the master allocates (`alloc="host"`), and
                makes room by itself.
            PeerLost: the rank has ended.
        """
        engine = self.engine
        rank, nbytes = integer("rank", rank, 0, self.world_size - 1), integer("nbytes", nbytes, 0, sys.maxsize)
        engine.checked_segment(rank)
        if self.alloc != "device":
            raise InvalidArgument("with alloc='host' the master makes room by itself")
        if nbytes > engine.geometry.max_object_bytes:
            raise InvalidArgument(f"an object has at most {engine.geometry.max_object_bytes} bytes, not {nbytes}")
        return make_room(engine.machine, rank, nbytes)

    # --- an engine's paged cache ---
    def paged_kv(self, layers: Sequence[torch.Tensor], *, kv_dim: int | None) -> PagedKV:
        """Access to an engine's paged KV cache, whose blocks are put and got in place: see `PagedKV`.

        Args:
            layers: the KV tensor of each layer, on the heap's device, all of one shape, dtype and strides:
                [blocks, 2, tokens, heads, dim] or [2, blocks, tokens, heads, dim]; or, if `kv_dim` is None,
                [blocks, tokens, heads, dim] or [blocks, tokens, dim]. Any strides: a cache that stores heads before
                tokens is passed permuted. With `kv_dim=None` layers may also differ in all but the number of blocks
                (latents and the keys of an indexer, states): [blocks, ...] each, the last dimension without gaps.
                Their objects are moved by torch, as bytes, and only as a whole or by layers.
            kv_dim: the dimension that separates K and V, 0 or 1; None if there is none.

        Raises:
            InvalidArgument: the tensors, or `kv_dim`, are not as above.
        """
        engine = self.engine
        engine.check_open()
        from nanokv.transfer.paged import PagedKV  # brings the kernels

        return PagedKV(engine.single, engine.allocation, self._hooks(), layers, kv_dim)

    def cache_writer(
        self,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        *,
        kv_cache_dtype: str = "auto",
        capacity: int = 1024,
    ) -> CacheWriter:
        """An engine's step that writes tokens into its paged cache, and publishes full blocks: see `CacheWriter`.

        Needs a GPU, or Triton's interpreter.

        Args:
            layers: key_cache and value_cache of each layer, on the heap's device, in one of vLLM's two layouts: see
                `nanokv.device.machines.reshape_and_cache`.
            kv_cache_dtype: "auto", "fp8" (e4m3) or "fp8_e5m2".
            capacity: the most blocks that a step fills.

        Raises:
            InvalidArgument: the tensors or `kv_cache_dtype` are not as above, or this cache has `alloc="host"`.
        """
        self.engine.check_open()
        if self.alloc != "device":
            raise InvalidArgument('a kernel that publishes needs alloc="device"')
        from nanokv.transfer.cache_writer import CacheWriter  # brings the kernels

        hooks = self._hooks()
        return CacheWriter(
            self.world_table, self.engine.allocation, hooks, layers, kv_cache_dtype, capacity, self.device
        )

    def _hooks(self) -> Hooks:
        engine = self.engine
        from nanokv.transfer.paged import Hooks

        whose = self.options.namespace, self.options.identity
        judges = engine.judge_put, engine.judge_get
        return Hooks(self.digest, engine.terms, engine.checked_segment, *judges, engine.worker, engine.machine, whose)

    # --- its index ---
    def segment_keys(self) -> Iterator[KeyDigest]:
        """The digests of the objects in this rank's segment, as its index knows them. Keys are not stored."""
        self.engine.check_open()
        return self.engine.poller.index.digests()

    def segment_count(self) -> int:
        """The number of objects in this rank's segment, as its index knows them."""
        self.engine.check_open()
        return len(self.engine.poller.index)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of objects that come to this rank's segment or go, and of ranks that come or go (`Event`).

        The function returned ends that. A listener that refers to this cache keeps it from being dropped. Listeners are
        called by the poller's thread, which frees and sweeps for everybody: a slow one delays that. `flush`, `clear`,
        `evict_until_below`, `leave`, and waits for room or for objects are refused there: InvalidArgument.
        """
        self.engine.check_open()
        if not callable(listener):
            raise InvalidArgument(f"listener must be a function of a sequence of events, not {listener!r}")
        return self.engine.poller.subscribe(listener)

    def layouts(self, rank: int | None = None) -> list[StoredLayout]:
        """The layouts of the identities that have put objects into the segment of a rank, or (None) into any.

        Raises:
            InvalidArgument: there is no such rank.
        """
        self.engine.check_open()
        asked = range(self.world_size) if rank is None else [integer("rank", rank, 0, self.world_size - 1)]
        mine = self.options.identity, self.options.namespace
        return [row for each in asked for row in stored_in(each, self.engine.machine.layouts(each), *mine)]

    # --- generations ---
    def generation(self) -> int:
        """How many times what this cache's identity had stored was declared void (`advance_generation`).

        It is for those who mix it into their keys, as the connectors of engines do: keys do not have it by themselves.
        It costs a look at this rank's segment.
        """
        self.engine.check_open()
        return self.engine.generations().now()

    def advance_generation(self) -> int:
        """Begin a new generation of this cache's identity, in whatever layout, and return it.

        When it returns, all ranks of the world have it, also those that sleep, have ended, or come later: what was
        stored under an older one is found no more by those who mix it into their keys, and is evicted in its time.
        """
        self.engine.check_open()
        return self.engine.generations().advance()

    def stats(self) -> Stats:
        """Counters of this rank: heap use, objects, ring, traffic, errors. Bytes and counts; ratios from 0 to 1."""
        engine = self.engine
        engine.check_open()
        now = snapshot(engine.machine, self.rank, self.alloc)
        mine = {"rank": self.rank, "alloc": self.alloc, "evictions": engine.allocation.evicted()}
        return cast(
            Stats, now.as_dict() | engine.traffic.as_dict() | engine.replicas.as_dict() | engine.poller.as_dict() | mine
        )

    # --- what goes ---
    def clear(self) -> int:
        """Remove every object in this rank's segment that is READY and not pinned; returns their number.

        Raises:
            InvalidArgument: a listener calls it (`subscribe`).
        """
        engine = self.engine
        engine.check_open()
        engine.poller.refuse_own_thread("clear")
        self.flush()
        slots, records = engine.poller.index.rows()
        pairs = zip(slots.tolist(), records["epoch"].tolist(), strict=True)
        removed = sum(engine.allocation.remove_slot(self.rank, *pair) == Status.OK for pair in pairs)
        self.flush()
        return removed

    def evict_until_below(self, usage_ratio: float) -> None:
        """Evict from this rank's segment, by its policy, until at most this part of its pages is in use.

        Raises:
            InvalidArgument: `usage_ratio` is not from 0 to 1; or a listener calls it (`subscribe`).
        """
        engine = self.engine
        engine.check_open()
        engine.poller.refuse_own_thread("evict_until_below")
        if not 0 <= number("usage_ratio", usage_ratio) <= 1:
            raise InvalidArgument(f"usage_ratio must be 0 to 1, not {usage_ratio!r}")
        evict_until_below(engine.machine, engine.allocation, self.rank, usage_ratio)
        self.flush()

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save the objects in this rank's segment to a file (docs/save_load.md), while the world is at work.

        The file is whole, or what had the name is as it was. Objects that go away meanwhile are left out.

        Raises:
            InvalidArgument: `path` is no path, or something else than a file has it.
            FileUnusable: the file cannot be written: no space, no permission.
        """
        engine = self.engine
        engine.check_open()
        to = _path(path)
        options = world_spec(engine.geometry, self.options, master_rank=engine.master_rank).options()
        return save(to, [OwnSegment(engine.heap, engine.machine, self.rank)], engine.geometry, options)

    def load(self, path: str | os.PathLike[str], *, preferred_segment: int | None = None) -> Loaded:
        """Put the objects of a file that `save` has made, in any world, under the keys and identities they had.

        Nothing is evicted for them: objects without room are counted, those that were used last come first. All of the
        file but its payloads is checked before, and each payload before its object can be read.

        Args:
            preferred_segment: the rank in whose segment they are stored. Default: that of the rank that had them, or
                where there is none (any more) another one that the key chooses.

        Raises:
            InvalidArgument, FileUnusable, PeerLost: the file or the segment cannot be used. Nothing was put.
            SegmentCorrupt: it is no file of saved objects of this version, or it was cut or changed: nothing was put;
                or objects in it are damaged: the others were put, and the message says how many.
            OutOfMemory, ReuseViolation: a segment cannot take the layout of an identity. Nothing was put.
            WriteLost: objects are given up while they are loaded: raise `write_timeout`.
        """
        preferred_segment = self.engine.checked_segment(preferred_segment)
        with open_saved(_path(path)) as file:
            return load(file, self.engine, preferred_segment)


for _name in ("put", "get", "exists", "remove"):  # for `help`: native calls show what these do
    getattr(PythonCalls, _name).__doc__ = getattr(NanoKVCache, _name).__doc__


#: whose place a native call may take; a method of a subclass, or one that a tracer has put into the class, is called
_METHODS = {name: vars(NanoKVCache)[name] for name in ("put", "get", "exists", "remove")}


def _listed_keys(keys: Iterable[Key]) -> Sequence[Key]:
    return keys if type(keys) is Digests else listed("keys", keys)


def listed_tensors(name: str, tensors: Sequence[torch.Tensor] | torch.Tensor) -> Sequence[torch.Tensor] | torch.Tensor:
    """A list of them; or one plain tensor, which stands for its rows."""
    if not isinstance(tensors, torch.Tensor):
        return listed(name, tensors)
    rows = plain_tensor(tensors)
    if not rows.ndim:
        raise InvalidArgument(f"{name} must be a sequence of tensors, or a tensor that has rows, not {rows!r}")
    return rows


def _bytes_of(tensors: Sequence[torch.Tensor] | torch.Tensor) -> int:
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_nbytes, tensors))


def _path(given: object) -> Path:
    if not isinstance(given, str | os.PathLike) or not given:
        raise InvalidArgument(f"path must be the path of a file, not {given!r}")
    try:
        found = os.fspath(given)
        if isinstance(found, str) and "\0" not in found:
            return Path(found)
    except TypeError:
        pass
    raise InvalidArgument(f"path must be the path of a file, not {given!r}")
