"""Pools of small blocks, in worlds that are checked after each test."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import torch

from nanokv.blocks import BlockManager, CompleteBlock, ImmutableBlock, LayoutConfig, MutableBlock, SequenceHash
from nanokv.blocks.hashes import TokenBlock, token_blocks

PAGE = 4096
BLOCK_TOKENS = 4
LAYOUT = LayoutConfig(num_layers=2, outer_dim=2, page_size=BLOCK_TOKENS, inner_dim=8, dtype=torch.float32)
SALT = 1337
NewPool: TypeAlias = "Callable[..., BlockManager]"


def block_of(number: int) -> TokenBlock:
    """The first block of a sequence, another one for each number."""
    return token_blocks(range(100 * number, 100 * number + BLOCK_TOKENS), BLOCK_TOKENS, SALT)[0]


def chain(blocks: int, start: int = 0) -> list[TokenBlock]:
    """A sequence of so many blocks."""
    return token_blocks(range(start, start + blocks * BLOCK_TOKENS), BLOCK_TOKENS, SALT)


def hashes(blocks: list[TokenBlock]) -> list[SequenceHash]:
    return [block.sequence_hash for block in blocks]


def taken(pool: BlockManager, count: int) -> list[MutableBlock]:
    """Allocate, where there is room."""
    blocks = pool.allocate_blocks(count)
    assert blocks is not None
    return blocks


def completed(pool: BlockManager, tokens: TokenBlock, fill: float = 0.0) -> CompleteBlock:
    (block,) = taken(pool, 1)
    block.tensor.fill_(fill)
    block.init_sequence(tokens.salt_hash, tokens.parent)
    block.add_tokens(tokens.tokens)
    return block.commit()


def registered(pool: BlockManager, tokens: TokenBlock, fill: float = 0.0) -> ImmutableBlock:
    return completed(pool, tokens, fill).register()


def cached(pool: BlockManager, *numbers: int) -> None:
    """Register `block_of` each number, and drop it: it is inactive."""
    for number in numbers:
        registered(pool, block_of(number), float(number)).drop()


def hash_of(number: int) -> SequenceHash:
    return block_of(number).sequence_hash


def there(pool: BlockManager, *numbers: int) -> list[int]:
    """Which of these blocks are registered, without using them."""
    return [number for number in numbers if pool.cache.exists(pool.keys.of(hash_of(number)))]


@pytest.fixture
def new_pool(new_world: Callable[..., Any]) -> Iterator[NewPool]:
    """Makes a pool of `blocks` blocks in a world of one rank. Pools are closed before their worlds are checked."""
    pools: list[BlockManager] = []

    def make(blocks: int = 8, *, world: dict[str, Any] | None = None, **options: Any) -> BlockManager:
        where = {"heap": "local", "alloc": "device", "n": 1, "evict": False, "page_bytes": PAGE} | (world or {})
        (cache,) = new_world(**where, heap_bytes=(blocks + 1) * PAGE)
        pools.append(BlockManager(cache, LAYOUT, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
