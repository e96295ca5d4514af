"""What members tell each other of their objects: the table of locations, gets in two rounds, and waits."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nanokv import NanoKVCache
from nanokv.cluster import NanoKVCluster
from nanokv.cluster.card import WorldId
from nanokv.cluster.changes import Change, ChangeKind
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.wire.exchanges import WireGets
from nanokv.device.machines.records import Words
from nanokv.device.segment.location import GONE_NODE, LOCATION
from nanokv.errors import KeyNotFound, PeerLost, WaitTimeout
from nanokv.types import KeyDigest
from tests.support.faults import Calls
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, PATIENCE, MakeCluster, key_of
from .network import Network, over_link


def knows(member: NanoKVCluster, key: str, node: str | None) -> bool:
    return member.member.locations.node_of(member.digest(key)) == node


def no_first_rounds(member: NanoKVCluster, calls: Calls) -> None:
    for name in ("locate", "get_one"):
        calls.fail(over_link(member)[0].rounds, name, AssertionError("the first two rounds were asked for"))


@pytest.mark.parametrize("link", ["nixl"])
def test_an_object_is_found_where_it_was_put(make_cluster: MakeCluster, calls: Calls) -> None:
    """Its home is n1; it lies on n2, and n0 learns of it by an event."""
    zero, one, two = make_cluster(3)
    key, value = key_of(zero, "n1"), torch.randn(700, 3)
    one.put(key, value, preferred_segment=("n2", 0))
    until(lambda: knows(zero, key, "n2"), "the event")
    no_first_rounds(zero, calls)
    assert torch.equal(zero.get(key), value)
    big = torch.randn(100_000)
    two.put("big", big, preferred_segment=("n2", 0))
    until(lambda: knows(zero, "big", "n2"))
    assert torch.equal(zero.get("big"), big)


@pytest.mark.parametrize("link", ["nixl"])
def test_many_in_two_rounds(make_cluster: MakeCluster, calls: Calls) -> None:
    zero, one, _two = make_cluster(3)
    keys = [f"k{i}" for i in range(150)]
    rows = torch.arange(150 * 9).reshape(150, 9)
    one.put_many(keys[:75], rows[:75], preferred_segment=("n1", 0))
    one.put_many(keys[75:], rows[75:], preferred_segment=("n2", 0))
    until(lambda: all(knows(zero, key, "n1" if i < 75 else "n2") for i, key in enumerate(keys)), "the events")
    no_first_rounds(zero, calls)
    out = torch.zeros_like(rows)
    assert all(zero.get_many(keys, dsts=out)) and torch.equal(out, rows)
    got = zero.get_many(keys)
    assert all(a is not None and torch.equal(a, b) for a, b in zip(got, rows, strict=True))


def test_looks_at_known_places(make_cluster: MakeCluster, network: Network) -> None:
    zero, one, two = make_cluster(3)
    keys = [key_of(zero, "n0", f"p{i}") for i in range(90)]
    one.put_many(keys, torch.ones(90, 4), preferred_segment=("n2", 0))
    until(lambda: all(knows(zero, key, "n2") for key in keys), "the events")
    assert zero.exists_many([*keys, "none"]) == [True] * 90 + [False] and zero.exists(keys[3])
    assert zero.prefix_length([*keys[:40], "none", *keys]) == 40
    network.loses_events(two)
    two.world.remove(keys[7])
    two.put("another", torch.ones(4), preferred_segment=("n2", 0))  # takes its slot
    assert not zero.exists(keys[7]) and zero.prefix_length(keys) == 7
    assert zero.exists_many(keys) == [key != keys[7] for key in keys]
    assert zero.get(keys[7], None) is None


def test_a_node_that_cannot_be_read_at_first_is_read_later(
    make_cluster: MakeCluster, tmp_path: Path, calls: Calls
) -> None:
    """Objects that it had before it was known, and whose home is another node, are told by nothing but its headers."""
    copied = calls.fail(
        WireGets, "headers", PeerLost("just now"), at=range(1, 4), when=lambda gets, node, *_: node.name == "n1"
    )
    (zero,) = make_cluster(1)
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as world:
        world.put_many([f"k{i}" for i in range(8)], torch.ones(8, 5))
        with NanoKVCluster(world, f"file://{tmp_path}/cluster", node="n1", ttl=2.0) as one:
            assert any(one.home(f"k{i}") == "n0" for i in range(8))
            zero.wait([f"k{i}" for i in range(8)], timeout=60)
    assert [node.name for _, node, *_ in copied].count("n1") >= 3


def test_what_was_removed_is_forgotten(make_cluster: MakeCluster) -> None:
    zero, one = make_cluster(2)
    key = key_of(zero, "n1")
    one.put(key, torch.ones(4))
    until(lambda: knows(zero, key, "n1"))
    one.world.remove(key)
    with pytest.raises(KeyNotFound):
        zero.get(key)
    until(lambda: knows(zero, key, None), "the event of its removal")


def test_what_goes_while_headers_are_read_is_forgotten(make_cluster: MakeCluster, calls: Calls) -> None:
    """And what is put again then is found where it lies, and listeners hear of all in that order."""
    read, goes_on = threading.Event(), threading.Event()
    copied = WireGets.headers

    def late(gets: WireGets, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        parts = list(copied(gets, node, rank))
        read.set()
        assert goes_on.wait(60)
        yield from parts

    zero, one = make_cluster(2)
    gone, again = key_of(zero, "n1"), key_of(zero, "n1", "again")
    one.put(gone, torch.ones(4))
    one.put(again, torch.ones(4))
    until(lambda: knows(zero, gone, "n1") and knows(zero, again, "n1"))
    heard = list[Change]()
    zero.subscribe(heard.extend)
    calls.instead(WireGets, "headers", late, when=lambda _, node, *__: node.name == "n1")
    card = zero.member.nodes["n1"].cards[0]
    zero.member.events.lost(Sender(card.member, card.incarnation))
    assert read.wait(60)
    one.world.remove(gone)
    one.world.remove(again)
    one.put("another", torch.ones(4), preferred_segment=("n1", 0))  # takes a slot
    one.put(again, torch.full((9,), 2.0))
    until(lambda: knows(zero, gone, None) and zero.member.locations.size_of(zero.digest(again)) == 36, "the events")
    goes_on.set()
    until(lambda: any(change.nbytes == 16 and change.kind is ChangeKind.STORED for change in heard), "the headers")
    one.put("last", torch.ones(4), preferred_segment=("n1", 0))
    until(lambda: knows(zero, "last", "n1"), "a later event")
    assert knows(zero, gone, None)
    assert zero.member.locations.size_of(zero.digest(again)) == 36
    last = {change.key: change for change in heard}
    assert last[zero.digest(gone)].kind is ChangeKind.REMOVED
    assert last[zero.digest(again)][::4] == (ChangeKind.STORED, 36)


def test_an_old_location_misleads_nobody(make_cluster: MakeCluster) -> None:
    """The table says where another object lies now, or what cannot be."""
    zero, one = make_cluster(2)
    keys = [key_of(zero, "n1", f"x{i}") for i in range(30)]
    for i, key in enumerate(keys):
        one.put(key, torch.full((50,), i))
    until(lambda: all(knows(zero, key, "n1") for key in keys))
    table = zero.member.locations.table
    rng = np.random.default_rng(3)
    used = np.flatnonzero(table["node"])
    for name in ("slot", "rank", "epoch", "payload", "nbytes"):
        kept = table.copy()
        table[name][used] = rng.permutation(table[name][used])
        if name != "epoch":
            table[name][used[:10]] = rng.integers(-(1 << 62), 1 << 62, 10)
        assert all(torch.equal(zero.get(key), torch.full((50,), i)) for i, key in enumerate(keys))
        assert all(
            torch.equal(got, torch.full((50,), i)) for i, got in enumerate(zero.get_many(keys)) if got is not None
        )
        table[:] = kept


@pytest.mark.parametrize("link", ["nixl"])
def test_a_location_of_a_former_world_is_of_no_use(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The same key gets the same slot and epoch in a new world, and what was heard of the old one would name a use of
    the slot that may be still to come."""
    zero, one = make_cluster(2)
    key = key_of(zero, "n1")
    one.put(key, torch.ones(4))
    until(lambda: knows(zero, key, "n1"))
    assert over_link(zero)[0].get_known(zero.member.nodes["n1"], zero.digest(key), Patience(PATIENCE)) is not None
    old = one.world.get_location(key)
    one.world.close()
    until(lambda: zero.nodes == ["n0"])
    zero.member.events.close()  # it hears nothing of the new world
    with NanoKVCache(HEAP_BYTES, page_bytes=PAGE) as world:
        again = NanoKVCluster(world, f"file://{tmp_path}/cluster", node="n1", ttl=2.0, link="nixl")
        until(lambda: zero.nodes == ["n0", "n1"])
        again.put(key, torch.zeros(4))
        new = world.get_location(key)
        assert (new.header_off, new.epoch, new.payload_off) == (old.header_off, old.epoch, old.payload_off)
        assert over_link(zero)[0].get_known(zero.member.nodes["n1"], zero.digest(key), Patience(PATIENCE)) is None
        assert torch.equal(zero.get(key), torch.zeros(4))


def test_events_of_another_incarnation_are_not_believed(make_cluster: MakeCluster) -> None:
    zero, one = make_cluster(2)
    key = key_of(zero, "n1")
    one.put(key, torch.ones(4))
    until(lambda: knows(zero, key, "n1"))
    (card,) = zero.member.nodes["n1"].cards
    row = np.zeros(1, LOCATION.dtype)
    row["key_hash"], row["key_check"] = zero.digest("forged")
    row["node"] = 1
    zero.member.events.hear(Sender(card.member, card.incarnation - 1), row.tobytes())
    assert knows(zero, "forged", None)
    zero.member.events.hear(Sender(card.member, card.incarnation), row.tobytes())
    assert knows(zero, "forged", "n1")


@pytest.mark.parametrize("link", ["nixl"])
@pytest.mark.parametrize("field", [name for name in LOCATION.offsets if name != "node"])
def test_a_torn_entry_is_not_used(make_cluster: MakeCluster, field: str, calls: Calls) -> None:
    """One word is of another object: no transfer begins with it."""
    zero, one = make_cluster(2)
    key = key_of(zero, "n1")
    one.put(key, torch.ones(4))
    until(lambda: knows(zero, key, "n1"))
    zero.member.events.close()  # who reads the headers of n1 anew would mend the entry
    table = zero.member.locations.table
    (at,) = np.flatnonzero(table["node"])
    table[field][at] += 1 << 12
    calls.fail(over_link(zero)[0].rounds, "fetch", AssertionError("a transfer was begun"))
    assert over_link(zero)[0].get_known(zero.member.nodes["n1"], zero.digest(key), Patience(PATIENCE)) is None


def test_a_node_that_joins_reads_the_headers_of_the_others(make_cluster: MakeCluster) -> None:
    zero, one = make_cluster(2)
    keys = [f"k{i}" for i in range(60)]
    for key in keys:
        zero.put(key, torch.ones(3), preferred_segment=("n1", 0))
    (two,) = make_cluster(1)
    until(lambda: all(knows(two, key, "n1") for key in keys), "the headers")
    assert all(torch.equal(two.get(key), torch.ones(3)) for key in keys)
    one.close()
    until(lambda: two.nodes == ["n0", "n2"])


def test_a_wait_is_woken(make_cluster: MakeCluster) -> None:
    zero, one = make_cluster(2)
    keys = [key_of(zero, node, "w") for node in ("n0", "n1")]
    timers = [threading.Timer(0.1, lambda key=key: one.put(key, torch.ones(3))) for key in keys]
    for timer in timers:
        timer.start()
    zero.wait(keys, timeout=60)
    zero.wait(keys[0], timeout=0)
    assert zero.exists_many(keys) == [True, True]
    with pytest.raises(WaitTimeout, match="1 of 2"):
        zero.wait([keys[0], "never"], timeout=0.05)
    for timer in timers:
        timer.join()


def test_a_wait_is_not_woken_by_other_objects(make_cluster: MakeCluster) -> None:
    zero, one = make_cluster(2)
    key, events = key_of(zero, "n1"), zero.member.events
    looked: list[bool] = []

    def matters() -> bool:
        looked.append(zero.member.locations.node_of(zero.digest(key)) is not None)
        return looked[-1]

    waiting = threading.Thread(target=events.wait, args=(events.heard, 600.0, matters), daemon=True)
    waiting.start()
    for i in range(20):
        before = events.heard
        one.put(key_of(zero, "n1", f"other{i}"), torch.ones(3))
        until(lambda before=before: events.heard > before, "an event")  # type: ignore[misc]
    assert waiting.is_alive() and not any(looked)
    one.put(key, torch.ones(3))
    waiting.join(60)
    assert not waiting.is_alive() and looked[-1]


def test_the_table_is_bounded() -> None:
    locations = Locations(64)
    rows = np.zeros(5000, LOCATION.dtype)
    rng = np.random.default_rng(1)
    for name in ("key_hash", "key_check"):
        rows[name] = rng.integers(-(1 << 62), 1 << 62, 5000)
    rows["node"], rows["slot"] = 1, np.arange(5000)
    a, b = WorldId("a", b"1"), WorldId("b", b"1")
    locations.learn(a, rows)
    keys = np.stack([rows["key_hash"], rows["key_check"]], 1)
    places, names = locations.nodes_of(keys)
    assert 0 < (places > 0).sum() <= 64 and names[1] == "a" and places[-1] == 1
    last = KeyDigest(*keys[-1].tolist())
    gone = rows[-1:].copy()
    gone["node"], gone["epoch"] = GONE_NODE.value, 7
    locations.learn(a, gone)  # of another epoch
    assert locations.node_of(last) == "a"
    gone["epoch"] = 0
    locations.learn(b, gone)
    assert locations.node_of(last) == "a"
    locations.learn(a, gone)
    assert locations.node_of(last) is None
    locations.forget(a)
    assert not locations.nodes_of(keys)[0].any()
