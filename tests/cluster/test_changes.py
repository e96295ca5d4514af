"""`subscribe`: what a listener hears of all nodes."""

import threading
from collections.abc import Sequence

import pytest
import torch

from nanokv.cluster import Change, ChangeKind
from nanokv.cluster.messages.sealed import Sender
from nanokv.errors import InvalidArgument
from tests.support.until import until

from .conftest import HEAP_BYTES, MakeCluster, key_of
from .network import Network


class Heard:
    """A listener, and what it has heard."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._inside = threading.Lock()

    def __call__(self, changes: Sequence[Change]) -> None:
        assert self._inside.acquire(blocking=False), "two calls at a time"
        self.changes += changes
        self._inside.release()

    def of(self, kind: ChangeKind) -> set[tuple[object, ...]]:
        """The changes of a kind, without it."""
        return {change[1:] for change in self.changes if change.kind is kind}


def test_objects_of_all_nodes(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    heard, again = Heard(), Heard()
    stop = one.subscribe(heard)
    one.subscribe(again)
    here, there = key_of(one, "n0"), key_of(one, "n1")
    for member, key in ((two, here), (one, there)):
        member.put(key, torch.ones(5, dtype=torch.float64))
    stored = {("n0", 0, one.digest(here), 40), ("n1", 0, one.digest(there), 40)}
    until(lambda: heard.of(ChangeKind.STORED) == stored, "both objects")
    one.remove(there)
    two.remove(here)
    until(lambda: heard.of(ChangeKind.REMOVED) == stored, "their end")
    until(lambda: again.of(ChangeKind.REMOVED) == stored, "their end")
    stop()
    one.put(here, torch.ones(5))
    until(lambda: ("n0", 0, one.digest(here), 20) in again.of(ChangeKind.STORED), "another object")
    assert ("n0", 0, one.digest(here), 20) not in heard.of(ChangeKind.STORED)


def test_evictions_are_told_as_such(make_cluster: MakeCluster) -> None:
    one, _ = make_cluster()
    heard = Heard()
    one.subscribe(heard)
    for i in range(12):
        one.put(key_of(one, "n1", f"large{i}"), torch.zeros(HEAP_BYTES // 8, dtype=torch.uint8))
        # of what is evicted before the owner's poller has seen it, nothing is told
        until(lambda: len(heard.of(ChangeKind.STORED)) == i + 1, "all objects")  # noqa: B023
    until(lambda: len(heard.of(ChangeKind.EVICTED)) >= 4, "evictions")
    assert heard.of(ChangeKind.EVICTED) <= heard.of(ChangeKind.STORED)


def test_nodes_that_come_and_go(make_cluster: MakeCluster) -> None:
    (one,) = make_cluster(1)
    heard = Heard()
    one.subscribe(heard)
    (two,) = make_cluster(1)
    until(lambda: heard.of(ChangeKind.NODE_JOINED) == {("n1", -1, None, 0)}, "the node")
    two.close()
    until(lambda: heard.of(ChangeKind.NODE_LEFT) == {("n1", -1, None, 0)}, "its end")


def test_after_a_gap_all_is_told_anew(make_cluster: MakeCluster, network: Network) -> None:
    one, two = make_cluster()
    heard = Heard()
    one.subscribe(heard)
    keys = [key_of(one, "n1", f"k{i}") for i in range(5)]
    network.loses_events(two)
    assert not any(two.put_many(keys, torch.ones(5, 3)))
    two.world.flush()
    card = one.member.nodes["n1"].cards[0]
    heard.changes.clear()
    one.member.events.lost(Sender(card.member, card.incarnation))
    stored = {("n1", 0, one.digest(key), 12) for key in keys}
    until(lambda: heard.of(ChangeKind.STORED) == stored, "what the node has")
    assert heard.changes[0] == Change(ChangeKind.MISSED, "n1")


def test_a_listener_that_raises_stays(make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = make_cluster()
    heard = Heard()

    def raises(changes: Sequence[Change]) -> None:
        raise ValueError("of a listener")

    one.subscribe(raises)
    one.subscribe(heard)
    one.put("x", torch.ones(1))
    until(lambda: bool(heard.of(ChangeKind.STORED)), "the object")
    assert "of a listener" in caplog.text


def test_wrong_listeners(make_cluster: MakeCluster) -> None:
    (deaf,) = make_cluster(1, locations=0)
    with pytest.raises(InvalidArgument, match="follows no events"):
        deaf.subscribe(print)
    with pytest.raises(InvalidArgument, match="a function of a sequence"):
        deaf.subscribe(5)  # type: ignore[arg-type]
