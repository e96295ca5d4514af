"""NanoKVL2Adapter: the L2 of LMCache's multi-process server in a NanoKV world, or a cluster.

LMCache's controllers submit tasks and poll event fds (`tasks`); copies go straight between L1's memory objects and the
segment. Kinds of tasks have threads of their own, so that no load waits for stores, and no look-up for either.

A look-up answers a hit only when it has pinned the object (`locks`), so what LMCache plans to load is there until it
unlocks it. In a cluster this is so for objects of this host; one of another host is found, and may be gone when it is
loaded, which is a miss. A load that finds another dtype or shape than its memory object has is a miss too.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.ending import refuse_fork
from nanokv.errors import CacheClosed, DuplicateKey, KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.integrations import joining
from nanokv.integrations.lmcache import settings
from nanokv.integrations.lmcache.putting import ChunkWriter
from nanokv.integrations.lmcache.values import flat, tensor_of
from nanokv.integrations.refusals import Refusals
from nanokv.transfer.pinned import Pinned
from nanokv.types import KeyDigest

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import MemoryLayoutDesc
    from lmcache.v1.distributed.internal_api import L1MemoryDesc

# --- tasks of one kind, run by threads, as LMCache's controllers want them: numbered, and told of by an event fd ---
# What the controllers count on: each task that was submitted ends with one result, whatever happens to it, and the fd
# is readable from then on until somebody consumes it. A result is kept before the fd is signalled, by what a future
# calls when it ends, and a future ends when its work has returned, failed, or been cancelled; so both hold.
R = TypeVar("R")


class Tasks(Generic[R]):
    """Tasks with results of one type. Any thread may call.

    Args:
        name: for logs and threads.
        numbers: of tasks; kinds of tasks may share them.
        threads: that work at a time.
        refusals: counts tasks that fail.
    """

    def __init__(self, name: str, numbers: "count[int]", threads: int, refusals: Refusals) -> None:
        self._name, self._numbers, self._refusals = name, numbers, refusals
        self._pool = ThreadPoolExecutor(threads, f"nanokv-lmcache-{name}")
        self._notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._running = 0
        self._done: dict[int, R] = {}

    def fileno(self) -> int:
        """The event fd."""
        return int(self._notifier.fileno())

    @property
    def in_flight(self) -> int:
        """Tasks that have not ended."""
        return self._running

    def submit(self, work: Callable[[], R], failed: R) -> int:
        """Begin a task; returns its number.

        Args:
            failed: the result if the work raises, or is cancelled because the tasks are closed.

        Raises:
            Forked: this is a child of a fork, which has no threads of ours.
        """
        refuse_fork(self._process)
        number = next(self._numbers)
        with self._lock:
            self._running += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # closed
            with self._lock:
                self._running -= 1
                self._done[number] = failed
            return number
        future.add_done_callback(partial(self._end, number, failed))
        return number

    def take(self, number: int) -> R | None:
        """The result of a task that has ended; once."""
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, R]:
        """The results of all tasks that have ended since the last call."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    def cancel(self) -> None:
        """Cancel the tasks that have not begun; later ones fail at once."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait for the tasks that have begun. `cancel` comes before."""
        self._pool.shutdown(wait=True)

    def close(self) -> None:
        """Close the event fd. `wait` comes before."""
        self._notifier.close()

    def _end(self, number: int, failed: R, future: "Future[R]") -> None:
        result = failed
        if not future.cancelled():
            error = future.exception()
            if error is None:
                result = future.result()
            else:
                self._refusals.note(self._name, error, f"a {self._name} task failed: {type(error).__name__}")
        with self._lock:
            self._running -= 1
            self._done[number] = result
        self._notifier.notify()


# --- objects that look-ups have found, held in place until LMCache unlocks them ---------------
# A lock is a pin: NanoKV neither evicts nor removes what is pinned, and it stays readable when the process whose
# segment has it ends. An object has one pin, however many locks it has. The pins of a process that dies are given
# back by the owners of the segments.
class _Lock:
    def __init__(self, pinned: Pinned) -> None:
        self.pinned, self.count = pinned, 1


class Locks:
    """The locks of one adapter. Any thread may call.

    Args:
        refusals: counts objects that are there, and cannot be held.
    """

    def __init__(self, world: NanoKVCache, refusals: Refusals) -> None:
        self._world, self._refusals = world, refusals
        self._mutex = threading.Lock()
        self._locks: dict[ObjectKey, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, key: ObjectKey, name: str) -> bool:
        """Lock an object once more; False if it is not there, or cannot be held."""
        with self._mutex:
            held = self._locks.get(key)
            if held is not None:
                held.count += 1
                return True
            try:
                self._locks[key] = _Lock(self._world.pin(name))
            except (KeyNotFound, NotReady):
                return False
            except NanoKVError as error:  # damaged; or there is no pin left
                self._refusals.note("lock", error, "an object that is there is not found")
                if isinstance(error, SegmentCorrupt):
                    with suppress(NanoKVError):
                        self._world.remove(name)
                return False
            return True

    def unlock(self, keys: Sequence[ObjectKey]) -> None:
        """Take one lock from each object. One that has none is left alone."""
        with self._mutex:
            for key in keys:
                self._unlock(key)

    @contextmanager
    def held(self, key: ObjectKey) -> Iterator[torch.Tensor | None]:
        """The bytes of an object that is locked, which stays so in the `with` block; None: it is not."""
        with self._mutex:
            held = self._locks.get(key)
            if held is not None:
                held.count += 1
        try:
            yield None if held is None else held.pinned.tensor
        finally:
            if held is not None:
                self.unlock([key])

    def close(self) -> None:
        """Unlock all."""
        with self._mutex:
            for held in self._locks.values():
                held.pinned.release()
            self._locks.clear()

    def _unlock(self, key: ObjectKey) -> None:
        held = self._locks.get(key)
        if held is not None:
            held.count -= 1
            if not held.count:
                del self._locks[key]
                held.pinned.release()


# --- what an adapter has stored and is still there: for usage, listings, and LMCache's eviction ---
# NanoKV keeps hashes of keys, and evicts by itself, so the keys are kept here, and taken out when an object has gone.
#
# At rest the catalogue has what the store has. Whoever has noted an object, removed one, or heard that one has gone
# asks the store afterwards whether it is there. A note goes only if its object was missing when the store was asked
# after the note was made: so one that is made in between, of an object that was stored anew, stays, and is asked for
# by its maker.
class _Note:
    """One storing of an object. The next one of the same key is another note."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


Sizes = tuple[list[ObjectKey], list[int]]  #: keys, and bytes of their objects


def name_of(key: ObjectKey) -> str:
    """The key of NanoKV. LMCache keeps "@" out of models and salts."""
    return f"lmcache-l2/{key.model_name}@{key.kv_rank:x}@{key.object_group_id}@{key.chunk_hash.hex()}@{key.cache_salt}"


class Catalogue:
    """Keys of objects that were stored, with their sizes. Any thread may call.

    Args:
        digest: of a key of NanoKV.
        exist: per key of NanoKV, whether its object is there.
    """

    def __init__(self, digest: Callable[[str], KeyDigest], exist: Callable[[Sequence[str]], list[bool]]) -> None:
        self._digest, self._exist = digest, exist
        self._lock = threading.Lock()
        self._notes: dict[ObjectKey, _Note] = {}
        self._keys: dict[KeyDigest, ObjectKey] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, keys: Sequence[ObjectKey], sizes: Sequence[int]) -> Sizes:
        """Note objects; returns those that had been noted under the same keys, and so have gone."""
        digests = [self._digest(name_of(key)) for key in keys]
        with self._lock:
            before = self._pop(key for key in dict.fromkeys(keys) if key in self._notes)
            self._notes.update(zip(keys, map(_Note, sizes), strict=True))
            self._keys.update(zip(digests, keys, strict=True))
        return before

    def gone(self, digests: Iterable[KeyDigest] | None = None) -> Sizes:
        """Forget objects that may have gone, if they have; returns those. None: all may have."""
        with self._lock:
            keys = self._notes if digests is None else [self._keys[each] for each in digests if each in self._keys]
            noted = {key: self._notes[key] for key in keys}
        found = self._exist([name_of(key) for key in noted]) if noted else []
        missing = [key for key, there in zip(noted, found, strict=True) if not there]
        with self._lock:
            return self._pop(key for key in missing if self._notes.get(key) is noted[key])

    def page(self, model_name: str | None, page_size: int, cursor: str | None) -> KeyListPage:
        """Some of the keys, in the order of their names.

        Args:
            cursor: of the page before.

        Raises:
            ValueError: `page_size` is not positive, or no page has that cursor.
        """
        if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size <= 0:
            raise ValueError(f"page_size must be a positive integer, not {page_size!r}")
        if cursor is not None and not (isinstance(cursor, str) and cursor.startswith("lmcache-l2/")):
            raise ValueError(f"no page has the cursor {cursor!r}")
        with self._lock:
            named = sorted((name_of(key), key, note.nbytes) for key, note in self._notes.items())
        left = [
            each for each in named if (cursor is None or each[0] > cursor) and model_name in (None, each[1].model_name)
        ]
        shown = left[:page_size]
        entries = tuple(KeyEntry(key=key.to_encoded_object_key(), size_bytes=size) for _, key, size in shown)
        return KeyListPage(entries=entries, next_page_token=shown[-1][0] if len(left) > len(shown) else None)

    def _pop(self, keys: Iterable[ObjectKey]) -> Sizes:
        known = list(keys)
        for key in known:
            self._keys.pop(self._digest(name_of(key)), None)
        return known, [self._notes.pop(key).nbytes for key in known]


# --- the adapter ------------------------------------------------------------------------------
logger = init_logger(__name__)

_GONE = ("REMOVED", "EVICTED")  #: kinds of events about one object
_MANY_GONE = ("MISSED", "NODE_LEFT", "RANK_LEFT")  #: and about several


class NanoKVL2AdapterConfig(L2AdapterConfigBase):
    """The settings of an adapter. LMCache finds it by its name.

    Raises:
        InvalidArgument: as `settings.of_adapter`.
    """

    def __init__(self, adapter_params: dict[str, Any]) -> None:
        self.own, self.store = settings.of_adapter(adapter_params)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> "NanoKVL2AdapterConfig":
        """The settings in `adapter_params`."""
        return cls(d)

    @classmethod
    def help(cls) -> str:
        """What there is to set."""
        return (
            "NanoKV L2 adapter: adapter_params are the settings of nanokv.integrations.joining.Settings (name, size, "
            "page_bytes, ranks, cluster, ...), and threads, spread, max_capacity_bytes: see docs/lmcache.md"
        )


class NanoKVL2Adapter(L2AdapterInterface):
    """LMCache's second level, kept in a NanoKV world or a cluster (docs/lmcache.md). LMCache makes it.

    Args:
        config: the settings.
        l1_memory_desc: where L1 lies; not needed.

    Raises:
        HeapUnavailable, ClusterUnavailable, LinkUnavailable: the store cannot be joined.
    """

    def __init__(self, config: NanoKVL2AdapterConfig, l1_memory_desc: "L1MemoryDesc | None" = None) -> None:
        own, store = config.own, config.store
        super().__init__(max_capacity_bytes=store.size if own.max_capacity_bytes is None else own.max_capacity_bytes)
        self._joined = joining.join(store)
        self._world, self._store = self._joined.world, self._joined.cache
        self._in_place = isinstance(self._store, NanoKVCache)
        self._putting = ChunkWriter(self._joined, own.segment(self._joined))
        self._refusals = Refusals(logger)
        self._locks = Locks(self._world, self._refusals)
        self._catalogue = Catalogue(self._world.digest, self._store.exists_many)
        numbers = count()
        self.stores: Tasks[L2StoreResult] = Tasks("store", numbers, own.threads, self._refusals)
        self.lookups: Tasks[Bitmap] = Tasks("lookup", numbers, 1, self._refusals)
        self.loads: Tasks[Bitmap] = Tasks("load", numbers, own.threads, self._refusals)
        self._unsubscribe = self._store.subscribe(self._hear)
        self._open = True

    @property
    def cache(self) -> joining.Store:
        """The NanoKVCache, or NanoKVCluster, with the objects."""
        return self._store

    # --- event fds ---
    def get_store_event_fd(self) -> int:
        """Readable when a store task has ended."""
        return self.stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when a look-up has ended."""
        return self.lookups.fileno()

    def get_load_event_fd(self) -> int:
        """Readable when a load task has ended."""
        return self.loads.fileno()

    # --- store ---
    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Begin to store objects. The task succeeds if each is there in the end, whoever has stored it."""
        return self.stores.submit(partial(self._run_store, list(keys), list(objects)), L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """The store tasks that have ended since the last call, with the bytes that they have written."""
        return self.stores.take_all()

    def _run_store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult:
        tensors = [tensor_of(each) for _, each in zip(keys, objects, strict=True)]
        outcomes = self._putting.put([name_of(key) for key in keys], tensors)
        errors = [error for error in outcomes if error is not None and not isinstance(error, DuplicateKey)]
        if errors:
            for error in errors:
                self._refusals.note("put", error, f"{len(errors)} of {len(keys)} objects were not stored")
        stored = [i for i, error in enumerate(outcomes) if error is None]
        nbytes = [tensors[i].nbytes for i in stored]
        self._note_stored([keys[i] for i in stored], nbytes)
        return L2StoreResult(not errors, sum(nbytes))

    def _note_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        if keys:
            self._tell_deleted(self._catalogue.add(keys, sizes))
            self._notify_keys_stored(keys, sizes)
            self._tell_deleted(self._catalogue.gone([self._world.digest(name_of(key)) for key in keys]))

    # --- look up and lock ---
    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: "dict[int, MemoryLayoutDesc]"
    ) -> int:
        """Begin to look objects up. Those of this host that are found are locked, once more each time."""
        return self.lookups.submit(partial(self._run_lookup, list(keys)), Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """Which objects were found; None until the task has ended, and after the first answer."""
        return self.lookups.take(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Take one lock from each object. It is done when the call returns."""
        self._locks.unlock(keys)

    def _run_lookup(self, keys: list[ObjectKey]) -> Bitmap:
        found = Bitmap(len(keys))
        missing = []
        for i, key in enumerate(keys):
            if self._locks.lock(key, name_of(key)):
                found.set(i)
            else:
                missing.append(i)
        if missing and not self._in_place:
            for i, yes in zip(missing, self._store.exists_many([name_of(keys[i]) for i in missing]), strict=True):
                if yes:
                    found.set(i)
        return found

    # --- load ---
    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Begin to fill memory objects."""
        return self.loads.submit(partial(self._run_load, list(keys), list(objects)), Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Which memory objects were filled; None until the task has ended, and after the first answer."""
        return self.loads.take(task_id)

    def _run_load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap:
        loaded = Bitmap(len(keys))
        read = []
        for i, (key, memory_obj) in enumerate(zip(keys, objects, strict=True)):
            if self._filled(key, memory_obj):
                loaded.set(i)
                read.append(key)
        if read:
            self._notify_keys_accessed(read)
        return loaded

    def _filled(self, key: ObjectKey, memory_obj: MemoryObj) -> bool:
        try:
            dst = tensor_of(memory_obj)
            with self._locks.held(key) as stored:
                if stored is None:
                    return self._store.get(name_of(key), None, dst=dst) is not None
                if stored.dtype == dst.dtype and stored.shape == dst.shape:
                    flat(dst).copy_(flat(stored))
                    return True
                self._refusals.note("get", "OtherShape", f"{key} has {stored.dtype}, {tuple(stored.shape)}: a miss")
        except SegmentCorrupt as error:
            self._refusals.note("get", error, "a damaged object is dropped")
            with contextlib.suppress(NanoKVError):
                self._store.remove_many([name_of(key)])  # else every look-up would find it again
        except NanoKVError as error:
            self._refusals.note("get", error, "an object is not loaded")
        return False

    # --- what is there ---
    def delete(self, keys: list[ObjectKey]) -> None:
        """Remove objects, but for those that are locked. LMCache's eviction comes back for them."""
        names = [name_of(key) for key in keys]
        try:
            self._store.remove_many(names)
        except NanoKVError as error:
            self._refusals.note("delete", error, "objects are not deleted")
            return
        self._tell_deleted(self._catalogue.gone([self._world.digest(name) for name in names]))

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """The keys of the objects that are there, of those that this adapter has stored.

        Raises:
            ValueError: `page_size` is not positive, or no page has that cursor.
        """
        return self._catalogue.page(model_name, page_size, cursor)

    def report_status(self) -> dict[str, Any]:
        """Whether the adapter can be used, and what it has."""
        return {
            "is_healthy": self._open and not self._store.closed,
            "type": type(self).__name__,
            "store": repr(self._store),
            "stored_object_count": len(self._catalogue),
            "locked_key_count": len(self._locks),
            "total_bytes_used": self.get_usage().total_bytes_used,
            "max_capacity_bytes": self._max_capacity_bytes,
            "refusals": self._refusals.counts(),
            "tasks_in_flight": self.stores.in_flight + self.lookups.in_flight + self.loads.in_flight,
        }

    def _hear(self, events: Sequence[Any]) -> None:
        """Events of a world or a cluster."""
        with contextlib.suppress(CacheClosed):
            if any(event.kind.name in _MANY_GONE for event in events):
                self._tell_deleted(self._catalogue.gone())
            else:
                self._tell_deleted(self._catalogue.gone([e.key for e in events if e.kind.name in _GONE]))

    def _tell_deleted(self, gone: Sizes) -> None:
        if gone[0]:
            self._notify_keys_deleted(*gone)

    # --- the end ---
    def close(self) -> None:
        """Cancel the tasks that have not begun, wait for the others, unlock all, and leave the store. Idempotent.

        What was stored stays, as long as other processes are in the store.
        """
        if not self._open:
            return
        self._open = False
        kinds: list[Tasks[Any]] = [self.lookups, self.loads, self.stores]
        for tasks in kinds:
            tasks.cancel()
        for tasks in kinds:
            tasks.wait()
        self._unsubscribe()
        self._locks.close()
        self._joined.close()
        for tasks in kinds:
            tasks.close()
