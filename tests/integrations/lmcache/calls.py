"""Tasks of an adapter, and waiting for them as LMCache's controllers do."""

import select
from typing import Any

from lmcache.v1.platform import consume_fd

PATIENCE = 60.0  #: seconds


def ready(fd: int) -> None:
    """Wait for an event."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(PATIENCE * 1000)
    consume_fd(fd)


def store(adapter: Any, keys: list[Any], objects: list[Any]) -> Any:
    """The result of a store task."""
    task, done = adapter.submit_store_task(keys, objects), {}
    while task not in done:
        ready(adapter.get_store_event_fd())
        done = adapter.pop_completed_store_tasks()
    assert adapter.pop_completed_store_tasks() == {}
    return done[task]


def look_up(adapter: Any, keys: list[Any]) -> list[bool]:
    """Which keys a look-up found, and locked."""
    task, found = adapter.submit_lookup_and_lock_task(keys, {}), None
    while found is None:
        ready(adapter.get_lookup_and_lock_event_fd())
        found = adapter.query_lookup_and_lock_result(task)
    assert adapter.query_lookup_and_lock_result(task) is None
    return [found.test(i) for i in range(len(keys))]


def load(adapter: Any, keys: list[Any], objects: list[Any]) -> list[bool]:
    """Which objects a load filled."""
    task, found = adapter.submit_load_task(keys, objects), None
    while found is None:
        ready(adapter.get_load_event_fd())
        found = adapter.query_load_result(task)
    assert adapter.query_load_result(task) is None
    return [found.test(i) for i in range(len(keys))]
