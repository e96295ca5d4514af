"""What a cache says of itself: closed or not, how full, and how many objects of which segments."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nanokv
from nanokv.errors import CacheClosed, PeerLost
from tests.api.test_public_api import METHODS, PROPERTIES
from tests.api.test_wrong_calls import GOOD
from tests.support.worlds import MakeWorld, World

IDENTITY = ("rank", "world_size", "alloc", "device", "closed")  #: what a closed cache still tells


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


def calls(cache: nanokv.NanoKVCache) -> dict[str, Callable[[], Any]]:
    """Each public call with good arguments."""
    found: dict[str, Callable[[], Any]] = {}
    for name, (positional, keyword) in METHODS.items():
        given = {each: GOOD[each] for each in (*positional, *keyword)}
        found[name] = lambda name=name, given=given: getattr(cache, name)(**given)  # type: ignore[misc]
    for name in PROPERTIES:
        found[name] = lambda name=name: getattr(cache, name)  # type: ignore[misc]
    return found | {"in": lambda: "k" in cache, "with": cache.__enter__}


def test_a_closed_cache_answers_nothing(world: World) -> None:
    world[0].put("k", torch.ones(3))
    paged = world[0].paged_kv(GOOD["layers"], kv_dim=1)
    assert not world[0].closed
    world[0].close()
    assert world[0].closed and not world[1].closed
    for name, call in calls(world[0]).items():
        if name in (*IDENTITY, "digest", "digests", "close"):
            call()
            continue
        with pytest.raises(CacheClosed, match="closed"):
            call()
            pytest.fail(name)
    for move in (paged.put, paged.get):
        with pytest.raises(CacheClosed):
            move(["k"], [0])
    assert world[0].options.checksum is False


def test_a_plan_of_a_closed_cache(world: World) -> None:
    world[0].open_for_write("k", 8)
    world[0].close()
    for call in (world[0].commit, world[0].abort):
        with pytest.raises(CacheClosed):
            call("k")


def test_the_memory_goes_with_the_last_rank(make_world: MakeWorld) -> None:
    """At once, without the garbage collector, although the closed caches and what they returned are still there."""
    world = make_world()
    memory = [weakref.ref(world[rank].engine.heap.host_view(rank)) for rank in range(2)]
    world[0].put("k", torch.ones(3), preferred_segment=1)
    got = world[0].get("k")
    plan = world[0].open_for_write("plan", 8)
    gc.disable()
    try:
        world[0].close()
        world[1].close()
        assert [each() for each in memory] == [None, None]
    finally:
        gc.enable()
    assert torch.equal(got, torch.ones(3)) and plan.payload_base >= 0


def test_a_pinned_object_outlives_the_world(make_world: MakeWorld) -> None:
    world = make_world()
    world[0].put("k", torch.arange(1000), preferred_segment=1)
    pinned = world[0].pin("k")
    view = pinned.tensor
    for cache in world:
        cache.close()
    assert torch.equal(view, torch.arange(1000))
    pinned.release()


def test_a_call_that_meets_the_close(make_world: MakeWorld) -> None:
    """Threads put and get while the world ends: each call works, or says that its cache is closed, or its peer."""
    world = make_world()
    started, wrong = threading.Barrier(3), []

    def call(number: int) -> None:
        tensor = torch.full((100,), number)
        started.wait()
        try:
            for i in range(100_000):
                world[0].put(f"{number}.{i}", tensor, preferred_segment=1)
                if not torch.equal(world[0].get(f"{number}.{i}"), tensor):
                    wrong.append(f"other bytes at {i}")
                world[0].remove(f"{number}.{i}")
        except (CacheClosed, PeerLost):
            return
        except Exception as error:
            wrong.append(repr(error))
        else:
            wrong.append("it was never closed")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(0.05)
    for cache in world:
        cache.close()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_step_that_fails_does_not_stop_the_close(world: World) -> None:
    done = []

    def fail() -> None:
        done.append("first")
        raise OSError("the link is down")

    for leave in (fail, lambda: done.append("second")):
        world[0].engine.before_close(leave)
    with pytest.raises(OSError, match="the link is down"):
        world[0].close()
    assert done == ["first", "second"] and world[0].closed and not world[1].alive(0)
    world[0].close()


def test_a_cache_is_true_and_counts_its_own_segment(world: World) -> None:
    assert all(world)
    world[0].put("k", torch.ones(3), preferred_segment=1)
    world[1].flush()
    assert "k" in world[0] and "k" in world[1] and "none" not in world[0]
    assert [cache.segment_count() for cache in world] == [0, 1]
    assert [list(cache.segment_keys()) for cache in world] == [[], [world[0].digest("k")]]
    asks: tuple[Callable[[Any], object], ...] = (len, iter)
    for ask in asks:
        with pytest.raises(TypeError):
            ask(world[1])
    world[1].close()
    assert world[1]


def test_repr(world: World) -> None:
    page = 256 * 1024
    world[0].put("k", torch.ones(page // 4 + 1), preferred_segment=1)
    world[1].flush()
    name, alloc = world[1].engine.heap.name, world[1].alloc
    start = f"<NanoKVCache {name!r}, rank 1 of 2, alloc={alloc!r}, "
    assert repr(world[1]) == f"{start}1 objects, {2 * page / 2**20:.1f} of 1.0 MiB used>"
    world[1].close()
    assert repr(world[1]) == f"{start}closed>"
