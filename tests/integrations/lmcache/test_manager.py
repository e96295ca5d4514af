"""The adapter in LMCache's own StorageManager: objects go from L1 to L2 and back, whatever fails between."""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("lmcache", reason="needs LMCache: see docs/lmcache.md")

from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager

from tests.integrations.lmcache.calls import PATIENCE
from tests.integrations.lmcache.parts import ADAPTER, CHUNK, content, fill, object_key, spec
from tests.support.until import until

LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([2, 4, CHUNK, 128])], dtypes=[torch.bfloat16])


@pytest.fixture
def manager() -> Iterator[Callable[..., Any]]:
    """manager(spec of an adapter) -> LMCache's StorageManager, made from its command line; closed at the end."""
    made: list[Any] = []

    def make(given: dict[str, Any]) -> Any:
        parser = add_l2_adapters_args(argparse.ArgumentParser())
        args = parser.parse_args(["--l2-adapter", json.dumps(given)])
        memory = L1MemoryManagerConfig(size_in_bytes=4 << 20, use_lazy=False, shm_name="")
        made.append(
            StorageManager(
                StorageManagerConfig(
                    l1_manager_config=L1ManagerConfig(memory_config=memory),
                    eviction_config=EvictionConfig(eviction_policy="noop"),
                    l2_adapter_config=parse_args_to_l2_adapters_config(args),
                )
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def write(manager: Any, keys: list[Any], layout: MemoryLayoutDesc = LAYOUT) -> list[bytes]:
    """Write objects to L1, and wait until L2 has them; their bytes."""
    reserved = manager.reserve_write(keys, layout)
    if isinstance(reserved, tuple):
        reserved = reserved[0]
    objects = [reserved[key] for key in keys]
    for seed, each in enumerate(objects):
        fill(each, seed)
    written = [content(each) for each in objects]
    manager.finish_write(keys)
    return written


def prefetched(manager: Any, keys: list[Any], layout: MemoryLayoutDesc = LAYOUT) -> tuple[int, list[bytes]]:
    """How many of the first keys a prefetch has brought to L1, and their bytes there."""
    group = GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=layout)
    handle = manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))
    assert manager.wait_prefetch_status(handle, PATIENCE)
    hits = manager.query_prefetch_status(handle).hit_cells[0].count_leading_ones()
    if not hits:
        return 0, []
    with manager.read_prefetched_results(keys[:hits]) as objects:
        read = [content(each) for each in objects]
    manager.finish_read_prefetched(keys[:hits])
    return hits, read


def inner(manager: Any) -> Any:
    """The adapter of NanoKV."""
    adapter = manager.l2_adapters()[0][1]
    while hasattr(adapter, "_inner"):
        adapter = adapter._inner
    return adapter


def stored(manager: Any, count: int) -> None:
    """Wait until L2 has so many objects."""
    until(lambda: inner(manager).report_status()["stored_object_count"] == count)
    until(lambda: manager.report_status()["store_controller"]["in_flight_task_count"] == 0)


@pytest.mark.surface(ADAPTER, "submit_store_task")
@pytest.mark.surface(ADAPTER, "submit_load_task")
@pytest.mark.surface(ADAPTER, "submit_unlock")
def test_objects_go_to_l2_and_come_back(manager: Callable[..., Any]) -> None:
    made = manager(spec())
    keys = [object_key(n) for n in range(6)]
    written = write(made, keys[:5])
    stored(made, 5)
    made.clear(force=True)
    assert prefetched(made, keys) == (5, written)
    until(lambda: inner(made).report_status()["locked_key_count"] == 0)
    assert prefetched(made, keys[5:]) == (0, [])


def test_objects_of_several_tensors(manager: Callable[..., Any]) -> None:
    layout = MemoryLayoutDesc(
        shapes=[torch.Size([2, 4, CHUNK, 64]), torch.Size([1, 2, CHUNK, 32])], dtypes=[torch.bfloat16, torch.float32]
    )
    made = manager(spec())
    keys = [object_key(n) for n in range(3)]
    written = write(made, keys, layout)
    stored(made, 3)
    made.clear(force=True)
    assert prefetched(made, keys, layout) == (3, written)


def test_loads_that_lmcache_makes_fail(manager: Callable[..., Any]) -> None:
    made = manager({"type": "fault_inject", "inner": spec(), "gap_indices": [2]})
    keys = [object_key(n) for n in range(5)]
    written = write(made, keys)
    stored(made, 5)
    made.clear(force=True)
    assert prefetched(made, keys) == (2, written[:2])
    until(lambda: inner(made).report_status()["locked_key_count"] == 0)  # those that failed too


def test_a_serializer_between(manager: Callable[..., Any]) -> None:
    made = manager(spec() | {"serde": {"type": "fp8"}})
    keys = [object_key(n) for n in range(3)]
    reserved = made.reserve_write(keys, LAYOUT)
    for number, each in enumerate(reserved[key] for key in keys):
        each.tensor.fill_(number + 1)
    made.finish_write(keys)
    stored(made, 3)
    assert made.l2_adapters()[0][1].get_usage().total_bytes_used < 3 * (32 << 10)
    made.clear(force=True)
    hits, read = prefetched(made, keys)
    assert hits == 3
    for number, raw in enumerate(read):
        assert torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).eq(number + 1).all()


@pytest.mark.surface(ADAPTER, "supports_global_eviction")
@pytest.mark.surface(ADAPTER, "delete")
@pytest.mark.surface(ADAPTER, "register_listener")
def test_lmcache_evicts(manager: Callable[..., Any]) -> None:
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.5, "eviction_ratio": 0.5}
    made = manager(spec(max_capacity_bytes=8 * (32 << 10)) | {"eviction": eviction})
    assert inner(made).supports_global_eviction
    keys = [object_key(n) for n in range(6)]
    write(made, keys)
    until(lambda: 0 < inner(made).report_status()["stored_object_count"] < 4)
    left = inner(made).list_l2_keys().entries
    made.clear(force=True)
    assert [prefetched(made, [key])[0] for key in keys].count(1) == len(left)


def test_a_quota_of_a_salt(manager: Callable[..., Any]) -> None:
    made = manager(spec(max_capacity_bytes=0) | {"eviction": {"eviction_policy": "IsolatedLRU"}})
    assert not inner(made).supports_global_eviction
    made.quota_manager.set_quota("paid", 1 << 30)
    paid = [object_key(n, cache_salt="paid") for n in range(2)]
    written = write(made, paid)
    stored(made, 2)
    write(made, [object_key(n, cache_salt="free") for n in range(3)])
    until(lambda: len(inner(made).get_usage().bytes_by_cache_salt) == 2)
    until(lambda: list(inner(made).get_usage().bytes_by_cache_salt) == ["paid"])  # no quota: nothing is kept
    made.clear(force=True)
    assert prefetched(made, paid) == (2, written)
