"""A cluster with `seal="all"`: all that its members send each other is enciphered, and who has another seal is out."""

import json
import logging
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nanokv
from nanokv.cluster import NanoKVCluster
from nanokv.cluster import member as parts
from nanokv.cluster.observer import Observer
from nanokv.cluster.wire import ciphers
from nanokv.errors import LinkUnavailable
from nanokv.tools.cli import app
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import MakeCluster, key_of, serves_nothing

MISSING = LinkUnavailable("seal='all' needs the system's libcrypto, and there is none")


@pytest.fixture
def link() -> str:
    """All is sealed here."""
    return "sealed"


def test_objects_events_and_questions(make_cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, three = make_cluster(3)
    for size in (10, 50_000):
        key, value = key_of(one, "n1", f"of {size}"), torch.arange(size)
        one.put(key, value)
        assert torch.equal(two.world.get(key), value) and torch.equal(three.get(key), value)
        until(lambda: three.member.locations.node_of(three.digest(key)) == "n1", "the event")  # noqa: B023
        three.remove(key)
        assert not one.exists(key)
    names = [f"k{i}" for i in range(300)]
    assert not any(one.put_many(names, [torch.full((50,), i) for i in range(300)]))
    assert all(got is not None and torch.equal(got, torch.full((50,), i)) for i, got in enumerate(two.get_many(names)))
    for member in (one, two, three):
        assert not {name: n for name, n in member.stats().items() if name.startswith("messages_") and n}
    url = f"file://{tmp_path}/cluster"
    members = json.loads(CliRunner().invoke(app, ["ls", url, "--json"]).output)
    assert [(each["seal"], each["state"]) for each in members] == [("all", "alive")] * 3
    stats = json.loads(CliRunner().invoke(app, ["stats", url, "--json"]).output)["members"]
    assert [each["seal"] for each in stats] == ["all"] * 3 and sum(each["ready"] for each in stats) == 300


def test_members_of_different_seals_leave_each_other_out(
    make_cluster: MakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (one,) = make_cluster(1)
    with caplog.at_level(logging.WARNING), nanokv.NanoKVCache(4 << 20, page_bytes=4096) as world:
        other = NanoKVCluster(world, f"file://{tmp_path}/cluster", node="other", seal="heads")
        until(lambda: other.member.nodes.refused == one.member.nodes.refused == 1, "the cards")
        assert one.nodes == ["n0"] and other.nodes == ["other"]
        other.close()
    for its, mine in (("all", "heads"), ("heads", "all")):
        assert (
            f"its seal is {its!r}, this member's {mine!r}: give all members of a cluster the same `seal`" in caplog.text
        )


def test_without_libcrypto_no_member_is_made_and_none_is_asked(
    make_cluster: MakeCluster, calls: Calls, tmp_path: Path
) -> None:
    make_cluster(1)
    url = f"file://{tmp_path}/cluster"
    calls.fail(parts, "libcrypto", MISSING)
    with nanokv.NanoKVCache(4 << 20, page_bytes=4096) as world, pytest.raises(LinkUnavailable, match="libcrypto"):
        NanoKVCluster(world, url, node="n1", seal="all")
    calls.go_on()
    with Observer(url) as observer:
        (member,) = observer.members()
        assert member.card is not None and member.card.seal == "all"


def test_segments_that_the_wire_does_not_reach_cannot_be_sealed(tmp_path: Path) -> None:
    refused = pytest.raises(LinkUnavailable, match="seal='all' is of the wire")
    with nanokv.NanoKVCache(4 << 20, page_bytes=4096) as world, serves_nothing(), refused:
        NanoKVCluster(world, f"file://{tmp_path}/cluster", node="n0", seal="all")


def test_keys_move_on_in_both_directions(make_cluster: MakeCluster, limits: Limits) -> None:
    limits(ciphers, PARCELS_A_KEY=2)
    one, two = make_cluster()
    for i in range(20):
        key, value = key_of(one, "n1", f"k{i}"), torch.full((40_000,), float(i))
        one.put(key, value)
        assert torch.equal(one.get(key), value) and torch.equal(two.get(key), value)
