"""Rank 1 waits for each prompt's blocks, reads them, and generates. It computes nothing that rank 0 has computed."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.integrations.transformers import PromptKV
from nanokv.tools.demo.job import DECODE_RANK, PATIENCE, Job, Tell
from nanokv.tools.demo.model import Model, digest
from nanokv.tools.demo.prompts import make_prompts


@dataclass
class DecodeReport:
    """The report of decode. Times are seconds; `stats` are rank 1's when all prompts were done."""

    tokens: list[list[int]] = field(default_factory=list)  #: of each prompt
    digests: list[list[str]] = field(default_factory=list)  #: of the bytes of each block read
    control: list[int] = field(default_factory=list)  #: the first prompt's tokens with one block altered
    tail_tokens: int = 0  #: prompt tokens that decode computed itself
    wait_seconds: float = 0.0
    get_seconds: list[float] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)


def decode(job: Job, model: Model, cache: NanoKVCache, tell: Tell) -> DecodeReport:
    """Generate after every prompt from the blocks in the cache, then once more with one stored block altered."""
    report = DecodeReport()
    prefixes = model.prefixes(cache)
    prompts = make_prompts(job.prompts, job.seed)
    for number, prompt in enumerate(prompts):
        keys = prefixes.keys(prompt)
        started = time.perf_counter()
        cache.wait(keys, timeout=PATIENCE)
        report.wait_seconds += time.perf_counter() - started
        report.digests.append([_digest(cache, key, report) for key in keys])
        kv = prefixes.load(torch.tensor([prompt]))
        report.tail_tokens += len(prompt) - kv.tokens_reused
        tokens = generate(model, prompt, kv, job.tokens, lambda n=number: tell("token", prompt=n))
        report.tokens.append(tokens)
    cache.flush()
    report.stats = dict(cache.stats())
    report.control = _control(job, model, cache, prompts[0])
    return report


def _digest(cache: NanoKVCache, key: bytes, report: DecodeReport) -> str:
    started = time.perf_counter()
    block = cache.get(key)
    report.get_seconds.append(time.perf_counter() - started)
    return digest(block)


def generate(model: Model, prompt: list[int], kv: PromptKV, count: int, on_token: Any) -> list[int]:
    """`count` greedy tokens after a prompt of which a prefix is held; calls `on_token` after each."""
    fed = prompt[kv.tokens_held :]
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(model.forward(fed, kv))
        fed = tokens[-1:]
        on_token()
    return tokens


def _control(job: Job, model: Model, cache: NanoKVCache, prompt: list[int]) -> list[int]:
    """Replace one stored block by twice its values and generate again: other tokens show that the bytes are used."""
    prefixes = model.prefixes(cache)
    keys = prefixes.keys(prompt)
    middle = keys[len(keys) // 2]
    altered = cache.get(middle) * 2
    cache.remove(middle)
    cache.put(middle, altered, preferred_segment=DECODE_RANK)
    return generate(model, prompt, prefixes.load(torch.tensor([prompt])), job.tokens, lambda: None)
