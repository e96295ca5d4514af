"""What a block's KV means, from the engine's configuration: it becomes part of every key, so nothing else can match."""

import json
from typing import TYPE_CHECKING

import torch
import xxhash

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from nanokv.engines.vllm.settings import Settings


def key_namespace(config: "VllmConfig", settings: "Settings", layers: list[torch.Tensor], part: int) -> str:
    """The namespace of a worker's keys: tenant, model, dtype and layout, and which part of the KV the worker has.

    Adapters, multi-modal inputs and cache salts are in the engine's own block hashes.
    """
    model, parallel = config.model_config, config.parallel_config
    first = layers[0]
    described = {
        "namespace": settings.namespace,
        "model": settings.model or model.model,
        "revision": model.revision,
        "config": xxhash.xxh3_128_hexdigest(model.hf_config.to_json_string().encode()),
        "quantization": model.quantization,
        "hash": config.cache_config.prefix_caching_hash_algo,
        "dtype": str(first.dtype),
        "block": list(first.shape[1:]),
        "strides": list(first.stride()[1:]),
        "layers": len(layers),
        "device": first.device.type,
        "part": part,
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
    }
    return json.dumps(described, sort_keys=True)
