"""Puts, gets, removals and messages over the wire: what comes is what was there, or the status says why not."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.check.wire.plain_wire import pull
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.wire import client as wire_client
from nanokv.cluster.wire.client import Connection, WireClient, shut
from nanokv.cluster.wire.server import WireServer
from nanokv.device.fabric.records import PULL
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.device.wire.records import MOST_CALL, MOST_KEYS, MOST_RECORDS, WANTED
from nanokv.errors import CacheClosed, InvalidArgument
from nanokv.transfer.descriptors import what_of
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.object_calls import hashing_record
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import ASKER, OWNER, SECONDS, SECRET, Serve, Served

#: bytes: around words, the covered payload, what is part of a frame, and a turn of the owner's loop
SIZES = [0, 1, 7, 8, 9, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) - 1, (2 << 20) + 3]
OK, MISS, DUPLICATE, FULL, SIZE = (int(Status[name]) for name in ("OK", "MISS", "DUPLICATE", "FULL", "SIZE"))


def digests(served: Served, *names: str) -> Words:
    """int64 [n, 2]."""
    return np.array([served.world.digest(name) for name in names], np.int64)


def put(served: Served, client: WireClient, names: list[str], tensors: list[torch.Tensor], rank: int = -1) -> list[int]:
    """Put tensors in one frame: their statuses."""
    pulls = np.zeros(len(names), PULL.dtype)
    keys = digests(served, *names)
    pulls["key_hash"], pulls["key_check"], pulls["rank"] = keys[:, 0], keys[:, 1], rank
    for row, tensor in zip(pulls, tensors, strict=True):
        what = what_of(tensor.dtype, tensor.shape)
        row["nbytes"], row["what"], row["source"] = what.nbytes, what.descriptor, tensor.data_ptr()
    client.put(pulls, SECONDS)
    found: list[int] = pulls["status"].tolist()
    return found


def get(served: Served, client: WireClient, names: list[str], dsts: list[torch.Tensor], any_size: int = 0) -> Any:
    """Get into tensors in one frame: GOT [n]."""
    rows = np.zeros(len(names), WANTED.dtype)
    keys = digests(served, *names)
    rows["key_hash"], rows["key_check"], rows["any_size"] = keys[:, 0], keys[:, 1], any_size
    for row, dst in zip(rows, dsts, strict=True):
        what = what_of(dst.dtype, dst.shape)
        row["room"], row["what"] = what.nbytes, what.descriptor
    targets = np.array([dst.data_ptr() for dst in dsts], np.int64)
    return client.get(rows, targets, SECONDS)


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, served: Served) -> WireClient:
    return served.client(served.server.local if request.param == "unix" else served.server.address)


@pytest.mark.parametrize("by", ["unix", "tcp"])
def test_one_object_of_each_size_comes_as_it_was(serve: Serve, by: str) -> None:
    served = serve(64 << 20, page_bytes=65536)
    client = served.client(served.server.local if by == "unix" else served.server.address)
    hashing, look = hashing_record(served.world.engine.hasher), native_look().record
    for size in SIZES:
        tensor, there = torch.randint(0, 255, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
        key = f"object of {size}"
        answer = client.put_one(key, tensor, -1, int(hashing.ctypes.data), look, SECONDS)
        assert answer == OK
        assert torch.equal(served.world.get(key), tensor)
        assert client.get_one(key, there, int(hashing.ctypes.data), look, SECONDS) == OK
        assert torch.equal(there, tensor)
        again = client.put_one(key, tensor, -1, int(hashing.ctypes.data), look, SECONDS)
        assert again == DUPLICATE
        assert client.remove(digests(served, key), SECONDS).tolist() == [OK]


def test_many_objects_in_one_frame(served: Served, client: WireClient) -> None:
    names = [f"k{i}" for i in range(MOST_RECORDS)]
    for size in (0, 5, 256, 3000):
        tensors = [torch.randint(0, 255, (size + i % 3,), dtype=torch.uint8) for i in range(MOST_RECORDS)]
        assert set(put(served, client, names, tensors)) == {OK}
        dsts = [torch.zeros_like(tensor) for tensor in tensors]
        gots = get(served, client, names, dsts)
        assert (gots["status"] == OK).all() and gots["nbytes"].tolist() == [len(tensor) for tensor in tensors]
        assert all(torch.equal(a, b) for a, b in zip(tensors, dsts, strict=True))
        assert (client.exists(digests(served, *names), SECONDS) == OK).all()
        assert (client.remove(digests(served, *names), SECONDS) == OK).all()


def test_neighbours_in_memory_go_as_one_and_come_apart(served: Served, client: WireClient) -> None:
    rows = torch.randn(40, 700)
    names = [f"row {i}" for i in range(40)]
    served.world.put("row 7", torch.zeros(3))  # one that is there already does not shift the others
    statuses = put(served, client, names, list(rows))
    assert statuses[7] == DUPLICATE and statuses.count(OK) == 39
    there = torch.zeros_like(rows)
    gots = get(served, client, names, list(there))
    assert gots["status"][7] == SIZE and (np.delete(gots["status"], 7) == OK).all()
    assert torch.equal(there[:7], rows[:7]) and torch.equal(there[8:], rows[8:]) and not there[7].any()


def test_what_does_not_suit_is_said_before_a_byte_goes(served: Served, client: WireClient) -> None:
    served.world.put("a", torch.arange(12, dtype=torch.float32).view(3, 4))
    for dst in (torch.zeros(12), torch.zeros(4, 3), torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 5)):
        (got,) = get(served, client, ["a"], [dst])
        assert (got["status"], got["nbytes"]) == (SIZE, 48) and not dst.any()
        assert tuple(got["what"]) == what_of(torch.float32, torch.Size((3, 4))).descriptor
    raw = torch.zeros(100, dtype=torch.uint8)
    assert get(served, client, ["a"], [raw], any_size=1)["status"][0] == OK
    assert torch.equal(raw[:48].view(torch.float32), torch.arange(12.0))
    (none,) = get(served, client, ["b"], [raw])
    assert none["status"] == MISS


def test_an_owner_with_room_for_few_makes_room_or_says_full(serve: Serve) -> None:
    for evicts in (True, False):
        served = serve(1 << 20, evict=evicts)
        client = served.client()
        tensors = [torch.full((3000,), float(i)) for i in range(200)]
        found = [put(served, client, [f"k{i}"], [tensor])[0] for i, tensor in enumerate(tensors)]
        assert set(found) == ({OK} if evicts else {OK, FULL})
        assert torch.equal(served.world.get(f"k{199 if evicts else 0}"), tensors[199 if evicts else 0])
        assert put(served, client, ["large"], [torch.zeros(1 << 20)]) == [Status.TOO_LARGE]


def test_room_is_looked_for_though_the_last_object_finds_some(serve: Serve, calls: Calls) -> None:
    served = serve()
    looked = calls.noted(WireServer, "begin")
    tensors = [*[torch.zeros(100_000)] * 20, torch.zeros(10)]
    found = put(served, served.client(), [f"k{i}" for i in range(21)], tensors)
    assert set(found) == {OK, FULL} and found[-1] == OK
    assert len(looked) == found.count(FULL)


def test_times_count_from_when_they_come(served: Served) -> None:
    connection, second = served.plain(), 1_000_000_000
    for name, until_ns in (("short", second // 5), ("long", 1000 * second), ("for ever", 0)):
        (key,) = digests(served, name).tolist()
        connection.send(connection.frame(1, 1, pull(key, 8, until=until_ns).tobytes(), b"8 bytes."))
        assert np.frombuffer(connection.answer()[2], np.int64)[0] == OK
    until(lambda: not served.world.exists("short"), "its end")
    assert served.world.exists("long") and served.world.exists("for ever")
    connection.close()


def test_more_keys_than_a_frame_has(served: Served, client: WireClient) -> None:
    names = [f"n{i}" for i in range(MOST_KEYS + 1)]
    served.world.put(names[0], torch.zeros(1))
    served.world.put(names[-1], torch.zeros(1))
    found = client.exists(digests(served, *names), SECONDS)
    assert np.flatnonzero(found == OK).tolist() == [0, MOST_KEYS]
    removed = client.remove(digests(served, *names), SECONDS)
    assert np.flatnonzero(removed == OK).tolist() == [0, MOST_KEYS] and not served.world.exists(names[0])


def test_messages(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Slow:
        rest = 0.01

        def __init__(self) -> None:
            self.looks = 0

        def poll(self) -> bytes | None:
            self.looks += 1
            return b"late" if self.looks > 3 else None

        def abandon(self) -> None:
            pass

    def fail(sender: Sender, body: bytes) -> bytes:
        raise ValueError("no\nmore of this is told")

    class Untold(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail_untold(*_: Any) -> bytes:
        raise Untold

    slow = Slow()
    echo = lambda sender, body: sender.id.encode() + body  # noqa: E731
    served = serve(handlers={1: echo, 2: fail, 3: lambda *_: slow, 4: lambda *_: None, 5: fail_untold})
    client = served.client()
    assert client.ask(1, b"", SECONDS) == b"asker.0"
    for size in (1, 7, 8, 9, 100, MOST_CALL):
        body = os.urandom(size)
        assert client.ask(1, body, SECONDS) == b"asker.0" + body
    with pytest.raises(Refused, match=r"^ValueError: no$"):
        client.ask(2, b"", SECONDS)
    with pytest.raises(Refused, match=r"^Untold$"):
        client.ask(5, b"", SECONDS)
    with pytest.raises(Refused, match="no handler for messages of kind 9"):
        client.ask(9, b"", SECONDS)
    with pytest.raises(InvalidArgument, match=f"at most {MOST_CALL} bytes, not {MOST_CALL + 1}"):
        client.ask(1, bytes(MOST_CALL + 1), SECONDS)
    assert client.ask(3, b"", SECONDS) == b"late" and client.ask(4, b"", SECONDS) == b""
    counts = {reason.name: count for reason, count in served.server.counts.items()}
    assert counts == {"FAILED": 2, "NO_HANDLER": 1}
    assert "a message of kind 2 from asker.0 failed: ValueError: no" in caplog.text  # whoever runs the owner reads it


def test_a_large_answer(serve: Serve) -> None:
    whole = os.urandom(5_000_001)
    client = serve(handlers={1: lambda *_: whole}).client()
    assert client.ask(1, b"", SECONDS) == whole


def test_threads_share_a_client(served: Served) -> None:
    client, wrong = served.client(), []
    records = [(hashing_record(served.world.engine.hasher), torch.zeros(500)) for _ in range(6)]

    def work(number: int) -> None:
        hashing, there = records[number]
        for i in range(60):
            tensor, key = torch.full((500,), float(number * 1000 + i)), f"{number}-{i}"
            a = client.put_one(key, tensor, -1, int(hashing.ctypes.data), native_look().record, SECONDS)
            b = client.get_one(key, there, int(hashing.ctypes.data), native_look().record, SECONDS)
            if (a, b) != (OK, OK) or not torch.equal(there, tensor):
                wrong.append((number, i, a, b))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 1 <= served.server.figures["wire_connections"] <= 6


def test_gets_of_what_is_replaced_all_the_time_are_whole_or_none(served: Served) -> None:
    client, over = served.client(), threading.Event()

    def replace() -> None:
        i = 0
        while not over.is_set():
            served.world.remove_many(["k"])
            served.world.put_many(["k"], [torch.full((40_000,), i % 100, dtype=torch.int32)])
            i += 1

    thread = threading.Thread(target=replace)
    thread.start()
    seen, dst, whole = set(), torch.zeros(40_000, dtype=torch.int32), 0
    end = time.monotonic() + 60
    while whole < 150 and time.monotonic() < end:
        (got,) = get(served, client, ["k"], [dst])
        seen.add(int(got["status"]))
        if got["status"] == OK:
            whole += 1
            assert (dst == dst[0]).all()
    over.set()
    thread.join()
    assert whole == 150 and seen <= {OK, MISS, int(Status.NOT_READY), int(Status.TORN)}


def test_an_idle_connection_gives_its_memory_back(served: Served) -> None:
    client = served.client()
    names = [f"k{i}" for i in range(MOST_RECORDS)]
    put(served, client, names, [torch.zeros(32, dtype=torch.int64)] * MOST_RECORDS)

    def resident() -> int:
        rooms = Path("/proc/self/smaps").read_text().split("\n")
        return sum(int(line.split()[1]) for line in rooms if line.startswith("Rss:"))

    seen = [resident()]
    assert client.exists(digests(served, "k0"), SECONDS).tolist() == [OK]

    def is_given_back() -> bool:
        seen.append(resident())
        return seen[-1] < max(seen) - 60

    until(is_given_back, "its memory")
    assert client.exists(digests(served, *names), SECONDS).tolist() == [OK] * MOST_RECORDS


def test_a_closed_client_ends_what_waits(serve: Serve) -> None:
    class Never:
        rest = 0.05
        abandoned = False

        def poll(self) -> bytes | None:
            return None

        def abandon(self) -> None:
            self.abandoned = True

    never = Never()
    served = serve(handlers={1: lambda *_: never})
    client, found = served.client(), []

    def ask() -> None:
        try:
            client.ask(1, b"", SECONDS)
        except CacheClosed as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: served.server.figures["wire_connections"] == 1, "the question")
    time.sleep(0.05)
    client.close()
    thread.join()
    assert len(found) == 1
    with pytest.raises(CacheClosed):
        client.ask(1, b"", SECONDS)
    served.server.close()
    assert never.abandoned


def test_a_member_that_has_left_does_not_answer(served: Served) -> None:
    client = served.client()
    assert client.exists(digests(served, "k"), SECONDS).tolist() == [MISS]
    client.leave()
    with pytest.raises(Unanswered, match="has left the cluster"):
        client.exists(digests(served, "k"), SECONDS)


def test_who_is_meant_and_who_asks(served: Served) -> None:
    for to in (Sender(OWNER.id, OWNER.incarnation + 1), Sender("another.0", OWNER.incarnation)):
        with pytest.raises(Unanswered, match="refuses this member"):
            WireClient(SECRET, ASKER, to, (served.server.local,), seal=served.seal).ask(1, b"", SECONDS)
    another = WireClient(b"another secret of tests", ASKER, OWNER, (served.server.local,), seal=served.seal)
    with pytest.raises(Unanswered, match="refuses this member"):
        another.ask(1, b"", SECONDS)
    until(lambda: served.server.counts == {DropReason.STRANGER: 3}, "the refusals")


def test_a_connection_that_has_ended_while_nobody_used_it_costs_nothing(
    served: Served, limits: Limits, calls: Calls
) -> None:
    """As where a firewall forgets those that rest."""
    limits(wire_client, RESTED=0.0)
    taken, client, key = calls.noted(Connection, "give"), served.client(), digests(served, "x")
    for _ in range(3):
        assert client.exists(key, SECONDS).tolist() == [MISS]
    assert len({id(each) for each, _ in taken}) == 1
    shut(taken[0][0].socket)
    assert client.exists(key, SECONDS).tolist() == [MISS]
    assert len({id(each) for each, _ in taken}) == 2
