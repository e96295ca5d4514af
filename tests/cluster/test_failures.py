"""Nodes that die, stop, leave and come back, and what the others see: no hang, no foreign bytes, no crash, no leak."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.links.nixl import NixlLink
from nanokv.errors import KeyNotFound, NanoKVError, PeerLost, WaitTimeout
from tests.support.until import until

from .conftest import MakeCluster, key_of
from .node_process import NodeProcess, value_of

MakeNode = Callable[..., NodeProcess]
SIZE = 3000


BOTH = pytest.mark.parametrize("link", ["nixl", "wire"])


@pytest.fixture
def make_node(link: str, tmp_path: Path) -> Iterator[MakeNode]:
    """Makes nodes in processes of their own, which end with the test."""
    nodes: list[NodeProcess] = []

    def make(name: str, **options: Any) -> NodeProcess:
        nodes.append(NodeProcess(name, f"file://{tmp_path}/cluster", **({"link": link} | options)))
        return nodes[-1]

    yield make
    for node in nodes:
        node.end()


def meet(member: NanoKVCluster, *nodes: str) -> None:
    until(lambda: member.nodes == sorted(nodes), f"the nodes {nodes}")


@BOTH
def test_processes_exchange_objects(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    (here,) = make_cluster(1)
    there = make_node("far")
    meet(here, "far", "n0")
    until(lambda: there.ask("nodes") == ["far", "n0"])
    for i in range(40):
        here.put(f"a{i}", value_of(f"a{i}", SIZE + i))
        there.ask("put", f"b{i}", SIZE + i)
    for i in range(40):
        assert (
            torch.equal(here.get(f"b{i}"), value_of(f"b{i}", SIZE + i))
            and there.ask("get", f"a{i}", SIZE + i) == "right"
        )
    assert there.ask("puts", "c", 100, 70_000, "n0") == here.put_many(
        [f"d{i}" for i in range(100)], torch.zeros(100, 9), preferred_segment=("far", 0)
    ).count(None)
    there.resume()
    assert there.end() == 0


@BOTH
def test_a_node_that_is_killed(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    here, other = make_cluster(2, timeout=1.0)
    there = make_node("far")
    meet(here, "far", "n0", "n1")
    meet(other, "far", "n0", "n1")
    far, near = key_of(here, "far"), key_of(here, "n1", "near")
    here.put(far, value_of(far, SIZE))
    here.put(near, value_of(near, SIZE))
    assert torch.equal(here.get(far), value_of(far, SIZE))
    there.kill()
    with pytest.raises(PeerLost, match="node far"):
        here.get(far)
    with pytest.raises(PeerLost):
        here.exists(far)
    with pytest.raises(PeerLost):
        here.put(key_of(here, "far", "more"), value_of(far, SIZE))
    errors = here.put_many([key_of(here, "far", "many"), key_of(here, "n0", "many")], torch.zeros(2, 5))
    assert isinstance(errors[0], PeerLost) and errors[1] is None
    assert torch.equal(here.get(near), value_of(near, SIZE))  # the others go on
    meet(here, "n0", "n1")
    assert here.get(far, None) is None  # what was there alone has gone; another node is its home now
    here.put(far, value_of(far, SIZE))
    assert torch.equal(here.get(far), value_of(far, SIZE))


@BOTH
def test_what_a_lost_node_has_can_be_a_miss(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    """Calls about many keys answer for those of all other nodes."""
    here, other = make_cluster(2, timeout=1.0, lost="miss", ttl=60.0)
    there = make_node("far")
    for member in (here, other):
        meet(member, "far", "n0", "n1")
    keys = [key_of(here, node, f"{i}") for i, node in enumerate(["n0", "n1", "n1", "far", "n0", "n1"])]
    rows = torch.arange(6 * 40.0).reshape(6, 40)
    assert here.put_many(keys, rows) == [None] * 6
    there.kill()
    wanted = [True, True, True, False, True, True]
    assert here.exists_many(keys) == wanted and here.prefix_length(keys) == 3
    assert here.get(keys[3], None) is None and not here.exists(keys[3])
    out = torch.zeros_like(rows)
    assert here.get_many(keys, dsts=out) == wanted and torch.equal(out[:3], rows[:3]) and torch.equal(out[4:], rows[4:])
    assert [got is not None for got in here.get_many(keys)] == wanted
    with pytest.raises(KeyNotFound):
        here.get(keys[3])
    with pytest.raises(WaitTimeout, match="1 of 6"):
        here.wait(keys, timeout=0.1)
    assert here.stats()["peer_lost"] >= 6
    assert here.bring(keys) == wanted
    assert isinstance(here.put_many(keys[3:4], rows[3:4])[0], PeerLost)
    with pytest.raises(PeerLost):
        here.put(keys[3], rows[3])
    with pytest.raises(PeerLost):
        here.remove(keys[3])
    assert here.remove_many(keys) == wanted


@BOTH
def test_a_node_that_comes_back_is_another_one(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    (here,) = make_cluster(1)
    there = make_node("far")
    meet(here, "far", "n0")
    key = key_of(here, "far")
    here.put(key, value_of(key, SIZE))
    there.kill()
    again = make_node("far")  # waits until the lease of the dead one has ended
    until(lambda: again.ask("nodes") == ["far", "n0"])

    def found() -> Any:
        try:
            return here.get(key, "none")
        except PeerLost:
            return None

    until(lambda: isinstance(found(), str))
    here.put(key, value_of(key, SIZE))
    assert again.ask("get", key, SIZE) == "right" and torch.equal(here.get(key), value_of(key, SIZE))


@pytest.mark.parametrize("link", ["nixl"])
@pytest.mark.usefixtures("way")
def test_reads_go_on_while_the_owner_is_stopped(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    """Over shared memory a read needs nothing of the owner's process."""
    (here,) = make_cluster(1, timeout=1.0, ttl=30.0)
    there = make_node("far", ttl=30.0)  # it stays a member while it is stopped
    meet(here, "far", "n0")
    keys = [key_of(here, "far", f"s{i}") for i in range(20)]
    for i, key in enumerate(keys):
        here.put(key, value_of(key, SIZE * (i + 1)))
    assert torch.equal(here.get(keys[0]), value_of(keys[0], SIZE))
    there.suspend()
    for i, key in enumerate(keys):
        assert torch.equal(here.get(key), value_of(key, SIZE * (i + 1)))
    assert all(
        torch.equal(got, value_of(key, SIZE * (i + 1)))
        for i, (key, got) in enumerate(zip(keys, here.get_many(keys), strict=True))
        if got is not None
    )
    with pytest.raises(PeerLost, match="did not answer"):
        here.put(key_of(here, "far", "put"), value_of("x", SIZE))
    there.resume()
    until(lambda: "far" in here.nodes and _puts(here, "far"))


def test_a_node_that_did_not_hear_of_a_generation_is_told_again(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    (here,) = make_cluster(1, timeout=0.3, ttl=30.0)
    there = make_node("far", ttl=30.0)
    meet(here, "far", "n0")
    there.suspend()
    with pytest.raises(PeerLost, match="generation 1 has begun, but not on far: no answer"):
        here.advance_generation()
    assert here.generation() == 1
    there.resume()
    until(lambda: there.ask("generation") == 1, "the generation on the other node")


def _puts(member: NanoKVCluster, node: str) -> bool:
    try:
        member.put(f"again-{time.monotonic_ns()}", torch.ones(3), preferred_segment=(node, 0))
    except NanoKVError:
        return False
    return True


@pytest.mark.parametrize("link", ["nixl"])
def test_over_tcp_a_stopped_owner_is_lost_and_late_bytes_reach_nobody(
    make_cluster: MakeCluster, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    (here,) = make_cluster(1, timeout=0.5, ttl=30.0)
    there = make_node("far", ttl=30.0)
    meet(here, "far", "n0")
    key = key_of(here, "far")
    here.put(key, value_of(key, 400_000))
    assert torch.equal(here.get(key), value_of(key, 400_000))
    there.suspend()
    dst = torch.zeros(400_000, dtype=torch.uint8)
    with pytest.raises(PeerLost, match="did not answer"):
        here.get(key, dst=dst)
    assert here.stats()["late_reads"] >= 1  # where events had told, and perhaps at the home
    there.resume()
    until(lambda: here.stats()["late_reads"] == 0, "the end of the late read")
    assert not dst.any()
    until(lambda: _reads(here, key, 400_000))


@pytest.mark.parametrize("link", ["wire"])
def test_over_the_wire_a_stopped_owner_is_lost_and_nothing_comes_late(
    make_cluster: MakeCluster, make_node: MakeNode
) -> None:
    (here,) = make_cluster(1, timeout=0.5, ttl=30.0)
    there = make_node("far", ttl=30.0)
    meet(here, "far", "n0")
    key, more = key_of(here, "far"), key_of(here, "far", "more")
    here.put(key, value_of(key, 400_000))
    there.suspend()
    dst = torch.zeros(400_000, dtype=torch.uint8)
    for call in (partial(here.get, key, dst=dst), partial(here.exists, key), partial(here.remove, key)):
        with pytest.raises(PeerLost, match="did not answer"):
            call()
        time.sleep(0.6)  # it is not asked for half a second
    with pytest.raises(PeerLost, match="did not answer"):
        here.put(more, value_of(more, 400_000))
    there.resume()
    until(lambda: _puts(here, "far"))
    assert not dst.any()
    assert here.get(more, None) is None  # its bytes were to come when the owner had answered


def _reads(member: NanoKVCluster, key: str, nbytes: int) -> bool:
    try:
        got = member.get(key, None)
    except PeerLost:
        return False
    assert got is not None and torch.equal(got, value_of(key, nbytes))
    return True


@pytest.mark.parametrize("link", ["nixl"])
def test_a_thread_that_still_reads_from_a_peer_that_was_let_go(make_cluster: MakeCluster) -> None:
    here, _ = make_cluster()
    link, number = here.member.link, here.member.nodes["n1"].world().peer
    assert isinstance(link, NixlLink)
    peer = link.peer(number)
    link.disconnect(number)
    with link.lane(peer):  # NIXL does not know the peer any more when the thread ends
        pass
    key = key_of(here, "n1")
    here.put(key, value_of(key, 5000))
    until(partial(_reads, here, key, 5000))


@BOTH
def test_a_producer_that_is_killed_leaves_nothing(make_cluster: MakeCluster, make_node: MakeNode) -> None:
    (here,) = make_cluster(1, world={"write_timeout": 5.0})
    for i in range(3):
        there = make_node(f"far{i}")
        meet(here, f"far{i}", "n0")
        until(partial(_knows, there, 2))
        there.send("put_forever", f"k{i}-", 60_000, "n0")
        until(partial(here.exists, f"k{i}-0"))
        time.sleep(0.3 + 0.05 * i)
        there.kill()
        meet(here, "n0")
        until(lambda: here.stats()["late_pulls"] == 0 and here.world.stats()["unfinished"] == 0, "the end of its puts")
        for k in range(10_000):
            got = here.get(f"k{i}-{k}", None)
            assert got is None or torch.equal(got, value_of(f"k{i}-{k}", 60_000))
            if got is None and k > 200:
                break
        here.world.clear()


@pytest.mark.parametrize("link", ["nixl"])
def test_a_segment_that_was_made_anew_is_not_read(make_cluster: MakeCluster) -> None:
    """What lies where a card says must be what the card was made of."""
    one, two = make_cluster(2)
    key = key_of(one, "n1")
    one.put(key, torch.ones(5))
    assert torch.equal(one.get(key), torch.ones(5))
    control = two.world.engine.heap.segment(0)[:64]
    kept = control.clone()
    control[24] ^= 1  # the id of the world
    with pytest.raises(PeerLost, match="another segment"):
        one.get(key)
    control.copy_(kept)
    until(lambda: _gets(one, key))


def _knows(node: NodeProcess, count: int) -> bool:
    return len(node.ask("nodes")) == count


def _gets(member: NanoKVCluster, key: str) -> bool:
    try:
        return torch.equal(member.get(key), torch.ones(5))
    except PeerLost:
        return False


def test_a_join_loses_nothing(make_cluster: MakeCluster) -> None:
    members = make_cluster(2)
    keys = [f"j{i}" for i in range(200)]
    rows = torch.arange(200 * 10).reshape(200, 10)
    members[0].put_many(keys, rows)
    members += make_cluster(1)
    moved = [key for key in keys if members[0].home(key) == "n2"]
    assert moved and all(member.exists_many(keys) == [True] * 200 for member in members)
    members += make_cluster(2)
    for member in members:
        out = torch.zeros_like(rows)
        assert all(member.get_many(keys, dsts=out)) and torch.equal(out, rows)


@BOTH
def test_a_join_under_load_loses_nothing_and_raises_nothing(make_cluster: MakeCluster) -> None:
    members = make_cluster(3, heap_bytes=64 << 20)
    stop = threading.Event()
    put: list[list[str]] = [[] for _ in members]

    def work(number: int) -> None:
        member = members[number]
        for i in itertools.count():
            if stop.is_set():
                return
            put[number].append(f"{number} {i}")
            member.put(put[number][-1], value_of(put[number][-1], 300))
            for key in (put[number][i // 2], put[number][-1]):
                assert torch.equal(member.get(key), value_of(key, 300))
            assert member.exists_many(put[number][-20:]) == [True] * min(20, len(put[number]))
            time.sleep(0.001)

    with ThreadPoolExecutor(3) as pool:
        at_work = [pool.submit(work, number) for number in range(3)]
        until(lambda: all(len(keys) > 100 for keys in put), "some work")
        fourth = make_cluster(1, heap_bytes=64 << 20)[0]
        before = [len(keys) for keys in put]
        until(lambda: all(len(keys) > count + 50 for keys, count in zip(put, before, strict=True)), "work to go on")
        stop.set()
        for each in at_work:
            each.result()
    keys = [key for some in put for key in some]
    assert any(members[0].home(key) == "n3" for key in keys)
    for member in (*members, fourth):
        found = member.get_many(keys)
        assert all(
            got is not None and torch.equal(got, value_of(key, 300)) for key, got in zip(keys, found, strict=True)
        )


def test_a_node_that_was_away_is_one_that_joined(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put while its lease had ended lies elsewhere, and every member finds it there without any event."""
    members = make_cluster(3, locations=0)
    keys = [key for key in (f"k{i}" for i in range(200)) if members[1].home(key) == "n0"]
    registry = members[0].member.membership._registry
    held = threading.Event()
    monkeypatch.setattr(registry, "_show", lambda *_: held.wait(60))  # it beats no more, as one that is stopped
    until(lambda: members[1].nodes == members[2].nodes == ["n1", "n2"], "the end of its lease")
    for key in keys:
        members[1].put(key, torch.ones(5))
    monkeypatch.undo()
    held.set()
    until(lambda: all(len(member.nodes) == 3 for member in members), "its return")
    assert members[1].home(keys[0]) == "n0"
    until(lambda: members[0].member.membership.lapses == 1, "that it notices")
    for member in members:
        until(lambda member=member: member.exists_many(keys) == [True] * len(keys), member.node)  # type: ignore[misc]
        assert all(got is not None for got in member.get_many(keys))


def test_the_registry_goes_away(make_cluster: MakeCluster, tmp_path: Path) -> None:
    members = make_cluster(2)
    (tmp_path / "cluster").rename(tmp_path / "hidden")
    until(lambda: members[0].registry_away > 0, "the loss of the registry")
    key = key_of(members[0], "n1")
    members[0].put(key, torch.ones(3))
    assert members[0].nodes == ["n0", "n1"] and torch.equal(members[0].get(key), torch.ones(3))
    (tmp_path / "hidden").rename(tmp_path / "cluster")
    until(lambda: members[0].registry_away == 0, "the registry")
    assert members[0].nodes == ["n0", "n1"]
