"""`subscribe`: what a listener hears of all nodes."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from nanokv.cluster import Change, ChangeKind, NanoKVCluster, events
from nanokv.cluster.messages.sealed import Sender
from nanokv.device.segment.layout import OBJ_HEADER
from nanokv.device.segment.location import EVICTED_NODE, GONE_NODE, LOCATION, STORED_NODE
from nanokv.errors import InvalidArgument
from tests.support.faults import Calls, Limits
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


# --- what a put sets off ------------------------------------------------------------------------
def row_of(member: NanoKVCluster, key: str, kind: int) -> tuple[int, ...]:
    """What is told of an object of a member's world, as its header says."""
    meta = member.world.get_location(key)
    slot = (meta.header_off - member.world.engine.geometry.offsets["hdr_base"]) // OBJ_HEADER.size
    place = (meta.owner_rank, slot, meta.epoch, meta.payload_off, meta.bytes_total)
    return (meta.key_hash, meta.key_check, kind, *place, 0)


def test_each_field_of_an_event_is_the_header_s(make_cluster: MakeCluster, calls: Calls) -> None:
    """Of what is stored, removed and evicted, as it is sent, and in this order."""
    one, two = make_cluster()
    sent = calls.noted(two.member.publisher, "publish")
    expected = []
    for i in range(9):
        one.put(f"k{i}", torch.ones(20 + i, dtype=torch.uint8), preferred_segment=("n1", 0))
        expected.append(row_of(two, f"k{i}", STORED_NODE.value))
    two.world.flush()  # of what comes and goes between two looks of the poller nothing is told
    gone = [row_of(two, "k4", GONE_NODE.value), row_of(two, "k7", GONE_NODE.value)]
    rest = {row_of(two, f"k{i}", EVICTED_NODE.value) for i in range(9) if i not in (4, 7)}
    one.remove("k4")
    one.remove("k7")
    two.world.flush()
    two.world.evict_until_below(0.0)

    def told() -> list[tuple[int, ...]]:
        words = np.frombuffer(b"".join(body for (body,) in sent), np.int64)
        return [tuple(row) for row in words.reshape(-1, len(LOCATION.fields)).tolist()]

    until(lambda: len(told()) == 9 + 2 + 7, "all that happened")
    assert told()[:11] == [*expected, *gone] and set(told()[11:]) == rest
    assert two.stats()["events_told"] == 18 and two.stats()["events_untold"] == 0
    assert [each.world.engine.poller.intake.made for each in (one, two)] == [0, 0], "nobody listens"


class Kept:
    """A listener that keeps what a node has, by what it hears, one change after the other."""

    def __init__(self) -> None:
        self.has: dict[object, int] = {}
        self.odd: list[Change] = []  # an object comes where one is, or goes that is not there

    def __call__(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.kind is ChangeKind.STORED:
                self.odd += [change] * (change.key in self.has)
                self.has[change.key] = change.nbytes
            elif change.kind in (ChangeKind.REMOVED, ChangeKind.EVICTED):
                self.odd += [change] * (self.has.pop(change.key, None) != change.nbytes)


def test_changes_come_in_the_order_in_which_they_happen(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    far, near = Kept(), Kept()
    one.subscribe(far)
    two.subscribe(near)
    for i in range(600):
        key = f"{i % 7}"
        if two.world.exists(key):
            two.world.remove(key)
        else:
            two.world.put(key, torch.ones(1 + i, dtype=torch.uint8))
    there = [key for key in map(str, range(7)) if two.world.exists(key)]
    has = {two.digest(key): two.world.get_location(key).bytes_total for key in there}
    for kept in (far, near):
        until(lambda kept=kept: kept.has == has, "the end")  # type: ignore[misc]
    assert near.odd == [], "the other one also hears what the headers say when it first reads them"


def test_more_than_there_is_room_for_is_a_loss_that_is_mended(
    make_cluster: MakeCluster, limits: Limits, calls: Calls
) -> None:
    """While the thread that tells others stands: listeners of both nodes, and the table, have all in the end."""
    limits(events, ROOM=64)
    one, two = make_cluster()
    goes_on, stands = threading.Event(), threading.Event()

    def stand(*_: object) -> None:
        stands.set()
        goes_on.wait(60)

    far, near = Heard(), Heard()
    one.subscribe(far)
    two.subscribe(near)
    calls.instead(two.member.publisher, "publish", stand)
    two.world.put("first", torch.ones(1))
    assert stands.wait(60)
    keys = [f"k{i}" for i in range(300)]
    two.world.put_many(keys, torch.ones(300, 4))
    two.world.flush()
    assert two.stats()["events_untold"] == 300 - 64
    calls.go_on()
    goes_on.set()
    stored = {("n1", 0, two.digest(key), 16) for key in keys}
    for heard in (far, near):
        until(lambda heard=heard: stored <= heard.of(ChangeKind.STORED), "all objects")  # type: ignore[misc]
        assert ("n1", -1, None, 0) in heard.of(ChangeKind.MISSED)
    until(lambda: all(one.member.locations.node_of(one.digest(key)) == "n1" for key in keys), "the headers")
    one.put("after", torch.ones(2), preferred_segment=("n1", 0))
    until(lambda: ("n1", 0, one.digest("after"), 8) in far.of(ChangeKind.STORED), "what comes after")
