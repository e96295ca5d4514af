"""The class that vLLM makes: once in its scheduler, and once in each worker. It delegates to the two sides."""

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.lookup import Workers, place_of
from nanokv.integrations.vllm.metadata import Step
from nanokv.integrations.vllm.scheduler import SchedulerSide
from nanokv.integrations.vllm.settings import Settings, parse
from nanokv.integrations.vllm.stats import NanoKVPromMetrics, NanoKVStats
from nanokv.integrations.vllm.tails import Tails
from nanokv.integrations.vllm.worker import WorkerSide, ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from nanokv.integrations.vllm.settings import Settings

# --- what the connector does not support, said when the engine starts instead of by wrong tokens ---
logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

#: whose blocks hold the KV of their own tokens, and are full after the last of them
_KINDS = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MLAAttentionSpec)
_STABLE_HASHES = ("sha256", "sha256_cbor")  #: equal in every process without PYTHONHASHSEED


def check_model(config: "VllmConfig") -> None:
    """Refuse a model whose KV is no blocks of tokens, or is not right in vLLM itself, before its cache is planned.

    Raises:
        InvalidArgument: it says what the model has.
    """
    model = config.model_config
    if model.is_encoder_decoder:
        raise InvalidArgument("NanoKV does not support encoder-decoder models: cross attention has KV of the input")
    if model.is_hybrid or model.is_attention_free:
        raise InvalidArgument(
            f"NanoKV does not support {_name(config)}: its layers have states (Mamba, linear attention, convolutions), "
            "which are no blocks of tokens"
        )
    if model.use_mla and current_platform.device_type == "cpu":
        raise InvalidArgument(
            f"NanoKV does not support {_name(config)} on a CPU: with latent attention (MLA) vLLM's kernels for CPUs "
            "give other tokens with a KV connector than without"
        )


def _name(config: "VllmConfig") -> str:
    return ", ".join(config.model_config.architectures) or "this model"


def check_supported(config: "VllmConfig", kv_cache_config: "KVCacheConfig", settings: "Settings") -> None:
    """Refuse an engine whose KV cannot be stored and loaded by whole blocks of one kind.

    Raises:
        InvalidArgument: it names the setting, and what to change.
    """
    check_model(config)
    _check_blocks(config, kv_cache_config, settings)
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise InvalidArgument(
                f"NanoKV does not support {name}={getattr(parallel, name)}: blocks are split over ranks"
            )
    if getattr(parallel, "nnodes", 1) > 1:
        raise InvalidArgument("all workers of an engine must be on one host; nanokv.cluster joins engines of several")
    algorithm = config.cache_config.prefix_caching_hash_algo
    if algorithm not in _STABLE_HASHES and os.environ.get("PYTHONHASHSEED") is None:
        raise InvalidArgument(
            f"block hashes of prefix_caching_hash_algo={algorithm!r} differ between processes: choose sha256, or give "
            "all engines the same PYTHONHASHSEED"
        )
    if transfer is not None and transfer.is_kv_consumer and transfer.kv_load_failure_policy != "recompute":
        logger.warning(
            "NanoKV: kv_load_failure_policy is %r: a request fails if a block that it was to load has been evicted. "
            "With 'recompute' it is computed instead.",
            transfer.kv_load_failure_policy,
        )


def _check_blocks(config: "VllmConfig", kv_cache_config: "KVCacheConfig", settings: "Settings") -> None:
    """Refuse what is no one group of blocks of a kind that is known."""
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise InvalidArgument(f"NanoKV has nothing to do for {_name(config)}: it has no KV cache")
    if len(groups) > 1:
        kinds = ", ".join(sorted({_kind(spec) for group in groups for spec in iter_layer_specs(group.kv_cache_spec)}))
        raise InvalidArgument(
            f"NanoKV moves blocks of one kind, and this model has {len(groups)} groups of KV caches ({kinds}): start "
            "vLLM with --disable-hybrid-kv-cache-manager"
        )
    specs = list(iter_layer_specs(groups[0].kv_cache_spec))
    unknown = sorted({_kind(spec) for spec in specs if type(spec) not in _KINDS})
    if unknown:
        raise InvalidArgument(f"NanoKV does not support the KV of {_name(config)}: {', '.join(unknown)}")
    if any(getattr(spec, "non_causal", False) for spec in specs):
        raise InvalidArgument(
            f"NanoKV does not support {_name(config)}: its attention is not causal, so the KV of a block depends on "
            "the tokens after it"
        )
    sizes = sorted({spec.page_size_bytes for spec in specs})
    if len(sizes) > 1:
        raise InvalidArgument(
            f"NanoKV moves blocks whose layers are of one shape, and layers of this model have blocks of "
            f"{' and '.join(map(str, sizes))} bytes: a draft model of another shape (--speculative-config), or layers "
            f"of several kinds in {_name(config)}"
        )
    windowed = any(isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec) for spec in specs)
    if windowed and settings.load == "layer":
        raise InvalidArgument(
            f"nanokv.load=layer does not go with {_name(config)}, whose attention has a window: if a block is lost, "
            "the blocks before it are needed again, and the step has begun without them; take nanokv.load=async"
        )


def _kind(spec: "KVCacheSpec") -> str:
    return type(spec).__name__.removesuffix("Spec")


# --- the connector ----------------------------------------------------------------------------
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
