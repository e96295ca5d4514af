"""Prefixes that `generate()` of transformers shares between processes (docs/transformers.md).

prefix_cache   `PrefixCache`: a model and a cache, joined: makes a `PromptKV` for each prompt
prompt_kv      `PromptKV`: the KV of some prompts, a DynamicCache that knows the tokens it holds
blocks         blocks between a PromptKV and a NanoKVCache: read, gather, put
layers         which models can be served, the shape of their KV, and sliding windows that keep what slides out
"""

from nanokv.integrations.transformers.blocks import ReuseStats
from nanokv.integrations.transformers.prefix_cache import PrefixCache
from nanokv.integrations.transformers.prompt_kv import PromptKV

__all__ = ["PrefixCache", "PromptKV", "ReuseStats"]
