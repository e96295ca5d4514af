"""Processes that share a pool, and what a process that is killed leaves: all of it comes back, by the headers."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from nanokv.blocks import BlockManager
from nanokv.blocks.manager import PoolStatus
from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankProcess
from nanokv.errors import PeerLost
from nanokv.fsck import check_cache
from tests.blocks.block_ranks import BLOCKS, BlockRank, attached, grabbed
from tests.blocks.conftest import LAYOUT, block_of, chain, completed, hashes, registered, taken
from tests.support.rank_processes import new_folder, starter
from tests.support.until import until

KVBM = "KVBM block manager"
Joined = tuple[BlockManager, RankProcess]
Join = Callable[..., contextlib.AbstractContextManager[Joined]]


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Makes a world of two: a pool in this process, and the other rank. The pool lies in the segment of rank 0."""
    with new_folder(monkeypatch), starter(BlockRank) as start:

        @contextlib.contextmanager
        def made(mine: int = 0) -> Iterator[Joined]:
            other = start(1 - mine, "blocks")
            with attached("blocks", mine) as cache:
                other.arrive()
                with BlockManager(cache, LAYOUT, segment=0, patience=30.0, duplication="reject") as pool:
                    yield pool, other
                    if mine == 0:
                        check(cache)

        yield made


def check(cache: NanoKVCache) -> None:
    cache.flush()
    breaches = check_cache([cache]).breaches
    assert not breaches, "\n".join(map(str, breaches))


@pytest.mark.surface(KVBM, "blocks shared by processes")
def test_processes_share_registered_blocks(join: Join) -> None:
    with join() as (pool, other):
        other.ask("register", 3)
        assert pool.status() == PoolStatus(BLOCKS, BLOCKS - 3, 0, 0, 3)
        found = pool.match_blocks(hashes(chain(5)))
        assert [float(block.tensor.mean()) for block in found] == [0, 1, 2]
        assert pool.status().active == 3
        mine = taken(pool, BLOCKS - 3)
        assert pool.allocate_blocks(1) is None
        for block in [*found[1:], *mine]:
            block.drop()
        assert other.ask("evict", BLOCKS - 1) == 2  # the blocks that this process does not use
        assert other.ask("read", 3) == [0]
        registered(pool, chain(5)[1], 1.0).drop()
        assert other.ask("read", 3) == [0, 1]


@pytest.mark.surface(KVBM, "blocks of a dead process come back")
def test_the_blocks_of_a_killed_process_come_back(join: Join) -> None:
    with join() as (pool, other):
        registered(pool, chain(3)[0], 9.0).drop()
        states = ["Reset", "Partial", "Complete", "Registered", "Registered"]
        assert other.ask("hold") == states
        assert pool.status() == PoolStatus(BLOCKS, BLOCKS - 5, 3, 2, 0)
        mine = taken(pool, BLOCKS - 5)
        assert pool.allocate_blocks(1) is None  # what the other one holds cannot be had

        other.kill()

        until(lambda: pool.status() == PoolStatus(BLOCKS, 3, BLOCKS - 5, 0, 2))
        mine += taken(pool, 3)
        wanted = [chain(3)[0].sequence_hash, block_of(51).sequence_hash]
        found = pool.match_blocks(wanted)  # what was registered stays, also what the dead process had registered
        assert [float(block.tensor.mean()) for block in found] == [9.0, 51.0]
        for block in [*found, *mine]:
            block.drop()
        assert len(taken(pool, BLOCKS)) == BLOCKS


def test_a_process_that_is_killed_at_work_leaves_a_whole_pool(join: Join) -> None:
    with join() as (pool, first), starter(BlockRank) as start:
        for kill in range(3):
            other = first if kill == 0 else start(1, "blocks")
            if kill:
                other.arrive()
            killed_at_work(other, steps=20 * (kill + 1), seed=kill)
            until(lambda: pool.available_blocks == BLOCKS)
            for number in range(6):
                for block in pool.match_blocks([block_of(number).sequence_hash]):
                    assert float(block.tensor.mean()) == number
                    block.drop()
        blocks = taken(pool, BLOCKS)
        assert pool.status() == PoolStatus(BLOCKS, 0, BLOCKS, 0, 0)
        del blocks


def killed_at_work(other: RankProcess, *, steps: int, seed: int) -> None:
    other.send("work", seed)
    until(lambda: other.steps > steps)
    other.kill()


def test_two_processes_that_take_all_blocks_never_have_too_many(join: Join) -> None:
    with join() as (pool, other):
        for _ in range(20):
            other.send("grab")
            mine = grabbed(pool)
            theirs = other.answer()
            assert len(mine) + theirs <= BLOCKS
            assert pool.status().filling == len(mine) + theirs
            mine += grabbed(pool)  # alone: no accident keeps it from the rest
            assert len(mine) + theirs == BLOCKS
            for block in mine:
                block.drop()
            other.ask("drop")
        assert pool.status() == PoolStatus(BLOCKS, BLOCKS, 0, 0, 0)


def test_two_processes_register_each_hash_once(join: Join) -> None:
    with join() as (pool, other):
        numbers = list(range(5))
        other.send("register_each", numbers)
        mine = [registered(pool, block_of(number), number) for number in numbers]
        theirs = other.answer()
        assert theirs + pool.counts.as_dict()["registration_dedup"] == 5
        assert pool.status() == PoolStatus(BLOCKS, BLOCKS - 5, 0, 5, 0)
        for block in mine:
            block.drop()
        assert pool.status().active == 5
        other.ask("drop")
        assert pool.status().inactive == 5


def test_without_the_owner_registered_blocks_stay_readable(join: Join) -> None:
    with join(mine=1) as (pool, other):
        other.ask("register", 2)
        waiting = completed(pool, block_of(3))
        other.kill()
        until(lambda: not pool.cache.alive(0))
        with pytest.raises(PeerLost):
            pool.allocate_blocks(1)
        with pytest.raises(PeerLost):
            waiting.register()
        assert waiting.valid
        found = pool.match_blocks(hashes(chain(2)))
        assert [float(block.tensor.mean()) for block in found] == [0, 1]
