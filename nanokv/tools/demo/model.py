"""A small Llama with random weights from a seed: nothing is downloaded.

The KV of a block is one tensor, page-first: float32 [LAYERS, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM], keys before values.
"""

from typing import Any

import torch
import xxhash
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from nanokv.cache.cache import NanoKVCache
from nanokv.integrations.transformers import PrefixCache
from nanokv.tools.demo.prompts import BLOCK_TOKENS, VOCABULARY

LAYERS = 4
KV_HEADS = 4
HEAD_DIM = 32
BLOCK_SHAPE = (LAYERS, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
BLOCK_BYTES = 4 * LAYERS * 2 * KV_HEADS * BLOCK_TOKENS * HEAD_DIM
LONGEST_SEQUENCE = 1024


class Model:
    """The model, on one CPU thread, so that every process adds in the same order."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=LAYERS,
            num_attention_heads=8,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            max_position_embeddings=LONGEST_SEQUENCE,
            initializer_range=0.2,  # with the usual 0.02 a random model repeats one token for ever
            bos_token_id=None,
            eos_token_id=None,
        )
        self._llama = LlamaForCausalLM(self._config).float().eval()

    def new_cache(self) -> Any:
        """An empty DynamicCache."""
        return DynamicCache(config=self._config)

    def prefixes(self, cache: NanoKVCache) -> PrefixCache:
        """This model's prefixes in a cache, which stores blocks when it is told to."""
        return PrefixCache(self._llama, cache, block_tokens=BLOCK_TOKENS, eager=False)

    @torch.no_grad()
    def forward(self, tokens: list[int], cache: Any) -> int:
        """Run the tokens that follow those in `cache`, extend it, and return the most likely next token."""
        ids = torch.tensor([tokens])
        logits = self._llama(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    @torch.no_grad()
    def generate(self, prompt: list[int], count: int) -> list[int]:
        """`count` greedy tokens by transformers' own `generate`: the whole prompt at once, without NanoKV."""
        ids = torch.tensor([prompt])
        out = self._llama.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        return [int(token) for token in out[0, len(prompt) :]]


def last_block(cache: Any) -> torch.Tensor:
    """The KV of the last BLOCK_TOKENS tokens in a DynamicCache: a new tensor of BLOCK_SHAPE."""
    layers = [torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers]
    return torch.stack([layer[:, :, -BLOCK_TOKENS:] for layer in layers])


def digest(block: torch.Tensor) -> str:
    """A digest of a block's bytes."""
    return xxhash.xxh3_128_hexdigest(block.contiguous().numpy().tobytes())
