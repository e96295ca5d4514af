"""What a block's KV means, from the engine's configuration: it becomes part of every key, so nothing else can match."""

from typing import TYPE_CHECKING

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
    kind = f"{current_platform.device_type} {cache.cache_dtype} blocks of {cache.block_size}"
    return Identity(
        model=f"{settings.model or model.model} config={described} quantization={model.quantization} kv={kind}",
        revision=model.revision or "",
        tokenizer=f"{model.tokenizer} revision={model.tokenizer_revision} hash={cache.prefix_caching_hash_algo}",
        tenant=settings.namespace,
        layout=layout,
    )
