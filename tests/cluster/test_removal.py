"""Removals and reads, of objects that lie elsewhere than at their keys' homes: one answer to where an object may be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanokv.cluster import NanoKVCluster, nodes
from nanokv.errors import KeyNotFound, ObjectPinned, PeerLost, WaitTimeout
from tests.support.faults import Limits
from tests.support.until import until

from .conftest import MakeCluster, key_of
from .network import Network

OLD, NEW = torch.zeros(4), torch.ones(4)


def seen(members: list[NanoKVCluster], key: str) -> list[Any]:
    found = [member.get(key, None) for member in members]
    return [None if got is None else got[0].item() for got in found]


@pytest.mark.parametrize("remover", [0, 1, 2])
@pytest.mark.parametrize("hears", [True, False])
def test_an_object_elsewhere_than_at_home_is_removed_by_anybody(
    make_cluster: MakeCluster, network: Network, remover: int, hears: bool
) -> None:
    """By who has put it, by who has it, and by who has heard of it or has not."""
    if not hears:
        network.loses_events()
    members = make_cluster(3)
    keys = [key_of(members[0], "n0", f"{i}") for i in range(3)]
    for key in keys:
        members[0].put(key, OLD, preferred_segment=("n1", 0))
    if hears:
        until(lambda: all(members[2].exists_many(keys)), "the events")
    members[remover].remove(keys[0])
    assert members[remover].remove_many([*keys, "none"]) == [False, True, True, False]
    for key in keys:
        assert seen(members, key) == [None] * 3
        with pytest.raises(KeyNotFound):
            members[remover].remove(key)


def test_a_removal_takes_both_of_two_objects(make_cluster: MakeCluster) -> None:
    """Nobody reads the old one afterwards, though whoever removes has heard of the new one last."""
    members = make_cluster(3)
    keys = [key_of(members[0], "n0", f"{i}") for i in range(2)]
    for key in keys:
        members[0].put(key, OLD, preferred_segment=("n1", 0))
        members[0].put(key, NEW)
    until(lambda: all(members[2].exists_many(keys)), "the events")
    members[2].remove(keys[0])
    assert members[2].remove_many(keys) == [False, True]
    for key in keys:
        assert seen(members, key) == [None] * 3


def test_an_object_that_is_left_is_told(make_cluster: MakeCluster) -> None:
    one, two, _ = make_cluster(3)
    key = key_of(one, "n0")
    one.put(key, OLD, preferred_segment=("n1", 0))
    one.put(key, NEW)
    with two.world.pin(key):
        with pytest.raises(ObjectPinned):
            one.remove(key)
        assert one.remove_many([key]) == [False]
        assert one.exists(key)
    one.remove(key)
    assert not one.exists(key)


def test_more_keys_than_one_message(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    keys = [f"many{i}" for i in range(5000)]
    one.put_many(keys[:10] + keys[-10:], torch.ones(20, 3), preferred_segment=("n1", 0))
    assert one.remove_many(keys) == [True] * 10 + [False] * 4980 + [True] * 10
    assert not any(two.exists_many(keys))


def test_a_removal_that_a_node_did_not_hear_of_is_not_silent(make_cluster: MakeCluster, network: Network) -> None:
    """It may have an object, wherever the home is."""
    one, two, three = make_cluster(3)
    here, there = key_of(one, "n0"), key_of(one, "n1")
    for key in (here, there):
        one.put(key, OLD)
    network.loses_messages("n2.0")
    for key in (here, there):
        with pytest.raises(PeerLost, match="node n2 did not remove"):
            one.remove(key)
    with pytest.raises(PeerLost, match="node n2 did not remove"):
        one.remove_many([here])
    network.is_well()
    assert one.stats()["peer_lost"] == 3
    assert [member.remove_many([here, there]) for member in (two, three)] == [[False, False]] * 2  # the others did


# --- a node that has an object, and does not answer ---
CALLS: dict[str, Callable[[NanoKVCluster, str], Any]] = {
    "get": lambda member, key: member.get(key, None),
    "exists": lambda member, key: member.exists(key) or None,
    "get_many": lambda member, key: member.get_many([key])[0],
    "exists_many": lambda member, key: member.exists_many([key])[0] or None,
    "prefix_length": lambda member, key: member.prefix_length([key]) or None,
    "bring": lambda member, key: member.bring([key])[0] or None,
}


@pytest.mark.parametrize("lost", ["raise", "miss"])
def test_a_node_that_is_known_to_have_an_object_and_is_silent_may_have_it(
    make_cluster: MakeCluster, network: Network, limits: Limits, lost: str
) -> None:
    limits(nodes, AVOIDED=0.0)
    members = make_cluster(4, lost=lost)
    one = members[0]
    homes = {f"k{i}": {each.of(one.digest(f"k{i}")) for each in one.member.nodes.homes} for i in range(200)}
    key = next(key for key, found in homes.items() if "n3" not in found)
    other = next(other for other, found in homes.items() if "n3" not in found and other != key)
    one.put(key, NEW, preferred_segment=("n3", 0))
    network.loses_messages("n3.0")
    for call in CALLS.values():
        if lost == "raise":
            with pytest.raises(PeerLost, match="node n3"):
                call(one, key)
        else:
            assert call(one, key) is None
    with pytest.raises(PeerLost if lost == "raise" else WaitTimeout):
        one.wait([key], timeout=0.01)
    assert one.stats()["peer_lost"] >= len(CALLS)
    assert one.get(other, None) is None  # of which nothing is known
    network.is_well()
    assert torch.equal(one.get(key), NEW)


def test_a_hint_that_is_old_leads_to_the_node_still(make_cluster: MakeCluster, network: Network) -> None:
    """The object lies there in another place: it was put anew, and the event has not come."""
    one, two, _ = make_cluster(3)
    homes = {f"k{i}": {each.of(one.digest(f"k{i}")) for each in one.member.nodes.homes} for i in range(200)}
    key = next(key for key, found in homes.items() if "n1" not in found)
    one.put(key, OLD, preferred_segment=("n1", 0))
    network.loses_events()
    two.world.remove(key)
    two.world.put("between", OLD)
    two.world.put(key, NEW)
    assert torch.equal(one.get(key), NEW) and one.exists(key) and one.exists_many([key]) == [True]
    got = one.get_many([key])[0]
    assert got is not None and torch.equal(got, NEW)
    one.remove(key)
    assert not two.world.exists(key)
