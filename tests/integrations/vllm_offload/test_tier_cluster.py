"""A tier over a cluster: an engine finds what another host has, asked in the background, and survives its end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import Locality, LookupResult, OffloadKey
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from nanokv.cluster.homes import Homes
from tests.integrations.vllm_offload.other_node import OtherNode
from tests.integrations.vllm_offload.parts import Tiered, content, keys_of, right
from tests.support.needed import need_nixl
from tests.support.until import until

Start = Callable[..., Tiered]
TIER = "vLLM SecondaryTierManager"


@pytest.fixture(scope="module", autouse=True)
def nixl() -> None:
    """Only where NIXL is."""
    need_nixl()


class Two(NamedTuple):
    """Two nodes."""

    engine: Tiered
    other: OtherNode
    theirs: list[OffloadKey]  #: blocks that the other node has, and is the home of
    mine: OffloadKey  #: a block whose home is the engine's node


@pytest.fixture
def cluster(start: Start, tmp_path: Path) -> Iterator[Two]:
    """An engine, and another node that has blocks."""
    registry = {"cluster": f"file://{tmp_path}/registry", "timeout": 1.0, "ttl": 3.0}
    engine = start(chunks=8, name="here", node="here", **registry)
    world = engine.tier.joined.world
    homes = Homes(["here", "there"])
    keys = keys_of(range(64))
    theirs = [key for key in keys if homes.of(world.digest(key)) == "there"][:4]
    mine = next(key for key in keys if homes.of(world.digest(key)) == "here")
    settings: dict[str, Any] = {"name": "there", "node": "there", "size": "8MiB", "page_bytes": 4096, "ranks": 4}
    blocks = {bytes(key): content(key, engine.row_bytes).tobytes() for key in theirs}
    with OtherNode(settings | registry, world.options.identity, blocks) as other:
        until(lambda: len(engine.tier.joined.cache.nodes) == 2)
        yield Two(engine, other, theirs, mine)


@pytest.mark.surface(TIER, "lookup", differs="with a cluster RETRY until the step after the first question")
def test_blocks_of_another_host_are_loaded(cluster: Two) -> None:
    engine, _, theirs, mine = cluster
    context = engine.request()
    assert engine.manager.lookup(theirs[0], context) is LookupResult.RETRY
    assert right(engine, theirs, engine.load(theirs, context)) == [True] * 4
    assert engine.manager.get_load_source(theirs[0], context) is CacheHitSource.EXTERNAL_UNSPECIFIED
    assert engine.tier.locality is Locality.REMOTE
    assert right(engine, [mine], engine.load([mine])) == [False]
    engine.compute([mine])
    engine.forget()
    assert right(engine, [mine], engine.load([mine])) == [True]


@pytest.mark.surface(TIER, "submit_load")
def test_a_host_that_dies_costs_its_blocks_only(cluster: Two) -> None:
    engine, other, theirs, mine = cluster
    engine.compute([mine])
    engine.forget()
    context = engine.request()
    wanted = [*theirs, mine]

    def answers() -> list[LookupResult]:
        engine.step()
        return [engine.manager.lookup(key, context) for key in wanted]

    until(lambda: answers() == [LookupResult.HIT_PENDING] * 5)
    other.kill()  # between the look-up and the load
    assert right(engine, wanted, engine.load(wanted, context)) == [False] * 4 + [True]
    engine.manager.on_request_finished(context)
    engine.settle()
    engine.forget()
    assert right(engine, wanted, engine.load(wanted)) == [False] * 4 + [True]
    until(lambda: engine.tier.joined.cache.nodes == ["here"])
    engine.compute(theirs)
    engine.forget()
    assert right(engine, wanted, engine.load(wanted)) == [True] * 5
