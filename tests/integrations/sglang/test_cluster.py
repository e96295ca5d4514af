"""Pages in a cluster: a node reads what another one has stored, and survives its end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from tests.integrations.sglang import parts
from tests.integrations.sglang.parts import INTERFACE, all_of, emptied, filled, is_empty, keys_of, same

Start = Callable[..., Any]
PATIENCE = 60.0


@pytest.fixture
def nodes(start: Start, tmp_path: Path) -> Callable[..., list[Any]]:
    """nodes(pools, **) -> a backend of each of two nodes, which know each other."""

    def started(pools: list[Any], **given: Any) -> list[Any]:
        registry = {"cluster": f"file://{tmp_path}/registry"}
        made = [
            start(pool, settings=registry | {"name": name, "node": name}, **given)
            for name, pool in zip(("here", "there"), pools, strict=True)
        ]
        deadline = time.monotonic() + PATIENCE
        while any(len(each.cache.nodes) < 2 for each in made):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return made

    return started


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.surface(INTERFACE, "batch_exists")
@pytest.mark.parametrize("kind", [parts.mla, parts.mha])
def test_pages_are_found_on_any_node(nodes: Callable[..., list[Any]], kind: Any) -> None:
    pools = [kind(), kind()]  # of one part, and of two
    here, there = nodes(pools, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pools[0])
    assert all(here.batch_set_v1(keys, indices))
    stored = emptied(pools[1])
    assert there.batch_exists(keys) == len(keys)
    assert all(there.batch_get_v1(keys, indices)) and same(pools[1], stored)
    assert all(there.batch_set_v1(keys, indices))  # nothing is stored twice
    for each in (here, there):
        each.cache.world.flush()
    assert here.cache.world.segment_count() + there.cache.world.segment_count() == len(keys)
    assert here.calls.failures() == there.calls.failures() == {}


@pytest.mark.surface(INTERFACE, "batch_get_v2")
@pytest.mark.surface(INTERFACE, "batch_exists_v2")
def test_states_are_found_on_any_node(nodes: Callable[..., list[Any]]) -> None:
    here, there = nodes([parts.mha(), parts.mha()])
    states = [parts.mamba(), parts.mamba()]
    for backend, state in zip((here, there), states, strict=True):
        backend.register_mem_host_pool_v2(state, PoolName.MAMBA)
    keys, indices = all_of(here.mem_pool_host)
    assert all(here.batch_set_v1(keys[:8], indices[: 8 * parts.PAGE]))
    pages = min(states[0].size, 8)
    move = [PoolTransfer(name=PoolName.MAMBA, keys=keys[:pages], host_indices=torch.arange(pages))]
    assert all(here.batch_set_v2(move)[PoolName.MAMBA])
    emptied(states[1])
    assert there.batch_exists_v2(keys, move).kv_hit_pages == pages
    assert all(there.batch_get_v2(move)[PoolName.MAMBA])
    for mine, theirs in zip(parts.buffers(states[1]), parts.buffers(states[0]), strict=True):
        assert torch.equal(mine[:pages].view(torch.uint8), theirs[:pages].view(torch.uint8))


@pytest.mark.surface(INTERFACE, "clear", differs="in a cluster only the pages on this host")
def test_clear_leaves_the_pages_on_other_hosts(nodes: Callable[..., list[Any]]) -> None:
    pools = [parts.mha(), parts.mha()]
    here, there = nodes(pools)
    keys, indices = all_of(pools[0])
    assert all(here.batch_set_v1(keys, indices))
    here.clear()
    here.cache.world.flush()
    assert here.cache.world.segment_count() == 0 and here.batch_exists(keys) < len(keys)
    there.clear()
    assert not any(here.batch_get_v1(keys, indices))


@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.parametrize("kind", [parts.mla, parts.mha])
def test_a_node_that_is_gone_takes_its_pages_along(nodes: Callable[..., list[Any]], kind: Any) -> None:
    pools = [kind(), kind()]
    here, there = nodes(pools, is_mla_model=kind is parts.mla)
    keys, indices = all_of(pools[0])
    assert all(here.batch_set_v1(keys, indices))
    here.cache.world.flush()
    mine = here.cache.world.segment_count()
    there.close()
    stored = emptied(pools[0])
    done = here.batch_get_v1(keys, indices)
    deadline = time.monotonic() + PATIENCE
    while sum(done) != mine:  # memory of the other one that is mapped may be read until its end is noticed
        assert sum(done) > mine and (not all(done) or parts.same(pools[0], stored)), "what is read is right"
        assert time.monotonic() < deadline
        done = here.batch_get_v1(keys, indices)
    assert here.batch_exists(keys) <= sum(done)
    while not all(here.batch_set_v1(keys, indices)):  # with their homes on this node, once the other one is known gone
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert here.batch_exists(keys) == len(keys) and stored


@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.surface(
    INTERFACE,
    "batch_set_v1, an object of another size on another node",
    differs="True, and it stays there: a miss for all",
)
@pytest.mark.parametrize("kind", [parts.mla, parts.mha])
def test_an_object_of_another_size_is_a_miss_on_any_node(nodes: Callable[..., list[Any]], kind: Any) -> None:
    pools = [kind(), kind()]
    here, there = nodes(pools, is_mla_model=kind is parts.mla)
    scope = here.pools.get("kv").scopes[0]
    keys, indices = of_homes([here, there], scope, each=3)
    for i, key in enumerate(keys):
        [here, there][i // 3].cache.put(f"{scope}/{key}", torch.zeros(25))
    emptied(pools[0])
    assert not any(here.batch_get_v1(keys, indices)) and is_empty(pools[0])
    filled(pools[0])
    assert all(here.batch_set_v1(keys, indices))
    assert here.batch_get_v1(keys, indices) == [True] * 3 + [False] * 3  # those at home here were replaced


def of_homes(backends: list[Any], scope: str, each: int) -> tuple[list[str], torch.Tensor]:
    """So many keys with their home on the node of each backend, in this order, and the indices of as many pages."""
    homes = {backend.cache.node: list[str]() for backend in backends}
    for key in keys_of(200):
        homes[backends[0].cache.home(f"{scope}/{key}")].append(key)
    keys = [key for backend in backends for key in homes[backend.cache.node][:each]]
    assert len(keys) == each * len(backends)
    return keys, torch.arange(len(keys) * parts.PAGE)
