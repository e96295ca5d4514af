"""What the connector does not support, said when the engine starts instead of by wrong tokens."""

import os
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

_STABLE_HASHES = ("sha256", "sha256_cbor")  #: equal in every process without PYTHONHASHSEED


def check_supported(config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Refuse an engine whose KV cannot be stored and loaded by whole blocks of one kind.

    Raises:
        InvalidArgument: it names the setting, and what to change.
    """
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    groups = len(kv_cache_config.kv_cache_groups)
    if groups > 1:
        raise InvalidArgument(
            f"NanoKV moves blocks of one kind, and this model has {groups} groups of KV caches (sliding windows, "
            "states): start vLLM with --disable-hybrid-kv-cache-manager"
        )
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
