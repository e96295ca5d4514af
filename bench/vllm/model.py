"""Tiny models with random weights from a seed: nothing is downloaded."""

from pathlib import Path

VOCABULARY = 1024


def make_model(folder: Path, seed: int = 0, *, hidden: int = 128, layers: int = 2, heads: int | None = None) -> Path:
    """A Llama. Saves it to `folder`, unless it is there already.

    heads: of KV; default: half as many as of queries.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if (folder / "model.safetensors").exists():
        return folder
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=heads or hidden // 64,
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.2,  # with the usual 0.02 a random model repeats one token, which hides wrong KV
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder
