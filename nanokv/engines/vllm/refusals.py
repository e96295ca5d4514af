"""What the connector does not support, said when the engine starts instead of by wrong tokens."""

import os
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

    from nanokv.engines.vllm.settings import Settings

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
