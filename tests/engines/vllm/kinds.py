"""Tiny models of many kinds, with random weights from a seed: how their layers attend, and what they store of a token.

Each maker takes a folder, and saves a model of transformers there. Weights are ten times as large as usual: else a
random model repeats one token, whatever KV it reads.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, WINDOW = 1024, 64
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "max_position_embeddings": 4096,
}
HEAD = {"head_dim": 32}
IN_TURN = ["sliding_attention", "full_attention"]
STATES = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 4,
    "n_shared_experts": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

Make = Callable[[Path], None]


def _maker(model: str, config: str, **more: Any) -> Make:
    """A maker of a model of transformers, by the names of its classes."""

    def make(folder: Path) -> None:
        torch.manual_seed(0)
        made = getattr(transformers, model)(getattr(transformers, config)(**SMALL | more)).float()
        made.save_pretrained(folder)

    return make


def _eagle(folder: Path) -> None:
    """A draft head for the Llama of `conftest.model`: one layer, whose KV lies in the target's blocks."""
    from safetensors.torch import save_file

    torch.manual_seed(9)
    config = transformers.LlamaConfig(**SMALL | HEAD | {"num_hidden_layers": 1})
    layer = {
        name.removeprefix("model."): tensor
        for name, tensor in transformers.LlamaForCausalLM(config).float().state_dict().items()
    }
    weights = {name: tensor.contiguous().clone() for name, tensor in layer.items() if name.startswith("layers.")}
    weights = {name: tensor for name, tensor in weights.items() if "input_layernorm" not in name}
    weights["fc.weight"] = torch.cat([torch.eye(128), 0.1 * torch.randn(128, 128)], 1).contiguous()
    weights["embed_tokens.weight"] = layer["embed_tokens.weight"].clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(folder / "model.safetensors"))
    described = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(described))


def _whisper(folder: Path) -> None:
    """With what vLLM takes an input apart by: it asks for that before it asks a connector."""
    from tokenizers import Tokenizer, models

    _maker(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        num_mel_bins=80,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=100,
        max_target_positions=200,
        decoder_start_token_id=0,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )(folder)
    transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=2).save_pretrained(folder)
    words = models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
    transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="w1").save_pretrained(folder)


MAKERS: dict[str, Make] = {
    "sliding": _maker("MistralForCausalLM", "MistralConfig", **HEAD, sliding_window=WINDOW),
    "gemma2": _maker(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        **HEAD,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        layer_types=IN_TURN * 2,
    ),
    "gemma3": _maker(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        **HEAD,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        layer_types=IN_TURN * 2,
    ),
    "cohere2": _maker(
        "Cohere2ForCausalLM",
        "Cohere2Config",
        **HEAD,
        sliding_window=WINDOW,
        layer_types=IN_TURN * 2,
        logit_scale=0.25,
    ),
    "gptoss": _maker(
        "GptOssForCausalLM",
        "GptOssConfig",
        **HEAD,
        sliding_window=WINDOW,
        layer_types=IN_TURN * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    ),
    "llama4": _maker(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        **HEAD,
        intermediate_size_mlp=256,
        num_local_experts=2,
        num_experts_per_tok=1,
        attention_chunk_size=WINDOW,
        interleave_moe_layer_step=2,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
        use_qk_norm=False,
    ),
    "gemma3n": _maker(
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        **HEAD | {"num_hidden_layers": 6, "intermediate_size": [256] * 6},
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=3,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=32,
        activation_sparsity_pattern=[0.0] * 6,
        laurel_rank=16,
    ),
    "qwen3moe": _maker("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **HEAD, **EXPERTS, decoder_sparse_step=1),
    "gemma4": _maker(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        **HEAD | {"num_hidden_layers": 6},
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        global_head_dim=64,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
    ),
    "mla": _maker("DeepseekV2ForCausalLM", "DeepseekV2Config", **LATENT),
    "granite4": _maker(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        **STATES,
        layer_types=["mamba", "attention"] * 2,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        position_embedding_type="rope",
    ),
    "nemotronh": _maker(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        **HEAD | {"num_hidden_layers": 6},
        layers_block_type=["mamba", "attention", "mamba", "mlp", "mamba", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=16,
        n_groups=1,
        conv_kernel=4,
        expand=2,
        use_mamba_kernels=False,
    ),
    "falconh1": _maker(
        "FalconH1ForCausalLM",
        "FalconH1Config",
        **STATES,
        mamba_d_ssm=256,
    ),
    "qwen3next": _maker(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        **EXPERTS,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        shared_expert_intermediate_size=64,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
    ),
    "lfm2": _maker(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        layer_types=["conv", "full_attention"] * 2,
        conv_L_cache=3,
        conv_dim=128,
        block_dim=128,
    ),
    "mamba2": _maker(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        num_heads=8,
        head_dim=32,
        state_size=16,
        n_groups=1,
        expand=2,
    ),
    "whisper": _whisper,
    "bert": _maker("BertModel", "BertConfig"),
    "longrope": _maker(
        "Phi3ForCausalLM",
        "Phi3Config",
        original_max_position_embeddings=512,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "short_factor": [1.0] * 16,
            "long_factor": [1.0 + 2.0 * each for each in range(16)],
            "original_max_position_embeddings": 512,
        },
    ),
    "draft": _maker(
        "LlamaForCausalLM",
        "LlamaConfig",
        **HEAD | {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    ),
    "eagle": _eagle,
}


def make_adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter of the Llama of `conftest.model`, for keys and values: hidden 128, four heads, two of KV."""
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    weights = {}
    for layer in range(2):
        for name, wide in (("k_proj", 64), ("v_proj", 64)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(8, 128)
            weights[f"{stem}.lora_B.weight"] = torch.randn(wide, 8)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    described = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["k_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described | {"task_type": "CAUSAL_LM"}))
    return folder
