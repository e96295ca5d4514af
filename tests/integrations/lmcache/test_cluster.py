"""Chunks and objects in a cluster of two nodes, in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from tests.integrations.lmcache.calls import load, look_up, store
from tests.integrations.lmcache.parts import ADAPTER, CONNECTOR, Backends, content, key, memory, object_key
from tests.support.faults import Calls
from tests.support.until import until


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """The settings of two nodes of a cluster."""
    return [{"cluster": f"file://{tmp_path}/registry", "name": node, "node": node} for node in ("here", "there")]


@pytest.mark.surface(CONNECTOR, "get")
@pytest.mark.surface(CONNECTOR, "batched_contains")
def test_chunks_are_found_on_any_node(backends: Callable[..., Backends], nodes: list[dict[str, Any]]) -> None:
    here, there = (backends(each, max_local_cpu_size=0.02) for each in nodes)
    until(lambda: len(here.connector.cache.nodes) == 2 == len(there.connector.cache.nodes))
    keys, chunks = [key(n) for n in range(12)], [here.chunk(n) for n in range(12)]
    here.run(here.connector.batched_put(keys, chunks))
    assert there.remote.batched_contains([*keys, key(99)]) == 12
    assert there.run(there.remote.batched_async_contains("a", keys, pin=True)) == 12
    read = there.remote.batched_get_blocking(keys)
    assert [content(each) for each in read] == [content(each) for each in chunks]
    assert {each.get_shape() for each in read} == {chunks[0].get_shape()}
    for each in here.connector, there.connector:
        each.cache.world.flush()
    counts = [each.connector.cache.world.segment_count() for each in (here, there)]
    assert min(counts) > 0 and sum(counts) == 12
    there.run(there.connector.batched_put(keys, read))  # nothing is stored twice
    assert here.connector.remove_sync(keys[0]) and not there.remote.contains(keys[0])
    there.run(there.connector.close())
    left = here.run(here.connector.batched_get(keys))
    assert all(each is None or content(each) == content(chunk) for each, chunk in zip(left, chunks, strict=True))
    assert any(each is None for each in left) and any(left)


@pytest.mark.surface(CONNECTOR, "batched_get_non_blocking")
def test_a_prefix_ends_where_a_chunk_of_another_node_is_lost(
    backends: Callable[..., Backends], nodes: list[dict[str, Any]], calls: Calls
) -> None:
    """It was there when it was looked for, and had gone when it was read. What was read behind it is given back."""
    here, there = (backends(each, max_local_cpu_size=0.02) for each in nodes)
    until(lambda: len(here.connector.cache.nodes) == 2 == len(there.connector.cache.nodes))
    keys, chunks = [key(n) for n in range(12)], [here.chunk(n) for n in range(12)]
    here.run(here.connector.batched_put(keys, chunks))
    cluster, before = there.connector.cache, there.used()
    get_many = cluster.get_many

    def with_one_lost(names: Any, **options: Any) -> Any:
        found = get_many(names, **options)
        found[len(found) // 2] = None
        return found

    calls.instead(cluster, "get_many", with_one_lost, at=(1,))
    read = there.run(there.connector.batched_get_non_blocking("a", keys))
    assert 0 < len(read) < 12
    assert [content(each) for each in read] == [content(each) for each in chunks[: len(read)]]
    for each in read:
        each.ref_count_down()
    assert there.used() == before
    again = there.run(there.connector.batched_get_non_blocking("a", keys))
    assert [content(each) for each in again] == [content(each) for each in chunks]


@pytest.mark.surface(
    ADAPTER, "submit_lookup_and_lock_task", differs="in a cluster, objects of other hosts are found, and not locked"
)
def test_objects_are_found_on_any_node(adapters: Callable[..., Any], nodes: list[dict[str, Any]]) -> None:
    here, there = (adapters(**each) for each in nodes)
    until(lambda: len(here.cache.nodes) == 2 == len(there.cache.nodes))
    keys = [object_key(n) for n in range(12)]
    assert store(here, keys, [memory(n) for n in range(12)]).is_successful()
    assert look_up(there, [*keys, object_key(99)]) == [True] * 12 + [False]
    locked = there.report_status()["locked_key_count"]
    assert 0 < locked < 12
    targets = [memory() for _ in keys]
    assert load(there, keys, targets) == [True] * 12
    assert [content(each) for each in targets] == [content(memory(n)) for n in range(12)]
    there.submit_unlock(keys)
    assert there.report_status()["locked_key_count"] == 0
    there.delete(keys[:6])
    assert look_up(here, keys) == [False] * 6 + [True] * 6
    here.submit_unlock(keys)
    until(lambda: here.report_status()["stored_object_count"] == 6)  # it hears of it
