"""A rank in a process of its own that uses a pool of blocks in the segment of rank 0, or of another one."""

import random
from typing import Any

from nanokv.blocks import BlockManager
from nanokv.blocks.manager import BlockHandle, MutableBlock
from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from tests.blocks.conftest import LAYOUT, PAGE, block_of, chain, completed, hashes, registered

BLOCKS = 12
OPTIONS: dict[str, Any] = {"heap": "shm", "alloc": "device", "page_bytes": PAGE, "evict": False, "world_size": 2}


def attached(name: str, rank: int) -> NanoKVCache:
    """A rank of a world of two."""
    return NanoKVCache((BLOCKS + 1) * PAGE, name=name, rank=rank, **OPTIONS)


def grabbed(pool: BlockManager) -> list[MutableBlock]:
    """All the blocks that a pool gives, one by one."""
    blocks: list[MutableBlock] = []
    while (found := pool.allocate_blocks(1)) is not None:
        blocks += found
    return blocks


class BlockRank(RankCommands):
    """A rank of the pool's users."""

    def __init__(self, rank: int, name: str, segment: int = 0) -> None:
        self.rank, self.name, self.segment = rank, name, segment

    def attach(self) -> None:
        self.cache = attached(self.name, self.rank)
        self.pool = BlockManager(self.cache, LAYOUT, segment=self.segment, patience=30.0, duplication="reject")
        self.held: list[BlockHandle] = []

    def register(self, blocks: int) -> None:
        """A sequence of so many blocks; block i is filled with i. They are inactive afterwards."""
        for number, tokens in enumerate(chain(blocks)):
            registered(self.pool, tokens, number).drop()

    def hold(self) -> list[str]:
        """Blocks in every state: Reset, Partial, Complete, Registered by this process, and by another one."""
        mutable = self.pool.allocate_blocks(2)
        assert mutable is not None
        mutable[1].init_sequence(1)
        mutable[1].add_token(7)
        self.held += [*mutable, completed(self.pool, block_of(50)), registered(self.pool, block_of(51), 51.0)]
        self.held += self.pool.match_blocks(hashes(chain(3))[:1])
        return [block.state.value for block in self.held]

    def drop(self) -> None:
        """All that `hold` holds."""
        while self.held:
            self.held.pop().drop()

    def read(self, blocks: int) -> list[float]:
        """What the first blocks of the sequence are filled with: the longest prefix."""
        found = self.pool.match_blocks(hashes(chain(blocks)))
        means = [float(block.tensor.mean()) for block in found]
        for block in found:
            block.drop()
        return means

    def evict(self, blocks: int) -> int:
        """Allocate so many blocks, and drop them; how many were evicted for it."""
        got = self.pool.allocate_blocks_with_evictions(blocks)
        assert got is not None
        for block in got[0]:
            block.drop()
        return len(got[1])

    def register_each(self, numbers: list[int]) -> int:
        """Register these blocks, and keep them; how many another process had registered."""
        self.held += [registered(self.pool, block_of(number), number) for number in numbers]
        return self.pool.counts.as_dict()["registration_dedup"]

    def grab(self) -> int:
        """Allocate as many blocks as there are, and keep them."""
        self.held += grabbed(self.pool)
        return len(self.held)

    def work(self, seed: int) -> None:
        """Random calls until told."""
        choose = random.Random(seed)
        while not self.told():
            self.step(choose)
            self.progress.value += 1
        self.drop()

    def step(self, choose: random.Random) -> None:
        """One random call; what it gives is held for a while."""
        number = choose.randrange(6)
        match choose.randrange(4):
            case 0:
                self.held += self.pool.allocate_blocks(choose.randrange(4)) or []
            case 1:
                blocks = self.pool.allocate_blocks(1)
                if blocks is not None:
                    self.held.append(self.filled(blocks[0], number).commit().register())
            case 2:
                found = self.pool.match_blocks([block_of(number).sequence_hash])
                assert all(float(block.tensor.mean()) == number for block in found)
                self.held += found
            case _:
                pass
        while len(self.held) > 4 or (self.held and choose.random() < 0.5):
            self.held.pop(choose.randrange(len(self.held))).drop()

    def filled(self, block: MutableBlock, number: int) -> MutableBlock:
        """A block with the tokens of a number."""
        tokens = block_of(number)
        block.tensor.fill_(float(number))
        block.init_sequence(tokens.salt_hash)
        block.add_tokens(tokens.tokens)
        return block
