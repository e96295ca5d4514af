"""What goes wrong on the wire: frames that are none, half ones, replays, ends that die or stop, strangers."""

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.check.wire.frames import run_wire
from nanokv.check.wire.plain_wire import PlainWire, pull, wanted
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.replies import Unanswered
from nanokv.cluster.wire import server as wire_server
from nanokv.cluster.wire.client import Unreached, WireClient
from nanokv.cluster.wire.handshake import OF_SEAL, WELCOME_BYTES, Greeting
from nanokv.cluster.wire.server import WireServer
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.protocol.status import Status
from nanokv.device.wire.records import (
    CALL,
    END,
    EXISTS,
    GET,
    GOT,
    HEAD,
    MAC,
    MOST_KEYS,
    MOST_RECORDS,
    OFFER,
    PUT,
    REMOVE,
    STATUSES,
)
from nanokv.transfer.descriptors import what_of
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import ASKER, OWNER, SECONDS, SECRET, Serve, Served

OK = int(Status.OK)
KEY = (11, 22)  #: the digest of an object
BYTES8 = what_of(torch.uint8, torch.Size((8,))).descriptor


def good(wire: PlainWire, key: tuple[int, int] = KEY) -> bytes:
    """A frame that puts an object of eight bytes."""
    return wire.frame(PUT.value, 1, pull(key, 8, what=BYTES8).tobytes(), b"8 bytes.")


def status_of(answer: tuple[int, int, bytes]) -> int:
    """The first status in an answer."""
    return int(np.frombuffer(answer[2], np.int64)[0])


def flipped(data: bytes, bit: int) -> bytes:
    """With one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def with_pull(**fields: Any) -> Any:
    """A PUT of eight bytes, with other fields in its PULL."""

    def made(wire: PlainWire) -> bytes:
        row = pull(KEY, 8, what=BYTES8)
        for name, value in fields.items():
            row[name] = value
        return wire.frame(PUT.value, 1, row.tobytes(), b"8 bytes.")

    return made


#: frames, each authentic but for what its name says, that end their connection
MALFORMED = {
    "no kind": lambda wire: wire.frame(0, 1),
    "kind of an answer": lambda wire: wire.frame(17, 1, bytes(PULLED.size)),
    "unknown kind": lambda wire: wire.frame(99, 1),
    "PUT of none": lambda wire: wire.frame(PUT.value, 0),
    "PUT of too many": lambda wire: wire.frame(PUT.value, MOST_RECORDS + 1, bytes(PULL.size * (MOST_RECORDS + 1))),
    "GET of none": lambda wire: wire.frame(GET.value, 0),
    "EXISTS of too many": lambda wire: wire.frame(EXISTS.value, MOST_KEYS + 1, bytes(16 * (MOST_KEYS + 1))),
    "REMOVE with a payload": lambda wire: wire.frame(REMOVE.value, 1, bytes(16), b"8 bytes."),
    "OFFER with a payload": lambda wire: wire.frame(OFFER.value, 1, pull(KEY, 8).tobytes(), b"8 bytes."),
    "END with records": lambda wire: wire.frame(END.value, 1),
    "END of nothing": lambda wire: wire.frame(END.value, 0),
    "payload too large": lambda wire: wire.frame(PUT.value, 1, pull(KEY, 1 << 17).tobytes(), bytes(1 << 17)),
    "negative payload": lambda wire: wire.frame(PUT.value, 1, pull(KEY, 8).tobytes(), size=-8),
    "message too large": lambda wire: wire.frame(CALL.value, 1, payload=bytes(1 << 17), whole=True),
    "old number": lambda wire: wire.frame(EXISTS.value, 1, bytes(16), number=0),
    "number left out": lambda wire: wire.frame(EXISTS.value, 1, bytes(16), number=2),
    "wrong MAC": lambda wire: wire.frame(EXISTS.value, 1, bytes(16), tag=bytes(range(16))),
    "more behind it": lambda wire: good(wire) + good(wire),
    "more bytes than the payload": with_pull(nbytes=16, what=what_of(torch.uint8, torch.Size((16,))).descriptor),
    "fewer bytes than the payload": with_pull(nbytes=4, what=what_of(torch.uint8, torch.Size((4,))).descriptor),
    "negative size": with_pull(nbytes=-8),
    "no such rank": with_pull(rank=1),
    "rank below all": with_pull(rank=-2),
    "negative terms": with_pull(access=-1),
    "negative end": with_pull(until=-1),
    "shape of another size": with_pull(what=what_of(torch.uint8, torch.Size((9,))).descriptor),
    "no such dtype": with_pull(what=(200, 0, 0, 0, 0, 0, 0, 0)),
    "too many dimensions": with_pull(what=(BYTES8[0] | 0xFF00, *BYTES8[1:])),
    "a dimension that is negative": with_pull(
        what=(what_of(torch.uint8, torch.Size((2, 4))).descriptor[0], -2, -4, 0, 0, 0, 0, 0)
    ),
    "dimensions that overflow": with_pull(
        what=(what_of(torch.uint8, torch.Size((1, 1, 1))).descriptor[0], 1 << 40, 1 << 40, 1 << 51, 0, 0, 0, 0)
    ),
    "room below nothing": lambda wire: wire.frame(GET.value, 1, wanted(KEY, -1).tobytes()),
    "room beyond all": lambda wire: wire.frame(GET.value, 1, wanted(KEY, 1 << 62).tobytes()),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_frame_ends_its_connection_and_nothing_else(served: Served, name: str) -> None:
    wire, other = served.plain(), served.plain()
    wire.send(MALFORMED[name](wire))
    assert wire.is_ended()
    assert served.world.segment_count() == 0
    until(lambda: served.server.counts == {DropReason.MALFORMED: 1}, "its count")
    other.send(good(other))
    assert status_of(other.answer()) == OK


def test_a_flipped_bit_anywhere_in_a_frame_ends_its_connection(served: Served) -> None:
    first = served.plain()
    bits = range(0, 8 * len(first.raw(good(first))), 97)  # in each byte's turn another one of its bits
    first.close()
    for count, bit in enumerate(bits, 1):
        wire = served.plain()
        wire.send_raw(flipped(wire.raw(good(wire)), bit))
        wire.socket.shutdown(socket.SHUT_WR)  # with a larger size more would have to come
        assert wire.is_ended()
        until(lambda: served.server.figures["wire_connections"] == 0, f"the end of connection {count}")
    assert served.server.figures["wire_puts"] == 0
    assert served.server.counts[DropReason.MALFORMED] > len(bits) // 2


def test_questions_are_answered_one_after_the_other(serve: Serve) -> None:
    served = serve(64 << 20, page_bytes=65536)
    wire, nbytes = served.plain(), 8 << 20
    served.world.put("large", torch.zeros(nbytes, dtype=torch.uint8))
    key = served.world.digest("large")
    wire.send(wire.frame(GET.value, 1, wanted(key, nbytes).tobytes()))
    assert len(wire.exactly(HEAD.size + GOT.size)) == HEAD.size + GOT.size
    wire.send(wire.frame(EXISTS.value, 1, bytes(16)))  # it waits: most of the answer is still to go
    wire.exactly(nbytes + 8 + MAC)
    wire.seen += 1
    assert wire.answer()[0] == STATUSES.value


def test_frames_come_byte_by_byte(served: Served) -> None:
    wire = served.plain()
    for i, byte in enumerate(good(wire)):
        wire.send(bytes([byte]))
        if i % 50 == 0:
            time.sleep(0.001)
    assert status_of(wire.answer()) == OK


def test_a_recorded_frame_means_nothing_elsewhere(served: Served) -> None:
    wire, other = served.plain(), served.plain()
    frame = wire.raw(good(wire))
    wire.send_raw(frame)
    assert status_of(wire.answer()) == OK
    other.send_raw(frame)  # another connection has other keys
    assert other.is_ended()
    wire.send_raw(frame)  # and this one has counted it
    assert wire.is_ended()
    assert served.server.figures["wire_puts"] == 1


def test_a_recorded_hello_gives_keys_that_nobody_has(served: Served) -> None:
    recorded: list[bytes] = []

    class Recording(socket.socket):
        def sendall(self, data: Any, *flags: int) -> None:
            recorded.append(bytes(data))
            super().sendall(data, *flags)

    wire = served.plain()
    wire.close()
    with closing(Recording(socket.AF_UNIX)) as first:
        first.connect(f"\0{served.server.local.removeprefix('unix:')}")
        greeting = Greeting(SECRET, ASKER, OWNER, OF_SEAL[served.seal])
        first.sendall(greeting.hello)
        keys = greeting.keys(first.recv(WELCOME_BYTES, socket.MSG_WAITALL))
    with closing(socket.socket(socket.AF_UNIX)) as again:
        again.connect(f"\0{served.server.local.removeprefix('unix:')}")
        again.sendall(recorded[0])
        other = again.recv(WELCOME_BYTES, socket.MSG_WAITALL)
        assert greeting.keys(other) != keys


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_authentic_frames_of_chance(seed: int) -> None:
    """What a member with a bug, or one that means ill, may send. `nanokv check wire` sends as many as are wanted."""
    for row in run_wire(5000, seed):
        assert row.held, row.failures
        assert row.numbers["malformed"] > 100


def test_frames_of_chance_find_what_is_left_behind(calls: Calls) -> None:
    calls.answer(WireServer, "give_up", None)
    (row,) = run_wire(500, 1, ["heads"])
    assert len(row.failures) == 1 and "objects are unfinished" in row.failures[0]


## --- who dies, stops or says nothing ----------------------------------------------------------
def test_a_producer_that_goes_in_the_middle_leaves_nothing(serve: Serve) -> None:
    served = serve(64 << 20, page_bytes=65536)
    for sent in (0, 1, 100_000, (4 << 20) - 1):
        wire = served.plain()
        what = what_of(torch.uint8, torch.Size((4 << 20,))).descriptor
        wire.send(wire.frame(OFFER.value, 1, pull(KEY, 4 << 20, what=what).tobytes()))
        assert status_of(wire.answer()) == OK
        wire.send(bytes(sent))
        wire.close()
        until(lambda: served.server.figures["wire_connections"] == 0, "its end")
        other = served.plain()
        other.send(good(other))  # the key is free at once
        assert status_of(other.answer()) == OK
        other.send(other.frame(REMOVE.value, 1, struct.pack("<2q", *KEY)))
        assert status_of(other.answer()) == OK
        other.close()
        until(lambda: served.server.figures["wire_connections"] == 0, "the other's end")
    assert served.server.figures["wire_given_up"] == 4


def test_who_is_silent_in_the_middle_is_given_up(serve: Serve) -> None:
    served = serve(patience=0.3)
    half, offered, idle = served.plain(), served.plain(), served.plain()
    half.send(good(half)[:50])
    offered.send(offered.frame(OFFER.value, 1, pull(KEY, 8, what=BYTES8).tobytes()))
    assert status_of(offered.answer()) == OK
    assert half.is_ended() and offered.is_ended()
    until(lambda: served.server.counts == {DropReason.SILENT: 2}, "its counts")
    idle.send(good(idle))  # who has asked nothing may be silent for ever
    assert status_of(idle.answer()) == OK


def test_a_recorded_hello_holds_nothing_for_long(serve: Serve, limits: Limits) -> None:
    """Who has heard a HELLO can send it again, and gets a connection; but no frame, for it has no keys."""
    limits(wire_server, GRACE_NS=0)
    served = serve(patience=0.3)
    hello = Greeting(SECRET, ASKER, OWNER, OF_SEAL[served.seal]).hello
    with closing(socket.socket(socket.AF_UNIX)) as again:
        again.connect(f"\0{served.server.local.removeprefix('unix:')}")
        again.settimeout(SECONDS)
        again.sendall(hello)
        assert len(again.recv(WELCOME_BYTES, socket.MSG_WAITALL)) == WELCOME_BYTES
        assert again.recv(1) == b""
    until(lambda: served.server.figures["wire_connections"] == 0, "its end")


def test_room_that_cannot_be_looked_for_leaves_nothing(serve: Serve, calls: Calls) -> None:
    served = serve()
    calls.fail(served.world.engine.allocation, "begin", OSError("no memory"))
    wire = served.plain()
    what = what_of(torch.uint8, torch.Size((400_000,))).descriptor
    many = [pull((hash((i, 2)), hash((2, i))), 400_000, what=what) for i in range(20)]
    wire.send(wire.frame(OFFER.value, len(many), b"".join(each.tobytes() for each in many)))
    assert wire.is_ended()  # the first ones had been claimed, the last ones found no room
    until(lambda: served.server.figures["wire_connections"] == 0, "its end")
    assert served.server.figures["wire_given_up"] > 0 and served.server.figures["wire_puts"] == 0


def test_who_does_not_read_delays_nobody(serve: Serve) -> None:
    served = serve(128 << 20, patience=2.0, page_bytes=65536)
    served.world.put("large", torch.zeros(8 << 20, dtype=torch.uint8))
    row = wanted(served.world.digest("large"), 8 << 20).tobytes()
    slow, other = served.plain(), served.plain()
    slow.send(slow.frame(GET.value, 4, 4 * row))
    for i in range(50):
        other.send(good(other, (hash((i, 5)), hash((5, i)))))
        assert status_of(other.answer()) == OK
    until(lambda: served.server.counts.get(DropReason.SILENT) == 1, "its end")
    assert served.world.exists("large")


CHILD = """
import sys, torch, numpy as np
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.wire.client import WireClient
from nanokv.device.fabric.records import PULL
from nanokv.transfer.descriptors import what_of
address, seal, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
me, to = Sender(f"child.{number}", 1), Sender("owner.0", 7)
client = WireClient(b"a secret of the tests", me, to, (address,), seal=seal)
tensor = torch.full((1 << 20,), number, dtype=torch.uint8)
what = what_of(tensor.dtype, tensor.shape)
i = 0
while True:
    pulls = np.zeros(4, PULL.dtype)
    pulls["key_hash"], pulls["key_check"], pulls["rank"] = number, i * 4 + np.arange(4), -1
    pulls["nbytes"], pulls["what"], pulls["source"] = what.nbytes, what.descriptor, tensor.data_ptr()
    client.put(pulls, 20.0)
    client.remove(np.stack([pulls["key_hash"], pulls["key_check"]], 1), 20.0)
    i += 1
    if i == 1:
        print("begun", flush=True)
"""


@contextmanager
def children(address: str, seal: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that put and remove four objects of a MiB at a time."""
    made = [
        subprocess.Popen([sys.executable, "-c", CHILD, address, seal, str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    try:
        for child in made:
            assert child.stdout is not None and child.stdout.readline() == "begun\n"
        yield made
    finally:
        for child in made:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def test_producers_are_killed_at_any_time(serve: Serve) -> None:
    served, chance = serve(128 << 20, page_bytes=65536), random.Random(1)
    for address in (served.server.local, served.server.address):
        with children(address, served.seal, 2) as made:
            for child in made:
                time.sleep(chance.random() / 20)
                child.kill()
        until(lambda: served.server.figures["wire_connections"] == 0, "their ends")
    served.world.flush()
    machine = served.world.engine.machine
    assert machine.find((0, 10**9)) != OK  # and fsck looks at the rest after the test


def test_a_producer_that_is_stopped_and_goes_on(serve: Serve) -> None:
    served = serve(128 << 20, patience=0.3, page_bytes=65536)
    with children(served.server.address, served.seal, 1) as (child,):
        for _ in range(4):
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(0.05)
            if child.poll() is not None:  # it was given up in the middle, and has said so
                break
        other = served.plain()
        other.send(good(other))
        assert status_of(other.answer()) == OK


OWNER_PROCESS = """
import sys, nanokv
sys.path.insert(0, sys.argv[1])
from tests.wire.conftest import serve_world
world = nanokv.NanoKVCache(64 << 20, page_bytes=4096)
server = serve_world(world)
print(server.local, server.address, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """An owner in a process of its own, and its addresses."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", OWNER_PROCESS, root]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert made.stdin is not None and made.stdout is not None
    try:
        local, address = made.stdout.readline().split()
        yield made, local, address
    finally:
        made.kill()
        made.wait()
        made.stdin.close()
        made.stdout.close()


def stop(pid: int) -> None:
    """Stop all threads of a process, which takes a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)

    def states() -> set[str]:
        stats = Path(f"/proc/{pid}/task").glob("*/stat")
        return {path.read_text().rpartition(")")[2].split()[0] for path in stats}

    until(lambda: states() <= {"T", "t"}, "its threads")


def test_an_owner_that_dies_or_stops() -> None:
    with owner() as (process, local, address):
        for where in (local, address):
            client = WireClient(SECRET, ASKER, OWNER, (where,))
            assert client.exists(np.array([[1, 1]]), SECONDS).tolist() == [int(Status.MISS)]
            stop(process.pid)
            begun = time.monotonic()
            with pytest.raises(Unanswered, match="did not answer"):
                client.exists(np.array([[1, 1]]), 0.3)
            assert time.monotonic() - begun < SECONDS / 2
            os.kill(process.pid, signal.SIGCONT)
            assert client.exists(np.array([[1, 1]]), SECONDS).tolist() == [int(Status.MISS)]  # over another connection
            client.close()
        client, found = WireClient(SECRET, ASKER, OWNER, (address,)), []
        client.exists(np.array([[1, 1]]), SECONDS)
        stop(process.pid)

        def ask() -> None:
            with pytest.raises(Unanswered, match="has gone"):
                client.exists(np.array([[1, 1]]), SECONDS)
            found.append(time.monotonic())

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.1)
        process.kill()
        thread.join()
        assert found  # at once, and not after SECONDS: the test would take as long
        with pytest.raises(Unreached, match=r"cannot be reached: Connection (refused|reset by peer)"):
            client.exists(np.array([[1, 1]]), SECONDS)
        client.close()


# --- strangers --------------------------------------------------------------------------------
def test_strangers_cost_little(served: Served, limits: Limits) -> None:
    limits(wire_server, STRANGER_SECONDS=0.3)
    name = f"\0{served.server.local.removeprefix('unix:')}"
    member = served.plain()
    made = [socket.socket(socket.AF_UNIX) for _ in range(wire_server.MOST_STRANGERS + 20)]
    for each in made:
        each.connect(name)
    made[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(400))
    for i in range(20):
        member.send(good(member, (hash((7, i)), i)))
        assert status_of(member.answer()) == OK
    until(lambda: served.server.counts.get(DropReason.STRANGER) == len(made), "their ends")
    for each in made:
        with suppress(ConnectionResetError):  # it had sent what nobody read
            assert each.recv(1) == b""
        each.close()


def test_many_connections(served: Served) -> None:
    made = [served.plain() for _ in range(150)]
    for i, wire in enumerate(made):
        wire.send(good(wire, (hash((i, 3)), hash((3, i)))))
    assert {status_of(wire.answer()) for wire in made} == {OK}
    assert served.server.figures["wire_connections"] == 150
    for wire in made:
        wire.close()
    until(lambda: served.server.figures["wire_connections"] == 0, "the ends")


def test_the_end_of_a_server_is_seen_at_once_and_leaves_nothing(serve: Serve) -> None:
    served = serve()
    wire = served.plain()
    wire.send(wire.frame(OFFER.value, 1, pull(KEY, 8, what=BYTES8).tobytes()))
    assert status_of(wire.answer()) == OK
    served.server.close()
    served.server.close()
    assert wire.is_ended()
    assert served.world.segment_count() == 0 and not [
        t for t in threading.enumerate() if t.name.startswith("nanokv-wire")
    ]
