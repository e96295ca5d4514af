"""A connector in a child of a fork, which has none of its threads: calls are refused, and do not wait for them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from tests.integrations.lmcache import parts
from tests.support.forks import check_refused


def test_a_child_of_a_fork_cannot_use_the_connector(backends: Callable[..., parts.Backends]) -> None:
    made = backends()
    connector, key, chunk = made.connector, parts.key(0), made.chunk()
    made.run(connector.put(key, chunk))
    check_refused(
        {
            "exists": lambda: asyncio.run(connector.exists(key)),
            "exists_sync": lambda: connector.exists_sync(key),
            "batched_contains": lambda: connector.batched_contains([key]),
            "get": lambda: asyncio.run(connector.get(key)),
            "put": lambda: asyncio.run(connector.put(key, chunk)),
            "remove_sync": lambda: connector.remove_sync(key),
        }
    )
    assert made.run(connector.exists(key))


def test_a_child_of_a_fork_cannot_use_the_adapter(adapters: Callable[..., Any]) -> None:
    adapter = adapters()
    key = parts.object_key(0)
    check_refused(
        {
            "store": lambda: adapter.submit_store_task([key], []),
            "look up": lambda: adapter.submit_lookup_and_lock_task([key], {}),
            "load": lambda: adapter.submit_load_task([key], []),
        }
    )
