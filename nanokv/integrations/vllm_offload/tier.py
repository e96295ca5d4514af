"""A secondary tier of vLLM's `TieringOffloadingSpec`: the blocks of its primary tier in a NanoKV world, or a cluster.

vLLM copies KV between the GPU and the primary tier, a region of host memory. What it stores there, it hands to each
secondary tier too (`submit_store`); what it misses there, it looks up here, and has it loaded back (`submit_load`). A
block is one row of the primary tier, with the parts of all workers, and becomes one object.

Everything here runs on the scheduler's thread, which must not wait: copies are made by `jobs.py`, in threads of its
own; look-ups in a cluster by `lookups.py`. Whatever goes wrong there becomes a failed job, and the engine computes the
block: nothing raises into the scheduler.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
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

from nanokv.errors import InvalidArgument
from nanokv.integrations.joining import Store, join
from nanokv.integrations.vllm_offload.announcing import Announcing
from nanokv.integrations.vllm_offload.counts import Counts, definitions
from nanokv.integrations.vllm_offload.identity import identity_of
from nanokv.integrations.vllm_offload.jobs import Done, Jobs
from nanokv.integrations.vllm_offload.settings import OF_A_TIER, split, with_room_for

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector


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
        self._joined = join(with_room_for(nbytes, store), identity)
        segment = None if spread else self._joined.world.rank
        self._jobs = Jobs(self._joined, rows, segment, own.threads)
        self._lookups: Lookups = (
            BackgroundLookups(self._joined.cache, tier_type) if store.cluster else DirectLookups(self._joined.cache)
        )
        self._counts = Counts(tier_type)
        tells = own.enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._announcing = Announcing(self._joined.world, self.locality) if tells else None
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
        self._joined.close()


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
