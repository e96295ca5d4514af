"""NanoKVStorage: a HiCache storage backend of SGLang, whose pages are objects in a NanoKV world, or a cluster.

SGLang calls it on the threads of its cache controller: one backs up pages of the host pool, one asks what is there, one
reads it back. Nothing raises there: what fails is answered as a miss (`calls`). What is wrong from the start is refused
when the backend is made, or when a pool is registered, and SGLang does not attach it then.

A page is found if all of its objects are there, and each object is published whole (`objects`); so a page that was
stored or evicted in part is a miss, and one that was read in part is answered False.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.observability.metrics_collector import StorageMetrics

from nanokv.errors import InvalidArgument
from nanokv.integrations.joining import join
from nanokv.integrations.sglang import settings
from nanokv.integrations.sglang.calls import Calls, or_else
from nanokv.integrations.sglang.objects import Objects, view
from nanokv.integrations.sglang.pools import KV, Pools
from nanokv.integrations.sglang.scopes import identity_of, scopes_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
    from sglang.srt.mem_cache.pool_host import HostKVCache

    from nanokv.integrations.joining import Store

# --- what SGLang's storage metrics are told: pages and bandwidth of each batch that was read or written ---
_MOST = 4096  #: batches that are kept until SGLang asks
_GB = 1 << 30


class Metrics:
    """Batches since SGLang has asked last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: list[tuple[int, float]] = []
        self._writes: list[tuple[int, float]] = []

    def read(self, done: Sequence[bool], page_bytes: int, started: float) -> None:
        """A batch was read: per page whether it was, and `time.perf_counter()` of before."""
        self._add(self._reads, done, page_bytes, started)

    def wrote(self, done: Sequence[bool], page_bytes: int, started: float) -> None:
        """A batch was written."""
        self._add(self._writes, done, page_bytes, started)

    def _add(self, batches: list[tuple[int, float]], done: Sequence[bool], page_bytes: int, started: float) -> None:
        seconds = time.perf_counter() - started
        pages = sum(done)
        with self._lock:
            if pages and seconds > 0 and len(batches) < _MOST:
                batches.append((pages, pages * page_bytes / _GB / seconds))

    def take(self) -> StorageMetrics:
        """Pages of each batch, and GiB per second, since the last call."""
        with self._lock:
            reads, self._reads = self._reads, []
            writes, self._writes = self._writes, []
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in reads],
            backup_pgs=[pages for pages, _ in writes],
            prefetch_bandwidth=[rate for _, rate in reads],
            backup_bandwidth=[rate for _, rate in writes],
        )


# --- how much of a prefix can be restored: the pages of KV, and what each further pool has for them ---
# A prefix of n pages can be restored if each pool has what its policy asks for: all_pages the state of each page,
# trailing_pages that of the last ones, as many as the transfer has keys. Then there may be gaps: 5 pages can be
# restorable where 4 are not. block_groups is about a second form of the same pages, which changes nothing for them.
Present = Callable[[str, Sequence[str]], list[bool]]  #: of a pool, by its name: whether each key's state is there


def restorable(
    kv_pages: int, keys: Sequence[str], transfers: Sequence[PoolTransfer], present: Present
) -> PoolTransferResult:
    """What SGLang's `batch_exists_v2` answers.

    Args:
        kv_pages: pages of KV that are there without a gap, from the first key on.

    Raises:
        ValueError: a policy that is none of these.
    """
    if not kv_pages:
        return PoolTransferResult(0, {}, [])
    hits: dict[str, int] = {PoolName.KV: kv_pages}
    lengths = set(range(1, kv_pages + 1))
    for transfer in transfers:
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            hits[transfer.name] = _in_whole_groups(transfer, present)
            continue
        there = present(transfer.name, keys[:kv_pages])
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            allowed = set(range(1, leading(there) + 1))
        elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            window = max(1, len(transfer.keys or []))
            allowed = {n for n in range(1, kv_pages + 1) if all(there[max(0, n - window) : n])}
        else:
            raise ValueError(f"there is no hit policy {transfer.hit_policy!r}")
        if allowed:
            hits[transfer.name] = max(allowed)
        lengths &= allowed
    return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))


def leading(there: Sequence[bool]) -> int:
    """How many are true, up to the first that is not."""
    return next((i for i, each in enumerate(there) if not each), len(there))


def _in_whole_groups(transfer: PoolTransfer, present: Present) -> int:
    """The pages that the leading groups cover of which all keys are there."""
    keys, each = transfer.keys or [], transfer.group_pages
    if each <= 0 or transfer.block_pages <= 0:
        raise ValueError(f"block_groups needs block_pages and group_pages, not {transfer.block_pages} and {each}")
    groups: int = leading(present(transfer.name, keys)) // each
    return groups * int(transfer.block_pages)


# --- the storage ------------------------------------------------------------------------------
class NanoKVStorage(HiCacheStorage):
    """SGLang's storage of KV pages, kept in a NanoKV world or a cluster (docs/sglang.md).

    Args:
        storage_config: of SGLang: ranks, model, and the extra config, whose `nanokv` holds the settings of the store.
        kwargs: what SGLang's factory was given beside that; not used.

    Attributes:
        calls: counts failures.

    Raises:
        InvalidArgument: a setting is wrong, or the model has no name.
        HeapUnavailable, ClusterUnavailable, LinkUnavailable: the store cannot be joined.
    """

    def __init__(self, storage_config: "HiCacheStorageConfig", kwargs: dict[str, Any] | None = None) -> None:
        self.storage_config = storage_config
        given = settings.parse(storage_config.extra_config)
        self._zero_copy = settings.uses_zero_copy(storage_config.extra_config)
        if storage_config.should_split_heads and not self._zero_copy:
            raise InvalidArgument("tp_lcm_size needs interface_v1=1: only these calls cut pages along their heads")
        self._unregistered = scopes_of(storage_config, KV, None)[0]
        self._metrics = Metrics() if storage_config.enable_storage_metrics else None
        self.calls = Calls()
        self._joined = join(given, identity_of(storage_config))
        self._objects = Objects(self._joined, self.calls)
        self.pools = Pools(storage_config, given, self._objects)

    @property
    def cache(self) -> "Store":
        """The NanoKVCache, or NanoKVCluster, with the pages."""
        return self._joined.cache

    # --- pools ---
    def register_mem_pool_host(self, mem_pool_host: "HostKVCache") -> None:
        """The pool of KV.

        Raises:
            InvalidArgument: it hands out no pages, or its pages are larger than objects of this store can be.
        """
        super().register_mem_pool_host(mem_pool_host)
        self.pools.register(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: "HostKVCache", host_pool_name: str) -> None:
        """A pool for the calls of v2. That of KV is `register_mem_pool_host`'s, and its pages are the same objects.

        Raises:
            InvalidArgument: as `register_mem_pool_host`.
        """
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self.pools.register(host_pool_name, host_pool)

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do."""

    # --- tensors ---
    @or_else(lambda *args, **kwargs: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """The value of a key, or None.

        Args:
            target_location: a contiguous tensor of the value's size, which is filled and returned; or the address of
                memory. None: a new tensor is made.
            target_sizes: the bytes of that memory.
        """
        if target_location is None:
            return self._objects.get_new(self._flat, key)
        target = _tensor(target_location, target_sizes)
        return target if self._objects.get_tensors(self._flat, [key], [target])[0] else None

    @or_else(lambda keys, *args, **kwargs: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """`get` for each key."""
        if target_locations is None:
            return [self._objects.get_new(self._flat, key) for key in keys]
        targets = _tensors(keys, target_locations, target_sizes)
        found = self._objects.get_tensors(self._flat, keys, targets)
        return [target if there else None for target, there in zip(targets, found, strict=True)]

    @or_else(lambda *args, **kwargs: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a tensor, or memory. A key that has a value of that size keeps it. False: it was not stored."""
        given = _tensor(target_location if value is None else value, target_sizes)
        return self._objects.put_tensors(self._flat, [key], [given])[0]

    @or_else(lambda *args, **kwargs: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """`set` for each key: whether all are stored."""
        given = _tensors(keys, target_locations if values is None else values, target_sizes)
        return all(self._objects.put_tensors(self._flat, keys, given))

    # --- which pages are there ---
    @or_else(lambda *args, **kwargs: False)
    def exists(self, key: str) -> bool:
        """Whether `batch_exists` finds it."""
        return self._objects.prefix(self._kv_scopes, [key]) == 1

    @or_else(lambda *args, **kwargs: 0)
    def batch_exists(self, keys: list[str], extra_info: "HiCacheStorageExtraInfo | None" = None) -> int:
        """How many of the first pages are there."""
        return self._objects.prefix(self._kv_scopes, keys)

    @or_else(lambda *args, **kwargs: PoolTransferResult.empty())
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: "HiCacheStorageExtraInfo | None" = None,
    ) -> PoolTransferResult:
        """How much of a prefix can be restored, with what the other pools have for it: see `restorable`."""
        anchor = self.pools.find(KV)
        logical = anchor is not None and anchor.pages.form == "logical"
        kv_pages = len(keys) if logical else self._objects.prefix(self._kv_scopes, keys)
        return restorable(kv_pages, keys, pool_transfers or [], self._present)

    def _present(self, name: str, keys: Sequence[str]) -> list[bool]:
        return self._objects.exist(self.pools.get(name).scopes, keys)

    @property
    def _flat(self) -> str:
        """The scope of values that the generic calls store: flat pages of KV."""
        pool = self.pools.find(KV)
        return self._unregistered if pool is None else pool.flat

    @property
    def _kv_scopes(self) -> tuple[str, ...]:
        """The scopes of the objects of a page of KV, as SGLang stores them: by v1, or by the generic calls."""
        pool = self.pools.find(KV)
        return pool.scopes if pool is not None and self._zero_copy else (self._flat,)

    # --- pages of host pools ---
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: "HiCacheStorageExtraInfo | None" = None
    ) -> list[bool]:
        """Read pages into the pool of KV; per key whether its page was read."""
        return self._load(KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: "HiCacheStorageExtraInfo | None" = None
    ) -> list[bool]:
        """Store pages of the pool of KV; per key whether its page is there now."""
        return self._store(KV, keys, host_indices)

    @or_else(lambda transfers, *args, **kwargs: {each.name: [False] * len(each.keys or []) for each in transfers})
    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: "HiCacheStorageExtraInfo | None" = None
    ) -> dict[str, list[bool]]:
        """Read pages of several pools; by pool, per key whether its page was read."""
        return {each.name: self._load(each.name, each.keys or [], each.host_indices) for each in transfers}

    @or_else(lambda transfers, *args, **kwargs: {each.name: [False] * len(each.keys or []) for each in transfers})
    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: "HiCacheStorageExtraInfo | None" = None
    ) -> dict[str, list[bool]]:
        """Store pages of several pools; by pool, per key whether its page is there now."""
        return {each.name: self._store(each.name, each.keys or [], each.host_indices) for each in transfers}

    @or_else(lambda name, keys, *args: [False] * len(keys))
    def _load(self, name: str, keys: Sequence[str], host_indices: torch.Tensor | None) -> list[bool]:
        started = time.perf_counter()
        done, page_bytes = self.pools.load(name, keys, host_indices)
        if self._metrics is not None:
            self._metrics.read(done, page_bytes, started)
        return done

    @or_else(lambda name, keys, *args: [False] * len(keys))
    def _store(self, name: str, keys: Sequence[str], host_indices: torch.Tensor | None) -> list[bool]:
        started = time.perf_counter()
        done, page_bytes = self.pools.store(name, keys, host_indices)
        if self._metrics is not None:
            self._metrics.wrote(done, page_bytes, started)
        return done

    # --- the store ---
    @or_else(lambda *args, **kwargs: None)
    def clear(self) -> None:
        """Remove this backend's pages from all segments of this host, also those that others have put.

        They are those of its model, ranks and pools. Pages of other ranks, models and programs stay.
        """
        for scope in {self._unregistered} | self.pools.scopes():
            self._objects.drop(scope)

    def get_stats(self) -> Any:
        """SGLang's StorageMetrics of the batches since the last call; None without --enable-metrics."""
        return None if self._metrics is None else self._metrics.take()

    def close(self) -> None:
        """Wait for the calls that have begun, and leave the store. Afterwards every call is a miss. Idempotent.

        What was stored stays, as long as other processes are in the store.
        """
        if self.calls.close():
            self._joined.close()


def _tensors(keys: Sequence[str], given: Any, sizes: Any) -> list[torch.Tensor]:
    """One tensor per key."""
    given = [] if given is None else given
    sizes = [None] * len(given) if sizes is None else sizes
    if not len(keys) == len(given) == len(sizes):
        raise InvalidArgument(f"{len(keys)} keys, {len(given)} values, {len(sizes)} sizes")
    return [_tensor(*each) for each in zip(given, sizes, strict=True)]


def _tensor(given: Any, nbytes: Any) -> torch.Tensor:
    """A tensor, or the memory at an address."""
    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, int) and isinstance(nbytes, int) and given > 0 < nbytes:
        return view(given, nbytes)
    raise InvalidArgument(f"a tensor is needed, or an address and a number of bytes, not {given!r} and {nbytes!r}")
