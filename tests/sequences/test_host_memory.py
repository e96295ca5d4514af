"""Sequences that go to host memory and come back: asked for, or because there is no room."""

import io
from typing import Any

import pytest

from nanokv.errors import NotReady, OutOfMemory
from tests.sequences.contents import BLOCK, add, holds, small_cache, write

NAME = "CortexStream KV cache"


@pytest.mark.surface(NAME, "KVCache.evict_to_host", differs="the whole sequence goes, not its oldest blocks")
@pytest.mark.surface(NAME, "KVCache.restore")
def test_an_evicted_sequence_gives_its_blocks_and_comes_back_whole() -> None:
    cache = small_cache(4)
    add(cache, "a", list(range(10)))
    assert cache.evict_to_host("a")
    assert not cache.evict_to_host("a")  # it is there already
    assert not cache.get_handle("a") and cache.get_total_allocated() == 0
    assert cache.used_tokens("a") == 10 and cache.get_num_allocated_sequences() == 1
    add(cache, "b", list(range(100, 116)))
    assert not cache.restore("a")
    cache.free_for("b")
    assert cache.restore("a") and cache.restore("a")
    assert holds(cache, "a", list(range(10)))


def test_what_needs_the_bytes_says_where_they_are() -> None:
    cache = small_cache()
    add(cache, "a", [1, 2])
    cache.evict_to_host("a")
    calls: list[Any] = [
        lambda: cache.get_k_view("a", 0),
        lambda: cache.get_v_view("a", 0),
        lambda: cache.append_token("a"),
        lambda: cache.retain("a", 1, protect_first=0, protect_last=0),
        lambda: cache.pin("a").__enter__(),
    ]
    for call in calls:
        with pytest.raises(NotReady, match="in host memory: restore it first"):
            call()
    assert cache.used_tokens("a") == 2 and cache.restore("a") and holds(cache, "a", [1, 2])
    cache.evict_to_host("a")
    cache.free_for("a")
    assert cache.get_num_allocated_sequences() == 0 and cache.get_total_allocated() == 0


def test_a_sequence_comes_back_with_its_reserve_if_there_is_room() -> None:
    cache = small_cache(8, grow=False)
    assert cache.allocate_for("a", 3, max_tokens=20)
    write(cache, "a", [1, 2, 3])
    cache.evict_to_host("a")
    assert cache.restore("a") and cache.max_allowed("a") == 20
    cache.evict_to_host("a")
    add(cache, "b", list(range(28)))
    assert cache.restore("a") and cache.max_allowed("a") == 4
    assert holds(cache, "a", [1, 2, 3])


def test_the_report_tells_which_are_in_host_memory() -> None:
    cache, stream = small_cache(), io.StringIO()
    add(cache, "a", [1, 2])
    cache.evict_to_host("a")
    cache.dump_cache_stats(stream)
    assert stream.getvalue().endswith("Sequences:\n  a: 2/4 tokens, in host memory\n")


@pytest.mark.surface(NAME, "KVCache.allocate_for", differs="evict=True: the least recently used go to host memory")
def test_the_least_recently_used_make_room_and_come_back_when_used() -> None:
    cache = small_cache(4, evict=True)
    for name, mark in (("a", 10), ("b", 20), ("c", 30), ("d", 40)):
        add(cache, name, [mark, mark + 1, mark + 2])
    assert holds(cache, "a", [10, 11, 12])  # used: b is the oldest now
    add(cache, "e", [50])
    assert [name for name in "abcde" if not cache.get_handle(name)] == ["b"]
    assert holds(cache, "b", [20, 21, 22])  # comes back, c goes
    assert [name for name in "abcde" if not cache.get_handle(name)] == ["c"]
    assert cache.append_token("c")  # comes back, d goes
    write(cache, "c", [33])
    assert holds(cache, "c", [30, 31, 32, 33])
    assert [name for name in "abcde" if not cache.get_handle(name)] == ["d"]


def test_growth_makes_room_too() -> None:
    cache = small_cache(4, evict=True)
    add(cache, "a", [1, 2, 3, 4])
    add(cache, "b", list(range(10, 22)))
    for mark in range(5, 17):
        assert cache.append_token("a")
        write(cache, "a", [mark])
    assert not cache.append_token("a")  # four blocks are all
    assert holds(cache, "a", list(range(1, 17)))
    assert holds(cache, "b", list(range(10, 22)))
    assert holds(cache, "a", list(range(1, 17)))


def test_a_sequence_in_its_own_way_grows_through_host_memory() -> None:
    cache = small_cache(2, evict=True)
    add(cache, "a", [11])
    add(cache, "b", [1, 2, 3, 4])
    assert cache.get_handle("b").start_block_index == 1
    assert cache.append_token("b")  # a goes, but the only two blocks are those of a and b
    write(cache, "b", [5])
    assert cache.get_handle("b").num_blocks == 2 and holds(cache, "b", [1, 2, 3, 4, 5])
    assert holds(cache, "a", [11])


def test_a_sequence_that_cannot_grow_is_whole() -> None:
    cache = small_cache(3, evict=True)
    for name, mark in (("a", 10), ("b", 20), ("c", 30)):
        add(cache, name, [mark] * BLOCK)
    middle = next(name for name in "abc" if cache.get_handle(name).start_block_index == 1)
    with cache.pin(middle):
        for name in "abc":
            if name != middle:
                assert not cache.append_token(name)
    for name, mark in (("a", 10), ("b", 20), ("c", 30)):
        assert holds(cache, name, [mark] * BLOCK)
    assert cache.append_token(middle)


def test_what_cannot_fit_evicts_nobody() -> None:
    cache = small_cache(4, evict=True)
    add(cache, "a", [1])
    assert not cache.allocate_for("b", 4 * BLOCK + 1)
    assert cache.get_handle("a")


def test_a_pinned_sequence_is_passed_over() -> None:
    cache = small_cache(2, evict=True)
    add(cache, "a", [1])
    add(cache, "b", [2])
    with cache.pin("a"):
        assert holds(cache, "b", [2])  # a is the least recently used
        add(cache, "c", [3])
        assert cache.get_handle("a") and not cache.get_handle("b")
        with cache.pin("c"):
            assert not cache.allocate_for("d", 1)
            assert not cache.append_token("b")
            with pytest.raises(OutOfMemory, match="no room to bring sequence 'b' back"):
                cache.get_k_view("b", 0)
    assert holds(cache, "b", [2])
