"""The parts of a cache: who it is, what its calls check first, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, cast

import torch

from nanokv.arguments import integer, listed
from nanokv.background import Worker
from nanokv.config import Options
from nanokv.device.machines.records import Terms
from nanokv.digests import Digests
from nanokv.ending import Gone, Parts, disown, end_when_dropped, forked
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from nanokv.generations import Generations
from nanokv.keys import Hasher
from nanokv.plans import Plans
from nanokv.replicas import Replicas
from nanokv.room import RoomWait
from nanokv.statistics import Traffic, held_pages
from nanokv.status_errors import error_for
from nanokv.terms import Hold, terms_of
from nanokv.transfer.batched import BatchedTransfer
from nanokv.transfer.object_calls import ObjectCalls, PythonCalls, checked_segment, object_calls
from nanokv.transfer.single import SingleTransfer
from nanokv.types import Key, KeyDigest
from nanokv.wiring import Wired

_MIB = 1 << 20

#: Attributes that keep the memory of the world mapped. A closed cache has none of them.
_OF_THE_WORLD = (
    "_heap",
    "_machine",
    "_allocation",
    "_poller",
    "_pins",
    "_single",
    "_python_calls",
    "_calls",
    "_room",
    "_batched",
    "_plans",
    "_replicas",
    "_promotion",
    "_generations",
    "_watch",
    "_parts",
)


class CacheBase:
    """One rank's parts. `NanoKVCache` and the files of this folder add the calls."""

    def _setup(self, wired: Wired, options: Options, master_rank: int) -> None:
        self._heap, self._machine, self._allocation, self._poller, self._pins = wired
        self._name, self._rank, self._device = self._heap.name, self._heap.rank, self._heap.device
        self._alloc = self._allocation.alloc
        self._geometry = wired.machine.geometry
        self._hasher = Hasher(options.namespace, options.identity)
        self._hash = self._hasher.__call__
        self._ranks = self._heap.world_size
        self._single = SingleTransfer(self._heap, self._machine, self._allocation, checksum=options.checksum)
        self._batched = BatchedTransfer(self._single, self._allocation)
        self._traffic = Traffic(self._geometry)
        self._plans = Plans(self._allocation, self._machine)
        self._worker = Worker(f"nanokv-async-{self._heap.rank}", self._heap.device)
        self._master_rank = master_rank
        self._replicas = Replicas(
            self._heap,
            self._machine,
            self._allocation,
            self._single,
            self._batched,
            self._worker,
            costs=options.costs,
            promote=options.promote,
        )
        self._promotion = self._replicas.promotion
        self._room = RoomWait(self._heap, self._worker, self._poller)
        self._python_calls = PythonCalls(
            self._heap, self._allocation, self._hasher, self._single, self._replicas, self._traffic, self._room
        )
        self._calls = object_calls(self._python_calls, self._machine)
        self._generations: Generations | None = None
        self._open = True
        bell = self._heap.world_bell() if self.alloc == "device" else None  # v1 asks its master
        self._watch = None if bell is None else self._machine.waits_on(bell)
        self._leave_lock = threading.Lock()
        self._leaving: list[Callable[[], None]] = []
        self._forked_from: int | None = None
        self._parts = Parts(self._worker, self._plans, self._poller, self._pins, self._allocation, self._heap)
        self._end = end_when_dropped(self, self._parts)
        self.options = options

    # --- identity and addresses ---
    def __repr__(self) -> str:
        place = f"NanoKVCache {self._name!r}, rank {self.rank} of {self.world_size}, alloc={self.alloc!r}"
        if not self._open:
            return f"<{place}, closed>"
        pages = held_pages(self._geometry, self.alloc, self._poller.index.rows()[1]["n_pages"]).sum()
        used, total = (pages * self._geometry.page_bytes / _MIB for pages in (pages, self._geometry.n_pages))
        return f"<{place}, {len(self._poller.index)} objects, {used:.1f} of {total:.1f} MiB used>"

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
        return self._alloc

    @property
    def device(self) -> torch.device:
        """The device of the segments, and of the tensors that `get` returns."""
        return self._device

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

    def digests(self, keys: Iterable[Key]) -> Digests:
        """The digests of many keys as one sequence. A call about many keys takes it as it is: nothing is hashed again.

        Raises:
            ReuseViolation, InvalidArgument: as `digest`, for the first such key.
        """
        return self._digests(keys)

    # --- closing ---
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._open

    def close(self) -> None:
        """Leave the world. Open plans are aborted; the objects in this rank's segment go with it. Idempotent.

        Operations in the background are done before; one that waits for room raises CacheClosed.

        The memory goes back to the system with the last rank in this process, pinned object, or `paged_kv`.
        """
        if not self._open:
            return
        for leave in list(self._leaving):
            leave()
        self._end.detach()
        self._worker.close()
        self._open = False
        self._parts.close()
        gone = Gone(partial(CacheClosed, f"rank {self._rank} of {self._name!r} was closed"))
        for part in _OF_THE_WORLD:
            setattr(self, part, gone)

    def _before_close(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Call `leave` when this cache is closed, before its memory goes: for what shares the memory with others.

        The function returned takes that back.
        """
        self._check_open()
        self._leaving.append(leave)
        return lambda: self._leaving.remove(leave) if leave in self._leaving else None

    def _disown(self, process: int) -> None:
        """In a child of a fork: this cache is that of its parent, `process`, and cannot be used here."""
        if self._open:
            self._open, self._forked_from = False, process
            self._calls = cast(ObjectCalls, Gone(partial(forked, process)))
            disown(self._machine, process)  # for those who have it from us

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what calls share ---
    def _check_open(self) -> None:
        if not self._open:
            if self._forked_from is not None:
                raise forked(self._forked_from)
            raise CacheClosed(f"rank {self._rank} of {self._name!r} was closed")

    def _check_stays(self) -> None:
        """For what waits for room."""
        self._check_open()
        self._room.check()

    def _checked_segment(self, preferred: int | None) -> int | None:
        self._check_open()
        return checked_segment(self._heap, preferred)

    def _digests(self, keys: Iterable[Key]) -> Digests:
        return self._hasher.each(keys if type(keys) is Digests else listed("keys", keys))

    def _terms(self, hold: float | Hold | None) -> Terms:
        return terms_of(hold, self._hasher.group)

    def _look(self, digest: KeyDigest) -> int:
        self._check_open()
        return self._allocation.exists(digest)

    def _error(self, status: int, key: Key, nbytes: int = 0, preferred: int | None = None) -> NanoKVError:
        owner = "its owner" if preferred is None else f"rank {preferred}"
        return error_for(status, key, self._geometry, nbytes=nbytes, owner=owner)
