"""The class that vLLM makes: once in its scheduler, and once in each worker. It delegates to the two sides."""

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.engines.vllm.lookup import Workers, place_of
from nanokv.engines.vllm.metadata import Step
from nanokv.engines.vllm.refusals import check_model, check_supported
from nanokv.engines.vllm.scheduler import SchedulerSide
from nanokv.engines.vllm.settings import Settings, parse
from nanokv.engines.vllm.stats import NanoKVPromMetrics, NanoKVStats
from nanokv.engines.vllm.tails import Tails
from nanokv.engines.vllm.worker import WorkerSide, ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class NanoKVConnector(KVConnectorBase_V1):
    """KV of whole blocks, in memory that engines share.

    Raises:
        InvalidArgument: a flag is wrong, or the engine is configured in a way that is not supported; it names which.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings: Settings = parse(self._kv_transfer_config.kv_connector_extra_config)
        check_supported(vllm_config, kv_cache_config, self._settings)
        self._ranks = ranks_of(vllm_config, self._settings)
        shared = self._ranks.world_size > vllm_config.parallel_config.world_size or self._settings.cluster
        self._cache_hit_source = CacheHitSource.P2P if shared else CacheHitSource.HOST
        self._scheduler = self._scheduler_side() if role == KVConnectorRole.SCHEDULER else None
        self._worker: WorkerSide | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what was not stored is computed again by the reader

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        check_model(vllm_config)  # vLLM asks before it plans the cache, which fails for some models without these words
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # layers are stored, and waited for, between the pieces

    # --- the scheduler ---
    def _scheduler_side(self) -> SchedulerSide:
        transfer, settings, cache = self._kv_transfer_config, self._settings, self._vllm_config.cache_config
        workers = self._vllm_config.parallel_config.world_size
        return SchedulerSide(
            cache.block_size,
            Tails(cache.block_size, cache.prefix_caching_hash_algo),
            Workers([place_of(transfer.engine_id, settings.name, part) for part in range(workers)]),
            loads=transfer.is_kv_consumer,
            stores=transfer.is_kv_producer,
            waits=settings.load == "async",
            target=self._ranks.target,
            ranks=self._ranks.world_size,
            save_generated=settings.save_generated,
            save_tails=transfer.kv_role == "kv_producer" if settings.save_tails is None else settings.save_tails,
            in_flight=max(self._vllm_config.parallel_config.pipeline_parallel_size, 1) + 1,  # if it schedules ahead
        )

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._deciding().matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._deciding().allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return self._deciding().build(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        self._deciding().answered(connector_output)

    def reset_cache(self) -> bool | None:
        return self._deciding().reset()

    def _deciding(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    # --- a worker ---
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker = WorkerSide(self._vllm_config, self._settings, kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, Step):
            self._worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        if self._worker is not None and isinstance(step, Step):
            self._worker.start(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None:
            self._worker.wait_for_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        if self._worker is not None:
            self._worker.layer_done(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.finish()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        ended = self._worker.loading.finished()
        return None, (ended if self._settings.load == "async" else None) or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        if self._worker is not None:
            results.failed_recving = self._worker.loading.take_failed_whole()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.loading.take_failed() if self._worker is not None else set()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return self._worker.take_counts() if self._worker is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return NanoKVStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any, **keywords: Any) -> KVConnectorPromMetrics | None:
        return NanoKVPromMetrics(*args, **keywords)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
