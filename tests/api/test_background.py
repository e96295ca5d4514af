"""Handles of asynchronous operations: results, await, callbacks, cancelling; and those of a paged cache."""

import asyncio
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import nanokv
from nanokv.background import Worker
from nanokv.errors import CacheClosed, Cancelled, DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, WaitTimeout

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


# --- the end ----------------------------------------------------------------------------------
@pytest.fixture
def full(make_world: Callable[..., World]) -> World:
    """Nothing may go from segment 1, which has no room."""
    world = make_world(n=2, heap_bytes=4 * 4096, page_bytes=4096)
    for number in range(4):
        world[0].put(f"k{number}", torch.zeros(1024), preferred_segment=1, hold=nanokv.Hold(priority="kept"))
    return world


WAITS: dict[str, Callable[[nanokv.NanoKVCache], Any]] = {
    "put_async": lambda cache: cache.put_async("x", torch.zeros(8), preferred_segment=1, timeout=float("inf")),
    "two": lambda cache: [
        cache.put_async(key, torch.zeros(8), preferred_segment=1, timeout=float("inf")) for key in "xy"
    ][1],
    "put_many": lambda cache: cache.engine.worker.submit(
        lambda: cache.put_many(["x"], [torch.zeros(8)], preferred_segment=1, timeout=float("inf"))
    ),
    "open_for_write": lambda cache: cache.engine.worker.submit(
        lambda: cache.open_for_write("x", 8, preferred_segment=1, timeout=float("inf"))
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_close_ends_what_waits_for_room(full: World, name: str) -> None:
    waits = WAITS[name](full[0])
    time.sleep(0.05)
    began = time.monotonic()
    full[0].close()
    assert time.monotonic() - began < 5.0
    with pytest.raises(CacheClosed, match=r"rank 0 .* is being closed"):
        waits.result(PATIENCE)


def test_close_does_what_is_queued_and_need_not_wait(full: World) -> None:
    full[0].put_async("x", torch.zeros(8), preferred_segment=1, timeout=float("inf"))
    stored = full[0].put_async("y", torch.ones(8), preferred_segment=0, timeout=float("inf"))
    got = full[0].get_async("k0")
    full[0].close()
    stored.result(PATIENCE)
    assert len(got.result(PATIENCE)) == 1024


def test_a_worker_closes_in_time(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    later = worker.submit(lambda: 7)
    worker.close(0.01)
    assert worker.closed and not later.done()
    with pytest.raises(CacheClosed):
        worker.submit(lambda: 7)
    go.set()
    assert later.result(PATIENCE) == 7


def test_a_worker_that_was_dropped_ends_its_thread() -> None:
    worker = Worker("dropped")
    worker.submit(lambda: 7).result(PATIENCE)
    (thread,) = (each for each in threading.enumerate() if each.name == "dropped")
    del worker
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_operation_that_raised_keeps_nothing(busy: tuple[Worker, threading.Event]) -> None:
    class Kept:
        pass

    worker, go = busy
    go.set()
    kept = Kept()
    alive = weakref.ref(kept)

    def fail(kept: Kept = kept) -> None:
        raise KeyError

    worker.submit(fail)
    del kept, fail
    worker.submit(lambda: None).result(PATIENCE)
    assert alive() is None


def test_a_callback_that_waits_for_a_later_operation_is_refused(busy: tuple[Worker, threading.Event]) -> None:
    """It would wait for its own thread."""
    worker, go = busy
    second: list[Any] = []
    refused: list[Exception] = []
    ended = threading.Event()

    def wait(first: Any) -> None:
        try:
            second[0].result()
        except InvalidArgument as error:
            refused.append(error)
        ended.set()

    first = worker.submit(lambda: 1)
    second.append(worker.submit(lambda: 2))
    first.add_done_callback(wait)
    go.set()
    assert ended.wait(PATIENCE) and refused
    assert second[0].result(PATIENCE) == 2


ENDS = """
import nanokv, torch
a, b = nanokv.local_world(2, 4 * 4096, page_bytes=4096)
for i in range(4):
    a.put(f"k{i}", torch.zeros(1024), preferred_segment=1, hold=nanokv.Hold(priority="kept"))
waits = a.put_async("x", torch.zeros(8), preferred_segment=1, timeout=float("inf"))
stored = a.put_async("y", torch.zeros(8), preferred_segment=0)
stored.add_done_callback(lambda handle: print("stored", handle.result(), flush=True))
print("ends", flush=True)
"""


IN_A_PROCESS = f"""
import multiprocessing

def work():
    {ENDS.strip().replace(chr(10), chr(10) + "    ")}

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join(30)
raise SystemExit(process.exitcode)
"""


@pytest.mark.parametrize("program", [ENDS, IN_A_PROCESS], ids=["program", "multiprocessing"])
def test_a_program_that_does_not_close_ends(program: str) -> None:
    """What is queued is done before; what waits is not."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["ends", "stored", "None"]), done.stderr
