"""Generations: a number per identity that all ranks of a world share, and that never goes back."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest

import nanokv
from nanokv import Identity
from nanokv.device.segment.layout import PLACES_OF_GENERATIONS
from nanokv.errors import CacheClosed
from nanokv.keys.identity import digest_of
from nanokv.keys.kv_layout import KVLayout

SIZES: dict[str, Any] = {"page_bytes": 4096}
HEAP = 64 * 4096


def test_all_ranks_have_the_one_that_any_rank_begins() -> None:
    a, b = nanokv.local_world(2, HEAP, **SIZES)
    assert a.generation() == b.generation() == 0
    assert [b.advance_generation(), a.generation(), b.generation()] == [1, 1, 1]
    assert [a.advance_generation(), b.generation()] == [2, 2]
    a.close()
    assert [b.advance_generation(), b.generation()] == [3, 3]  # also in the segment of a rank that has gone
    with pytest.raises(CacheClosed):
        a.generation()
    b.close()
    with pytest.raises(CacheClosed):
        b.advance_generation()


def test_it_is_of_an_identity_whatever_the_layout(shm_name: str) -> None:
    layouts = [
        KVLayout(layers=2, kv_heads=2, head_size=8, block_size=16, dtype="float32", tp_rank=rank, tp_size=2)
        for rank in range(2)
    ]
    model = Identity("model")
    place = digest_of(model).tag % PLACES_OF_GENERATIONS
    other = next(
        each
        for each in (Identity(f"other{i}") for i in range(99))
        if digest_of(each).tag % PLACES_OF_GENERATIONS != place
    )
    identities = [model.with_layout(layouts[0]), model.with_layout(layouts[1]), other]
    caches = [
        nanokv.NanoKVCache(
            HEAP, name=shm_name, rank=rank, world_size=3, elastic=True, identity=identity, page_bytes=4096
        )
        for rank, identity in enumerate(identities)
    ]
    assert caches[1].advance_generation() == 1
    assert [cache.generation() for cache in caches] == [1, 1, 0]
    for cache in caches:
        cache.close()


@pytest.mark.parametrize("alloc", ["device", "host"])
def test_a_rank_that_comes_later_has_it(shm_name: str, alloc: str) -> None:
    """Its segment is younger than the number: so are those of ranks that have left, and come back."""
    if alloc == "host":  # v1 has no elastic worlds: its ranks come together
        a, b = nanokv.local_world(2, HEAP, alloc="host", **SIZES)
        assert [a.advance_generation(), b.generation()] == [1, 1]
        a.close()
        b.close()
        return

    with ExitStack() as stack:

        def join(rank: int) -> nanokv.NanoKVCache:
            made = nanokv.NanoKVCache(HEAP, name=shm_name, rank=rank, world_size=3, elastic=True, page_bytes=4096)
            return stack.enter_context(made)

        first, second = join(0), join(1)
        assert [second.advance_generation(), second.advance_generation()] == [1, 2]
        assert join(2).generation() == 2
        second.leave()
        second = join(1)
        assert [second.generation(), first.generation()] == [2, 2]
        first.leave()  # rank 0 gives the numbers, also when it is absent
        assert [second.advance_generation(), join(0).generation()] == [3, 3]


def test_each_call_begins_another_one() -> None:
    ranks = nanokv.local_world(4, HEAP, **SIZES)
    taken: list[int] = []

    def take(cache: nanokv.NanoKVCache) -> None:
        for _ in range(50):
            number = cache.advance_generation()
            assert cache.generation() >= number
            taken.append(number)

    threads = [threading.Thread(target=take, args=(cache,)) for cache in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == list(range(1, 201))
    assert {cache.generation() for cache in ranks} == {200}
    for cache in ranks:
        cache.close()
