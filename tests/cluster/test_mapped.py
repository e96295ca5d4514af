"""Nodes of one host that map each other's memory: who is let in, who is not, and what is left when one ends."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import nanokv
from nanokv.allocation.terms import terms_of
from nanokv.cluster import NanoKVCluster, mapped
from nanokv.cluster.mapped import MappedPuts
from nanokv.cluster.messages import unix
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.patience import Patience
from nanokv.cluster.wire import guests
from nanokv.cluster.wire.handshake import GUEST, WELCOME_BYTES, Greeting
from nanokv.device.machines.records import NO_TERMS
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import HeapUnavailable, InvalidArgument, PeerLost
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap import guest as guest_module
from nanokv.heap.local import LocalHeap
from nanokv.transfer.descriptors import RAW
from tests.support.faults import Calls, Limits
from tests.support.forks import check_refused
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, MakeCluster, key_of, map_others
from .node_process import NodeProcess, value_of

VALUE = torch.arange(5000)
GUESTS = {"guests": 8}
NewWorld = Callable[[], dict[str, Any]]
StartNode = Callable[..., NodeProcess]


@pytest.fixture(params=["private", pytest.param("named", marks=pytest.mark.exhaustive), "elastic"])
def new_world(request: pytest.FixtureRequest, shm_prefix: str) -> NewWorld:
    """The options of another world that lets guests in. All kinds: without a name, with one, and with ranks that come
    and go."""

    def options() -> dict[str, Any]:
        if request.param == "private":
            return dict(GUESTS)
        named = {"name": f"{shm_prefix}-{secrets.token_hex(4)}", "rank": 0, "guests": 3}
        return named | ({"world_size": 1} if request.param == "named" else {"world_size": 2, "elastic": True})

    return options


@pytest.fixture
def make_mapped(make_cluster: MakeCluster, new_world: NewWorld) -> MakeCluster:
    """Makes nodes that let guests in, and are each other's."""

    def make(n: int, **options: Any) -> list[NanoKVCluster]:
        made = [member for _ in range(n) for member in make_cluster(1, world=new_world(), **options)]
        until(lambda: all(len(member.nodes) == n for member in made))
        for member in made:
            map_others(member)
        return made

    return make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes in processes of their own, which let guests in."""
    made: list[NodeProcess] = []

    def another(node: str, world: dict[str, Any] = GUESTS, **options: Any) -> NodeProcess:
        made.append(NodeProcess(node, f"file://{tmp_path}/cluster", world, **options))
        return made[-1]

    yield another
    for node in made:
        node.kill()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nanokv-") as path:
        yield Path(path)


def sockets_in(folder: Path) -> list[Path]:
    """The sockets in a folder, each of which has its lock."""
    found = [each for each in folder.iterdir() if each.is_socket()]
    assert all(each.with_name(f"{each.name}.lock").is_file() for each in found)
    return found


def exchange(one: NanoKVCluster, two: NanoKVCluster, name: str = "key") -> None:
    """An object of each, read by the other."""
    for a, b in ((one, two), (two, one)):
        key = f"{name} of {a.node}"
        a.put(key, VALUE, preferred_segment=(b.node, None))
        assert torch.equal(a.get(key), VALUE) and torch.equal(b.world.get(key), VALUE)
        a.remove(key)


def way(one: NanoKVCluster, two: NanoKVCluster) -> str:
    """How one reaches the other."""
    found: str = one.stats()["ways"][two.node]
    return found


# --- who is let in ---
def test_who_lets_guests_in_is_mapped(make_cluster: MakeCluster) -> None:
    (one,) = make_cluster(1, world=GUESTS)
    (none,) = make_cluster(1)
    (other,) = make_cluster(1, world=GUESTS, maps=False)
    until(lambda: all(len(each.nodes) == 3 for each in (one, none, other)))
    for two in (none, other):
        exchange(one, two)
        map_others(one)
        map_others(two)
        exchange(one, two)
    assert way(none, one) == "mapped" == way(one, other)
    assert way(one, none).startswith("wire: unix:") and way(other, one).startswith("wire: unix:")
    assert [each.stats()["guests"] for each in (one, none, other)] == [1, 0, 2]


def test_a_guest_that_leaves_makes_room_for_another(
    make_cluster: MakeCluster, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits(mapped, REFUSED_SECONDS=0.5)
    caplog.set_level(logging.INFO)
    (owner,) = make_cluster(1, world={"guests": 1})
    (first,) = make_cluster(1)
    map_others(first)
    (second,) = make_cluster(1)  # now: a member that joins looks what others have, and asks to be let in
    for each in (first, second):
        exchange(each, owner, each.node)
    until(lambda: "the world has guests=1, and all are there" in caplog.text)
    assert way(first, owner) == "mapped" and way(second, owner).startswith("wire")
    assert "n0.0 is not mapped, its objects go over the wire: the world has guests=1" in caplog.text
    first.close()
    until(lambda: owner.stats()["guests"] == 0 and owner.nodes == second.nodes == ["n0", "n2"])

    def is_mapped() -> bool:
        exchange(second, owner, "again")
        return way(second, owner) == "mapped"

    until(is_mapped)
    activity = owner.world.engine.machine.activity(0)
    assert activity["incarnation"].tolist() == [1, 2]  # the rank, and the two guests of one number


@pytest.mark.parametrize(
    ("owner", "name", "value", "says"),
    [
        (guests, "user_of", (0, 65533), "it lets nobody in, or runs as another user"),
        (mapped, "machine_of", HeapUnavailable("no memory"), "no memory"),
        (Geometry, "mismatch", "layout version 9", "segment 0: layout version 9"),
    ],
)
def test_who_is_refused_takes_the_wire(
    make_cluster: MakeCluster,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
    value: Any,
    says: str,
) -> None:
    caplog.set_level(logging.INFO)
    one, two = make_cluster(2, world=GUESTS)
    if isinstance(value, Exception):
        calls.fail(owner, name, value)
    else:
        calls.answer(owner, name, value)
    one.put("key", VALUE, preferred_segment=(two.node, None))
    until(lambda: says in caplog.text)
    calls.go_on()
    assert way(one, two).startswith("wire") and torch.equal(two.world.get("key"), VALUE)
    until(lambda: two.stats()["guests"] == 0)


def test_another_time_namespace_is_refused(
    make_cluster: MakeCluster, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    offsets = iter([7, 0])
    one, two = make_cluster(2, world=GUESTS)
    calls.instead(guests, "offset_ns", lambda: next(offsets))
    one.put("key", VALUE, preferred_segment=(two.node, None))
    until(lambda: "it lives in another time namespace" in caplog.text)
    assert way(one, two).startswith("wire")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
def test_other_containers_of_the_host_are_reached_by_a_folder(
    make_cluster: MakeCluster, start: StartNode, short_folder: Path, new_world: NewWorld
) -> None:
    """Network namespaces have no address in common: what goes from one to the other goes by the folder."""
    folder = short_folder
    for name in ("nanokv-notes", "nanokv-" + 24 * "0", "nanokv-" + 24 * "1" + ".lock"):
        (folder / name).write_text("not a socket")
    (here,) = make_cluster(1, sockets=str(folder), world=new_world())
    there = start("far", new_world(), apart=True, sockets=str(folder), bind="0.0.0.0", advertise="192.0.2.1")
    until(lambda: here.nodes == ["far", "n0"] == there.ask("nodes"))
    here.put("first", value_of("first", 3000), preferred_segment=("far", 0))
    map_others(here)
    there.ask("map", "n0")
    here.put("key", value_of("key", 3000), preferred_segment=("far", 0))
    there.ask("put", "back", 3000, "n0")
    assert there.ask("get", "first", 3000) == there.ask("get", "key", 3000) == "right"
    assert torch.equal(here.world.get("back"), value_of("back", 3000))
    assert here.stats()["ways"]["far"] == "mapped" and here.stats()["guests"] == 1
    assert len(sockets_in(folder)) == 2
    there.kill()
    until(lambda: here.stats()["guests"] == 0)
    assert len(sockets_in(folder)) == 2  # of the one that was killed
    make_cluster(1, sockets=str(folder))
    assert len(sockets_in(folder)) == 2  # it has gone, and a new one is there
    assert here.stats()["messages_dropped_stranger"] == 0  # nobody asks whether it lives
    here.close()
    assert len(sockets_in(folder)) == 1
    assert all((folder / name).exists() for name in ("nanokv-notes", "nanokv-" + 24 * "0"))


@pytest.mark.parametrize("folder", ["relative", "/none/such", "/" + "x" * 100, "/tmp\0x", 3])
def test_a_folder_that_cannot_have_sockets_is_refused(tmp_path: Path, folder: Any) -> None:
    with nanokv.NanoKVCache(1 << 20, page_bytes=PAGE) as world, pytest.raises(InvalidArgument, match="sockets"):
        NanoKVCluster(world, f"file://{tmp_path}/cluster", sockets=folder)


def test_processes_that_start_together_leave_each_other_their_sockets(short_folder: Path) -> None:
    made: list[unix.Listener] = []

    def make(_: int) -> None:
        made.append(unix.Listener(str(short_folder)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(make, range(64)))
    assert len(sockets_in(short_folder)) == 64 == len({each.address for each in made})
    for each in made:
        assert unix.is_seen(each.address)
        each.close()
    assert not list(short_folder.iterdir())


@pytest.mark.parametrize("error", [RuntimeError("no thread can be started"), HeapUnavailable("no memory")])
def test_who_could_not_enter_asks_again(
    make_cluster: MakeCluster, calls: Calls, limits: Limits, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    limits(mapped, REFUSED_SECONDS=0.1)
    caplog.set_level(logging.INFO)
    one, two = make_cluster(2, world=GUESTS)
    calls.fail(guest_module, "begin_incarnation", error)
    one.put("key", VALUE, preferred_segment=(two.node, None))
    until(lambda: str(error) in caplog.text)
    calls.go_on()
    map_others(one)
    assert two.world.engine.machine.activity(0)["incarnation"].tolist() == [1, 1, *[0] * 7]  # its number was free


def test_a_child_of_the_owner_keeps_no_number(new_world: NewWorld) -> None:
    """One that is forked while the file is given to a guest."""
    with nanokv.NanoKVCache(1 << 20, page_bytes=PAGE, **new_world()) as world:
        heap = cast("LocalHeap", world.engine.heap)
        file = heap.file_for_guest()
        child = os.fork()
        if not child:
            signal.pause()
        try:
            there = guest_module.GuestHeap("guest", file, heap.geometry)
            assert heap.alive(there.rank, there.incarnation)
            there.close()
            assert not heap.alive(there.rank, there.incarnation)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_an_owner_that_stands_still_delays_no_first_call(
    make_cluster: MakeCluster, start: StartNode, limits: Limits
) -> None:
    """It cannot let anybody in, and no call waits for that."""
    limits(mapped, ENTER_SECONDS=100_000.0)
    (here,) = make_cluster(1, timeout=0.3)
    owner = start("far", ttl=600.0)
    until(lambda: here.nodes == ["far", "n0"])
    owner.suspend()
    with pytest.raises(PeerLost, match="node far"):
        here.put(key_of(here, "far"), VALUE)
    owner.resume()


def test_nobody_gets_the_memory_without_a_proof(make_cluster: MakeCluster) -> None:
    (owner,) = make_cluster(1, world=GUESTS)
    server, secret = owner.member.server, owner.member.membership.secret()
    me, to = Sender("n9.0", 5), Sender("n0.0", owner.member.incarnation)
    hello = Greeting(secret, me, to, GUEST).hello
    for proof in (b"", bytes(32), hello[:32]):
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
            made.settimeout(20.0)
            made.connect(f"\0{server.local.removeprefix('unix:')}")
            made.sendall(hello)  # the same each time: as one that was recorded
            assert len(made.recv(WELCOME_BYTES, socket.MSG_WAITALL)) == WELCOME_BYTES
            made.sendall(proof)
            made.shutdown(socket.SHUT_WR)
            said, given, _, _ = socket.recv_fds(made, 1024, 4)
            assert (said, given) == (b"", [])
    with contextlib.closing(socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])))) as made:
        made.settimeout(20.0)
        made.sendall(hello)  # not over TCP: no descriptor goes there
        assert made.recv(1) == b""
    until(lambda: owner.stats()["messages_dropped_stranger"] == 4)
    assert owner.stats()["guests"] == 0


def test_the_memory_has_the_size_that_it_has() -> None:
    with nanokv.NanoKVCache(1 << 20, page_bytes=PAGE, guests=1) as world:
        heap = world.engine.heap
        assert isinstance(heap, LocalHeap)
        file = heap.file_for_guest()
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
        os.close(file)
    with pytest.raises(HeapUnavailable):
        heap.file_for_guest()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"guests": -1}, "guests must be"),
        ({"guests": 1 << 20}, "guests must be 0 to 1023"),
        ({"guests": 1, "heap": "torch_symm"}, "guests needs"),
        ({"guests": 1, "alloc": "host"}, "guests needs alloc='device'"),
    ],
)
def test_worlds_that_cannot_have_guests_say_so(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        nanokv.NanoKVCache(1 << 20, page_bytes=PAGE, **options)


# --- objects ---
def test_objects_of_several_kinds_in_one_call(make_mapped: MakeCluster, limits: Limits) -> None:
    one, two = make_mapped(2)
    limits(mapped, _MOST_ROOM=200_000)
    kinds = [torch.arange(12_000), *[torch.full((4,), i) for i in range(20)], torch.zeros(0), torch.ones(2, 2)]
    keys = [f"k{i}" for i in range(len(kinds))]
    assert one.put_many(keys, kinds, preferred_segment=(two.node, 0)) == [None] * len(keys)
    got = one.get_many(["none", *keys, keys[3]])
    assert got[0] is None and [each is not None for each in got[1:]] == [True] * (len(keys) + 1)
    for want, found in zip([*kinds, kinds[3]], got[1:], strict=True):
        assert found is not None and torch.equal(found, want) and found.dtype == want.dtype


def test_bytes_of_a_kernel_stay_what_they_are(make_mapped: MakeCluster) -> None:
    """They have no dtype and no shape, and whoever reads them says which."""
    one, two = make_mapped(2)
    keys = [key_of(one, two.node, f"raw{i}") for i in range(3)]
    for key in keys:
        value = torch.frombuffer(bytearray(key.encode().ljust(16)), dtype=torch.uint8)
        assert two.world.engine.single.put_filled(two.digest(key), 16, 0, RAW, partial(_fill, value)) == Status.OK
    typed = key_of(one, two.node, "typed")
    one.put(typed, torch.zeros(16, dtype=torch.uint8))
    one.world.flush()
    assert one.bring([typed, *keys]) == [True] * 4
    for key in keys:
        found = one.world.get(key, dst=torch.zeros(2, 2)).view(torch.uint8).flatten()
        assert bytes(found.tolist()) == key.encode().ljust(16)
    with pytest.raises(InvalidArgument, match=r"the object torch\.uint8 \[16\]"):
        one.world.get(typed, dst=torch.zeros(4))


def _fill(value: torch.Tensor, payload: torch.Tensor) -> None:
    payload.copy_(value)


def test_a_guest_leaves_the_quota_as_it_is(make_cluster: MakeCluster) -> None:
    (owner,) = make_cluster(1, world=GUESTS | {"namespace": "one", "quota_bytes": 2 << 20})
    (guest,) = make_cluster(1, world={"namespace": "one", "quota_bytes": 1 << 20})
    owner.world.put("mine", VALUE)
    before = owner.world.engine.machine.quotas(0).copy()
    map_others(guest)
    guest.put("theirs", VALUE, preferred_segment=(owner.node, 0))
    assert way(guest, owner) == "mapped" and (owner.world.engine.machine.quotas(0) == before).all()
    assert before.any()


# --- who ends ---
def test_a_guest_that_dies_in_the_middle_leaves_nothing(
    make_cluster: MakeCluster, start: StartNode, new_world: NewWorld
) -> None:
    (owner,) = make_cluster(1, heap_bytes=1 << 20, world=new_world())
    machine = owner.world.engine.machine
    number = machine.geometry.world_size
    for run in range(2):
        guest = start(f"guest{run}")
        until(lambda: len(owner.nodes) == 2)
        for i in range(4):
            assert guest.ask("begin", f"unfinished{i}", 100_000, "n0")
        row = machine.activity(0)[number]
        assert row["in_flight0"] + row["in_flight1"] == 8  # each has begun, and is amid a step
        assert owner.world.stats()["used_pages"] > 0
        guest.kill()
        until(lambda: owner.stats()["guests"] == 0)
        until(lambda: owner.world.stats()["used_pages"] == 0, "what it left to be freed")
        owner.world.put("unfinished0", VALUE)  # its key is free
        owner.world.remove("unfinished0")
        owner.world.flush()
    assert machine.activity(0)["incarnation"].tolist()[number:] == [2, *[0] * (machine.geometry.guests - 1)]


def test_an_owner_that_dies_is_lost_at_once(make_cluster: MakeCluster, start: StartNode, new_world: NewWorld) -> None:
    """Long before its lease ends."""
    (here,) = make_cluster(1, timeout=1.0)
    owner = start("far", new_world(), ttl=600.0)
    until(lambda: here.nodes == ["far", "n0"])
    key = key_of(here, "far")
    map_others(here)
    here.put(key, VALUE)
    assert torch.equal(here.get(key), VALUE) and here.stats()["ways"]["far"] == "mapped"
    owner.kill()
    until(lambda: here.stats()["ways"]["far"] != "mapped")
    for call in (here.get, here.exists, here.remove, lambda key: here.put(key, VALUE)):
        with pytest.raises(PeerLost, match="node far"):
            call(key)
    assert here.nodes == ["far", "n0"]


def test_a_node_of_several_processes_is_mapped_as_long_as_one_lives(
    make_cluster: MakeCluster, start: StartNode, shm_name: str, limits: Limits
) -> None:
    limits(mapped, REFUSED_SECONDS=0.1)
    (here,) = make_cluster(1, timeout=1.0)
    world = {"name": shm_name, "world_size": 3, "elastic": True}
    owners = [start("far", world | {"rank": rank}) for rank in range(2)]
    until(lambda: sum(len(node.cards) for node in here.member.nodes.others()) == 2)
    map_others(here)
    for rank in range(2):
        here.put(f"key{rank}", value_of(f"key{rank}", 3000), preferred_segment=("far", rank))
        assert all(owner.ask("get", f"key{rank}", 3000) == "right" for owner in owners)
    owners[0].kill()
    until(lambda: sum(len(node.cards) for node in here.member.nodes.others()) == 1)

    def is_mapped() -> bool:
        assert torch.equal(here.get("key1"), value_of("key1", 3000))
        return bool(here.stats()["ways"]["far"] == "mapped")

    until(is_mapped)
    here.put("key2", value_of("key2", 3000), preferred_segment=("far", 1))
    assert owners[1].ask("get", "key2", 3000) == "right"
    assert torch.equal(here.get("key0"), value_of("key0", 3000))  # its segment is there until one adopts it
    assert owners[1].ask("leave")
    until(lambda: here.nodes == [here.node])


def test_a_dead_world_is_taken_over_when_its_guests_have_gone(start: StartNode, shm_name: str) -> None:
    """A guest that stands still may go on to write what it has begun, which the one who takes over must not see."""
    world: dict[str, Any] = {"name": shm_name, "rank": 0, "world_size": 1, "on_stale": "recover"}
    owner = start("far", world, ttl=0.5)
    guest = start("guest", {})
    until(lambda: len(guest.ask("nodes")) == 2)
    guest.ask("map", "far")
    guest.ask("put", "key", 3000, "far")
    guest.suspend()
    owner.kill()
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(nanokv.NanoKVCache, HEAP_BYTES, page_bytes=PAGE, attach_timeout=3.0, **world)
        look = InspectedWorld(shm_name)  # while the other one waits
        assert (look.living, look.alive(1, 1)) == ([False], True)
        with pytest.raises(HeapUnavailable, match="its ranks have died, and guests still work in its memory"):
            refused.result()
    guest.resume()
    with nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE, **world) as again:
        assert torch.equal(again.get("key"), value_of("key", 3000))


def test_an_owner_that_dies_and_has_a_child_is_lost_at_once(make_cluster: MakeCluster, start: StartNode) -> None:
    """A child of a fork has a copy of the descriptor of the connection, and keeps that open."""
    (here,) = make_cluster(1, timeout=1.0)
    owner = start("far", ttl=600.0)
    until(lambda: here.nodes == ["far", "n0"])
    map_others(here)
    child = owner.ask("fork")
    try:
        owner.kill()
        until(lambda: here.stats()["ways"]["far"] != "mapped")
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_owner_that_stands_still_delays_nobody(
    make_cluster: MakeCluster, start: StartNode, new_world: NewWorld
) -> None:
    (here,) = make_cluster(1, timeout=1.0)
    owner = start("far", new_world(), ttl=600.0)
    until(lambda: here.nodes == ["far", "n0"])
    key, other = key_of(here, "far"), key_of(here, "far", "other")
    map_others(here)
    here.put(key, VALUE)
    owner.suspend()
    assert torch.equal(here.get(key), VALUE)
    here.put(other, value_of(other, 3000))
    here.remove(key)
    owner.resume()
    assert owner.ask("get", other, 3000) == "right" and owner.ask("get", key, 1) == "none"


def test_an_owner_that_leaves_has_its_guests_go(make_mapped: MakeCluster) -> None:
    one, two = make_mapped(2)
    exchange(one, two)
    one.put("key", VALUE, preferred_segment=(two.node, None))
    node = one.member.nodes[two.node]
    guest = one.member.mapped[node]  # as a call that is under way
    two.close()
    until(lambda: not one.member.mapped.known(node))
    found = guest.single.get(one.digest("key"))  # it comes to its end
    assert isinstance(found, torch.Tensor) and torch.equal(found, VALUE)
    heap = two.world.engine.heap
    assert heap.alive(heap.world_size, 1)
    del guest
    until(lambda: not heap.alive(heap.world_size, 1), "the guest's end")
    assert torch.equal(two.world.get("key"), VALUE)


def test_nothing_goes_to_a_world_that_has_closed(make_mapped: MakeCluster) -> None:
    one, two = make_mapped(2)
    node = one.member.nodes[two.node]
    guest = one.member.mapped[node]  # as a call that was just about to put
    two.world.close()
    keys = one.world.engine.digests(["a", "b"])
    for put in (guest.put, partial(guest.single.put, preferred=None)):
        with pytest.raises(PeerLost, match="all ranks of the world have closed"):
            put(keys[0], VALUE)
    with pytest.raises(PeerLost):
        guest.put(keys[0], VALUE, preferred_segment=0)
    puts, patience = MappedPuts(cast("Any", {node: guest}), one.member.locations, one.member.nodes), Patience(1.0)
    for terms in (NO_TERMS, terms_of(9.0, one.world.engine.hasher.group)):
        with pytest.raises(PeerLost, match="has ended"):
            puts.put(node, keys[0], VALUE, 0, terms, patience)
        with pytest.raises(PeerLost, match="has ended"):
            puts.put_each(node, keys.words, [VALUE, VALUE], 0, terms, patience)
    assert all(isinstance(each, PeerLost) for each in guest.batched.put(keys, torch.ones(2, 5), None))
    assert isinstance(guest.get(keys[0]), int)


def test_a_child_of_a_fork_is_no_guest(make_mapped: MakeCluster) -> None:
    one, two = make_mapped(2)
    exchange(one, two)
    check_refused({"get": lambda: one.get("key", None), "put": lambda: one.put("key", VALUE)})
    exchange(one, two)
    assert way(one, two) == "mapped" and two.stats()["guests"] == 1
