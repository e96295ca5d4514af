"""Threads that share a pool."""

import gc
import random
from concurrent.futures import ThreadPoolExecutor

from nanokv.blocks import InvalidState
from nanokv.blocks.manager import PoolStatus
from tests.blocks.conftest import NewPool, block_of, completed, registered, taken

THREADS, ROUNDS = 6, 60


def test_threads_see_whole_blocks_and_lose_none(new_pool: NewPool) -> None:
    pool = new_pool(8, duplication="reject")

    def work(seed: int) -> int:
        choose, hits = random.Random(seed), 0
        for _ in range(ROUNDS):
            number = choose.randrange(6)
            found = pool.match_blocks([block_of(number).sequence_hash])
            for block in found:
                assert (block.tensor == number).all()
                hits += 1
            blocks = pool.allocate_blocks(choose.randrange(3)) or []
            if blocks:
                blocks[0].tensor.fill_(float(number))
                blocks[0].init_sequence(block_of(number).salt_hash)
                blocks[0].add_tokens(block_of(number).tokens)
                assert (blocks[0].commit().register().tensor == number).all()
            for held in (*found, *blocks[1:]) if choose.random() < 0.5 else ():
                held.drop()  # the others by their last reference
        return hits

    with ThreadPoolExecutor(THREADS) as threads:
        assert sum(threads.map(work, range(THREADS))) > 0
    gc.collect()
    status = pool.status()
    assert (status.filling, status.active) == (0, 0) and status.reset + status.inactive == 8


def test_of_threads_that_commit_one_block_one_does(new_pool: NewPool) -> None:
    pool = new_pool(4)
    for _ in range(10):
        (block,) = taken(pool, 1)
        block.init_sequence(1)
        block.add_tokens(range(4))
        assert outcomes(block.commit) == [True] + [False] * (THREADS - 1)


def test_of_threads_that_register_one_block_one_does(new_pool: NewPool) -> None:
    pool = new_pool(4)
    for number in range(10):
        assert outcomes(completed(pool, block_of(number)).register) == [True] + [False] * (THREADS - 1)


def test_of_threads_that_drop_one_handle_one_does(new_pool: NewPool) -> None:
    pool = new_pool(4)
    block = registered(pool, block_of(0))
    other = block.clone()
    outcomes(block.drop)
    assert pool.status() == PoolStatus(4, 3, 0, 1, 0)
    other.drop()


def outcomes(call: object) -> list[bool]:
    """Which of the threads that call at once succeeded, those first."""

    def one(_: int) -> bool:
        try:
            call()  # type: ignore[operator]
        except InvalidState:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as threads:
        return sorted(threads.map(one, range(THREADS)), reverse=True)
