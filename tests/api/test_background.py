"""Handles of asynchronous operations: results, await, callbacks, cancelling; and those of a paged cache."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import nanokv
from nanokv.background import Worker
from nanokv.errors import Cancelled, DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, WaitTimeout

World = list[nanokv.NanoKVCache]
PATIENCE = 60.0


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world(heap="local", alloc="device", n=2)


@pytest.fixture
def busy() -> Iterator[tuple[Worker, threading.Event]]:
    """A worker whose thread waits for the event."""
    worker, go = Worker("test"), threading.Event()
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(PATIENCE)

    worker.submit(wait)
    assert begun.wait(PATIENCE)
    yield worker, go
    go.set()
    worker.close()


def test_a_result_comes_or_the_error_of_the_blocking_call(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    seven, wrong = worker.submit(lambda: 7), worker.submit(lambda: torch.ones(1)[7])
    assert not seven.done()
    with pytest.raises(WaitTimeout, match=r"still under way after 0.01 s"):
        seven.result(0.01)
    go.set()
    assert (seven.result(PATIENCE), seven.wait(), seven.done()) == (7, 7, True)
    with pytest.raises(IndexError):
        wrong.result(PATIENCE)


def test_what_has_not_begun_can_be_cancelled(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    ran: list[int] = []
    first, second = worker.submit(lambda: ran.append(1)), worker.submit(lambda: ran.append(2))
    assert first.cancel() and first.done()
    with pytest.raises(Cancelled, match="was cancelled before it began"):
        first.result(PATIENCE)
    go.set()
    second.result(PATIENCE)
    assert ran == [2]
    assert not second.cancel()


def test_a_callback_gets_the_handle(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    told: list[Any] = []
    handle = worker.submit(lambda: 7)
    handle.add_done_callback(told.append)
    assert told == []
    go.set()
    worker.close()  # waits for the thread
    handle.add_done_callback(told.append)
    assert told == [handle, handle] and told[0].result() == 7


def test_await(world: World) -> None:
    async def turn() -> torch.Tensor:
        await world[0].put_async("k", torch.arange(4), preferred_segment=1)
        with pytest.raises(DuplicateKey):
            await world[0].put_async("k", torch.arange(4))
        with pytest.raises(KeyNotFound):
            await world[1].get_async("none")
        return await world[1].get_async("k")

    assert asyncio.run(turn()).tolist() == [0, 1, 2, 3]


def test_blocks_of_a_paged_cache(world: World) -> None:
    layer = torch.arange(3 * 2 * 4 * 2 * 8, dtype=torch.float32).view(3, 2, 4, 2, 8)
    mine, theirs = world[0].paged_kv([layer], kv_dim=1), torch.zeros_like(layer)
    other = world[1].paged_kv([theirs], kv_dim=1)
    assert mine.put_async(["a", "b"], [0, 2], preferred_segment=1).result(PATIENCE) == [None, None]
    assert asyncio.run(_awaited(other.get_async(["b", "a"], [0, 1]))) == [None, None]
    assert torch.equal(theirs[:2], layer[[2, 0]])
    with pytest.raises(InvalidArgument):
        other.get_async(["a"], [3]).result(PATIENCE)
    (missing,) = other.get_async(["none"], [2]).result(PATIENCE)
    assert isinstance(missing, KeyNotFound)
    world[1].close()
    with pytest.raises(NanoKVError):
        other.get_async(["a"], [0])


async def _awaited(handle: Any) -> Any:
    return await handle


@pytest.mark.parametrize("wrong", ["x", [1], True])
def test_a_wrong_timeout_is_refused(world: World, wrong: Any) -> None:
    handle = world[0].put_async("k", torch.ones(1))
    with pytest.raises(InvalidArgument, match="timeout must be"):
        handle.wait(wrong)
    handle.wait(PATIENCE)
