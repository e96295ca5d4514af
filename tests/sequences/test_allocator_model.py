"""The allocator against a set of blocks: nothing overlaps, buddies are joined, refusals are true, steps are few."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanokv.sequences import KVBlockAllocator, KVHandle
from nanokv.sequences.allocator import TRIES


def largest_chunks(free: set[int], start: int, order: int) -> Iterator[tuple[int, int]]:
    """The largest chunks that are all free, (start, blocks): what joining has to lead to."""
    blocks = range(start, start + (1 << order))
    if all(block in free for block in blocks):
        yield start, 1 << order
    elif order and any(block in free for block in blocks):
        yield from largest_chunks(free, start, order - 1)
        yield from largest_chunks(free, start + (1 << order - 1), order - 1)


def runs(free: set[int]) -> list[int]:
    """Lengths of the free runs."""
    found: list[int] = []
    for block in sorted(free):
        if block - 1 in free:
            found[-1] += 1
        else:
            found.append(1)
    return found


class AllocatorMachine(RuleBasedStateMachine):
    """Any order of calls, in an arena of any size."""

    @initialize(total=st.integers(1, 70))
    def start(self, total: int) -> None:
        self.allocator, self.total = KVBlockAllocator(total), total
        self.held: list[KVHandle] = []

    def free(self) -> set[int]:
        return set(range(self.total)).difference(*(handle.block_indices for handle in self.held))

    def chunks(self) -> list[tuple[int, int]]:
        return list(largest_chunks(self.free(), 0, (self.total - 1).bit_length()))

    @rule(blocks=st.integers(1, 40))
    def allocate(self, blocks: int) -> None:
        free, chunks = self.free(), self.chunks()
        handle = self.allocator.allocate(blocks)
        if handle:
            assert handle.num_blocks == blocks and free.issuperset(handle.block_indices)
            self.held.append(handle)
            return
        size = 1 << (blocks - 1).bit_length()
        assert all(chunk < size for _, chunk in chunks)
        if all(sum(chunk == part for _, chunk in chunks) <= TRIES for part in (size // 2, size // 4)):
            assert all(run < blocks for run in runs(free))  # the search has looked around each of them

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(1, 20))
    def extend(self, data: Any, more: int) -> None:
        handle, free = self.held.pop(data.draw(st.integers(0, len(self.held) - 1))), self.free()
        grown = self.allocator.extend(handle, more)
        assert bool(grown) == free.issuperset(range(handle.end, handle.end + more))
        assert not grown or (grown.start_block_index, grown.end) == (handle.start_block_index, handle.end + more)
        self.held.append(grown or handle)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def shrink(self, data: Any) -> None:
        handle = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        blocks = data.draw(st.integers(1, handle.num_blocks))
        self.held.append(self.allocator.shrink(handle, blocks))
        assert list(self.held[-1].block_indices) == list(handle.block_indices)[:blocks]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        self.allocator.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def the_lists_hold_exactly_the_free_blocks_joined(self) -> None:
        if not hasattr(self, "allocator"):
            return
        assert self.allocator.lists.snapshot() == self.chunks()
        longest, free = max(runs(self.free()), default=0), len(self.free())
        assert self.allocator.free_blocks() == free
        assert self.allocator.fragmentation() == (1 - longest / free if free else 0.0)

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        for handle in self.held:
            self.allocator.free(handle)
        assert self.allocator.allocate(self.total)


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40)


class CountedList(dict[int, None]):
    """A free list that counts how often it is asked or changed."""

    count = 0

    def _counted(name: str) -> Any:  # type: ignore[misc]
        def method(self: "CountedList", *args: Any) -> Any:
            CountedList.count += 1
            return getattr(dict, name)(self, *args)

        return method

    __contains__ = _counted("__contains__")
    __setitem__ = _counted("__setitem__")
    __delitem__ = _counted("__delitem__")
    __len__ = _counted("__len__")
    __iter__ = _counted("__iter__")
    popitem = _counted("popitem")


def steps_of(call: Any, *args: Any) -> tuple[int, Any]:
    CountedList.count = 0
    result = call(*args)
    return CountedList.count, result


def most_steps(order: int) -> dict[str, int]:
    """The most list operations of each kind of call in an arena of 2**order blocks that is torn to pieces."""
    dice, allocator = random.Random(order), KVBlockAllocator((1 << order) - 1)
    allocator.lists._free = [CountedList(chunks) for chunks in allocator.lists._free]
    most = dict.fromkeys(("allocate", "refuse", "free", "extend"), 0)

    def note(kind: str, steps: int) -> None:
        most[kind] = max(most[kind], steps)

    held: list[KVHandle] = []
    for turn in range(3000):
        steps, handle = steps_of(allocator.allocate, dice.randint(1, 1 << dice.randint(0, order)))
        note("allocate" if handle else "refuse", steps)
        if handle:
            held.append(handle)
        if held and dice.random() < 0.5:
            at = dice.randrange(len(held))
            steps, grown = steps_of(allocator.extend, held[at], dice.randint(1, 8))
            note("extend", steps)
            held[at] = grown or held[at]
        while held and (not handle or turn % 50 == 0) and dice.random() < 0.7:
            note("free", steps_of(allocator.free, held.pop(dice.randrange(len(held))))[0])
    singles = [single for _ in range(allocator.free_blocks()) if (single := allocator.allocate(1))]
    for single in singles[::2]:  # every other block: no list is longer
        note("free", steps_of(allocator.free, single)[0])
    for blocks in (1, 2, 3, 1 << order - 1):
        steps, handle = steps_of(allocator.allocate, blocks)
        note("allocate" if handle else "refuse", steps)
    return most


@pytest.mark.surface("CortexStream KV cache", "KVBlockAllocator.allocate", differs="O(log n) steps, by buddies")
def test_calls_take_a_logarithmic_number_of_steps() -> None:
    """One bound per order for all sizes: a look at each block, or at each free chunk, would exceed it."""
    for order in (4, 6, 8, 10, 12, 14):
        most = most_steps(order)
        assert 0 < most["allocate"] <= 40 * order, (order, most)
        assert 0 < most["refuse"] <= 40 * order, (order, most)
        assert 0 < most["free"] <= 8 * order, (order, most)
        assert 0 < most["extend"] <= 10 * order, (order, most)
