"""What a block's KV means, from the engine's configuration: it becomes part of every key, so nothing else can match."""

from typing import TYPE_CHECKING

import torch
import xxhash
from vllm.model_executor.models.utils import extract_layer_index

from nanokv.errors import InvalidArgument
from nanokv.identity import Identity
from nanokv.kv_layout import KVLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from nanokv.engines.vllm.settings import Settings

ORDER = "LHND"  #: of an object: layers, heads, tokens, and K and V of a token as the engine packs them


def identity_of(config: "VllmConfig", settings: "Settings", layers: dict[str, torch.Tensor], rank: int) -> Identity:
    """The identity of what one worker stores.

    Adapters, inputs other than text, and cache salts are in the engine's own hashes of blocks.

    Args:
        layers: per layer its cache, [blocks, heads, tokens, elements of K and V].
        rank: of tensor parallelism.

    Raises:
        InvalidArgument: the layers are not as above.
    """
    model, cache = config.model_config, config.cache_config
    described = xxhash.xxh3_128_hexdigest(model.hf_config.to_json_string(use_diff=False).encode())
    return Identity(
        model=f"{settings.model or model.model} config={described} quantization={model.quantization}",
        revision=model.revision or "",
        tokenizer=f"{model.tokenizer} revision={model.tokenizer_revision} hash={cache.prefix_caching_hash_algo}",
        tenant=settings.namespace,
        layout=_layout(config, layers, rank),
    )


def _layout(config: "VllmConfig", layers: dict[str, torch.Tensor], rank: int) -> KVLayout:
    first = next(iter(layers.values()))
    if first.dim() != 4:
        raise InvalidArgument(f"a layer's cache must be [blocks, heads, tokens, elements], not {list(first.shape)}")
    _, heads, tokens, packed = first.shape
    parallel = config.parallel_config.tensor_parallel_size
    all_heads = config.model_config.get_total_num_kv_heads()
    divided = max(all_heads // parallel, 1) == heads  # latents are not: each rank holds all of them
    return KVLayout(
        layers=len(layers),
        kv_heads=all_heads if divided else heads,
        head_size=packed,
        block_size=tokens,
        dtype=str(first.dtype).removeprefix("torch."),
        order=ORDER,
        tp_rank=rank,
        tp_size=parallel,
        first_layer=min(extract_layer_index(name) for name in layers),
        form=f"vllm {first.device.type} {config.cache_config.cache_dtype}",
    )
