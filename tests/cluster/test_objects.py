"""The calls about objects, across two and three nodes: what a user of one cache knows holds here too."""

import math
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor

from nanokv import Hold, NanoKVCache
from nanokv.cluster import NanoKVCluster
from nanokv.cluster.links.base import LinkUnavailable
from nanokv.cluster.pulling import Pull
from nanokv.cluster.wire import exchanges
from nanokv.cluster.wire.client import WireClient
from nanokv.device.segment.layout import unpack
from nanokv.errors import (
    CacheClosed,
    DuplicateKey,
    InvalidArgument,
    KeyNotFound,
    NotReady,
    ObjectPinned,
    OutOfMemory,
    PeerLost,
    ReuseViolation,
)
from tests.support.faults import Calls, Limits
from tests.support.needed import leave_out
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, MakeCluster, key_of, way_of
from .network import Network, over_link

SELDOM = ("sealed", "nixl alone")  #: ways whose own tests are elsewhere
TENSORS = [
    torch.arange(10, dtype=torch.int64),
    torch.randn(3, 4, 5, dtype=torch.float32),
    torch.randn(7).to(torch.bfloat16),
    torch.tensor(3.5, dtype=torch.float64),
    torch.zeros(0, 3),
    torch.ones(5, dtype=torch.bool),
    torch.randn(6, 4).T,
    torch.arange(100_000, dtype=torch.int32),
    torch.randn(4, dtype=torch.complex64).conj(),
]


@pytest.fixture(params=["wire", "mapped", "nixl", *(pytest.param(way, marks=pytest.mark.exhaustive) for way in SELDOM)])
def link(request: pytest.FixtureRequest) -> str:
    """All ways by which nodes exchange objects."""
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{list(t.shape)}")
def test_a_tensor_comes_back_as_it_was(make_cluster: MakeCluster, tensor: torch.Tensor) -> None:
    one, two = make_cluster()
    for target in ("n0", "n1"):
        one.put(target, tensor, preferred_segment=(target, 0))
        key = key_of(one, "n1") if target == "n1" else key_of(one, "n0")
        one.put(key, tensor)
        for member in (one, two):
            got = member.get(key)
            assert got.dtype == tensor.dtype and torch.equal(got, tensor)
        one.remove(key)


def test_objects_go_to_their_homes_and_are_found_from_everywhere(make_cluster: MakeCluster) -> None:
    members = make_cluster(3)
    for i in range(120):
        members[i % 3].put(f"k{i}", torch.full((i + 1,), i))
    assert [member.world.segment_count() for member in flushed(members)] == [
        sum(members[0].home(f"k{i}") == member.node for i in range(120)) for member in members
    ]
    for member in members:
        assert all(torch.equal(member.get(f"k{i}"), torch.full((i + 1,), i)) for i in range(120))
        assert [member.exists(f"k{i}") for i in (3, 119, 120)] == [True, True, False]
        assert "k7" in member and "k120" not in member


def flushed(members: list[NanoKVCluster]) -> list[NanoKVCluster]:
    for member in members:
        member.world.flush()
    return members


def test_preferred_segments(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    one.put("a", torch.ones(3), preferred_segment=("n1", 0))
    one.put("b", torch.ones(3), preferred_segment=("n0", 0))
    one.put("c", torch.ones(3), preferred_segment=0)
    one.put("d", torch.ones(3), preferred_segment=("n1", None))
    assert [two.world.exists(key) for key in "abcd"] == [True, False, False, True]
    for wrong in (("n1", 1), ("n1", -1), ("n1",), "n1", 1, ("n0", 3), (1, 0)):
        with pytest.raises(InvalidArgument):
            one.put("e", torch.ones(3), preferred_segment=wrong)  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="no node 'n7'; it has n0, n1"):
        one.put("e", torch.ones(3), preferred_segment=("n7", 0))


def test_get_into_a_tensor(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    key, value = key_of(one, "n1"), torch.randn(100, 3)
    two.put(key, value)
    dst = torch.zeros(100, 3)
    assert one.get(key, dst=dst) is dst and torch.equal(dst, value)
    other = torch.zeros(300, dtype=torch.int32)
    assert torch.equal(one.get(key, dst=other, reinterpret=True).view(torch.float32), value.flatten())
    for wrong in (torch.zeros(300), torch.zeros(100, 3, dtype=torch.int32), torch.zeros(100, 4), torch.zeros(3, 100).T):
        before = wrong.clone()
        with pytest.raises(InvalidArgument):
            one.get(key, dst=wrong)
        assert torch.equal(wrong, before)
    with pytest.raises(InvalidArgument, match="reinterpret"):
        one.get(key, reinterpret=True)


def test_misses(make_cluster: MakeCluster) -> None:
    one, _ = make_cluster()
    for node in ("n0", "n1"):
        key = key_of(one, node, "missing")
        with pytest.raises(KeyNotFound):
            one.get(key)
        assert one.get(key, None) is None and not one.exists(key)
        with pytest.raises(KeyNotFound):
            one.remove(key)


def test_an_object_that_is_being_written(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    key = key_of(one, "n1")
    two.world.open_for_write(key, 100)
    with pytest.raises(NotReady):
        one.get(key)
    assert one.get(key, None) is None and not one.exists(key)
    with pytest.raises(DuplicateKey):
        one.put(key, torch.ones(3))
    two.world.commit(key)
    assert one.get(key).shape == (100,)


@pytest.mark.usefixtures("way")
def test_duplicates_move_nothing(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    key = key_of(one, "n1")
    one.put(key, torch.ones(4))
    before = two.world.stats()["used_pages"]
    with pytest.raises(DuplicateKey):
        one.put(key, torch.zeros(4000))
    one.put(key, torch.zeros(4000), exist_ok=True)
    assert torch.equal(two.get(key), torch.ones(4)) and two.world.stats()["used_pages"] == before


@pytest.mark.parametrize("home", ["n0", "n1"])
def test_a_wrong_argument_is_refused_whichever_node_the_key_belongs_to(make_cluster: MakeCluster, home: str) -> None:
    one, _ = make_cluster()
    wrong: Any = 1
    with pytest.raises(InvalidArgument, match="exist_ok"):
        one.put(key_of(one, home), torch.ones(4), exist_ok=wrong)


def test_removal(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    key = key_of(one, "n1")
    one.put(key, torch.ones(4))
    with two.world.pin(key), pytest.raises(ObjectPinned):
        one.remove(key)
    one.remove(key)
    assert not two.world.exists(key)
    keys = [f"r{i}" for i in range(50)]
    one.put_many(keys, torch.arange(50).reshape(50, 1))
    assert one.remove_many([*keys, "none"]) == [True] * 50 + [False]
    assert not any(two.exists_many(keys))


@pytest.mark.usefixtures("way")
def test_room_on_another_node(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(world={"evict": False})
    fill = torch.zeros(HEAP_BYTES // 8, dtype=torch.uint8)
    for i in range(8):
        one.put(f"fill{i}", fill, preferred_segment=("n1", 0))
    with pytest.raises(OutOfMemory, match="node n1"):
        one.put("more", fill, preferred_segment=("n1", 0))
    with pytest.raises(InvalidArgument, match="largest object"):
        one.put("huge", torch.zeros(HEAP_BYTES // 4, dtype=torch.uint8), preferred_segment=("n1", 0))
    timer = threading.Timer(0.2, lambda: two.world.remove("fill3"))
    timer.start()
    one.put("more", fill, preferred_segment=("n1", 0), timeout=50)
    timer.join()
    assert two.world.exists("more")


@pytest.mark.usefixtures("way")
def test_a_full_node_evicts(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    for i in range(40):
        one.put(f"k{i}", torch.full((HEAP_BYTES // 8,), i, dtype=torch.uint8), preferred_segment=("n1", 0))
    assert two.world.exists("k39") and not two.world.exists("k0")


@pytest.mark.usefixtures("way")
def test_terms(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    one.put("short", torch.ones(4), preferred_segment=("n1", 0), hold=Hold(ttl=0.05))
    one.put("group", torch.ones(4), preferred_segment=("n1", 0), hold=Hold(group="g", priority="kept"))
    until(lambda: not two.world.exists("short"), "the end of its time")
    assert two.world.drop_group("g") == 1
    with pytest.raises(InvalidArgument):
        one.put("x", torch.ones(4), preferred_segment=("n1", 0), hold=-1)


def test_a_lease_holds_an_object_on_another_node(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    size = HEAP_BYTES // 8
    one.put("leased", torch.ones(size, dtype=torch.uint8), preferred_segment=("n1", 0), hold=600)
    for i in range(40):
        one.put(f"k{i}", torch.zeros(size, dtype=torch.uint8), preferred_segment=("n1", 0))
    assert two.world.exists("leased")


def test_a_read_from_another_node_is_a_use(make_cluster: MakeCluster) -> None:
    """It ends a lease, as any first read does."""
    one, two = make_cluster()
    for key in ("single", "many"):
        one.put(key, torch.ones(HEAP_BYTES // 8, dtype=torch.uint8), preferred_segment=("n1", 0), hold=600)
    accesses = {key: two.world.engine.machine.lookup(two.digest(key)).place for key in ("single", "many")}

    def is_leased(key: str) -> bool:
        header = two.world.engine.machine.headers(0, accesses[key].slot, 1)[0]
        return bool(unpack("ACCESS", "use", int(header["last_access"])) == 3)

    assert is_leased("single") and is_leased("many")
    one.get("single")
    one.get_many(["many"])
    until(lambda: not is_leased("single") and not is_leased("many"), "the news of the uses")


@pytest.mark.usefixtures("way")
def test_what_a_node_puts_it_finds_at_once(make_cluster: MakeCluster, network: Network) -> None:
    """Wherever it is put, and although no event comes."""
    network.loses_events()
    one, two = make_cluster()
    here, there = key_of(one, "n0"), [key_of(one, "n0", f"many{i}") for i in range(5)]
    one.put(here, torch.ones(3), preferred_segment=("n1", 0))
    assert not any(one.put_many(there, torch.ones(5, 3), preferred_segment=("n1", 0)))
    assert one.exists(here) and one.exists_many(there) == [True] * 5
    assert torch.equal(one.get(here), torch.ones(3))
    assert all(torch.equal(got, torch.ones(3)) for got in one.get_many(there) if got is not None)
    two.remove(here)
    assert not one.exists(here) and one.get(here, None) is None


def test_many_nodes_are_asked_at_once(make_cluster: MakeCluster) -> None:
    """Keys of all homes in one call; a node that raises does not keep the others from their work."""
    members = make_cluster(4)
    keys = [f"k{i}" for i in range(200)]
    assert {members[0].home(key) for key in keys} == {"n0", "n1", "n2", "n3"}
    values = torch.arange(200 * 6).view(200, 6)
    assert not any(members[0].put_many(keys, values))
    for member in members:
        dsts = torch.zeros(200, 6, dtype=torch.int64)
        assert all(member.get_many(keys, dsts=dsts)) and torch.equal(dsts, values)
        found = member.get_many(keys)
        assert all(got is not None and torch.equal(got, value) for got, value in zip(found, values, strict=True))
        assert member.exists_many(keys) == [True] * 200
        assert member.prefix_length(keys) == 200
    assert all(members[3].remove_many(keys))
    assert not any(members[0].exists_many(keys))
    with pytest.raises(InvalidArgument):
        members[0].put_many(keys, [*values[:-1], torch.ones(2, 2).to_sparse()])


def test_a_list_of_objects_of_many_kinds(make_cluster: MakeCluster) -> None:
    """Each has its own dtype and shape, also where a few of them are alike; the order is that of the keys."""
    one, two = make_cluster()
    kinds = [
        torch.arange(6).view(2, 3),
        torch.ones(5, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0),
        torch.zeros(3, 0),
        torch.arange(PAGE, dtype=torch.int16),
    ]
    for alike in ([0], [3], [0, 0, 0], [1, 1], [2, 2, 2], [3, 3], [0, 1, 2, 3, 4, 5], [5, 5, 1, 5]):
        tensors = [kinds[k] + i if kinds[k].numel() else kinds[k] for i, k in enumerate(alike)]
        keys = [f"{alike} {i}" for i in range(len(alike))]
        assert not any(one.put_many(keys, tensors, preferred_segment=("n1", 0)))
        for order in (range(len(keys)), reversed(range(len(keys)))):
            places = list(order)
            found = one.get_many([keys[i] for i in places])
            for got, i in zip(found, places, strict=True):
                assert got is not None and got.dtype == tensors[i].dtype and torch.equal(got, tensors[i])
    assert two.get_many(keys)[0] is not None


def test_identities(make_cluster: MakeCluster) -> None:
    one, _ = make_cluster()
    other = NanoKVCache(1 << 16, page_bytes=PAGE, namespace="other")
    with other, pytest.raises(ReuseViolation):
        one.get(other.digest("x"))


@pytest.mark.usefixtures("way")
def test_many(make_cluster: MakeCluster) -> None:
    members = make_cluster(3)
    keys = [f"m{i}" for i in range(300)]
    rows = torch.arange(300 * 50).reshape(300, 50)
    assert members[0].put_many(keys, rows) == [None] * 300
    for member in members:
        out = torch.zeros_like(rows)
        assert member.get_many(keys, dsts=out) == [True] * 300 and torch.equal(out, rows)
        got = member.get_many([*keys, "none"])
        assert got[-1] is None
        assert all(a is not None and torch.equal(a, b) for a, b in zip(got[:-1], rows, strict=True))
        assert member.exists_many([*keys, "none"]) == [True] * 300 + [False]
        assert member.prefix_length([*keys[:70], "none", *keys]) == 70
        assert member.prefix_length(keys) == 300 and member.prefix_length([]) == 0
    again = members[1].put_many([*keys[:5], "new"], rows[:6])
    assert [type(error) for error in again] == [DuplicateKey] * 5 + [type(None)]


@pytest.mark.usefixtures("way")
def test_many_of_different_sizes(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    tensors = [torch.full((1 + 37 * i,), i, dtype=torch.int16) for i in range(80)]
    keys = [f"s{i}" for i in range(80)]
    assert not any(one.put_many(keys, tensors))
    for member in (one, two):
        got = member.get_many(keys)
        assert all(a is not None and torch.equal(a, b) for a, b in zip(got, tensors, strict=True))
        dsts = [torch.zeros_like(tensor) for tensor in tensors]
        assert member.get_many(keys, dsts=dsts) == dsts
        assert all(torch.equal(a, b) for a, b in zip(dsts, tensors, strict=True))
    wrong = [torch.zeros(5, dtype=torch.int16) for _ in tensors]
    with pytest.raises(InvalidArgument, match="dst is"):
        one.get_many(keys, dsts=wrong)


def test_one_that_is_too_large_hinders_no_other(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    sizes = [10, HEAP_BYTES // 4, 20]
    tensors = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    errors = one.put_many(["a", "b", "c"], tensors, preferred_segment=("n1", 0))
    assert [type(error) for error in errors] == [type(None), InvalidArgument, type(None)]
    assert two.world.exists_many(["a", "b", "c"]) == [True, False, True]


LARGE = torch.arange(100_000, dtype=torch.uint8)  # it does not travel in the question


@pytest.mark.parametrize("link", ["nixl"])
def test_an_owner_that_has_forgotten_the_producer(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    one.put("a", LARGE, preferred_segment=("n1", 0))
    over_link(two)[2].forget("n0.0", two.member.nodes["n0"].cards[0].incarnation)
    one.put("b", LARGE, preferred_segment=("n1", 0))
    assert torch.equal(two.get("b"), LARGE)


@pytest.mark.parametrize("link", ["nixl"])
def test_an_owner_whose_read_was_late_takes_puts_again(make_cluster: MakeCluster) -> None:
    """A node that is given up by a reader is reached anew by the puller of the same process."""
    one, two = make_cluster()
    memory = torch.arange(400_000, dtype=torch.int32).reshape(4, -1)
    one.register(memory)  # the card of the link stays the same from now on
    one.put("a", memory[0], preferred_segment=("n1", 0))
    one.put("mine", torch.ones(3), preferred_segment=0)
    until(lambda: two.get("mine", None) is not None, "the event")
    node = two.member.nodes["n0"]
    node.lost(node.world(), "a read was late")
    for i in (1, 2, 3):
        one.put(f"a{i}", memory[i], preferred_segment=("n1", 0))
        assert torch.equal(two.world.get(f"a{i}"), memory[i])
    until(lambda: _reads_again(two), "the reader")


def _reads_again(member: NanoKVCluster) -> bool:
    try:
        return torch.equal(member.get("mine"), torch.ones(3))
    except PeerLost:
        return False


@pytest.mark.parametrize("link", ["nixl"])
def test_a_put_that_was_refused_is_not_asked_again(make_cluster: MakeCluster, calls: Calls) -> None:
    """A second question would meet what the first one has claimed, and be told that the key is there."""
    one, two = make_cluster()
    one.put("a", LARGE, preferred_segment=("n1", 0))

    def late(pull: Pull) -> None:
        pull.abandon()
        raise PeerLost("the bytes did not come in time")

    asked = calls.instead(Pull, "poll", late)
    with pytest.raises(PeerLost, match="could not take"):
        one.put("b", LARGE, preferred_segment=("n1", 0), exist_ok=True)
    calls.go_on()
    assert len(asked) == 1 and not two.exists("b")
    one.put("c", LARGE, preferred_segment=("n1", 0))  # which looks at what was late, too
    one.put("b", LARGE, preferred_segment=("n1", 0))
    assert torch.equal(two.world.get("b"), LARGE)


@pytest.mark.parametrize("link", ["nixl"])
def test_what_was_kept_for_a_member_goes_with_it(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    one.put("a", LARGE, preferred_segment=("n1", 0))
    two.put("b", LARGE, preferred_segment=("n0", 0))
    _, putting, puller = over_link(one)
    assert puller.producers and putting.told
    two.close()
    until(lambda: one.nodes == ["n0"], "the end of n1")
    until(lambda: not (puller.producers or putting.told), "the end of what was kept")


def test_more_keys_than_one_pass(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(heap_bytes=24 << 20)
    keys = [f"p{i}" for i in range(5000)]
    rows = torch.arange(5000, dtype=torch.int64).reshape(5000, 1)
    assert not any(one.put_many(keys, rows))
    out = torch.zeros_like(rows)
    assert all(two.get_many(keys, dsts=out)) and torch.equal(out, rows)
    assert two.prefix_length(keys) == 5000


def test_registered_tensors_are_put_without_a_copy(make_cluster: MakeCluster, monkeypatch: Any) -> None:
    one, two = make_cluster()
    rows = torch.arange(64 * 512, dtype=torch.int32).reshape(64, 512)
    one.register(rows)
    monkeypatch.setattr(one.member.shared_staging, "room", None)  # would be needed for a copy
    assert not any(one.put_many([f"g{i}" for i in range(64)], rows, preferred_segment=("n1", 0)))
    assert all(torch.equal(two.get(f"g{i}"), rows[i]) for i in range(64))
    with pytest.raises(InvalidArgument):
        one.register(rows.T)


@pytest.mark.usefixtures("way")
def test_checksums(make_cluster: MakeCluster) -> None:
    one, two = make_cluster(world={"checksum": True})
    key = key_of(one, "n1")
    one.put(key, torch.randn(100_000))
    place = two.world.get_location(key)
    assert torch.equal(one.get(key), two.get(key))
    two.world.engine.heap.segment(0)[place.payload_off + 777] ^= 1
    from nanokv.errors import SegmentCorrupt

    with pytest.raises(SegmentCorrupt):
        one.get(key)
    two.world.engine.heap.segment(0)[place.payload_off + 777] ^= 1


def test_two_ranks_of_a_world(make_cluster: MakeCluster, link: str, shm_name: str, tmp_path: Any) -> None:
    """A world of two processes' ranks, both in this process: any member of a node serves all of its segments."""
    from concurrent.futures import ThreadPoolExecutor

    (outside,) = make_cluster(1)

    def attach(rank: int) -> NanoKVCache:
        return NanoKVCache(HEAP_BYTES, page_bytes=PAGE, name=shm_name, rank=rank, world_size=2)

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(attach, range(2)))
    url = f"file://{tmp_path}/cluster"
    inside = [NanoKVCluster(rank, url, node="pair", ttl=2.0, **way_of(link)) for rank in ranks]
    until(lambda: outside.nodes == ["n0", "pair"] and len(outside.member.nodes["pair"].cards) == 2)
    outside.put("zero", torch.zeros(9), preferred_segment=("pair", 0))
    outside.put("one", torch.ones(9), preferred_segment=("pair", 1))
    assert ranks[0].get_location("one").owner_rank == 1 and ranks[1].get_location("zero").owner_rank == 0
    for i in range(40):
        outside.put(f"k{i}", torch.full((5,), i), preferred_segment=("pair", None))
    inside[0].close()  # the other member serves on
    until(lambda: len(outside.member.nodes["pair"].cards) == 1)
    keys = [key for key in (f"k{i}" for i in range(40)) if outside.home(key) == "pair"]
    assert keys and all(torch.equal(outside.get(key), torch.full((5,), int(key[1:]))) for key in keys)
    for member, rank in zip(inside, ranks, strict=True):
        member.close()
        rank.close()


def test_wrong_calls(make_cluster: MakeCluster, tmp_path: Any) -> None:
    (one,) = make_cluster(1)
    v1 = NanoKVCache(1 << 16, page_bytes=PAGE, alloc="host")
    with v1, pytest.raises(InvalidArgument, match="alloc='device'"):
        NanoKVCluster(v1, f"file://{tmp_path}/c")
    for options in (*WRONG_OPTIONS, *ADDRESSES):
        with NanoKVCache(1 << 16, page_bytes=PAGE) as world, pytest.raises(InvalidArgument):
            NanoKVCluster(world, f"file://{tmp_path}/c", **options)
    with pytest.raises(InvalidArgument):
        NanoKVCluster("world", f"file://{tmp_path}/c")  # type: ignore[arg-type]
    with NanoKVCache(1 << 16, page_bytes=PAGE) as world, pytest.raises(InvalidArgument):
        NanoKVCluster(world, "redis://127.0.0.1/c")
    with pytest.raises(InvalidArgument):
        one.put("x", [1, 2])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        one.put_many(["x"], [])


WRONG_OPTIONS: list[dict[str, Any]] = [
    *({"node": "a b"}, {"nodes": 3}, {"secret": b"short"}, {"link": "pigeon"}),
    *({"timeout": 0}, {"locations": -1}, {"lost": "ignore"}),
]
ADDRESSES: list[dict[str, Any]] = [{"bind": "0.0.0.0"}, {"bind": "::"}, {"advertise": "a b"}, {"devices": "a,b"}]
ADDRESSES += [{"ports": wrong} for wrong in ("4000", "4000-4002", "0-9", "65533-65536", "a-b", 5)]
ADDRESSES += [{"seal": "none"}, {"seal": "all", "link": "nixl"}, {"seal": "all", "link": "mooncake"}]
ADDRESSES += [{"link": "mooncake", "ports": "40000-40009"}, {"link": "mooncake", "devices": "eth0"}]


def test_a_member_that_listens_everywhere_says_where_it_is(make_cluster: MakeCluster) -> None:
    (one,) = make_cluster(1, bind="0.0.0.0", advertise="localhost")
    two, three = make_cluster(2)
    card = two.member.nodes["n0"].cards[0]
    assert card.wire.startswith("tcp://localhost:") and card.events.startswith("tcp://localhost:")
    two.put("a", torch.ones(3), preferred_segment=("n0", 0))
    until(lambda: three.member.locations.node_of(three.digest("a")) == "n0", "the event")
    assert torch.equal(one.world.get("a"), torch.ones(3))


def test_ports_of_a_range(make_cluster: MakeCluster) -> None:
    """Members of one host share it; what is taken is passed over."""
    while True:
        first = random.randrange(21_000, 32_000)  # below those that a system gives to anyone
        try:
            taken = socket.create_server(("127.0.0.1", first))
            break
        except OSError:
            continue
    with taken:
        members = make_cluster(2, ports=f"{first}-{first + 19}")
        cards = [one.member.nodes[other].cards[0] for one, other in zip(members, ("n1", "n0"), strict=True)]
        ports = [int(address.rpartition(":")[2]) for card in cards for address in (card.wire, card.events)]
        assert len(set(ports)) == 4 and all(first < port < first + 20 for port in ports)
        members[0].put("a", torch.ones(100_000), preferred_segment=("n1", 0))
        assert torch.equal(members[0].get("a"), torch.ones(100_000))


@pytest.mark.exhaustive
@pytest.mark.parametrize("link", ["wire"])
def test_over_mooncakes_transfer_engine(make_cluster: MakeCluster) -> None:
    try:
        one, _ = make_cluster(link="mooncake")
    except LinkUnavailable as error:
        leave_out("mooncake", error)
    values = [torch.arange(n) for n in (10, 50_000)]
    keys = [key_of(one, "n1", f"k{i}") for i in range(2)]
    for key, value in zip(keys, values, strict=True):
        one.put(key, value)
        assert one.exists(key) and torch.equal(one.get(key), value)
    found = one.get_many(keys)
    assert all(got is not None and torch.equal(got, value) for got, value in zip(found, values, strict=True))
    one.remove(keys[0])
    assert one.exists_many(keys) == [False, True]


def test_closing(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    key = key_of(one, "n1")
    one.put(key, torch.ones(3))
    kept = one.get(key)
    one.close()
    one.close()
    assert one.closed and "closed" in repr(one) and torch.equal(kept, torch.ones(3))
    for call in (lambda: one.get(key), lambda: one.put("x", kept), lambda: one.nodes, one.stats):
        with pytest.raises(CacheClosed):
            call()
    one.world.put("still", kept)  # the world stays
    until(lambda: two.nodes == ["n1"])
    two.world.close()
    assert two.closed


@pytest.mark.usefixtures("way")
def test_threads(make_cluster: MakeCluster) -> None:
    one, _ = make_cluster()
    rows = torch.arange(64 * 100).reshape(64, 100)
    one.put_many([f"t{i}" for i in range(64)], rows)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(200):
            k = (i * 7 + seed) % 64
            if not torch.equal(one.get(f"t{k}"), rows[k]):
                wrong.append(k)
            one.put(f"t-{seed}-{i}", rows[k])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and one.stats()["remote_puts"] > 0 and not math.isnan(one.registry_away)


@pytest.mark.parametrize("link", ["wire", "sealed"])
def test_objects_of_one_call_go_in_one_frame_of_bounded_bytes(
    make_cluster: MakeCluster, calls: Calls, limits: Limits
) -> None:
    one, _ = make_cluster()
    put = calls.noted(WireClient, "put")
    one.put_many([f"k{i}" for i in range(8)], torch.ones(8, 25), preferred_segment=("n1", 0))
    assert [len(pulls) for _, pulls, _ in put] == [8]
    limits(exchanges, _MOST_CLAIMED=300)
    one.put_many([f"m{i}" for i in range(8)], torch.ones(8, 25), preferred_segment=("n1", 0))
    assert [len(pulls) for _, pulls, _ in put] == [8, 3, 3, 2]


def test_reads_and_puts_are_counted_and_looks_are_not(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    keys = [f"c{i}" for i in range(8)]
    one.put_many(keys, torch.ones(8, 25), preferred_segment=("n1", 0))
    until(lambda: all(one.member.locations.node_of(one.digest(key)) for key in keys), "the events")
    assert one.prefix_length(keys) == 8 and all(one.exists_many(keys)) and one.exists(keys[0])
    names = ("remote_gets", "remote_hits", "remote_bytes_rx", "remote_puts", "remote_bytes_tx")

    def counts() -> list[int]:
        stats = one.stats()
        return [stats[name] for name in names]

    assert counts() == [0, 0, 0, 8, 800]
    one.get(keys[0])
    assert one.get("none", None) is None
    one.get_many([*keys, "none"])
    assert counts() == [11, 9, 900, 8, 800]
    one.get_many(keys, dsts=torch.zeros(8, 25))
    assert one.bring(keys[:3]) == [True] * 3
    assert counts() == [22, 20, 2000, 8, 800] and two.stats()["remote_hits"] == 0


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "masked": lambda: masked_tensor(torch.arange(8.0), torch.ones(8, dtype=torch.bool)),
    "storage given back": lambda: freed(torch.arange(8.0)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(4), torch.ones(4)]),
    "functional": lambda: torch._to_functional_tensor(torch.ones(8)),
    "meta": lambda: torch.ones(8, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.quint8),
}


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore")  # torch calls some of these prototypes
def test_tensors_without_memory_of_their_own(make_cluster: MakeCluster) -> None:
    one, _ = make_cluster()
    one.put("k", torch.arange(8.0), preferred_segment=("n1", 0))
    for kind, make in ODD.items():
        tensor = make()
        for call in (
            lambda tensor=tensor: one.put("x", tensor, preferred_segment=("n1", 0)),
            lambda tensor=tensor: one.put_many(["x", "y"], [tensor, torch.ones(3)], preferred_segment=("n1", 0)),
            lambda tensor=tensor: one.get("k", dst=tensor),
            lambda tensor=tensor: one.get("k", dst=tensor, reinterpret=True),
            lambda tensor=tensor: one.get_many(["k"], dsts=[tensor]),
            lambda tensor=tensor: one.get_many(["k"], dsts=tensor),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert not one.exists("x"), kind
    for wrong in ([], [torch.zeros(8), torch.zeros(8)], torch.zeros(2, 8)):
        with pytest.raises(InvalidArgument, match="1 keys and"):
            one.get_many(["k"], dsts=wrong)
    with pytest.raises(InvalidArgument):
        one.register(ODD["masked"]())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("elements", [4, 1 << 16])
def test_destinations_that_share_memory(make_cluster: MakeCluster, elements: int) -> None:
    one, _ = make_cluster()
    keys, values = ["here", "there", "too"], torch.rand(3, elements)
    for key, value, node in zip(keys, values, ("n0", "n1", "n1"), strict=True):
        one.put(key, value, preferred_segment=(node, 0))  # which finds it at once
    whole = torch.zeros(3 * elements)
    first, middle = whole[:elements], whole[elements // 2 :][:elements]
    shared: list[Any] = [
        torch.zeros(1, elements).expand(3, elements),
        whole.as_strided((3, elements), (elements // 2, 1)),
        [first, torch.zeros(elements), middle],
        [torch.zeros(elements), middle, first],
    ]
    for dsts in shared:
        for asked in (keys, keys[1:] + keys[1:2]):
            with pytest.raises(InvalidArgument, match="share memory"):
                one.get_many(asked, dsts=dsts)
    assert not whole.any()
    rows = torch.zeros(6, elements)[::2]
    assert one.get_many(keys, dsts=rows) == [True] * 3 and torch.equal(rows, values)


@pytest.mark.usefixtures("way")
def test_one_element_of_a_stride(make_cluster: MakeCluster) -> None:
    one, two = make_cluster()
    scale = torch.rand(8, 4)[:, 2][3:4]
    one.put("k", scale, preferred_segment=("n1", 0))
    assert one.put_many(["l", "m"], [scale, torch.ones(3)], preferred_segment=("n1", 0), hold=5.0) == [None, None]
    for key in ("k", "l"):
        for get in (lambda dst, key=key: one.get(key, dst=dst), lambda dst, key=key: one.get_many([key], dsts=[dst])):
            whole = torch.zeros(8, 4)
            get(whole[:, 2][3:4])
            assert whole[3, 2] == scale[0] and whole.count_nonzero() == 1
        assert torch.equal(two.get(key), scale)
