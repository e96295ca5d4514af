"""What a block's KV means, from the engine's configuration: it becomes part of every key, so nothing else can match.

Every field of vLLM's configuration of model, cache, adapters and inputs counts, except those that are named here as
without effect on KV: a field of a later version counts until somebody has looked at it. So engines that differ may
share less than they could, and never what they must not; `facts.py` tells which field it was.

Nothing in it is of a host or a process: engines of one configuration have one identity on all nodes of a cluster.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import vllm
import xxhash
from vllm.config.utils import normalize_value
from vllm.platforms import current_platform

from nanokv.integrations.vllm.facts import Facts
from nanokv.keys.identity import Identity
from nanokv.keys.kv_layout import KVLayout

if TYPE_CHECKING:
    from vllm.config import SpeculativeConfig, VllmConfig

    from nanokv.integrations.vllm.settings import Settings

#: fields of ModelConfig: where the model lies (its name is told apart), what it is fed with, how it is run, what
#: becomes of its logits. What `hf_overrides` does is seen in the configuration itself. Keys are made of token ids, so
#: the tokenizer has no effect.
_MODEL = {
    *("model", "model_weights", "revision", "hf_config", "hf_text_config", "hf_config_path", "hf_overrides"),
    *("config_format", "hf_token", "trust_remote_code", "served_model_name", "allow_deprecated_quantization"),
    *("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init", "renderer_num_workers"),
    *("allowed_local_media_path", "allowed_media_domains", "io_processor_plugin", "enable_prompt_embeds"),
    *("enforce_eager", "enable_sleep_mode", "sleep_preserve_parameter_names", "sleep_mode_backend"),
    *("sleep_mode_offload_cudagraph", "enable_nccl_comm_suspend", "enable_cumem_allocator", "disable_cascade_attn"),
    *("seed", "max_logprobs", "logprobs_mode", "return_sampling_mask", "use_fp64_gumbel", "enable_trace_replay"),
    *("logits_processors", "generation_config", "override_generation_config", "pooler_config"),
    *("max_model_len", "spec_target_max_model_len", "multimodal_config"),
}
#: of CacheConfig: how much there is of it, and what is kept how long
_CACHE = {
    *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "num_gpu_blocks"),
    *("num_cpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_offloading_size"),
    *("kv_offloading_backend", "enable_prefix_caching", "prefix_cache_retention_interval", "is_attention_free"),
    *("user_specified_block_size", "_block_size_resolved", "effective_attention_block_size", "prefix_match_unit"),
    *("cache_hit_alignment_tokens", "kv_cache_layout", "replayssm_buffer_len", "swa_bounded_replay"),
    *("mamba_page_size_padded", "skip_page_size_padded", "kv_sharing_fast_prefill"),
    "enable_mamba_shared_prefix_checkpoint",
}
#: of LoRAConfig: how many at a time
_LORA = {"max_loras", "max_cpu_loras", "specialize_active_lora", "fully_sharded_loras", "max_lora_cls_labels"}
#: of MultiModalConfig: limits, and how inputs reach the model
_INPUTS = {
    *("limit_per_prompt", "enable_mm_embeds", "mm_processor_cache_gb", "mm_processor_cache_type"),
    *("mm_shm_cache_max_object_size_mb", "mm_encoder_tp_mode", "mm_encoder_fp8_scale_save_path", "skip_mm_profiling"),
    *("mm_encoder_fp8_scale_save_margin", "mm_tensor_ipc", "allow_missing_mm_embeddings", "mm_ipc_gpu_memory_gb"),
    "interleave_mm_strings",
}
_WITHOUT_KV = {"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"}  #: ways to guess tokens that store no KV
#: of a model's own configuration: where it came from, and names of outputs
_ORIGIN = {"transformers_version", "auto_map", "id2label", "label2id"}


def identity_of(config: "VllmConfig", settings: "Settings", layout: KVLayout | None) -> Identity:
    """The identity of what one worker stores.

    Adapters, inputs other than text, and cache salts are in the engine's own hashes of blocks.
    """
    facts = facts_of(config, settings)
    digest = xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
    return Identity(model=f"{facts['model']} facts={digest}", tenant=settings.namespace, layout=layout)


def told_facts(config: "VllmConfig", settings: "Settings", layout: KVLayout | None) -> Facts:
    """`facts_of`, and what of the layout users have settings for.

    A tensor-parallel degree is none, as slices are read: but not of several groups of layers, which have no layout.
    """
    if layout is None:
        return facts_of(config, settings) | {"tensor_parallel_size": str(config.parallel_config.tensor_parallel_size)}
    own = {"kv_heads": layout.kv_heads, "head_size": layout.head_size, "kv_dtype": layout.dtype}
    return facts_of(config, settings) | {name: str(value) for name, value in own.items()}


def facts_of(config: "VllmConfig", settings: "Settings") -> Facts:
    """All that the values of KV depend on, beside tokens and the layout: names and values, as text."""
    model, cache = config.model_config, config.cache_config
    facts = {
        "model": settings.model or model.model_weights or model.model,
        "revision": getattr(model.hf_config, "_commit_hash", None) or model.revision or "",
        "max_model_len": _max_model_len(config),  # long-context RoPE and temperatures are chosen by it
        "platform": f"{current_platform.device_type}{_arrangement(config)}",
        **_fields("", model, _MODEL),
        **_fields("cache.", cache, _CACHE),
        **_fields("lora.", config.lora_config, _LORA),
        **_fields("inputs.", model.multimodal_config, _INPUTS),
        **_config_facts("config", model.hf_config),
    }
    if config.lora_config is not None:
        facts["lora"] = "on"
    if config.load_config.load_format == "dummy":  # random weights
        facts["load_format"] = f"dummy, seed {model.seed}"
    for name in ("indexer_kv_dtype", "use_non_causal"):
        facts[f"attention.{name}"] = str(getattr(config.attention_config, name, ""))
    if config.additional_config:
        facts["additional_config"] = _text(config.additional_config)
    if config.speculative_config is not None and config.speculative_config.method not in _WITHOUT_KV:
        facts |= _draft_facts(config.speculative_config)
    return facts


def _fields(prefix: str, config: Any, ignored: set[str]) -> Facts:
    """The fields of one of vLLM's configurations that may have an effect on KV."""
    if config is None:
        return {}
    values = {field.name: getattr(config, field.name, None) for field in fields(config) if field.name not in ignored}
    return {prefix + name: _text(value) for name, value in values.items() if value is not None}


def _draft_facts(speculative: "SpeculativeConfig") -> Facts:
    """A draft model's KV lies in the same blocks."""
    draft = speculative.draft_model_config
    facts = {"draft.method": str(speculative.method), "draft.kv_cache_dtype": str(speculative.kv_cache_dtype)}
    if draft is None:
        return facts
    own = {"draft.model": draft.model_weights or draft.model, "draft.revision": draft.revision or ""}
    return facts | own | _fields("draft.", draft, _MODEL) | _config_facts("draft.config", draft.hf_config)


def _max_model_len(config: "VllmConfig") -> str:
    """Weights are made with the limit that was asked for; what is left of "auto" when memory is known has no effect."""
    model = config.model_config
    return "auto" if getattr(model, "original_max_model_len", None) == -1 else str(model.max_model_len)


def _config_facts(prefix: str, config: Any) -> Facts:
    """A model's own configuration, as it is after overrides, without the places that it was read from."""
    try:
        values = json.loads(config.to_json_string(use_diff=False))
    except (TypeError, ValueError):  # of remote code, with values that are no JSON
        values = config.to_dict()
    return dict(_leaves(prefix, values))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            if not str(key).startswith("_") and key not in _ORIGIN:
                yield from _leaves(f"{name}.{key}", value[key])
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    """A value as a text that is equal in all processes."""
    if isinstance(value, str):
        return value
    try:
        normal = normalize_value(value)
        return normal if isinstance(normal, str) else json.dumps(normal, sort_keys=True, default=str)
    except TypeError:  # a function, or an object without a text of its own: what it is called must do
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"


def _arrangement(config: "VllmConfig") -> str:
    """How kernels for CPUs arrange a block, which is moved as it is: by vLLM's version and the CPU."""
    if current_platform.device_type != "cpu":
        return ""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    model, cache = config.model_config, config.cache_config
    isa = _get_attn_isa(model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype)
    return f" {isa} of vllm {vllm.__version__}"
