"""Rank 0 runs the model over each prompt, block by block, and puts each block's KV into the segment of rank 1."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from nanokv.cache import NanoKVCache
from nanokv.demo.job import DECODE_RANK, Job
from nanokv.demo.model import BLOCK_SHAPE, Model, last_block, load_blocks
from nanokv.demo.prompts import BLOCK_TOKENS, block_keys, make_prompts

Tell = Callable[..., None]


@dataclass
class Prefilled:
    """The report of prefill. Times are seconds."""

    blocks_put: int = 0
    blocks_reused: int = 0
    bytes_put: int = 0
    put_seconds: list[float] = field(default_factory=list)
    get_seconds: list[float] = field(default_factory=list)


def prefill(job: Job, model: Model, cache: NanoKVCache, tell: Tell) -> Prefilled:
    """Prefill every prompt: read the leading blocks that the cache has, compute and put the other whole blocks.

    Decode computes the tokens after the last whole block.
    """
    report = Prefilled()
    for number, prompt in enumerate(make_prompts(job.prompts, job.seed)):
        keys = block_keys(prompt)
        reused = leading(cache.exists_many(keys))
        kv = model.new_cache()
        load_blocks(kv, read_blocks(cache, keys[:reused], report.get_seconds), reused * BLOCK_TOKENS)
        report.blocks_reused += reused
        tell("reused", prompt=number, blocks=reused)
        for i in range(reused, len(keys)):
            model.forward(prompt[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], kv)
            block = last_block(kv)
            if (number, i) == (0, job.corrupt):
                flip_byte(block)
            _put(cache, keys[i], block, report)
            tell("put", prompt=number)
    return report


def leading(present: list[bool]) -> int:
    """How many blocks are present before the first that is not: only a whole prefix can be reused."""
    return [*present, False].index(False)


def read_blocks(cache: NanoKVCache, keys: list[str], seconds: list[float]) -> torch.Tensor:
    """Read blocks into one new tensor [n, *BLOCK_SHAPE]; appends the seconds of each get to `seconds`."""
    blocks = torch.empty(len(keys), *BLOCK_SHAPE)
    for key, block in zip(keys, blocks, strict=True):
        started = time.perf_counter()
        cache.get(key, dst=block)
        seconds.append(time.perf_counter() - started)
    return blocks


def _put(cache: NanoKVCache, key: str, block: torch.Tensor, report: Prefilled) -> None:
    started = time.perf_counter()
    cache.put(key, block, preferred_segment=DECODE_RANK)
    report.put_seconds.append(time.perf_counter() - started)
    report.blocks_put += 1
    report.bytes_put += block.nbytes


def flip_byte(block: torch.Tensor) -> None:
    """For tests: change one bit of a block, in place."""
    flat: Any = block.view(torch.uint8).view(-1)
    flat[0] ^= 1
