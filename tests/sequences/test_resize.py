"""Another size of the arena: contents stay, blocks are numbered anew, old views are valid memory."""

import pytest
import torch

from nanokv.errors import InvalidArgument, OutOfMemory
from tests.sequences.contents import BLOCK, add, holds, small_cache, write

NAME = "CortexStream KV cache"


@pytest.mark.surface(NAME, "KVCache.resize")
@pytest.mark.parametrize("blocks", [5, 6, 16, 100])
def test_contents_stay_and_lie_side_by_side(blocks: int) -> None:
    cache = small_cache(16)
    for name in "abcd":
        add(cache, name, [ord(name), ord(name) + 1, ord(name) + 2, ord(name) + 3])
    cache.free_for("a")
    cache.free_for("c")
    assert cache.append_token("b")  # moves: 3 blocks, half as large again
    write(cache, "b", [1])
    cache.resize(blocks * BLOCK)
    assert holds(cache, "b", [98, 99, 100, 101, 1]) and holds(cache, "d", [100, 101, 102, 103])
    handles = sorted((cache.get_handle(name) for name in "bd"), key=lambda handle: handle.start_block_index)
    assert handles[0].start_block_index == 0 and handles[0].end == handles[1].start_block_index
    free = blocks - handles[1].end
    assert cache.get_fragmentation() == 0.0
    if free:
        assert cache.allocate_for("rest", free * BLOCK)
    assert cache.is_full()


@pytest.mark.surface(NAME, "KVCache.resize", refused="OutOfMemory if the sequences do not fit; nothing is changed")
def test_an_arena_in_which_they_do_not_fit_is_refused() -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3, 4, 5])
    add(cache, "b", [6])
    before = cache.get_total_free()
    with pytest.raises(OutOfMemory, match="the sequences have 3 blocks, the new arena has 2"):
        cache.resize(2 * BLOCK)
    with pytest.raises(InvalidArgument):
        cache.resize(0)
    assert cache.get_total_free() == before
    assert holds(cache, "a", [1, 2, 3, 4, 5]) and holds(cache, "b", [6])
    cache.resize(3 * BLOCK)
    assert holds(cache, "a", [1, 2, 3, 4, 5]) and holds(cache, "b", [6])


def test_blocks_for_tokens_to_come_are_given_up_if_they_do_not_fit() -> None:
    cache = small_cache(16)
    assert cache.allocate_for("a", 3, max_tokens=40)
    write(cache, "a", [1, 2, 3])
    cache.resize(12 * BLOCK)
    assert cache.max_allowed("a") == 40
    cache.resize(2 * BLOCK)
    assert cache.max_allowed("a") == 4 and holds(cache, "a", [1, 2, 3])


def test_an_old_view_shows_the_old_arena() -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3])
    old = cache.get_k_view("a", 0)
    seen = old.clone()
    cache.resize(32 * BLOCK)
    write(cache, "a", [7, 8, 9])
    assert torch.equal(old, seen)
    old.zero_()
    assert holds(cache, "a", [7, 8, 9])


def test_sequences_in_host_memory_need_no_room() -> None:
    cache = small_cache(16)
    add(cache, "a", list(range(20)))
    cache.evict_to_host("a")
    cache.resize(BLOCK)
    assert not cache.restore("a")
    cache.resize(5 * BLOCK)
    assert cache.restore("a") and holds(cache, "a", list(range(20)))


def test_with_evict_the_least_recently_used_go_to_host_memory() -> None:
    cache = small_cache(16, evict=True)
    for name in "abc":
        add(cache, name, [ord(name)] * 8)
    assert holds(cache, "a", [97] * 8)
    cache.resize(4 * BLOCK)
    assert [bool(cache.get_handle(name)) for name in "abc"] == [True, False, True]
    for name in "abc":
        assert holds(cache, name, [ord(name)] * 8)
