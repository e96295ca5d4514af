"""Tiny language models with random weights, made here: nothing is downloaded. And ranks that generate with them."""

from typing import Any

import torch
import transformers

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from nanokv.errors import NanoKVError
from nanokv.integrations.transformers import PrefixCache

VOCABULARY = 512
WINDOW = 24  #: tokens of a sliding window: not a multiple of a block
PAGE = 8192
HEAP = 4 << 20

_USUAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # with the usual 0.02 a random model repeats one token for ever
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

#: the class of each model, and what its configuration has beside the usual
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512}),
}


def tiny(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A model of `CONFIGS`, in evaluation mode; `changes` to its configuration."""
    family, special = CONFIGS[name]
    torch.manual_seed(seed)
    make = getattr(transformers, family)
    return make(make.config_class(**(_USUAL | special | changes))).to(dtype).eval()


def prompt(tokens: int, seed: int = 0) -> torch.Tensor:
    """Random token ids, [1, tokens]. Of one seed, a shorter prompt is the beginning of a longer one."""
    return torch.randint(1, VOCABULARY, (1, 512), generator=torch.Generator().manual_seed(seed))[:, :tokens]


class GeneratingRank(RankCommands):
    """A rank with a model and a cache of its own."""

    raises = (NanoKVError,)

    def __init__(self, rank: int, name: str, model: str) -> None:
        self.rank, self.name, self.kind = rank, name, model

    def attach(self) -> int:
        """Returns the rank."""
        torch.set_num_threads(1)
        self.model = tiny(self.kind)
        self.cache = NanoKVCache(HEAP, name=self.name, rank=self.rank, world_size=2, page_bytes=PAGE)
        self.prefixes = PrefixCache(self.model, self.cache)
        return self.rank

    def generate(self, ids: list[int], count: int, **options: Any) -> tuple[list[int], int, bytes]:
        """Greedy tokens after a prompt, how many of its tokens were reused, and the bytes of the first layer's keys."""
        given = torch.tensor([ids])
        kv = self.prefixes.load(given, **options)
        out = self.model.generate(given, past_key_values=kv, max_new_tokens=count, do_sample=False)
        return out[0, len(ids) :].tolist(), kv.tokens_reused, kv.layers[0].keys.numpy().tobytes()

    def evict_all(self) -> None:
        """Evict every object in this rank's segment."""
        self.cache.flush()
        self.cache.evict_until_below(0.0)

    def leave(self) -> None:
        """Close the cache."""
        self.cache.close()
