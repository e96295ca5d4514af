"""NanoKVConnector: a RemoteConnector of LMCache, whose chunks are objects in a NanoKV world, or a cluster.

LMCache awaits its methods on an event loop that all backends share. So what copies, or may ask other nodes, runs in
threads: those that store are others than those that read. Each await ends: no call waits for memory or other processes
without bound, and after `close` each is a miss, or an error where LMCache counts errors.

The counts of references: whoever calls `put` has one, and keeps it; a thread that reads the memory holds its own,
until it is done, because LMCache lets go of a put that it has given up on. A chunk that was read has one, the caller's;
if the caller has gone, it is given back (`background`).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

from nanokv.errors import CacheClosed, Forked, NanoKVError
from nanokv.integrations.joining import Store, join
from nanokv.integrations.lmcache import settings
from nanokv.integrations.lmcache.chunks import Chunks, give_back
from nanokv.integrations.lmcache.forms import ChunkLayout, format_of_layers
from nanokv.integrations.refusals import Refusals

T = TypeVar("T")


# --- the names of objects that this process has stored ----------------------------------------
# NanoKV keeps hashes of keys, so names are kept here.
#
# What has gone from the store goes from here when names are listed, and whenever their number has doubled; so there
# are never many more names than objects.
_FEW = 4096


class Known:
    """Names, in the order in which they came.

    Args:
        exist: per name, whether its object is there.
    """

    def __init__(self, exist: Callable[[Sequence[str]], list[bool]]) -> None:
        self._exist = exist
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}
        self._limit = _FEW

    def add(self, names: Sequence[str]) -> None:
        """Note names."""
        with self._lock:
            self._names.update(dict.fromkeys(names))
            many = len(self._names) > self._limit
        if many:
            self._limit = max(2 * len(self.those_there()), _FEW)

    def those_there(self) -> list[str]:
        """The names whose objects are there; the others are forgotten."""
        with self._lock:
            names = list(self._names)
        found = self._exist(names)
        with self._lock:
            for name, there in zip(names, found, strict=True):
                if not there:
                    self._names.pop(name, None)
        return [name for name, there in zip(names, found, strict=True) if there]


# --- calls in threads, awaited by an event loop: what is given up on is still cleaned up ------
# A thread cannot be stopped. So if the awaiting task is cancelled, as LMCache does after its `blocking_timeout_secs`,
# the call ends nevertheless, and its result, which nobody takes any more, goes to `unused`.


async def in_thread(pool: ThreadPoolExecutor, work: Callable[[], T], unused: Callable[[T], None]) -> T:
    """The result of `work`, run by a thread of the pool.

    Raises:
        RuntimeError: the pool was shut down.
        asyncio.CancelledError: the awaiting task was cancelled, or the pool was shut down before `work` began.
    """
    future = pool.submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda ended: _give(ended, unused))
        raise


def _give(ended: "Future[T]", unused: Callable[[T], None]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        unused(ended.result())


def ignored(result: object) -> None:
    """Nothing is to be cleaned up."""


# --- the connector ----------------------------------------------------------------------------
logger = init_logger(__name__)

_CLOSED = 1  #: answer of a ping


class NanoKVConnector(RemoteConnector):
    """LMCache's remote storage, kept in a NanoKV world or a cluster (docs/lmcache.md). LMCache makes it.

    Args:
        loop: that awaits its methods.
        local_cpu_backend: allocates what is read.
        config: of LMCache; the settings "nanokv.*" of its `extra_config` are those of `settings`.

    Raises:
        SettingsRefused: a setting is wrong.
        HeapUnavailable, ClusterUnavailable, LinkUnavailable: the store cannot be joined.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: LocalCPUBackend,
        config: LMCacheEngineConfig | None = None,
    ) -> None:
        config = local_cpu_backend.config if config is None else config
        own, store = settings.of_connector(config.extra_config)
        super().__init__(config, local_cpu_backend.metadata)
        self.loop = loop
        self._lease = own.lease
        layout = ChunkLayout(
            self.meta_shapes,
            self.meta_dtypes,
            self.meta_fmt,
            layers=format_of_layers(self.meta_fmt, blending=bool(config.enable_blending))
            if config.use_layerwise
            else None,
            serialized=config.remote_serde == "cachegen",
        )
        self._joined = join(
            store if config.use_layerwise else settings.with_room_for(self.full_chunk_size_bytes, store)
        )
        self._refusals = Refusals(logger)
        segment = own.segment(self._joined)
        self.chunks = Chunks(self._joined, layout, segment, local_cpu_backend.allocate, self._refusals)
        self._known = Known(self.chunks.exist)
        self.puts = ThreadPoolExecutor(own.threads, "nanokv-lmcache-put")
        self.gets = ThreadPoolExecutor(own.threads, "nanokv-lmcache-get")
        self._open = True

    @property
    def cache(self) -> Store:
        """The NanoKVCache, or NanoKVCluster, with the chunks."""
        return self._joined.cache

    def refusals(self) -> dict[str, int]:
        """Chunks that were not stored or not read, and calls that failed, by cause ("put: OutOfMemory")."""
        return self._refusals.counts()

    def __repr__(self) -> str:
        return f"<NanoKVConnector over {self._joined.cache!r}>"

    # --- which chunks are there ---
    async def exists(self, key: CacheEngineKey) -> bool:
        """Whether a chunk is there."""
        return await self._ask(partial(self.exists_sync, key), False)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        """Whether a chunk is there."""
        return self._or(False, lambda: self.chunks.exist([key.to_string()])[0])

    def support_batched_contains(self) -> bool:
        """Tell that this connector does."""
        return True

    def batched_contains(self, keys: list[CacheEngineKey]) -> int:
        """How many of the first chunks are there."""
        return self._or(0, lambda: self.chunks.prefix(_names(keys)))

    def support_batched_async_contains(self) -> bool:
        """Tell that this connector does."""
        return True

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        """How many of the first chunks are there.

        Args:
            pin: those of this host get a lease (setting `lease`): LMCache tells nobody when it needs them no more.
        """

        def look() -> int:
            length = self.chunks.prefix(_names(keys))
            if pin and self._lease and length:
                self.chunks.lease(_names(keys[:length]), self._lease)
            return length

        return await self._ask(partial(self._or, 0, look), 0)

    # --- read ---
    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        """The chunk of a key, with one reference; None: it is not there, or there is no memory for it."""
        return (await self._get([key]))[0]

    def support_batched_get(self) -> bool:
        """Tell that this connector does."""
        return True

    async def batched_get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """`get` for each key."""
        return await self._get(keys)

    def support_batched_get_non_blocking(self) -> bool:
        """Tell that this connector does."""
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """The chunks of the first keys, up to the first one that is missing."""
        return [each for each in await self._get(keys, only_prefix=True) if each is not None]

    async def _get(self, keys: list[CacheEngineKey], only_prefix: bool = False) -> list[MemoryObj | None]:
        nothing: list[MemoryObj | None] = [None] * len(keys)
        work = partial(self._or, nothing, lambda: self.chunks.get(_names(keys), only_prefix=only_prefix))
        return await self._ask(work, nothing, unused=give_back)

    # --- store ---
    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        """Store a chunk. One that is there already stays.

        Raises:
            NanoKVError: it was not stored. LMCache counts that.
        """
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Tell that this connector does."""
        return True

    async def batched_put(self, keys: list[CacheEngineKey], memory_objs: list[MemoryObj]) -> None:
        """`put` for each key.

        Raises:
            NanoKVError: at least one was not stored, for that reason; the others were.
        """
        self._joined.check_process()
        names = _names(keys)
        for each in memory_objs:
            each.ref_count_up()
        done = partial(give_back, list(memory_objs))

        def store() -> list[NanoKVError | None]:
            outcomes = self.chunks.put(names, memory_objs)
            self._known.add([name for name, error in zip(names, outcomes, strict=True) if error is None])
            return outcomes

        try:
            pending = self.puts.submit(store)
        except RuntimeError:
            done()
            raise CacheClosed("the connector was closed before the put") from None
        pending.add_done_callback(lambda _: done())
        for error in await asyncio.wrap_future(pending):
            if error is not None:
                raise error

    # --- the store ---
    def remove_sync(self, key: CacheEngineKey) -> bool:
        """Remove a chunk; False: there is none, or it is being read."""
        return self._or(False, lambda: self.chunks.remove(key.to_string()))

    async def list(self) -> "list[str]":
        """The keys of the chunks that are there, of those that this connector has put."""
        nothing: list[str] = []
        return await self._ask(partial(self._or, nothing, self._known.those_there), nothing)

    def support_ping(self) -> bool:
        """Tell that this connector does."""
        return True

    async def ping(self) -> int:
        """0 while the store can be used."""
        return _CLOSED if not self._open or self._joined.cache.closed else 0

    async def close(self) -> None:
        """Wait for the calls that have begun, and leave the store. Afterwards every call is a miss. Idempotent.

        What was stored stays, as long as other processes are in the store.
        """
        if self._open:
            self._open = False
            await asyncio.get_running_loop().run_in_executor(None, self._leave)

    def _leave(self) -> None:
        for pool in (self.gets, self.puts):
            pool.shutdown(wait=True, cancel_futures=True)
        self._joined.close()

    def _or(self, answer: T, work: Callable[[], T]) -> T:
        """What `work` returns, or `answer` where it fails: LMCache computes what it does not find."""
        try:
            return work()
        except Forked:
            raise
        except NanoKVError as error:
            self._refusals.note("call", error, f"{type(error).__name__}, which counts as a miss")
            return answer

    async def _ask(self, work: Callable[[], T], closed: T, unused: Callable[[T], None] = ignored) -> T:
        """The answer of a thread; `closed` if this connector is closed, or closes before the thread begins."""
        if not self._open:
            return closed
        self._joined.check_process()
        try:
            return await in_thread(self.gets, work, unused)
        except RuntimeError:
            return closed
        except asyncio.CancelledError:
            if self._open or _is_cancelled():
                raise
            return closed


def _is_cancelled() -> bool:
    """Whether somebody cancels the running task, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _names(keys: "list[CacheEngineKey]") -> "list[str]":
    return [key.to_string() for key in keys]
