"""Sequences whose every token can be told from every other one."""

import torch

from nanokv.sequences import KVCache

LAYERS, HEADS, DIM, BLOCK = 2, 3, 4, 4

_PATTERN = torch.arange(LAYERS * HEADS * DIM, dtype=torch.float32).view(LAYERS, HEADS, DIM) / 64


def small_cache(blocks: int = 16, **options: object) -> KVCache:
    """A cache of so many blocks of four tokens."""
    return KVCache(LAYERS, HEADS, DIM, block_size=BLOCK, max_total_tokens=blocks * BLOCK, **options)  # type: ignore[arg-type]


def expected(marks: list[int]) -> torch.Tensor:
    """K of tokens with these marks: [layers, heads, tokens, head_dim]. V is its negative."""
    return torch.tensor(marks, dtype=torch.float32)[None, None, :, None] + _PATTERN[:, :, None]


def write(cache: KVCache, request_id: str, marks: list[int]) -> None:
    """Write the last tokens of a sequence through its views."""
    for layer, values in enumerate(expected(marks)):
        cache.get_k_view(request_id, layer)[:, -len(marks) :] = values
        cache.get_v_view(request_id, layer)[:, -len(marks) :] = -values


def holds(cache: KVCache, request_id: str, marks: list[int]) -> bool:
    """Whether a sequence consists of tokens with these marks."""
    values = expected(marks)
    return all(
        torch.equal(cache.get_k_view(request_id, layer), values[layer])
        and torch.equal(cache.get_v_view(request_id, layer), -values[layer])
        for layer in range(LAYERS)
    )


def add(cache: KVCache, request_id: str, marks: list[int]) -> None:
    """A new sequence of tokens with these marks."""
    assert cache.allocate_for(request_id, len(marks))
    if marks:
        write(cache, request_id, marks)
