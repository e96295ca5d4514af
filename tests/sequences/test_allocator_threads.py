"""Threads on one allocator: no block has two owners, all come back, and a refusal is for want of blocks."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nanokv.errors import InvalidArgument
from nanokv.sequences import KVBlockAllocator, KVHandle
from nanokv.sequences import allocator as allocator_module
from nanokv.sequences.allocator import FreeLists
from tests.support.faults import Calls, Limits

THREADS, TURNS, BLOCKS = 8, 3000, 200


class Owners:
    """Who has each block, by the word of the threads."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}

    def take(self, blocks: range, owner: int) -> None:
        for block in blocks:
            assert self._owner.setdefault(block, owner) is owner, f"block {block} has two owners"  # atomic

    def drop(self, blocks: range, owner: int) -> None:
        for block in blocks:
            assert self._owner.pop(block) is owner


def churn(allocator: KVBlockAllocator, owners: Owners, thread: int) -> None:
    dice, held = random.Random(thread), list[tuple[KVHandle, int]]()
    for turn in range(TURNS):
        mark = (thread << 32) + turn
        kind = dice.random()
        if kind < 0.5 or not held:
            if handle := allocator.allocate(dice.choice((1, 1, 2, 3, 5, 8, 13, 33))):
                owners.take(handle.block_indices, mark)
                held.append((handle, mark))
            continue
        handle, mark = held.pop(dice.randrange(len(held)))
        if kind < 0.6 and (grown := allocator.extend(handle, dice.randint(1, 4))):
            owners.take(range(handle.end, grown.end), mark)
            held.append((grown, mark))
        elif kind < 0.7 and handle.num_blocks > 1:
            owners.drop(range(handle.start_block_index + 1, handle.end), mark)
            held.append((allocator.shrink(handle, 1), mark))
        else:
            owners.drop(handle.block_indices, mark)
            allocator.free(handle)
    for handle, mark in held:
        owners.drop(handle.block_indices, mark)
        allocator.free(handle)


@pytest.mark.surface("CortexStream KV cache", "KVBlockAllocator.allocate", differs="no lock for all: one per order")
@pytest.mark.surface("CortexStream KV cache", "KVBlockAllocator.free", differs="no lock for all: one per order")
def test_no_block_has_two_owners_and_all_come_back(switches: None) -> None:
    allocator, owners = KVBlockAllocator(BLOCKS), Owners()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(churn, allocator, owners, thread) for thread in range(THREADS)]:
            done.result()
    assert allocator.used_blocks() == 0 and not owners._owner
    assert allocator.lists.snapshot() == KVBlockAllocator(BLOCKS).lists.snapshot()  # joined as at the start
    assert allocator.allocate(BLOCKS)


def test_a_handle_is_freed_by_one_of_many_threads(switches: None) -> None:
    allocator = KVBlockAllocator(64)

    def freed(handle: KVHandle) -> bool:
        try:
            allocator.free(handle)
        except InvalidArgument:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(50):
            assert sum(pool.map(freed, [allocator.allocate(5)] * THREADS)) == 1
            assert allocator.free_blocks() == 64


class Stopped:
    """Stops the first thread that gives blocks back, while it has them in its hands."""

    def __init__(self, calls: Calls) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        calls.before(FreeLists, "put_run", self._stop, at=(1,))

    def _stop(self, *_: Any) -> None:
        self.reached.set()
        assert self.go.wait(60)


def test_a_request_is_not_refused_for_blocks_in_another_threads_hands(calls: Calls, limits: Limits) -> None:
    """A thread has taken the only chunk to split it, and stops: another one waits for the rest of it."""
    limits(allocator_module, LOOKS=1_000_000)
    allocator = KVBlockAllocator(8)
    stopped = Stopped(calls)
    calls.before(allocator, "_find", lambda _: stopped.go.set(), at=(20,), when=lambda blocks: blocks == 1)
    with ThreadPoolExecutor(1) as pool:
        splitting = pool.submit(allocator.allocate, 4)
        assert stopped.reached.wait(60)
        second = allocator.allocate(1)  # 19 looks find nothing; then the other thread goes on
        assert splitting.result().start_block_index == 0
    assert second.is_valid()


def test_a_request_does_not_wait_for_ever_for_a_thread_that_stands(calls: Calls) -> None:
    allocator = KVBlockAllocator(8)
    stopped = Stopped(calls)
    with ThreadPoolExecutor(1) as pool:
        splitting = pool.submit(allocator.allocate, 4)
        assert stopped.reached.wait(60)
        assert not allocator.allocate(1)
        stopped.go.set()
        splitting.result()
    assert allocator.allocate(4).is_valid()


def test_a_move_within_a_look_makes_it_count_for_nothing() -> None:
    """Also one that has begun and ended within it."""
    moves = FreeLists(8).moves
    mark = moves.quiet()
    assert not moves.since(mark)
    moves.end(moves.begin())
    assert moves.since(mark)
    token = moves.begin()
    assert moves.quiet() is None
    moves.end(token)
    assert not moves.since(moves.quiet())
