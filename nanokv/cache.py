"""NanoKVCache: the public API, one object per rank.

Objects are immutable and named by keys. Any rank puts into any rank's segment and reads from any; the same calls work
whether the producer allocates (`alloc="device"`, v2) or the master does (`alloc="host"`, v1).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, cast, get_args, overload

import torch

from nanokv.allocation.host_eviction import evict_until_below
from nanokv.allocation.producer import ProducerAllocation
from nanokv.arguments import FOREVER, integer, listed, number, seconds
from nanokv.background import Handle, Worker
from nanokv.changed_terms import change_terms
from nanokv.config import CacheOptions, Options, given_name, make_options, rank_from_env, world_size_from_env
from nanokv.device.machines.records import Found, Place, Terms
from nanokv.device.protocol.status import Status
from nanokv.ending import Parts, end_when_dropped, forked
from nanokv.errors import (
    CacheClosed,
    InvalidArgument,
    NanoKVError,
    PeerLost,
)
from nanokv.groups import drop_group
from nanokv.heap.base import ElasticHeap, Heap
from nanokv.host_poller.events import Listener
from nanokv.host_poller.make_room import make_room
from nanokv.keys import Hasher
from nanokv.membership.empty import Emptying, Fate
from nanokv.membership.leave import adopt_segment, leave_world
from nanokv.pinned import Pin, Pinned
from nanokv.plans import Plans
from nanokv.replicas import NO_COPIES, Replicas
from nanokv.room import NO_ROOM, until_room
from nanokv.saved.load import Target, load
from nanokv.saved.own_segment import OwnSegment
from nanokv.saved.reading import open_saved
from nanokv.saved.save import Progress, no_progress, save
from nanokv.statistics import Stats, Traffic, held_pages, snapshot
from nanokv.status_errors import error_for
from nanokv.stored_layouts import StoredLayout, stored_in
from nanokv.terms import Hold, change_to, terms_of
from nanokv.transfer.batched import BatchedTransfer, Outcome, status_of
from nanokv.transfer.descriptors import RAW, describe
from nanokv.transfer.single import TRIES, SingleTransfer
from nanokv.types import Key, KeyDigest, Left, Loaded, ObjMeta, Saved, WritePlan
from nanokv.waiting import Waiter
from nanokv.wiring import Wired, attach, plan_geometry, wire, world_spec

if TYPE_CHECKING:
    from nanokv.transfer.cache_writer import CacheWriter
    from nanokv.transfer.paged import Hooks, PagedKV

_MISSING = (Status.MISS, Status.NOT_READY)
_MIB = 1 << 20
_NO_DEFAULT: Any = object()
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
        geometry = plan_geometry(heap_bytes, page_bytes, world_size, chosen)
        heap = attach(given_name() if name is None else name, geometry, rank, chosen, master_rank)
        self._setup(wire(heap, master_rank, chosen), chosen, master_rank)

    @classmethod
    def _from_heap(cls, heap: Heap, master_rank: int, options: Options) -> NanoKVCache:
        cache = cls.__new__(cls)
        cache._setup(wire(heap, master_rank, options), options, master_rank)
        return cache

    def _setup(self, wired: Wired, options: Options, master_rank: int) -> None:
        self._heap, self._machine, self._allocation, self._poller, self._pins = wired
        self._geometry = wired.machine.geometry
        self._hash = Hasher(options.namespace, options.identity)
        self._single = SingleTransfer(self._heap, self._machine, self._allocation, checksum=options.checksum)
        self._batched = BatchedTransfer(self._single, self._allocation)
        self._traffic = Traffic(self._geometry)
        self._plans = Plans(self._allocation, self._machine)
        self._worker = Worker(f"nanokv-async-{self._heap.rank}")
        self._master_rank = master_rank
        self._replicas = Replicas(
            self._heap,
            self._machine,
            self._allocation,
            self._single,
            self._worker,
            costs=options.costs,
            promote=options.promote,
        )
        self._promotion = self._replicas.promotion
        self._open = True
        self._leave_lock = threading.Lock()
        self._forked_from: int | None = None
        self._parts = Parts(self._worker, self._plans, self._poller, self._pins, self._allocation, self._heap)
        self._end = end_when_dropped(self, self._parts)
        self.options = options

    # --- identity and addresses ---
    def __repr__(self) -> str:
        place = f"NanoKVCache {self._heap.name!r}, rank {self.rank} of {self.world_size}, alloc={self.alloc!r}"
        if not self._open:
            return f"<{place}, closed>"
        pages = held_pages(self._geometry, self.alloc, self._poller.index.rows()[1]["n_pages"]).sum()
        used, total = (pages * self._geometry.page_bytes / _MIB for pages in (pages, self._geometry.n_pages))
        return f"<{place}, {self.segment_count()} objects, {used:.1f} of {total:.1f} MiB used>"

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
        return self._heap.rank

    @property
    def world_size(self) -> int:
        """Ranks in the world."""
        return self._heap.world_size

    @property
    def alloc(self) -> str:
        """ "device" (v2) or "host" (v1)."""
        return self._allocation.alloc

    @property
    def device(self) -> torch.device:
        """The device of the segments, and of the tensors that `get` returns."""
        return self._heap.device

    @property
    def heap_bases_tensor(self) -> torch.Tensor:
        """int64 [world_size]: every rank's segment base in this process, as Iris' device functions take it."""
        self._check_open()
        with torch.inference_mode(False):
            return torch.tensor(self._heap.bases, dtype=torch.int64, device=self._heap.device)

    @property
    def world_table(self) -> int:
        """The address of this rank's private world table: the `world` of the device functions (`nanokv.device`)."""
        self._check_open()
        return self._machine.table_address

    def symmetric_ptr(self, rank: int, offset: int) -> int:
        """The pointer to pass to iris-style device functions for `offset` in the segment of `rank`.

        Those functions translate a pointer of the calling rank: remote = bases[rank] + (pointer - bases[self.rank]). So
        this is the address of the offset in this rank's *own* segment; `rank` is only checked. For plain loads and
        stores take `remote_ptr`.

        Raises:
            InvalidArgument: no such rank, or the offset is outside of the segment.
        """
        _, offset = self._checked_place(rank, offset)
        return self._heap.bases[self._heap.rank] + offset

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
        return self._heap.bases[rank] + offset

    def _checked_place(self, rank: int, offset: int) -> tuple[int, int]:
        self._check_open()
        last = self._geometry.segment_bytes - 1
        return integer("rank", rank, 0, self.world_size - 1), integer("offset", offset, 0, last)

    def digest(self, key: Key) -> KeyDigest:
        """The digest of a key in this cache's identity and namespace; accepted wherever a key is.

        Raises:
            ReuseViolation: `key` is a digest of another identity or namespace. So answers every call that takes a key.
        """
        return self._hash(key)

    # --- objects ---
    def put(
        self,
        key: Key,
        tensor: torch.Tensor,
        *,
        preferred_segment: int | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
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
        timeout = seconds("timeout", timeout)
        copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
        digest, started = self._hash(key), self._traffic.put_starts()
        status = self._put_once(digest, tensor, preferred_segment, hold, copies)
        if status in NO_ROOM and timeout:
            again = partial(self._put_once, digest, tensor, preferred_segment, hold, copies)
            status = until_room(self._heap, timeout, again)
        self._traffic.put(status, tensor.nbytes, started)
        if status and not (exist_ok and status == Status.DUPLICATE):
            raise self._error(status, key, tensor.nbytes, preferred_segment)

    def _put_once(
        self, digest: KeyDigest, tensor: torch.Tensor, preferred: int | None, hold: float | Hold | None, copies: int
    ) -> int:
        if copies:
            return self._replicas.put(digest, tensor, preferred, self._terms(hold), copies)
        return self._single.put(digest, tensor, preferred, self._terms(hold))

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
        self._check_open()
        digest = self._hash(key)
        if reinterpret is not False:
            _check_reinterpret(reinterpret, dst)
        started = self._traffic.get_starts()
        found: torch.Tensor | int
        if dst is None:
            found = self._single.get(digest)
        else:
            found = self._single.get_into(digest, dst, reinterpret=reinterpret) or dst
        self._count_get(found, started)
        if isinstance(found, torch.Tensor):
            if self._promotion is not None:
                self._promotion.note(digest)
            return found
        if default is not _NO_DEFAULT and found in _MISSING:
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
            self._traffic.get(Status.OK, found.nbytes, started)

    def remove(self, key: Key) -> None:
        """Remove an object.

        Raises:
            KeyNotFound, NotReady, ObjectPinned: nothing was removed.
            PeerLost: v1's master did not answer; it may have removed the object.
        """
        self._check_open()
        status = self._allocation.remove(self._hash(key))
        if status:
            raise self._error(status, key)

    def exists(self, key: Key) -> bool:
        """True if the object can be read now. For eviction this is not a use of it."""
        return self._look(self._hash(key)) == Status.OK

    __contains__ = exists

    # --- many ---
    def put_many(
        self,
        keys: Sequence[Key],
        tensors: Sequence[torch.Tensor],
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
        replicas: int = NO_COPIES,
    ) -> list[NanoKVError | None]:
        """Put each tensor; returns per key an error or None. Raises only if the call as a whole is wrong.

        Args:
            preferred_segment, hold, replicas: as for `put`.
            timeout: seconds to wait for room, for all together.

        Raises:
            InvalidArgument, PeerLost: as for `put`; or there are not as many keys as tensors.
        """
        keys, tensors = listed("keys", keys), listed("tensors", tensors)
        if len(keys) != len(tensors):
            raise InvalidArgument(f"{len(keys)} keys and {len(tensors)} tensors")
        preferred_segment = self._checked_segment(preferred_segment)
        deadline = time.monotonic() + seconds("timeout", timeout)
        digests = self._digests(keys)
        copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
        outcomes: list[Outcome]
        if copies:
            pairs = zip(digests, tensors, strict=True)
            outcomes = [status_of(partial(self._put_once, *pair, preferred_segment, hold, copies)) for pair in pairs]
        else:
            outcomes = self._batched.put(digests, tensors, preferred_segment, self._terms(hold))
        for i in (i for i, outcome in enumerate(outcomes) if outcome in NO_ROOM):
            again = partial(self._put_once, digests[i], tensors[i], preferred_segment, hold, copies)
            outcomes[i] = until_room(self._heap, deadline - time.monotonic(), again)
        return [
            outcome
            if isinstance(outcome, NanoKVError)
            else self._judge_put(outcome, key, tensor.nbytes, preferred_segment)
            for key, tensor, outcome in zip(keys, tensors, outcomes, strict=True)
        ]

    def _judge_put(self, status: int, key: Key, nbytes: int, preferred: int | None) -> NanoKVError | None:
        self._traffic.put(status, nbytes)
        return self._error(status, key, nbytes, preferred) if status else None

    def _judge_get(self, status: int, key: Key, nbytes: int) -> NanoKVError | None:
        self._traffic.get(status, nbytes)
        return self._error(status, key, nbytes) if status else None

    def get_many(
        self, keys: Sequence[Key], *, dsts: Sequence[torch.Tensor] | None = None, reinterpret: bool = False
    ) -> list[torch.Tensor | None]:
        """Get each object; None for a key that has none (yet). `dsts`: as `dst` of `get`, one per key.

        Raises:
            InvalidArgument, SegmentCorrupt, PeerLost: as `get`.
        """
        self._check_open()
        keys, dsts = listed("keys", keys), None if dsts is None else listed("dsts", dsts)
        if dsts is not None and len(keys) != len(dsts):
            raise InvalidArgument(f"{len(keys)} keys and {len(dsts)} dsts")
        digests = [self._hash(key) for key in keys]
        results: list[torch.Tensor | int]
        if reinterpret is not False:
            _check_reinterpret(reinterpret, dsts)
        if dsts is None:
            results = self._batched.get(digests)
        else:
            statuses = self._batched.get_into(digests, dsts, reinterpret=reinterpret)
            results = [status or dst for status, dst in zip(statuses, dsts, strict=True)]
        for key, digest, found in zip(keys, digests, results, strict=True):
            self._count_get(found)
            if self._promotion is not None and not isinstance(found, int):
                self._promotion.note(digest)
            if isinstance(found, int) and found not in _MISSING:
                raise self._error(found, key)
        return [None if isinstance(found, int) else found for found in results]

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now."""
        self._check_open()
        return [status == Status.OK for status in self._batched.find(self._digests(keys))]

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain."""
        self._check_open()
        return self._batched.prefix(self._digests(keys))

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object; per key False if there was none, or if it is being written or pinned."""
        self._check_open()
        return [status == Status.OK for status in self._batched.remove(self._digests(keys))]

    def _digests(self, keys: Iterable[Key]) -> list[KeyDigest]:
        return [self._hash(key) for key in listed("keys", keys)]

    def paged_kv(self, layers: Sequence[torch.Tensor], *, kv_dim: int | None) -> PagedKV:
        """Access to an engine's paged KV cache, whose blocks are put and got in place: see `PagedKV`.

        Args:
            layers: the KV tensor of each layer, on the heap's device, all of one shape, dtype and strides:
                [blocks, 2, tokens, heads, dim] or [2, blocks, tokens, heads, dim]; or, if `kv_dim` is None,
                [blocks, tokens, heads, dim] or [blocks, tokens, dim]. Any strides: a cache that stores heads before
                tokens is passed permuted.
            kv_dim: the dimension that separates K and V, 0 or 1; None if there is none.

        Raises:
            InvalidArgument: the tensors, or `kv_dim`, are not as above.
        """
        self._check_open()
        from nanokv.transfer.paged import PagedKV  # brings the kernels

        return PagedKV(self._single, self._allocation, self._hooks(), layers, kv_dim)

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
        self._check_open()
        if self.alloc != "device":
            raise InvalidArgument('a kernel that publishes needs alloc="device"')
        from nanokv.transfer.cache_writer import CacheWriter  # brings the kernels

        hooks = self._hooks()
        return CacheWriter(self.world_table, self._allocation, hooks, layers, kv_cache_dtype, capacity, self.device)

    def _hooks(self) -> Hooks:
        from nanokv.transfer.paged import Hooks

        whose = self.options.namespace, self.options.identity
        judges = self._judge_put, self._judge_get
        return Hooks(self.digest, self._terms, self._checked_segment, *judges, self._worker, self._machine, whose)

    # --- asynchronous ---
    def put_async(
        self,
        key: Key,
        tensor: torch.Tensor,
        *,
        preferred_segment: int | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
    ) -> Handle[None]:
        """`put` in the background, in the order of the calls; the tensor must not change before the handle is done.

        `timeout`: as for `put`, from its beginning on; those after it wait too.
        """
        self._check_open()
        more: dict[str, Any] = {"exist_ok": exist_ok, "hold": hold, "timeout": timeout}
        return self._worker.submit(lambda: self.put(key, tensor, preferred_segment=preferred_segment, **more))

    def get_async(
        self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> Handle[torch.Tensor]:
        """`get` in the background, in the order of the calls."""
        self._check_open()
        return self._worker.submit(lambda: self.get(key, dst=dst, reinterpret=reinterpret))

    def hold(self, keys: Sequence[Key], hold: float | Hold) -> list[bool]:
        """Give objects that exist other terms, as `put(..., hold=hold)` does; per key False if there is none (yet).

        Seconds lease an object, and leave its priority alone. A Hold gives it that priority, and leaves its lease alone
        if it has no seconds. Best effort: an eviction that has begun already may still take the object.

        Raises:
            InvalidArgument: `hold` is neither a positive number of seconds nor a Hold.
        """
        self._check_open()
        change = change_to(hold, self._hash.group)
        return [change_terms(self._machine, self._allocation, digest, change) for digest in self._digests(keys)]

    def _terms(self, hold: float | Hold | None) -> Terms:
        return terms_of(hold, self._hash.group)

    def drop_group(self, group: str) -> int:
        """Remove the objects that were put with `Hold(group=group)` in this identity and namespace, from all segments.

        Pinned objects stay, and those that are not READY yet. Returns the number of objects removed.

        Raises:
            InvalidArgument: `group` is no name of a group.
        """
        self._check_open()
        if not (isinstance(group, str) and group):
            raise InvalidArgument(f"group must be a non-empty str, not {group!r}")
        return drop_group(self._machine, self._allocation, self._hash.group(group))

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

    # --- plans: the caller's kernel writes ---
    def open_for_write(
        self,
        key: Key,
        bytes_total: int,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
    ) -> WritePlan:
        """Claim a key and allocate; the caller's kernel writes the bytes. The kernel or `commit` makes it READY.

        The object reads back as flat uint8. If it is not READY after `write_timeout`, it is given up; its pages stay
        reserved until this rank calls `commit` or `abort` (which then raise WriteLost), or its process ends. `hold`: as
        for `put`, from this call on. `timeout`: as for `put`.

        Raises:
            DuplicateKey, OutOfMemory, InvalidArgument, PeerLost: nothing was allocated.
        """
        preferred_segment = self._checked_segment(preferred_segment)
        bytes_total = integer("bytes_total", bytes_total, 0, sys.maxsize)
        digest = self._hash(key)
        plan = until_room(
            self._heap,
            seconds("timeout", timeout),
            lambda: self._plans.begin(digest, bytes_total, preferred_segment, self._terms(hold)),
        )
        if isinstance(plan, WritePlan):
            return plan
        raise self._error(plan, key, bytes_total, preferred_segment)

    def commit(self, key: Key) -> None:
        """Make an object READY that this rank opened. Succeeds also if its kernel has done so already.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it took longer than `write_timeout`.
        """
        self._check_open()
        digest = self._hash(key)
        begun = self._plans.take(digest, key)
        self._single.seal(digest, begun.place, RAW)
        status = self._allocation.finish(digest, begun)
        if status:
            raise self._error(status, key)
        self._traffic.planned(begun.place.nbytes)

    def abort(self, key: Key) -> None:
        """Give up an object that this rank opened. To be called only after its kernel has ended.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it was given up already.
        """
        self._check_open()
        digest = self._hash(key)
        status = self._allocation.abort(digest, self._plans.take(digest, key))
        if status:
            raise self._error(status, key)

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
        self._machine.touch(found.place, time.time_ns())
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

    # --- waiting, and the other ranks ---
    def alive(self, rank: int) -> bool:
        """False if a rank has closed its cache, or its process has ended (seen some milliseconds later).

        Raises:
            InvalidArgument: there is no such rank.
        """
        self._check_open()
        return not self._heap.peer_closed(integer("rank", rank, 0, self.world_size - 1))

    def wait(self, keys: Key | Iterable[Key], *, timeout: float | None) -> None:
        """Wait until every object can be read. Returns within microseconds of a put by a host, in any process.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeout: after `timeout` seconds; the message gives the number of missing objects.
            PeerLost: the rank that was writing one of them has ended; or v1's master has.
        """
        self._check_open()
        digests = self._digests([keys] if isinstance(keys, str | bytes | KeyDigest) else keys)
        self._wait_for(digests, FOREVER if timeout is None else seconds("timeout", timeout))

    def _wait_for(self, digests: list[KeyDigest], timeout: float | None) -> None:
        with self._traffic.counting_timeouts():
            Waiter(self._heap, self._allocation, self._look).wait(digests, timeout)

    def _look(self, digest: KeyDigest) -> int:
        self._check_open()
        return self._allocation.exists(digest)

    def flush(self, *, timeout: float = 10.0) -> None:
        """Wait until this rank's index (keys, stats, events) includes every commit in its segment before this call.

        Raises:
            WaitTimeout: after `timeout` seconds.
        """
        self._check_open()
        with self._traffic.counting_timeouts():
            self._poller.flush(seconds("timeout", timeout))

    # --- layouts ---
    def layouts(self, rank: int | None = None) -> list[StoredLayout]:
        """The layouts of the identities that have put objects into the segment of a rank, or (None) into any.

        Raises:
            InvalidArgument: there is no such rank.
        """
        self._check_open()
        asked = range(self.world_size) if rank is None else [integer("rank", rank, 0, self.world_size - 1)]
        mine = self.options.identity, self.options.namespace
        return [row for each in asked for row in stored_in(each, self._machine.layouts(each), *mine)]

    # --- the index of this rank's segment ---
    def segment_keys(self) -> Iterator[KeyDigest]:
        """The digests of the objects in this rank's segment, as its index knows them. Keys are not stored."""
        self._check_open()
        return self._poller.index.digests()

    def segment_count(self) -> int:
        """The number of objects in this rank's segment, as its index knows them."""
        self._check_open()
        return len(self._poller.index)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of objects that come to this rank's segment or go, and of ranks that come or go (`Event`).

        The function returned ends that. A listener that refers to this cache keeps it from being dropped.
        """
        self._check_open()
        if not callable(listener):
            raise InvalidArgument(f"listener must be a function of a sequence of events, not {listener!r}")
        return self._poller.listeners.add(listener)

    def clear(self) -> int:
        """Remove every object in this rank's segment that is READY and not pinned; returns their number."""
        self.flush()
        slots, records = self._poller.index.rows()
        pairs = zip(slots.tolist(), records["epoch"].tolist(), strict=True)
        removed = sum(self._allocation.remove_slot(self.rank, *pair) == Status.OK for pair in pairs)
        self.flush()
        return removed

    def make_room(self, rank: int, nbytes: int) -> bool:
        """Make room for an object of `nbytes` in the segment of a rank, as a refused put from the host does by itself.

        For kernels of yours, whose puts are answered FULL where a host could still join free extents, or evict around
        them. Returns True if a put is worth another try: others may take the room before it comes.

        Raises:
            InvalidArgument: no such rank; no object can be that large; or the master allocates (`alloc="host"`), and
                makes room by itself.
            PeerLost: the rank has ended.
        """
        rank, nbytes = integer("rank", rank, 0, self.world_size - 1), integer("nbytes", nbytes, 0, sys.maxsize)
        self._checked_segment(rank)
        if self.alloc != "device":
            raise InvalidArgument("with alloc='host' the master makes room by itself")
        if nbytes > self._geometry.max_object_bytes:
            raise InvalidArgument(f"an object has at most {self._geometry.max_object_bytes} bytes, not {nbytes}")
        return make_room(self._machine, rank, nbytes)

    def evict_until_below(self, usage_ratio: float) -> None:
        """Evict from this rank's segment, by its policy, until at most this part of its pages is in use.

        Raises:
            InvalidArgument: `usage_ratio` is not from 0 to 1.
        """
        self._check_open()
        if not 0 <= number("usage_ratio", usage_ratio) <= 1:
            raise InvalidArgument(f"usage_ratio must be 0 to 1, not {usage_ratio!r}")
        evict_until_below(self._machine, self._allocation, self.rank, usage_ratio)
        self.flush()

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save the objects in this rank's segment to a file (docs/save_load.md), while the world is at work.

        The file is whole, or what had the name is as it was. Objects that go away meanwhile are left out.

        Raises:
            InvalidArgument: `path` is no path, or something else than a file has it.
            FileUnusable: the file cannot be written: no space, no permission.
        """
        self._check_open()
        return self._save(_path(path))

    def _save(self, path: Path, progress: Progress = no_progress) -> Saved:
        options = world_spec(self._geometry, self.options, master_rank=self._master_rank).options()
        return save(path, [OwnSegment(self._heap, self._machine, self.rank)], self._geometry, options, progress)

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
        preferred_segment = self._checked_segment(preferred_segment)
        return self._load(_path(path), preferred_segment)

    def _load(self, path: Path, preferred: int | None = None, progress: Progress = no_progress) -> Loaded:
        with open_saved(path) as file:
            return load(file, Target(self._heap, self._machine, self._allocation, self._single), preferred, progress)

    def stats(self) -> Stats:
        """Counters of this rank: heap use, objects, ring, traffic, errors. Bytes and counts; ratios from 0 to 1."""
        self._check_open()
        now = snapshot(self._machine, self.rank, self.alloc)
        mine = {"rank": self.rank, "alloc": self.alloc, "evictions": self._allocation.evicted()}
        return cast(
            Stats, now.as_dict() | self._traffic.as_dict() | self._replicas.as_dict() | self._poller.as_dict() | mine
        )

    # --- elastic membership ---
    def members(self) -> list[int]:
        """The ranks that live, ascending."""
        self._check_open()
        return [rank for rank in range(self.world_size) if not self._heap.peer_closed(rank)]

    def leave(self, keys: Fate = "move", *, timeout: float = 60.0) -> Left:
        """Leave an elastic world for good, and close (docs/elastic.md). The rank may join again, with an empty segment.

        Operations that are under way in this rank's segment are waited for, and so are pins; its open plans are
        aborted. The memory of the segment goes back to the system.

        Args:
            keys: "move": its objects go to the segments of the other ranks, those that were used last first, and
                nothing is evicted for them. What finds no room, or no other rank, is dropped. "drop": all are.
            timeout: seconds.

        Raises:
            InvalidArgument: the world is not elastic, or `keys` is something else.
            WaitTimeout: objects were pinned or being written all the time. The rank stays, and can be used on, without
                the objects that were moved or dropped so far, and without its open plans.
        """
        heap, emptying = self._emptying(self.rank, keys)
        timeout = seconds("timeout", timeout)
        assert isinstance(self._allocation, ProducerAllocation)
        with self._leave_lock:
            self._check_open()
            self._plans.abort_all()
            self._pins.give_back_dropped()
            go_around = self._allocation.routing.leave_out_this_rank
            left = leave_world(heap, self._machine, self._poller, emptying, go_around, timeout)
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
        self._check_open()
        rank = integer("rank", rank, 0, self.world_size - 1)
        heap, emptying = self._emptying(rank, keys)
        timeout = seconds("timeout", timeout)
        with self._leave_lock:
            self._check_open()
            return adopt_segment(heap, self._machine, emptying, rank, timeout)

    def _emptying(self, rank: int, keys: Fate) -> tuple[ElasticHeap, Emptying]:
        """What takes the objects out of a segment."""
        self._check_open()
        if not self._heap.elastic:
            raise InvalidArgument("leave needs a world made with elastic=True; `close` ends a rank of any other")
        if keys not in get_args(Fate):
            raise InvalidArgument(f"keys must be one of {get_args(Fate)}, not {keys!r}")
        emptying = Emptying(self._heap, self._machine, self._allocation, self._single, rank, keys)
        return cast(ElasticHeap, self._heap), emptying

    # --- closing ---
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._open

    def close(self) -> None:
        """Leave the world. Open plans are aborted; the objects in this rank's segment go with it. Idempotent."""
        if not self._open:
            return
        self._end.detach()
        self._worker.close()
        self._open = False
        self._parts.close()

    def _disown(self, process: int) -> None:
        """In a child of a fork: this cache is that of its parent, `process`, and cannot be used here."""
        if self._open:
            self._open, self._forked_from = False, process

    def __enter__(self) -> NanoKVCache:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- checks ---
    def _check_open(self) -> None:
        if not self._open:
            if self._forked_from is not None:
                raise forked(self._forked_from)
            raise CacheClosed(f"rank {self.rank} of {self._heap.name!r} was closed")

    def _checked_segment(self, preferred: int | None) -> int | None:
        self._check_open()
        if preferred is None:
            return None
        preferred = integer("preferred_segment", preferred, 0, self._heap.world_size - 1)
        if self._heap.peer_closed(preferred):
            raise PeerLost(f"rank {preferred} of {self._heap.name!r} has ended")
        return preferred

    def _error(self, status: int, key: Key, nbytes: int = 0, preferred: int | None = None) -> NanoKVError:
        owner = "its owner" if preferred is None else f"rank {preferred}"
        return error_for(status, key, self._geometry, nbytes=nbytes, owner=owner)


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


def _check_reinterpret(reinterpret: bool, dst: object) -> None:
    if reinterpret is not True or dst is None:
        raise InvalidArgument(f"reinterpret must be False, or True with a dst, not {reinterpret!r}")
