"""fsck through caches, as the behaviour suite runs it after each test, over every heap and both allocators."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

import nanokv
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import check_cache
from tests.support.worlds import close_and_check

PAGE = 4096
World = list[nanokv.NanoKVCache]


def view_of(cache: nanokv.NanoKVCache) -> SegmentView:
    raw = cache.engine.heap.host_view(cache.rank)
    assert raw is not None
    return SegmentView(raw, cache.engine.heap.geometry)


def filled(cache: nanokv.NanoKVCache, owner: int) -> None:
    for key in range(5):
        cache.put(f"{owner} {key}", torch.full((3000,), key, dtype=torch.uint8), preferred_segment=owner)


def test_a_world_in_use_is_clean(make_world: Callable[..., World]) -> None:
    world = make_world(n=2, heap_bytes=64 * PAGE, page_bytes=PAGE)
    for cache in world:
        filled(cache, cache.rank)
    plan = world[0].open_for_write("a plan", 5000)
    assert plan.n_pages == 2
    with world[1].pin("0 0"):
        for cache in world:
            cache.flush()
        report = check_cache(world)
        assert report.clean, str(report)
        assert report.quiescent and report.objects == 10 and report.mode == world[0].alloc
        assert check_cache(world[0]).clean


def test_a_breach_fails_the_test_that_made_it() -> None:
    world = nanokv.local_world(2, 64 * PAGE, page_bytes=PAGE)
    filled(world[0], 1)
    view = view_of(world[1])
    view.headers["payload_base"][1] = view.headers["payload_base"][0]
    with pytest.raises(AssertionError, match="I1 breach, rank 1"):
        close_and_check(world)
    assert all(cache.closed for cache in world)


def test_an_index_that_lost_an_object_is_a_breach() -> None:
    (cache,) = nanokv.local_world(1, 64 * PAGE, page_bytes=PAGE)
    with cache:
        filled(cache, 0)
        cache.flush()
        assert check_cache(cache).clean
        cache.engine.poller.stop()
        slots, records = cache.engine.poller.index.rows()
        cache.engine.poller.index.removed(slots[:1], records["epoch"][:1].astype(np.int64))
        (finding,) = check_cache(cache, patience=0.05).breaches
        assert (finding.invariant, finding.where) == ("I5", f"slot {slots[0]}")


def test_an_operation_that_never_ends_is_a_breach_after_a_while() -> None:
    (cache,) = nanokv.local_world(1, 64 * PAGE, page_bytes=PAGE)
    with cache:
        cache.engine.machine.enter(0)
        report = check_cache(cache, patience=0.05)
        assert [finding.invariant for finding in report.breaches] == ["I6"]


def test_it_waits_until_operations_have_ended() -> None:
    (cache,) = nanokv.local_world(1, 64 * PAGE, page_bytes=PAGE)
    with cache:
        phase = cache.engine.machine.enter(0)
        looking = threading.Timer(0.05, lambda: cache.engine.machine.leave(0, phase))
        looking.start()
        report = check_cache(cache, patience=60)
        looking.join()
        assert report.clean and report.quiescent


def test_closed_caches_are_left_alone() -> None:
    world = nanokv.local_world(2, 64 * PAGE, page_bytes=PAGE)
    filled(world[0], 0)
    world[1].close()
    close_and_check(world)
    close_and_check(world)
