"""Sequences that grow: in place or by a move, not while they are pinned, and never half."""

from collections.abc import Callable
from typing import Any

import pytest

from nanokv.errors import ObjectPinned
from nanokv.sequences.arena import Arena, HostCopy
from tests.sequences.contents import add, holds, small_cache, write
from tests.support.faults import Calls

NAME = "CortexStream KV cache"


def test_growth_in_place_keeps_the_views() -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3, 4])
    before, view = cache.get_handle("a"), cache.get_k_view("a", 0)
    for mark in range(5, 18):
        assert cache.append_token("a")
        write(cache, "a", [mark])
    after = cache.get_handle("a")
    assert (before.start_block_index, after.num_blocks) == (after.start_block_index, 5)
    assert holds(cache, "a", list(range(1, 18)))
    assert view.data_ptr() == cache.get_k_view("a", 0).data_ptr()


def test_a_sequence_without_free_neighbour_moves_with_its_tokens() -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3, 4])
    add(cache, "b", [11, 12])  # the block behind
    before = cache.get_handle("a")
    assert cache.get_handle("b").start_block_index == before.end
    assert cache.append_token("a")
    write(cache, "a", [5])
    after = cache.get_handle("a")
    assert after.start_block_index != before.start_block_index and after.num_blocks == 3  # half as large again
    assert holds(cache, "a", [1, 2, 3, 4, 5]) and holds(cache, "b", [11, 12])
    cache.free_for("b")
    cache.free_for("a")
    assert cache.allocate_for("all", 64)


def test_moves_are_few() -> None:
    """Two sequences that grow side by side: each moves O(log n) times, so each token is copied a few times."""
    cache, moves = small_cache(1024), 0
    for name in "ab":
        add(cache, name, [0])
    for _ in range(400):
        for name in "ab":
            before = cache.get_handle(name).start_block_index
            assert cache.append_token(name)
            moves += cache.get_handle(name).start_block_index != before
    assert 0 < moves <= 20


@pytest.mark.surface(NAME, "KVCache.append_token", refused="False without room: the sequence is as it was")
def test_without_room_a_token_is_refused_and_nothing_is_lost() -> None:
    cache = small_cache(4)
    add(cache, "b", list(range(10, 22)))
    add(cache, "a", [1, 2, 3, 4])
    assert cache.is_full()
    for name, marks in (("a", [1, 2, 3, 4]), ("b", list(range(10, 22)))):
        assert not cache.append_token(name)
        assert holds(cache, name, marks)
    cache.free_for("a")
    assert cache.append_token("b")
    write(cache, "b", [22])
    assert holds(cache, "b", list(range(10, 23)))


@pytest.mark.surface(NAME, "KVCache.pin")
def test_a_pinned_sequence_stays_where_it_is() -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3, 4])
    add(cache, "b", [11])
    view = cache.get_k_view("a", 0)
    with cache.pin("a"), cache.pin("a"):
        moving: list[Any] = [
            lambda: cache.append_token("a"),  # its neighbour is taken
            lambda: cache.free_for("a"),
            lambda: cache.evict_to_host("a"),
            lambda: cache.retain("a", 1, protect_first=0, protect_last=0),
            lambda: cache.resize(128),
        ]
        for move in moving:
            with pytest.raises(ObjectPinned, match="'a' is pinned by 2 readers"):
                move()
        assert holds(cache, "a", [1, 2, 3, 4]) and cache.get_k_view("a", 0).data_ptr() == view.data_ptr()
        assert cache.append_token("b")  # others go on
    with cache.pin("a"):
        with cache.pin("a"):
            pass
        with pytest.raises(ObjectPinned, match="'a' is pinned by 1 readers"):
            cache.free_for("a")
    assert cache.append_token("a")
    with pytest.raises(RuntimeError, match="of the reader"), cache.pin("a"):
        raise RuntimeError("of the reader")
    cache.free_for("a")


def test_a_copy_that_fails_leaves_the_sequence_and_takes_no_blocks(calls: Calls) -> None:
    cache = small_cache(16)
    add(cache, "a", [1, 2, 3, 4])
    add(cache, "b", [11])
    used = cache.get_total_allocated()
    moves: list[tuple[type, str, Callable[[], object]]] = [
        (Arena, "copy_from", lambda: cache.append_token("a")),
        (Arena, "copy_from", lambda: cache.resize(99)),
        (HostCopy, "of", lambda: cache.evict_to_host("a")),
    ]
    for owner, name, move in moves:
        calls.fail(owner, name, MemoryError)
        with pytest.raises(MemoryError):
            move()
        calls.go_on()
        assert holds(cache, "a", [1, 2, 3, 4]) and cache.get_total_allocated() == used
    cache.evict_to_host("a")
    calls.fail(HostCopy, "write_to", MemoryError)
    with pytest.raises(MemoryError):
        cache.restore("a")
    calls.go_on()
    assert not cache.get_handle("a") and cache.get_total_allocated() * 2 == used
    assert cache.restore("a") and holds(cache, "a", [1, 2, 3, 4])
