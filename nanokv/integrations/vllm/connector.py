"""The class that vLLM makes: once in its scheduler, and once in each worker. It delegates to the two sides."""

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.groups import Group, Reach, groups_of, has_states
from nanokv.integrations.vllm.hashes import PrefixHashes
from nanokv.integrations.vllm.lookup import Workers, place_of
from nanokv.integrations.vllm.metadata import Step
from nanokv.integrations.vllm.scheduler import SchedulerSide
from nanokv.integrations.vllm.settings import Settings, parse
from nanokv.integrations.vllm.stats import NanoKVPromMetrics, NanoKVStats
from nanokv.integrations.vllm.worker import WorkerSide, ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from nanokv.integrations.vllm.settings import Settings

# --- what the connector does not support, said when the engine starts instead of by wrong tokens ---
logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

_STABLE_HASHES = ("sha256", "sha256_cbor")  #: equal in every process without PYTHONHASHSEED


def check_model(config: "VllmConfig") -> None:
    """Refuse a model whose KV depends on more than tokens, or is not right in vLLM itself, before its cache is planned.

    Raises:
        InvalidArgument: it says what the model has.
    """
    model = config.model_config
    if model.is_encoder_decoder:
        raise InvalidArgument("NanoKV does not support encoder-decoder models: cross attention has KV of the input")
    if model.use_mla and current_platform.device_type == "cpu":
        raise InvalidArgument(
            f"NanoKV does not support {_name(config)} on a CPU: with latent attention (MLA) vLLM's kernels for CPUs "
            "give other tokens with a KV connector than without"
        )


def _name(config: "VllmConfig") -> str:
    return ", ".join(config.model_config.architectures) or "this model"


def checked_groups(config: "VllmConfig", kv_cache_config: "KVCacheConfig", settings: "Settings") -> list[Group]:
    """The groups of layers of an engine, whose KV can be stored and loaded block by block.

    Raises:
        InvalidArgument: it cannot; it names the setting, and what to change.
    """
    check_model(config)
    if not kv_cache_config.kv_cache_groups:
        raise InvalidArgument(f"NanoKV has nothing to do for {_name(config)}: it has no KV cache")
    groups = groups_of(kv_cache_config, _name(config))
    _check_loads(config, kv_cache_config, groups, settings)
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
    return groups


def _check_loads(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", groups: list[Group], settings: "Settings"
) -> None:
    """Refuse to load layer by layer what cannot be, and tell of an engine that will load nothing."""
    states = has_states(groups)
    if states and current_platform.device_type == "cpu":
        _check_states_on_a_cpu(config, kv_cache_config)
    if settings.load == "layer" and any(group.reach is not Reach.ALL for group in groups):
        what = (
            "has states: vLLM copies them before they are loaded"
            if states
            else "has attention with a window: if a block is lost, the blocks before it are needed again, and the step "
            "has begun without them"
        )
        raise InvalidArgument(
            f"nanokv.load=layer does not go with {_name(config)}, which {what}; take nanokv.load=async"
        )
    if settings.load == "layer" and len(groups) > 1:
        raise InvalidArgument(
            f"nanokv.load=layer does not go with {_name(config)}, whose layers are {len(groups)} groups: vLLM takes no "
            "report of lost blocks of those; take nanokv.load=async"
        )
    if states and not all(group.has_hashed_states for group in groups):
        logger.warning(
            "NanoKV: without prefix caching vLLM keeps no states of %s that another request could go on from: prompts "
            "are handed over as a whole by a kv_producer, and nothing else is loaded.",
            _name(config),
        )


def _check_states_on_a_cpu(config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Refuse states with which vLLM 0.32 itself is wrong on a CPU."""
    specs = [spec for each in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(each.kv_cache_spec)]
    for spec in specs:
        if isinstance(spec, MambaSpec) and spec.mamba_type is MambaAttentionBackendEnum.SHORT_CONV:
            raise InvalidArgument(
                f"NanoKV does not support {_name(config)} on a CPU: with short convolutions vLLM's kernels for CPUs "
                "give other tokens from its own prefix cache, and for several requests together, than for one alone"
            )
        if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align" and spec.num_prefill_checkpoint_blocks:
            raise InvalidArgument(
                f"NanoKV does not support {_name(config)} on a CPU with prefix caching: vLLM's kernels for CPUs end "
                "with an IndexError at a prompt of several blocks; start vLLM with --no-enable-prefix-caching"
            )


# --- the connector ----------------------------------------------------------------------------
class NanoKVConnector(KVConnectorBase_V1, SupportsHMA):
    """KV of whole blocks, in memory that engines share.

    Raises:
        InvalidArgument: a flag is wrong, or the engine is configured in a way that is not supported; it names which.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings: Settings = parse(self._kv_transfer_config.kv_connector_extra_config)
        self._groups = checked_groups(vllm_config, kv_cache_config, self._settings)
        self._planned = kv_cache_config
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
        transfer, settings, config = self._kv_transfer_config, self._settings, self._vllm_config
        workers = config.parallel_config.world_size
        alignment, unit = resolve_kv_cache_block_sizes(self._planned, config)
        return SchedulerSide(
            self._groups,
            PrefixHashes(unit, config.cache_config.prefix_caching_hash_algo),
            self._planned.cache_hit_alignment_tokens or alignment,
            Workers([place_of(transfer.engine_id, settings.name, part) for part in range(workers)]),
            loads=transfer.is_kv_consumer,
            stores=transfer.is_kv_producer,
            waits=settings.load == "async",
            target=self._ranks.target,
            ranks=self._ranks.world_size,
            save_generated=settings.save_generated,
            save_tails=transfer.kv_role == "kv_producer" if settings.save_tails is None else settings.save_tails,
            hands_over=transfer.kv_role == "kv_producer",
            in_flight=max(self._vllm_config.parallel_config.pipeline_parallel_size, 1) + 1,  # if it schedules ahead
        )

    def on_new_request(self, request: "Request") -> None:
        self._deciding().begins(request)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None  # all is stored by the end of the step that has filled it

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
        self._worker = WorkerSide(self._vllm_config, self._settings, self._planned, self._groups, kv_caches)

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
