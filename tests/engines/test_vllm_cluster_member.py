"""A worker as a member of a cluster: what it can read when nodes are lost, what it counts, and why it does not join."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.errors import ClusterUnavailable, InvalidArgument, KeyNotFound, PeerLost
from nanokv.integrations.vllm.cluster import HELD_UP, RESTS, ClusterLoads, ClusterLookups, join, reachable_prefix
from nanokv.integrations.vllm.settings import Settings
from tests.cluster.conftest import HEAP_BYTES, PAGE, PATIENCE
from tests.support.faults import Clock
from tests.support.until import until

BLOCKS = 6
THERE, GONE, LOST = "there", "gone", "lost"  #: of a block: it can be read; no node has it; a node that is lost may


class Nodes:
    """A cluster's `prefix_length` over blocks of which some may lie on a lost node; it looks at some keys at once."""

    def __init__(self, blocks: Sequence[str], at_once: int) -> None:
        self._blocks, self._at_once, self.asked = blocks, at_once, 0

    def prefix_length(self, hashes: Sequence[bytes]) -> int:
        self.asked += 1
        for start in range(0, len(hashes), self._at_once):
            some = self._blocks[start : min(start + self._at_once, len(hashes))]
            if LOST in some:
                raise PeerLost("a node")
            if GONE in some:
                return start + some.index(GONE)
        return len(hashes)


@pytest.mark.parametrize("at_once", [1, 3, 64])
@pytest.mark.parametrize("second", [THERE, GONE, LOST])
@pytest.mark.parametrize("first", [GONE, LOST])
def test_blocks_before_those_of_a_lost_node(first: str, second: str, at_once: int) -> None:
    for count in range(12):
        for i in range(count):
            blocks = [THERE] * count
            blocks[-1], blocks[i] = second, first
            nodes: Any = Nodes(blocks, at_once)
            found, lost = reachable_prefix(nodes, [b"%d" % n for n in range(count)])
            assert found == i, blocks
            assert lost is None or LOST in blocks
            assert nodes.asked <= 1 + count.bit_length()
    whole: Any = Nodes([THERE] * 9, at_once)
    assert reachable_prefix(whole, [b"%d" % n for n in range(9)]) == (9, None)


def test_nodes_that_hold_look_ups_up_are_left_alone(clock: Clock) -> None:
    clock.stands()
    asked: list[str] = []

    class World:
        def prefix_length(self, hashes: Sequence[bytes]) -> int:
            asked.append("world")
            return 1

    class Cluster:
        world, takes = World(), 0.0

        def prefix_length(self, hashes: Sequence[bytes]) -> int:
            asked.append("cluster")
            clock.passes(self.takes)
            if len(hashes) > 2:
                raise PeerLost("a node")
            return len(hashes)

    cluster: Any = Cluster()
    look = ClusterLookups(cluster)
    assert look([b""] * 3) == 2 and look([b""] * 3) == 2  # lost at once
    assert "world" not in asked
    Cluster.takes = 2 * HELD_UP
    assert look([b""] * 2) == 2  # slow, but nothing is lost
    assert look([b""] * 3) == 2
    asked.clear()
    assert look([b""] * 3) == 1 and asked == ["world"]
    clock.passes(RESTS * 7 * HELD_UP)
    assert look([b""] * 3) == 2 and "world" not in asked[1:]


def world() -> nanokv.NanoKVCache:
    return nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Any]]:
    """Two nodes, as workers join."""
    made: list[Any] = []
    try:
        for name in ("a", "b"):
            settings = Settings(cluster=f"file://{tmp_path}", node=name, cluster_timeout=PATIENCE, cluster_ttl=2)
            made.append(join(world(), settings, "engine", 0))
        until(lambda: all(member.nodes == ["a", "b"] for member in made), "the membership")
        yield made
    finally:
        for member in made:
            member.world.close()
            assert member.closed


def test_blocks_of_other_nodes_are_counted_once(members: list[Any]) -> None:
    one, two = members
    theirs, mine = ([torch.randn(BLOCKS, 2, 4, 2, 16) for _ in range(3)] for _ in range(2))
    keys = [b"block%d" % i for i in range(4)]
    two.paged_kv(mine, kv_dim=1).put(keys[:1], [5])
    one.paged_kv(theirs, kv_dim=1).put(keys[1:3], [0, 1])
    until(lambda: reachable_prefix(two, keys)[0] == 3, "the events")
    loads = ClusterLoads(two, {0: (mine, 1)})
    *good, missing = loads.groups[0].get_async(keys, [0, 1, 2, 3]).result(60)
    assert good == [None] * 3 and isinstance(missing, KeyNotFound)
    assert torch.equal(mine[2][1:3], theirs[2][:2]) and torch.equal(mine[2][0], mine[2][5])
    assert (loads.take_remote(), loads.take_remote()) == (2, 0)
    assert loads.groups[0].get_async(keys[:3], [0, 1, 2]).result(60) == [None] * 3
    assert loads.take_remote() == 0
    loads.close()


def test_a_member_that_cannot_join_closes_its_world(tmp_path: Path, members: list[Any]) -> None:
    for settings, error, says in (
        (Settings(cluster=f"file://{tmp_path}", node="a", cluster_ttl=2), ClusterUnavailable, "a.0"),
        (Settings(cluster=f"file://{tmp_path}", bind="192.0.2.1"), InvalidArgument, "bind=.192.0.2.1"),
        (Settings(cluster=f"file://{tmp_path}", cluster_ttl=1e6), InvalidArgument, "ttl must be"),
    ):
        mine = world()
        with pytest.raises(error, match=says):
            join(mine, settings, "engine", 0)
        assert mine.closed


def test_without_zeromq(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["zmq"] = None
import nanokv
from nanokv.integrations.vllm.cluster import join
from nanokv.integrations.vllm.settings import Settings
from nanokv.errors import LinkUnavailable
try:
    join(nanokv.NanoKVCache(1 << 20, page_bytes=4096), Settings(cluster="file://{tmp_path}"), "engine", 0)
except LinkUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "nanokv.cluster needs ZeroMQ: pip install pyzmq"
