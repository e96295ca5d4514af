"""How two nodes exchange objects: over the wire or a link, by what both have; and the ports that this opens."""

import contextlib
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from nanokv import NanoKVCache
from nanokv.cluster import NanoKVCluster
from nanokv.cluster.links import LinkUnavailable, open_link
from nanokv.cluster.listening import listening
from nanokv.errors import ClusterUnavailable, InvalidArgument
from tests.support.needed import need_nixl
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, MakeCluster, serves_nothing

SMALL, LARGE = torch.arange(10), torch.arange(50_000)


def exchange(one: Any, two: Any) -> None:
    """Small and large objects, both ways, one and many."""
    for a, b in ((one, two), (two, one)):
        for name, value in (("small", SMALL), ("large", LARGE)):
            key = f"{name} of {a.node}"
            a.put(key, value, preferred_segment=(b.node, 0))
            assert torch.equal(b.world.get(key), value) and torch.equal(a.get(key), value)
            (got,) = a.get_many([key])
            assert got is not None and torch.equal(got, value)
            assert a.remove_many([key]) == [True]


def test_a_member_opens_two_ports_and_no_other(make_cluster: MakeCluster) -> None:
    before = listening()
    one, two = make_cluster(2)
    cards = [one.member.nodes["n1"].cards[0], two.member.nodes["n0"].cards[0]]
    wanted = {address.removeprefix("tcp://") for card in cards for address in (card.wire, card.events)}
    found = listening()
    assert len(wanted) == 4 and {found[inode] for inode in found.keys() - before.keys()} == wanted


@pytest.mark.parametrize(("links", "way"), [(("nixl", "nixl"), "nixl"), (("nixl", "auto"), "wire: unix:")])
def test_each_pair_takes_what_both_have(make_cluster: MakeCluster, links: tuple[str, str], way: str) -> None:
    need_nixl()
    members = [make_cluster(1, link=link)[0] for link in links]
    until(lambda: all(len(member.nodes) == 2 for member in members))
    exchange(*members)
    for member, other in zip(members, ("n1", "n0"), strict=True):
        assert member.stats()["ways"][other].startswith(way)


def test_what_a_gpu_has_is_reached_by_its_link_alone(
    make_cluster: MakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has no such link leaves the node out, and is left out: all members must agree on the homes of keys."""
    need_nixl()
    caplog.set_level(logging.WARNING)
    with serves_nothing():  # as where segments lie in memory of a GPU
        (one,) = make_cluster(1, link="nixl")
    (two,) = make_cluster(1, link="nixl")
    until(lambda: one.nodes == two.nodes == ["n0", "n1"])
    exchange(one, two)
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as world:
        alone = NanoKVCluster(world, f"file://{tmp_path}/cluster", node="n2", ttl=2.0)
        until(lambda: alone.nodes == ["n1", "n2"] and two.nodes == ["n0", "n1", "n2"])
        assert one.nodes == ["n0", "n1"]
        exchange(two, alone)
        until(lambda: len([each for each in caplog.records if "memory of a GPU" in each.message]) == 2)
        said = sorted(each.message for each in caplog.records if "memory of a GPU" in each.message)
        assert "n0.0 is left out: its segments lie" in said[0] and "n2.0 is left out: this member's" in said[1]
        assert all("give both the same link, such as link='nixl'" in line for line in said)


def test_without_rdma_nixl_is_refused_unless_its_tcp_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    need_nixl()
    for value in ("", "^tcp"):
        monkeypatch.setenv("UCX_TLS", value)
        with pytest.raises(LinkUnavailable, match=r"devices='lo', UCX_TLS=.*UCX's TCP is off"):
            open_link("nixl", "probe")
    monkeypatch.delenv("UCX_TLS")
    with pytest.raises(LinkUnavailable, match=r"UCX's TCP is off.*link='wire' does without.*UCX_TLS=tcp,self"):
        open_link("nixl", "probe")


def test_a_port_that_nobody_has_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    need_nixl()
    before = listening()
    monkeypatch.setenv("UCX_TLS", "^shm")  # all but that, and so TCP, which it does not name
    with pytest.raises(LinkUnavailable, match=r"UCX listens at 127\.0\.0\.1:\d+.*though UCX_TLS does not name tcp"):
        open_link("nixl", "probe")
    until(lambda: listening().keys() <= before.keys(), "the ports to be closed")


def test_nowhere_to_listen_is_said_by_the_option(tmp_path: Path) -> None:
    url, others = f"file://{tmp_path}/cluster", list[socket.socket]()
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as world:
        with pytest.raises(InvalidArgument, match=r"bind='nonesuch0': cannot listen at"):
            NanoKVCluster(world, url, bind="nonesuch0")
        while len(others) < 4:  # four in a row
            for each in others:
                each.close()
            others = [socket.create_server(("127.0.0.1", 0))]
            first = others[0].getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for port in range(first + 1, first + 4):
                    others.append(socket.create_server(("127.0.0.1", port)))
        with pytest.raises(
            ClusterUnavailable, match=rf"ports='{first}-{first + 3}': all ports .* each member takes two"
        ):
            NanoKVCluster(world, url, ports=f"{first}-{first + 3}")
        for each in others:
            each.close()
