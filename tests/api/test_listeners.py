"""Listeners of events that call the cache: they run on the poller's thread, which frees and sweeps for everybody."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch

import nanokv
from nanokv.errors import InvalidArgument, NanoKVError
from tests.support.worlds import MakeWorld, World

PATIENCE = 60.0
Call = Callable[[nanokv.NanoKVCache], object]


def put_where_nothing_may_go(cache: nanokv.NanoKVCache) -> None:
    kept = nanokv.Hold(priority="kept")
    for number in range(10):
        cache.put(f"k{number}", torch.zeros(1 << 17, dtype=torch.uint8), preferred_segment=0, hold=kept, timeout=60.0)


WAITING: dict[str, Call] = {
    "flush": lambda cache: cache.flush(),
    "clear": lambda cache: cache.clear(),
    "evict_until_below": lambda cache: cache.evict_until_below(0.0),
    "leave": lambda cache: cache.leave("drop"),
    "a wait for objects that are not there": lambda cache: cache.wait(["x", "never"], timeout=None),
    "a wait for room": put_where_nothing_may_go,
}
HARMLESS: dict[str, Call] = {
    "stats": lambda cache: cache.stats(),
    "put": lambda cache: cache.put("by the listener", torch.ones(2), preferred_segment=0),
    "remove": lambda cache: cache.remove("x"),
    "a wait for what is there": lambda cache: cache.wait("x", timeout=None),
    "keys": lambda cache: list(cache.segment_keys()),
}


@pytest.fixture(params=["local", "shm"])
def world(new_world: MakeWorld, request: pytest.FixtureRequest) -> World:
    return new_world(heap=request.param, alloc="device", n=2, heap_bytes=1 << 20, page_bytes=4096, elastic=True)


def outcome_of(world: World, call: Call) -> list[NanoKVError | None]:
    """What a listener of rank 0 was answered, called once."""
    answers: list[NanoKVError | None] = []
    called = threading.Event()

    def listen(events: Sequence[nanokv.Event]) -> None:
        if called.is_set() or not any(event.kind is nanokv.EventKind.STORED for event in events):
            return
        try:
            call(world[0])
            answers.append(None)
        except NanoKVError as error:
            answers.append(error)
        called.set()

    world[0].subscribe(listen)
    world[1].put("x", torch.ones(2), preferred_segment=0)
    assert called.wait(PATIENCE)
    return answers


@pytest.mark.parametrize("name", WAITING)
def test_a_listener_that_would_wait_for_the_poller_is_refused_at_once(world: World, name: str) -> None:
    began = time.monotonic()
    (error,) = outcome_of(world, WAITING[name])
    assert isinstance(error, InvalidArgument) and f"{name} would stop the poller of rank 0" in str(error)
    world[0].flush()  # the poller goes on
    assert time.monotonic() - began < 5.0  # a wait for itself took 10 s
    assert "x" in world[0] and world[0].stats()["poller_failures"] == 0


@pytest.mark.parametrize("name", HARMLESS)
def test_a_listener_may_make_calls_that_do_not_wait_for_the_poller(world: World, name: str) -> None:
    assert outcome_of(world, HARMLESS[name]) == [None]
    world[0].flush()
    assert world[0].stats()["poller_failures"] == 0


def test_a_listener_may_close_its_cache(world: World) -> None:
    assert outcome_of(world, lambda cache: cache.close()) == [None]
    assert world[0].closed
    world[1].flush()


def test_another_thread_may_call_for_a_listener(world: World) -> None:
    done: list[int] = []
    threads: list[threading.Thread] = []

    def clear_elsewhere(cache: nanokv.NanoKVCache) -> None:
        threads.append(threading.Thread(target=lambda: done.append(cache.clear())))
        threads[0].start()

    assert outcome_of(world, clear_elsewhere) == [None]
    threads[0].join(PATIENCE)
    assert done == [1]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_a_listener_raises_the_poller_goes_on(
    world: World, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def listen(events: Sequence[nanokv.Event]) -> None:
        told.append(len(events))
        raise kind

    cache = world[0]
    with caplog.at_level("ERROR"):
        cache.subscribe(listen)
        for key in ("first", "second"):
            cache.put(key, torch.ones(2), preferred_segment=0)
            cache.flush(timeout=PATIENCE)
    assert sum(told) >= 2  # ranks may come meanwhile
    assert "a listener raised; it stays subscribed" in caplog.text
