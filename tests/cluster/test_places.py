"""Members that nobody reaches, or that look older than they are: hosts with loopback addresses, clocks and names."""

import logging
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.cluster import NanoKVCluster, place
from nanokv.cluster.card import Card
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.sealed import Reason
from nanokv.cluster.options import ClusterOptions
from nanokv.cluster.place import is_loopback, why_unreachable
from nanokv.errors import PeerLost
from nanokv.integrations.joining import Settings
from tests.support.faults import Calls, Clock
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, PATIENCE, MakeCluster, key_of


# --- loopback ---
def test_a_member_of_another_host_that_listens_at_loopback_is_told_once(
    make_cluster: MakeCluster, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to set; in the log, and by calls."""
    (one,) = make_cluster(1)
    caplog.set_level(logging.WARNING)
    calls.answer(place, "here", "another host")
    two = make_cluster(1)[0]
    for here, there in ((one, "n1"), (two, "n0")):
        why = rf"node {there} .*another host.*bind=.*advertise="
        with pytest.raises(PeerLost, match=why):
            here.put("x", torch.ones(3), preferred_segment=(there, 0))
        with pytest.raises(PeerLost, match=why):
            here.get(key_of(here, there))
        with pytest.raises(PeerLost, match=why):
            here.remove("x")

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "another host" in record.message]

    until(lambda: len(told()) >= 2)  # threads of their own log
    assert [record.levelname for record in told()] == ["WARNING"] * 2
    assert sorted(record.message.split()[1] for record in told()) == ["n0.0", "n1.0"]
    assert one.stats()["members_refused"] == 1


def test_which_members_cannot_be_reached(shared_pair: list[NanoKVCluster]) -> None:
    card = shared_pair[0].member.nodes["n1"].cards[0]
    assert card.place == place.here() != "" and card.devices
    there = replace(card, place="there")

    def why(card: Card, place: str, by_link: bool = True) -> str:
        return why_unreachable(card, place, by_link=by_link)

    assert why(there, "here") and not why(there, "there")
    assert not why(there, "") and not why(replace(card, place=""), "here")
    routed = replace(there, wire="tcp://10.0.0.7:4000", devices="eth0")
    assert not why(routed, "here")
    assert "devices=" in why(replace(routed, devices="lo"), "here")
    assert not why(replace(routed, devices="lo"), "here", by_link=False)  # over the wire they are of no interest
    assert "bind=" in why(replace(routed, wire="tcp://[::1]:4000"), "here", by_link=False)
    assert not why(replace(routed, devices=""), "here")  # a link without network devices
    loopback = ["tcp://127.0.0.1:1", "tcp://127.3.2.1:1", "tcp://localhost:1", "tcp://[::1]:1"]
    assert all(map(is_loopback, loopback)) and not any(map(is_loopback, ["tcp://host:1", "tcp://10.0.0.1:1", "", "x"]))


# --- clocks ---
def test_a_clock_that_was_set_back_at_a_restart(make_cluster: MakeCluster, tmp_path: Path, clock: Clock) -> None:
    """The others take messages and events of the new process, and find what was put before it joined."""
    (one,) = make_cluster(1)
    url = f"file://{tmp_path}/cluster"
    for ahead in (3600, 0):
        with nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as world:
            clock.jumps(ahead)
            with NanoKVCluster(world, url, node="clock", ttl=2.0, timeout=PATIENCE) as two:
                clock.is_right()
                meet(one, two)
                two.put(f"there {ahead}", torch.ones(3), preferred_segment=("n0", 0))
                two.put(f"here {ahead}", torch.ones(3), preferred_segment=0)
                hears(one, f"here {ahead}", "clock")
                homes = [tuple(each.nodes) for each in one.member.nodes.homes]
                assert homes == [("clock", "n0"), ("n0",)]  # it joined last
        until(lambda: one.nodes == ["n0"])
    assert one.stats()["messages_refused_old_incarnation"] == 0


def meet(*members: NanoKVCluster) -> None:
    until(lambda: all(len(member.nodes) == len(members) for member in members), "the membership")


def hears(member: NanoKVCluster, key: str, node: str) -> None:
    until(lambda: member.member.locations.node_of(member.digest(key)) == node, f"the event of {node}")


# --- names ---
def test_a_member_whose_name_nobody_resolves_holds_up_no_other(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """Neither calls, nor events, nor close."""
    end, real = threading.Event(), socket.getaddrinfo

    def hangs(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "slow.places.example":
            end.wait(PATIENCE)
            host = "127.0.0.1"
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    calls.answer(place, "here", "")  # else the members of one host need no names
    one, two = make_cluster(timeout=0.3)
    (slow,) = make_cluster(1, bind="127.0.0.1", advertise="slow.places.example", timeout=0.3)
    begun = time.monotonic()
    with pytest.raises(PeerLost):
        one.put("x", torch.ones(3), preferred_segment=("n2", 0))
    assert time.monotonic() - begun < 2
    two.put("y", torch.ones(3), preferred_segment=0)
    hears(one, "y", "n1")
    begun = time.monotonic()
    two.close()
    assert time.monotonic() - begun < 4
    end.set()
    slow.put("z", torch.ones(3), preferred_segment=0)
    hears(one, "z", "n2")
    until(lambda: _puts(one, "x", "n2"), "the put")  # a while after it was lost it is not asked


def _puts(member: NanoKVCluster, key: str, node: str) -> bool:
    try:
        member.put(key, torch.ones(3), preferred_segment=(node, 0))
    except PeerLost:
        return False
    return True


# --- what is shown ---
def test_what_was_refused_is_in_the_stats(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    stats = two.stats()
    names = {f"messages_refused_{reason.name.lower()}" for reason in Reason}
    names |= {f"messages_dropped_{reason.name.lower()}" for reason in DropReason}
    names |= {"messages_refused", "messages_dropped", "members_refused", "late_puts", "late_put_bytes"}
    assert {name: stats[name] for name in names} == dict.fromkeys(names, 0)
    host, port = two.member.server.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(bytes(300))
        until(lambda: two.stats()["messages_dropped_stranger"] == 1)
    assert two.stats()["messages_dropped"] == 1 and one.stats()["messages_dropped"] == 0


def test_a_secret_is_not_shown() -> None:
    options = ClusterOptions(node="a", secret=b"do not tell anybody")
    assert "tell" not in repr(options) and "tell" not in str(options)
    assert "tell" not in repr(Settings(cluster="etcd://user:do-not-tell@host/name"))
    with pytest.raises(nanokv.errors.InvalidArgument) as caught:
        ClusterOptions(node="a", secret=b"short tell")
    assert "tell" not in str(caught.value)
