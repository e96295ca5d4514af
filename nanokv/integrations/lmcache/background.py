"""Calls in threads, awaited by an event loop: what is given up on is still cleaned up.

A thread cannot be stopped. So if the awaiting task is cancelled, as LMCache does after its `blocking_timeout_secs`, the
call ends nevertheless, and its result, which nobody takes any more, goes to `unused`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(pool: ThreadPoolExecutor, work: Callable[[], T], unused: Callable[[T], None]) -> T:
    """The result of `work`, run by a thread of the pool.

    Raises:
        RuntimeError: the pool was shut down.
        asyncio.CancelledError: the awaiting task was cancelled, or the pool was shut down before `work` began.
    """
    future = pool.submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda ended: _give(ended, unused))
        raise


def _give(ended: "Future[T]", unused: Callable[[T], None]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        unused(ended.result())


def ignored(result: object) -> None:
    """Nothing is to be cleaned up."""
