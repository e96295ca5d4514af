"""Eviction by the poller between water marks: rounds by hand on a local world, no thread, no sleep."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import nanokv
from nanokv.config import Options
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry, evicts_by
from nanokv.device.segment.layout import READY, STATE_MASK
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.space.water_marks import EVICTIONS_A_ROUND
from tests.poller.test_sweeper import PAGE, Rank
from tests.support.faults import Calls
from tests.support.until import until


@contextmanager
def rank_of(pages: int, water: tuple[int, int], *, evict: bool = True) -> Iterator[Rank]:
    geometry = Geometry.plan(pages * PAGE, PAGE, 1, size_classes=(1, 2, 4), ring_slots=4096)
    heap = LocalWorld(WorldSpec(geometry, mode="device", may_evict=evict, water=water)).heap(0)
    rank = Rank(heap)
    if evict:
        rank.views[0].ctl["may_evict"] = evicts_by(True, "fifo")
    yield rank
    heap.close()


def there(rank: Rank) -> list[int]:
    """The keys of the READY objects."""
    headers = rank.views[0].headers
    return sorted(headers["key_hash"][headers["state"] & STATE_MASK.value == READY.value].tolist())


def put(rank: Rank, keys: range, pages: int = 1) -> None:
    assert [rank.put(0, key, pages * PAGE) for key in keys] == [Status.OK] * len(keys)


@pytest.mark.parametrize(("keys", "left"), [(75, 75), (76, 50), (100, 50)])
def test_above_the_high_mark_it_evicts_down_to_the_low_one(keys: int, left: int) -> None:
    with rank_of(100, (50, 75)) as rank:
        poller = rank.poller()
        put(rank, range(keys))
        poller.step(0.0)
        assert there(rank) == [*range(keys - left, keys)], "by the policy: the first ones go first"
        assert poller.as_dict()["evicted_ahead"] == keys - left
        poller.step(0.1)
        assert len(there(rank)) == left
        assert len(poller.index) == left, "the hints of its own evictions are taken in the next round"


def test_pages_count_not_objects() -> None:
    with rank_of(16, (50, 75)) as rank:
        poller = rank.poller()
        put(rank, range(1, 4), 4)
        poller.step(0.0)
        assert there(rank) == [1, 2, 3]
        put(rank, range(4, 5), 1)
        poller.step(1.0)
        assert there(rank) == [3, 4]


@pytest.mark.parametrize(("water", "evict"), [((100, 100), True), ((10, 20), False)])
def test_a_full_heap_is_left_alone_by_default_and_where_nothing_may_go(water: tuple[int, int], evict: bool) -> None:
    with rank_of(20, water, evict=evict) as rank:
        poller = rank.poller()
        put(rank, range(20))
        poller.step(0.0)
        assert there(rank) == [*range(20)]


def test_what_must_stay_ends_it(calls: Calls) -> None:
    with rank_of(20, (10, 20)) as rank:
        poller = rank.poller()
        put(rank, range(20))
        for key in range(20):
            assert rank.machine.pin(rank.machine.lookup((key, key * 7919)).place)[0] == Status.OK
        asked = calls.noted(rank.machine, "evict_pages")
        poller.step(0.0)
        poller.step(0.1)
        assert [owner for owner, *_ in asked] == [0], "nothing may go: it asks again at the next sweep only"
        assert len(there(rank)) == 20


def test_a_round_evicts_a_few() -> None:
    pages = 3 * EVICTIONS_A_ROUND
    with rank_of(pages, (10, 20)) as rank:
        poller = rank.poller()
        put(rank, range(pages))
        seen = []
        for number in range(4):
            poller.step(number / 1000)
            seen.append(len(there(rank)))
    low = pages // 10
    assert seen == [pages - EVICTIONS_A_ROUND, pages - 2 * EVICTIONS_A_ROUND, low, low]


def test_the_thread_does_it(make_world: Callable[..., list[nanokv.NanoKVCache]]) -> None:
    """In both ways to allocate no producer has to evict; v1's master counts at an allocation."""
    (cache,) = make_world(n=1, heap_bytes=64 * PAGE, page_bytes=PAGE, water=(25, 50))
    page = torch.from_numpy(np.zeros(PAGE, np.uint8))
    for number in range(33):
        cache.put(f"k{number}", page)
    if cache.alloc == "device":
        until(lambda: cache.stats()["evicted_ahead"] == 33 - 16)
        assert cache.stats()["evictions"] == 33 - 16
    assert cache.stats()["used_pages"] <= 32


def test_defaults() -> None:
    assert Options().water_marks == (100, 100)
    assert Options(alloc="host").water_marks == (85, 95)
    assert Options(water=(1, 2)).water_marks == Options(alloc="host", water=(1, 2)).water_marks == (1, 2)
