"""Rank 0 runs the model over each prompt, block by block, and puts each block's KV into the segment of rank 1."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.integrations.transformers import PromptKV
from nanokv.tools.demo.job import DECODE_RANK, Job, Tell
from nanokv.tools.demo.model import BLOCK_BYTES, Model
from nanokv.tools.demo.prompts import BLOCK_TOKENS, make_prompts, whole_blocks


@dataclass
class PrefillReport:
    """The report of prefill. Times are seconds."""

    blocks_put: int = 0
    blocks_reused: int = 0
    bytes_put: int = 0
    put_seconds: list[float] = field(default_factory=list)


def prefill(job: Job, model: Model, cache: NanoKVCache, tell: Tell) -> PrefillReport:
    """Prefill every prompt: read the leading blocks that the cache has, compute and put the other whole blocks.

    Decode computes the tokens after the last whole block.
    """
    report = PrefillReport()
    prefixes = model.prefixes(cache)
    for number, prompt in enumerate(make_prompts(job.prompts, job.seed)):
        kv = prefixes.load(torch.tensor([prompt]), preferred_segment=DECODE_RANK)
        reused = -(-kv.tokens_held // BLOCK_TOKENS)
        report.blocks_reused += reused
        tell("reused", prompt=number, blocks=reused)
        for i in range(reused, whole_blocks(prompt)):
            model.forward(prompt[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], kv)
            _store(kv, report)
            if (number, i) == (0, job.corrupt):
                flip_byte(cache, prefixes.keys(prompt)[i])
            tell("put", prompt=number)
    report.blocks_put = prefixes.stats.blocks_stored
    report.bytes_put = report.blocks_put * BLOCK_BYTES
    return report


def _store(kv: PromptKV, report: PrefillReport) -> None:
    started = time.perf_counter()
    kv.store()
    report.put_seconds.append(time.perf_counter() - started)


def flip_byte(cache: NanoKVCache, key: bytes) -> None:
    """Change one bit of a stored block, for tests."""
    block = cache.get(key)
    flat: Any = block.view(torch.uint8).view(-1)
    flat[0] ^= 1
    cache.remove(key)
    cache.put(key, block, preferred_segment=DECODE_RANK)
