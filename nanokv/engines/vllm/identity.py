"""What a block's KV means, from the engine's configuration: it becomes part of every key, so nothing else can match.

Nothing in it is of a host or a process: engines of one configuration have one identity on all nodes of a cluster.
"""

from typing import TYPE_CHECKING

import vllm
import xxhash
from vllm.platforms import current_platform

from nanokv.identity import Identity
from nanokv.kv_layout import KVLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from nanokv.engines.vllm.settings import Settings


def identity_of(config: "VllmConfig", settings: "Settings", layout: KVLayout) -> Identity:
    """The identity of what one worker stores.

    Adapters, inputs other than text, and cache salts are in the engine's own hashes of blocks.
    """
    model, cache = config.model_config, config.cache_config
    described = xxhash.xxh3_128_hexdigest(model.hf_config.to_json_string(use_diff=False).encode())
    kind = f"{current_platform.device_type} {cache.cache_dtype} blocks of {cache.block_size}{_arrangement(config)}"
    return Identity(
        model=f"{settings.model or model.model} config={described} quantization={model.quantization} kv={kind}",
        revision=model.revision or "",
        tokenizer=f"{model.tokenizer} revision={model.tokenizer_revision} hash={cache.prefix_caching_hash_algo}",
        tenant=settings.namespace,
        layout=layout,
    )


def _arrangement(config: "VllmConfig") -> str:
    """How kernels for CPUs arrange a block, which is moved as it is (`layers.py`): by vLLM's version and the CPU."""
    if current_platform.device_type != "cpu":
        return ""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    model, cache = config.model_config, config.cache_config
    isa = _get_attn_isa(model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype)
    return f" as {isa} of vllm {vllm.__version__}"
