"""A secondary tier of vLLM's `TieringOffloadingSpec`: the blocks of its primary tier in a NanoKV world, or a cluster.

vLLM copies KV between the GPU and the primary tier, a region of host memory. What it stores there, it hands to each
secondary tier too (`submit_store`); what it misses there, it looks up here, and has it loaded back (`submit_load`). A
block is one row of the primary tier, with the parts of all workers, and becomes one object.

Everything here runs on the scheduler's thread, which must not wait: copies are made by `Jobs`, in threads of its own;
look-ups in a cluster by `BackgroundLookups`. Whatever goes wrong there becomes a failed job, and the engine computes
the block: nothing raises into the scheduler.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.errors import DuplicateKey, InvalidArgument, NanoKVError, SegmentCorrupt
from nanokv.integrations.joining import JoinedStore, Store, join
from nanokv.integrations.vllm_offload.announcing import Announcer
from nanokv.integrations.vllm_offload.counts import OffloadCounts, definitions
from nanokv.integrations.vllm_offload.identity import identity_of
from nanokv.integrations.vllm_offload.settings import OF_A_TIER, split, with_room_for
from nanokv.seldom import Seldom

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

# --- transfers between the rows of a primary tier and NanoKV, in background threads -----------
# What vLLM counts on: every job that was submitted ends, with one result, whatever happens to it; a job that has
# begun is never given up midway; and no thread touches a row after the result of its job was handed out. A job runs
# as one task of a thread pool and turns every error into a result, so the first holds; the second and third follow,
# because a task hands out its result when it ends, and only tasks that have not begun are cancelled.
logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name


@dataclass(slots=True)
class Done:
    """A job that has ended.

    Attributes:
        stored, known, loaded, lost: the job's keys that were stored, had an object already, were loaded, and were not
            there (any more). What is in none of them was refused.
        damaged: of those lost, how many had an object with a wrong checksum, or wrong control words.
    """

    job: TransferJob
    seconds: float = 0.0
    stored: list[OffloadKey] = field(default_factory=list)
    known: list[OffloadKey] = field(default_factory=list)
    loaded: list[OffloadKey] = field(default_factory=list)
    lost: list[OffloadKey] = field(default_factory=list)
    damaged: int = 0

    @property
    def refused(self) -> int:
        """Keys that were not stored."""
        return 0 if self.job.is_promotion else len(self.job.keys) - len(self.stored) - len(self.known)

    def result(self, row_bytes: int) -> JobResult:
        """The result as vLLM takes it."""
        failed = bool(self.lost) or self.refused > 0
        return JobResult(
            self.job.job_id,
            success=not failed,
            successful_keys=tuple(self.loaded) if failed and self.loaded else None,
            transfer_time=self.seconds,
            transfer_bytes=row_bytes * (len(self.stored) + len(self.loaded)),
        )


class Jobs:
    """The transfers of one tier. Its methods are for one thread: the scheduler's.

    Args:
        rows: the primary tier, uint8 [chunks, bytes]: objects are copied straight from and into its rows.
        segment: the rank in whose segment rows are stored; None: that of a key's home.
        threads: per direction, so that no load waits for stores.
    """

    def __init__(self, joined: JoinedStore, rows: torch.Tensor, segment: int | None, threads: int) -> None:
        self.joined = joined
        self._store, self.world, self._rows, self._segment = joined.cache, joined.world, rows, segment
        self._stores = ThreadPoolExecutor(threads, "nanokv-offload-store")
        self._loads = ThreadPoolExecutor(threads, "nanokv-offload-load")
        self._running: dict[int, tuple[TransferJob, Future[Done]]] = {}
        self._seldom = Seldom(logger)

    def submit_store(self, job: TransferJob) -> None:
        """Begin to store the rows of a job."""
        self._submit(self._stores, job, self._run_store)

    def submit_load(self, job: TransferJob) -> None:
        """Begin to load the rows of a job."""
        self._submit(self._loads, job, self._run_load)

    def _submit(self, pool: ThreadPoolExecutor, job: TransferJob, run: Callable[[Done], None]) -> None:
        self.joined.check_process()
        self._running[job.job_id] = job, pool.submit(self._run, job, run)

    def touch(self, keys: Collection[OffloadKey]) -> None:
        """Mark the objects of this host as used, in the background."""
        self.joined.check_process()
        self._stores.submit(self._touch_each, list(keys))

    def finished(self) -> list[Done]:
        """The jobs that have ended since the last call."""
        ended = [(number, *running) for number, running in self._running.items() if running[1].done()]
        for number, _, _ in ended:
            del self._running[number]
        return [_given_up(job) if future.cancelled() else future.result() for _, job, future in ended]

    def drain(self) -> None:
        """Wait until all jobs have ended."""
        wait([future for _, future in self._running.values()])

    def close(self) -> None:
        """Cancel the jobs that have not begun, wait for the others, and let go of the rows. Idempotent."""
        for pool in (self._loads, self._stores):
            pool.shutdown(wait=True, cancel_futures=True)
        self._rows = torch.empty(0, dtype=torch.uint8, device="cpu")

    # --- in a background thread ---
    def _run(self, job: TransferJob, run: Callable[[Done], None]) -> Done:
        done, started = Done(job), time.perf_counter()
        try:
            run(done)
        except Exception as error:
            self._warn("a job failed", error)
            done = _given_up(job)
        done.seconds = time.perf_counter() - started
        return done

    def _run_store(self, done: Done) -> None:
        keys, rows = list(done.job.keys), self._chosen([int(chunk) for chunk in done.job.chunk_ids])
        for key, error in zip(keys, self._store.put_many(keys, rows, preferred_segment=self._segment), strict=True):
            if error is None:
                done.stored.append(key)
            elif isinstance(error, DuplicateKey):  # its bytes are the same: the key says what they are of
                done.known.append(key)
            else:
                self._warn("blocks were not stored", error)

    def _run_load(self, done: Done) -> None:
        keys, rows = list(done.job.keys), self._chosen([int(chunk) for chunk in done.job.chunk_ids])
        for key, found in zip(keys, self._get_each(done, keys, rows), strict=True):
            (done.loaded if found else done.lost).append(key)
        if len(done.lost) > done.damaged:
            self._seldom.warn("lost", f"NanoKV: {len(done.lost)} of {len(keys)} blocks to be loaded were not there")

    def _get_each(self, done: Done, keys: list[OffloadKey], rows: Sequence[torch.Tensor] | torch.Tensor) -> list[bool]:
        try:
            return [found is not None and found is not False for found in self._store.get_many(keys, dsts=rows)]
        except NanoKVError:  # of one object: which, and what of the others, is found one by one
            return [self._get(done, key, row) for key, row in zip(keys, rows, strict=True)]

    def _get(self, done: Done, key: OffloadKey, row: torch.Tensor) -> bool:
        try:
            return self._store.get(key, None, dst=row) is not None
        except SegmentCorrupt as error:
            done.damaged += 1
            self._warn("a damaged block was dropped", error)
            with contextlib.suppress(NanoKVError):
                self._store.remove_many([key])  # else every look-up would find it again
        except NanoKVError as error:
            self._warn("a block was not loaded", error)
        return False

    def _chosen(self, chunks: list[int]) -> Sequence[torch.Tensor] | torch.Tensor:
        """Rows of the primary tier, sharing its memory: one tensor if they follow each other, which is the fastest."""
        if chunks and chunks == list(range(chunks[0], chunks[0] + len(chunks))):
            return self._rows[chunks[0] : chunks[0] + len(chunks)]
        return [self._rows[chunk] for chunk in chunks]

    def _touch_each(self, keys: list[OffloadKey]) -> None:
        for key in keys:
            with contextlib.suppress(NanoKVError):  # gone, or of another host
                self.world.pin(key).release()

    def _warn(self, what: str, error: Exception) -> None:
        self._seldom.warn(f"{what}: {type(error).__name__}", f"NanoKV: {what}: {error}")


def _given_up(job: TransferJob) -> Done:
    """A job of which nothing was done, or nothing is known."""
    return Done(job, lost=list(job.keys) if job.is_promotion else [])


# --- whether a block is there, asked by the scheduler, which must not wait --------------------
# In a world of one host the answer takes a microsecond, so it is given at once. In a cluster it may take a question
# to another node, so a thread of vLLM's own `AsyncLookupManager` asks, and the scheduler comes back one step later.
#
# A block that was found and could not be loaded is missing for the request that wanted it, until that ends: else the
# scheduler would find it, and fail to load it, for ever.
class Lookups(Protocol):
    """What the tier asks."""

    def begin(self, request: str) -> None:
        """A request begins."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Whether the block is there; None: ask again in the next step."""

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        """These blocks could not be loaded for a request."""

    def flush(self) -> None:
        """The step ends."""

    def end(self, request: str) -> None:
        """A request has ended."""

    def close(self) -> None:
        """Ask no more."""


class DirectLookups:
    """Answers at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._missed: dict[str, set[OffloadKey]] = {}  #: per request that has not ended

    def begin(self, request: str) -> None:
        self._missed[request] = set()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool:
        return key not in self._missed.get(req_context.req_id, ()) and self._store.exists(key)

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        if request in self._missed:
            self._missed[request].update(keys)

    def flush(self) -> None:
        pass

    def end(self, request: str) -> None:
        self._missed.pop(request, None)

    def close(self) -> None:
        self._missed.clear()


class BackgroundLookups(AsyncLookupManager):
    """Answers in the next step."""

    def __init__(self, store: Store, tier_type: str) -> None:
        self._store = store
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._store.exists_many(keys)

    def begin(self, request: str) -> None:
        pass

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        self.mark_miss(keys)

    def end(self, request: str) -> None:
        self.cleanup(request)

    def close(self) -> None:
        self.shutdown()


# --- the tier ---------------------------------------------------------------------------------
class NanoKVTier(SecondaryTierManager):
    """NanoKV as a secondary tier: `{"type": "NanoKVTier", "module_path": "nanokv.integrations.vllm_offload", ...}`.

    Args:
        offloading_spec, primary_kv_view, tier_type, backpressure_detector: from vLLM.
        locality: "LOCAL" or "REMOTE", for vLLM's filters and events. Default: REMOTE with a cluster.
        settings: those of `nanokv.integrations.joining.Settings`, and of `settings.Own`.

    Raises:
        InvalidArgument: a setting that does not exist, or a value that is not allowed.
        HeapUnavailable, ClusterUnavailable, LinkUnavailable: the store cannot be joined.
    """

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec: "OffloadingSpec",
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: "BackpressureDetector | None" = None,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        own, store = split(settings, OF_A_TIER)
        self.locality = _locality(locality, remote=bool(store.cluster))
        if self.locality is Locality.REMOTE:
            self.cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED
        config, nbytes = offloading_spec.config, self.block_size_bytes
        identity = identity_of(config, kind="row", nbytes=nbytes, model=own.model, revision=own.revision, whole=True)
        spread = bool(store.cluster) if own.spread is None else own.spread
        if own.enable_kv_events and spread:
            raise InvalidArgument("enable_kv_events is about this process' segment: it needs spread=false")
        rows = _rows(primary_kv_view)
        self.joined = join(with_room_for(nbytes, store), identity)
        segment = None if spread else self.joined.world.rank
        self._jobs = Jobs(self.joined, rows, segment, own.threads)
        self._lookups: Lookups = (
            BackgroundLookups(self.joined.cache, tier_type) if store.cluster else DirectLookups(self.joined.cache)
        )
        self._counts = OffloadCounts(tier_type)
        tells = own.enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._announcing = Announcer(self.joined.world, self.locality) if tells else None
        self._open = True

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Counters of chunks: see `counts.py`."""
        return definitions()

    # --- requests ---
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """New blocks are offloaded as they come."""
        self._lookups.begin(req_context.req_id)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget which blocks the request could not load."""
        self._lookups.end(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Send the step's look-ups."""
        self._lookups.flush()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT or MISS; with a cluster RETRY, until the step after the first question."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Objects on this host count as used now, soon. Those on other hosts do not."""
        self._jobs.touch(keys)

    # --- transfers ---
    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store rows; a row that NanoKV has already is not copied."""
        if self._announcing is not None:
            self._announcing.expect({key: [key] for key in job_metadata.keys})
        self._jobs.submit_store(job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load rows."""
        self._jobs.submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The jobs that have ended since the last call. Of a load that failed in part, the keys that were loaded."""
        return [self._settle(done) for done in self._jobs.finished()]

    def _settle(self, done: Done) -> JobResult:
        self._counts.add(
            stored=len(done.stored),
            known=len(done.known),
            refused=done.refused,
            loaded=len(done.loaded),
            lost=len(done.lost),
            damaged=done.damaged,
        )
        if done.job.is_promotion:
            self._lookups.missed(done.job.req_context.req_id, done.lost)
        elif self._announcing is not None:
            self._announcing.ended(done.job.keys, done.stored)
        return done.result(self.block_size_bytes)

    def drain_jobs(self) -> None:
        """Wait until all jobs have ended."""
        self._jobs.drain()

    # --- what is told ---
    def take_events(self) -> Iterable[OffloadingEvent]:
        """Blocks that this engine stored, and those of them that left its own segment."""
        return () if self._announcing is None else self._announcing.take()

    def get_stats(self) -> "OffloadingConnectorStats | None":
        """Counts since the last call, or None."""
        return self._counts.take()

    def shutdown(self) -> None:
        """Wait for the jobs that have begun, and leave the store. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._lookups.close()
        self._jobs.close()
        if self._announcing is not None:
            self._announcing.close()
        self.joined.close()


def _rows(view: memoryview) -> torch.Tensor:
    """The primary tier as uint8 [chunks, bytes], sharing its memory."""
    if view.ndim != 2 or not view.c_contiguous or view.readonly:
        raise InvalidArgument("the primary tier must be a writable memoryview of rows that follow each other")
    return torch.frombuffer(view.cast("B"), dtype=torch.uint8).view(len(view), -1)


def _locality(given: object, *, remote: bool) -> Locality:
    if given is None:
        return Locality.REMOTE if remote else Locality.LOCAL
    try:
        return Locality(given)
    except ValueError:
        raise InvalidArgument(f"locality must be LOCAL or REMOTE, not {given!r}") from None
