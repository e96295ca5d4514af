"""A get asks the node that most likely has the object, by as few calls as can be, and then the others."""

import pytest
import torch

from nanokv.cluster import NanoKVCluster
from nanokv.cluster.mapped import MappedGets
from nanokv.cluster.reading import RemoteGets
from nanokv.cluster.transfers import Gets
from nanokv.cluster.wire.client import WireClient
from nanokv.cluster.wire.exchanges import WireGets
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, KeyNotFound, PeerLost
from nanokv.transfer.descriptors import RAW
from nanokv.transfer.object_calls import calls_in_python
from tests.support.faults import Calls
from tests.support.until import until

from .conftest import MakeCluster, key_of

SIZE = 300  #: words of an object
WAYS: dict[str, type[Gets]] = {"wire": WireGets, "mapped": MappedGets, "nixl": RemoteGets}


@pytest.fixture(params=WAYS)
def link(request: pytest.FixtureRequest) -> str:
    """All ways by which a get asks."""
    return str(request.param)


def knows(reader: NanoKVCluster, key: str) -> None:
    """Wait until a reader has heard where an object lies."""
    until(lambda: reader.member.locations.node_of(reader.digest(key)) is not None, f"an event about {key}")


def put_raw(owner: NanoKVCluster, key: str, value: torch.Tensor) -> None:
    """Store the bytes of a tensor as a kernel does, which says no dtype and no shape."""

    def fill(payload: torch.Tensor) -> None:
        payload.copy_(value.view(torch.uint8))

    single = owner.world.engine.single
    assert single.put_filled(owner.digest(key), value.nbytes, 0, RAW, fill) == Status.OK


@pytest.mark.parametrize("into", [True, False], ids=["into", "new"])
def test_one_question_to_one_node(make_cluster: MakeCluster, calls: Calls, link: str, into: bool) -> None:
    owner, reader, _ = make_cluster(3)
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    owner.put(key, value)
    knows(reader, key)
    before = reader.stats()
    asked = calls.noted(WAYS[link], "get_at_once")
    found = reader.get(key, dst=torch.zeros(SIZE)) if into else reader.get(key)
    assert torch.equal(found, value)
    assert [at[1].name for at in asked] == ["n0"]
    after = reader.stats()
    grown = {name: after[name] - before[name] for name in ("remote_gets", "remote_hits", "misses", "peer_lost")}
    assert grown == {"remote_gets": 1, "remote_hits": 1, "misses": 1, "peer_lost": 0}
    assert after["remote_bytes_rx"] - before["remote_bytes_rx"] == value.nbytes


def test_what_the_home_does_not_have_it_is_asked_for_once(make_cluster: MakeCluster, calls: Calls, link: str) -> None:
    _, reader = make_cluster()
    key = key_of(reader, "n0")
    until(lambda: len(reader.member.nodes.homes) == 2, "the nodes")
    short, long = calls.noted(WAYS[link], "get_at_once"), calls.noted(WAYS[link], "get")
    assert reader.get(key, None, dst=torch.zeros(SIZE)) is None
    assert (len(short), len(long)) == (1, 0)
    with pytest.raises(KeyNotFound):
        reader.get(key, dst=torch.zeros(SIZE))
    assert reader.stats()["misses"] == 2 and reader.stats()["remote_gets"] == 2


def test_an_object_that_has_moved_is_found_at_its_home(make_cluster: MakeCluster) -> None:
    owner, other, reader = make_cluster(3)
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    other.put(key, value, preferred_segment=0)
    knows(reader, key)
    other.world.remove(key)
    owner.put(key, value, preferred_segment=0)
    for _ in range(3):  # before and after the events of both have come
        assert torch.equal(reader.get(key, dst=torch.zeros(SIZE)), value)


def test_a_node_that_is_lost_is_asked_once(make_cluster: MakeCluster, calls: Calls, link: str) -> None:
    owner, _, reader = make_cluster(3)
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    owner.put(key, value)
    knows(reader, key)
    lost = PeerLost("node n0 cannot be reached: a fault")
    short = calls.fail(WAYS[link], "get_at_once", lost, when=lambda _, node, *__: node.name == "n0")
    long = calls.noted(WAYS[link], "get")
    with pytest.raises(PeerLost, match="a fault"):
        reader.get(key, dst=torch.zeros(SIZE))
    assert len(short) == 1 and "n0" not in [at[1].name for at in long]
    assert reader.stats()["peer_lost"] == 1


@pytest.mark.parametrize("wrong", [torch.zeros(SIZE + 1), torch.zeros(SIZE, dtype=torch.int32), torch.zeros(SIZE, 2)])
def test_a_destination_that_does_not_suit_is_refused(make_cluster: MakeCluster, wrong: torch.Tensor) -> None:
    owner, reader = make_cluster()
    key = key_of(owner, "n0")
    owner.put(key, torch.ones(SIZE))
    knows(reader, key)
    with pytest.raises(InvalidArgument):
        reader.get(key, dst=wrong)
    assert not wrong.any()


def test_a_destination_in_a_segment_is_refused(make_cluster: MakeCluster) -> None:
    owner, reader = make_cluster()
    key = key_of(owner, "n0")
    owner.put(key, torch.ones(SIZE))
    reader.world.put("mine", torch.zeros(SIZE))
    with reader.world.pin("mine") as view:
        with pytest.raises(InvalidArgument, match="lies in a segment"):
            reader.get(key, dst=view)
        assert not view.any()


def test_what_is_unusual_is_read_as_well(make_cluster: MakeCluster) -> None:
    owner, reader = make_cluster()
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    owner.put(key, value)
    raw = reader.get(key, dst=torch.zeros(value.nbytes, dtype=torch.uint8), reinterpret=True)
    assert torch.equal(raw.view(torch.float32), value)
    with torch.inference_mode():
        assert torch.equal(reader.get(key), value)
    large, name = (
        torch.arange(30_000, dtype=torch.int32),
        key_of(owner, "n0", "large"),
    )  # more than goes through a workspace
    owner.put(name, large)
    assert torch.equal(reader.get(name, dst=torch.zeros_like(large)), large) and torch.equal(reader.get(name), large)


def test_calls_in_python_alone_read_the_same(make_cluster: MakeCluster) -> None:
    with calls_in_python():
        owner, reader = make_cluster()
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    owner.put(key, value)
    assert reader.world.engine.calls.record is None
    assert torch.equal(reader.get(key), value) and torch.equal(reader.get(key, dst=torch.zeros(SIZE)), value)


def test_objects_of_one_size_and_several_kinds(make_cluster: MakeCluster) -> None:
    owner, reader = make_cluster()
    values = [torch.arange(float(SIZE)), torch.arange(SIZE, dtype=torch.int32), torch.ones(2, SIZE // 2)]
    values += [torch.arange(SIZE * 4).to(torch.uint8), torch.arange(float(SIZE)).view(3, -1)]
    keys = [key_of(owner, "n0", f"kind-{i}") for i in range(len(values))]
    for key, value in zip(keys, values, strict=True):
        owner.put(key, value)
        knows(reader, key)
    for _ in range(2):  # what was read last says how the next tensor is made, and is wrong each time
        for key, value in zip(keys, values, strict=True):
            found = reader.get(key)
            assert found.dtype == value.dtype and torch.equal(found, value)
    for key, value in zip(keys, values, strict=True):  # and right
        kept = [reader.get(key) for _ in range(2)]
        assert all(torch.equal(each, value) for each in kept)
        kept[0].zero_()
        assert torch.equal(kept[1], value) and torch.equal(reader.get(key), value)


def test_many_are_asked_for_once_where_their_sizes_are_known(
    make_cluster: MakeCluster, calls: Calls, link: str
) -> None:
    owner, reader = make_cluster()
    keys = [key_of(owner, "n0", f"many-{i}") for i in range(20)]
    values = [torch.full((SIZE + i % 3,), float(i)) for i in range(20)]
    assert owner.put_many(keys, values) == [None] * 20
    for key in keys:
        knows(reader, key)
    asked = calls.noted(WireClient, "get")
    for value, found in zip(values, reader.get_many(keys), strict=True):
        assert found is not None and torch.equal(found, value)
    assert len(asked) == (1 if link == "wire" else 0)


def test_bytes_without_a_kind_are_bytes(make_cluster: MakeCluster) -> None:
    owner, reader = make_cluster()
    value, key, raw = torch.arange(float(SIZE)), key_of(owner, "n0"), key_of(owner, "n0", "raw")
    owner.put(key, value)
    put_raw(owner, raw, value)
    knows(reader, key)
    knows(reader, raw)
    for _ in range(3):
        assert torch.equal(reader.get(key), value)
        found = reader.get(raw)
        assert found.dtype is torch.uint8 and torch.equal(found, value.view(torch.uint8))
    assert torch.equal(reader.get(raw, dst=torch.zeros(SIZE)), value)


def test_new_tensors_in_modes_of_torch(make_cluster: MakeCluster) -> None:
    owner, reader = make_cluster()
    value, key = torch.arange(float(SIZE)), key_of(owner, "n0")
    owner.put(key, value)
    knows(reader, key)
    assert torch.equal(reader.get(key), value)
    with torch.inference_mode():
        assert torch.equal(reader.get(key), value)
    with torch.device("meta"):
        assert torch.equal(reader.get(key), value)
    assert reader.get(key).requires_grad is False
