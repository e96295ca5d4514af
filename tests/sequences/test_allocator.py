"""The block allocator: CortexStream's examples, what it refuses, and where blocks end up."""

import io
from typing import Any

import pytest

from nanokv.errors import InvalidArgument
from nanokv.sequences import KVBlockAllocator, KVHandle

NAME = "CortexStream KV cache"


def places(*handles: KVHandle) -> list[tuple[int, int]]:
    return [(handle.start_block_index, handle.num_blocks) for handle in handles]


@pytest.mark.surface(NAME, "KVBlockAllocator.allocate")
@pytest.mark.surface(NAME, "KVBlockAllocator.total_blocks")
@pytest.mark.surface(NAME, "KVBlockAllocator.used_blocks")
@pytest.mark.surface(NAME, "KVBlockAllocator.free_blocks")
def test_the_examples_sequences_lie_side_by_side() -> None:
    allocator = KVBlockAllocator(2048)
    handles = [allocator.allocate(blocks) for blocks in (32, 16, 8, 4)]
    assert places(*handles) == [(0, 32), (32, 16), (48, 8), (56, 4)]
    assert (allocator.used_blocks(), allocator.free_blocks(), allocator.total_blocks()) == (60, 1988, 2048)


def test_a_request_takes_exactly_its_blocks() -> None:
    allocator = KVBlockAllocator(64)
    handle = allocator.allocate(33)
    assert handle.is_valid() and list(handle.block_indices) == list(range(33))
    assert allocator.free_blocks() == 31
    assert places(allocator.allocate(31)) == [(33, 31)]  # the rest of its buddy, which no list has as one chunk
    assert allocator.free_blocks() == 0


def test_a_run_between_two_handles_serves_a_request_that_no_buddy_holds() -> None:
    allocator = KVBlockAllocator(64)
    first, middle, last = (allocator.allocate_at(start, blocks) for start, blocks in ((0, 4), (4, 56), (60, 4)))
    assert places(first, middle, last) == [(0, 4), (4, 56), (60, 4)]
    allocator.free(middle)
    assert places(allocator.allocate(56)) == [(4, 56)]


@pytest.mark.parametrize("total", [1, 2, 3, 33, 100, 1000])
def test_all_blocks_are_one_request_in_an_arena_of_any_size(total: int) -> None:
    allocator = KVBlockAllocator(total)
    for _ in range(2):
        handle = allocator.allocate(total)
        assert places(handle) == [(0, total)]
        allocator.free(handle)


@pytest.mark.surface(NAME, "KVBlockAllocator.allocate", refused="a handle that is false; nothing is allocated")
def test_a_full_arena_refuses_and_changes_nothing() -> None:
    allocator = KVBlockAllocator(8)
    handle = allocator.allocate(5)
    for blocks in (4, 8, 9, 1 << 40):
        refused = allocator.allocate(blocks)
        assert not refused and not refused.is_valid() and places(refused) == [(-1, 0)]
        assert list(refused.block_indices) == []
    assert allocator.free_blocks() == 3
    assert places(allocator.allocate(3)) == [(5, 3)]
    assert handle


@pytest.mark.surface(NAME, "KVBlockAllocator.allocate_nowait")
def test_allocate_nowait_is_allocate() -> None:
    allocator = KVBlockAllocator(4)
    assert allocator.allocate_nowait(4)
    assert not allocator.allocate_nowait(1)


@pytest.mark.surface(NAME, "KVBlockAllocator.free")
def test_freed_buddies_join() -> None:
    allocator = KVBlockAllocator(16)
    handles = [allocator.allocate(1) for _ in range(16)]
    assert not allocator.allocate(1)
    for handle in handles[::2] + handles[1::2]:
        allocator.free(handle)
    assert places(allocator.allocate(16)) == [(0, 16)]


@pytest.mark.surface(
    NAME, "KVBlockAllocator.free", refused="InvalidArgument for a handle that was freed, is false, or another's"
)
def test_only_a_live_handle_of_its_own_is_freed() -> None:
    allocator, other = KVBlockAllocator(8), KVBlockAllocator(8)
    handle, kept, foreign = allocator.allocate(4), allocator.allocate(2), other.allocate(4)
    allocator.free(handle)
    forged = KVHandle(kept.start_block_index, kept.num_blocks)
    wrong: list[Any] = [handle, foreign, forged, allocator.allocate(99), None, [], (0, 4)]
    for bad in wrong:
        with pytest.raises(InvalidArgument, match="no live handle"):
            allocator.free(bad)
    assert (allocator.used_blocks(), other.used_blocks()) == (2, 4)


@pytest.mark.parametrize("blocks", [0, -1, 1.5, True, "1", None])
def test_a_request_for_no_number_of_blocks_is_an_error(blocks: Any) -> None:
    allocator = KVBlockAllocator(8)
    for call in (allocator.allocate, KVBlockAllocator):
        with pytest.raises(InvalidArgument):
            call(blocks)
    handle = allocator.allocate(2)
    for change in (allocator.extend, allocator.shrink):
        with pytest.raises(InvalidArgument):
            change(handle, blocks)
    assert allocator.used_blocks() == 2


@pytest.mark.surface(NAME, "KVBlockAllocator.extend")
def test_extend_takes_the_next_blocks_or_none() -> None:
    allocator = KVBlockAllocator(16)
    handle, behind = allocator.allocate(4), allocator.allocate_at(10, 2)
    assert not behind  # block 10 lies inside a free chunk
    grown = allocator.extend(handle, 6)
    assert places(grown) == [(0, 10)]
    with pytest.raises(InvalidArgument, match="no live handle"):
        allocator.free(handle)  # it was replaced
    assert places(allocator.allocate_at(10, 2)) == [(10, 2)]
    assert not allocator.extend(grown, 1)
    assert not allocator.extend(grown, 7)  # beyond the arena
    assert allocator.used_blocks() == 12
    allocator.free(grown)


@pytest.mark.surface(NAME, "KVBlockAllocator.shrink")
def test_shrink_gives_the_last_blocks_back() -> None:
    allocator = KVBlockAllocator(16)
    handle = allocator.shrink(allocator.allocate(16), 3)
    assert places(handle) == [(0, 3)]
    with pytest.raises(InvalidArgument):
        allocator.shrink(handle, 4)
    assert places(allocator.allocate(13)) == [(3, 13)]


@pytest.mark.surface(NAME, "KVBlockAllocator.allocate_at")
def test_allocate_at_takes_these_blocks_or_none() -> None:
    allocator = KVBlockAllocator(12)
    assert [places(allocator.allocate_at(start, blocks))[0] for start, blocks in ((0, 5), (5, 6), (11, 1))] == [
        (0, 5),
        (5, 6),
        (11, 1),
    ]
    assert not allocator.allocate_at(11, 1)
    with pytest.raises(InvalidArgument):
        allocator.allocate_at(12, 1)


@pytest.mark.surface(NAME, "KVBlockAllocator.fragmentation", differs="the longest free run / free blocks, from 1")
def test_fragmentation_is_the_part_outside_the_longest_free_run() -> None:
    allocator = KVBlockAllocator(8)
    handles = [allocator.allocate(1) for _ in range(8)]
    by_start = {handle.start_block_index: handle for handle in handles}
    assert allocator.fragmentation() == 0.0  # none is free
    for start in (0, 3, 4, 6):
        allocator.free(by_start[start])
    assert allocator.fragmentation() == 0.5  # runs of 1, 2 and 1: blocks 3 and 4 are neighbours, but no buddies
    for start in (1, 2, 5, 7):
        allocator.free(by_start[start])
    assert allocator.fragmentation() == 0.0


@pytest.mark.surface(NAME, "KVBlockAllocator.dump_block_map")
def test_the_block_map_has_a_character_per_block() -> None:
    allocator, stream = KVBlockAllocator(100), io.StringIO()
    handles = [allocator.allocate(blocks) for blocks in (32, 16, 8, 4)]
    allocator.free(handles[1])
    allocator.dump_block_map(stream)
    assert stream.getvalue().splitlines() == [
        "KVBlockAllocator State:",
        "  Total blocks: 100",
        "  Used: 44 Free: 56",
        "  Fragmentation: 0.29",  # 40 of the 56 are one run
        "  Block map (. = free, X = used):",
        "    " + "." * 16 + "X" * 8 + "." * 24 + "." * 16,
        "    " + "X" * 36,
    ]
