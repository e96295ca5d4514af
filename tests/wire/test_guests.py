"""Guests of a world at its door: proofs, what an owner hands out, and numbers; and what a guest takes for an owner."""

import hmac
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import torch

import nanokv
from nanokv.cluster.messages import unix
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.wire import guests
from nanokv.cluster.wire.guests import enter
from nanokv.cluster.wire.handshake import GUEST, HELLO_BYTES, WELCOME_BYTES, Greeting, Keys, NoHandshake, welcome
from nanokv.device.segment.clock import offset_ns
from nanokv.errors import HeapUnavailable
from nanokv.heap.guest import GuestHeap
from nanokv.heap.local import LocalHeap
from tests.support.faults import Limits
from tests.support.until import until

from .conftest import ASKER, OWNER, SECONDS, SECRET, Serve, Served


def shaken(served: Served) -> tuple[socket.socket, Keys]:
    """A connection of a guest that has shaken hands, and has not proved anything yet."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(SECONDS)
    made.connect(f"\0{served.server.local.removeprefix('unix:')}")
    greeting = Greeting(SECRET, ASKER, OWNER, GUEST)
    made.sendall(greeting.hello)
    return made, greeting.keys(made.recv(WELCOME_BYTES, socket.MSG_WAITALL))


def guest_of(world: nanokv.NanoKVCache) -> GuestHeap:
    """A guest that maps a world of this process."""
    heap = world.engine.heap
    assert isinstance(heap, LocalHeap)
    return GuestHeap("a guest", heap.file_for_guest(), heap.geometry)


def descriptors() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings() -> list[tuple[int, int, dict[str, str]]]:
    """Begin and end of what this process has mapped, and what the system says about it."""
    found: list[tuple[int, int, dict[str, str]]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(number, 16) for number in match.groups())
            found.append((begin, end, {}))
        else:
            name, _, value = line.partition(":")
            found[-1][2][name] = value
    return found


# --- the owner's door ---
def test_who_sends_no_proof_is_no_guest_and_does_not_stay(serve: Serve, limits: Limits) -> None:
    limits(guests, PROOF_SECONDS=0.3)
    served = serve(guests=1)
    made, _ = shaken(served)
    with closing(made):
        assert served.server.figures["guests"] == 0
        assert socket.recv_fds(made, 1024, 4)[:2] == (b"", [])
    until(lambda: served.server.counts == {DropReason.STRANGER: 1}, "its count")


def test_a_proof_is_good_for_one_descriptor(serve: Serve) -> None:
    """Who has been let in has nothing to say."""
    served = serve(guests=1)
    made, keys = shaken(served)
    with closing(made):
        made.sendall(tag(keys.asks, b"guest"))
        (file,) = socket.recv_fds(made, 1024, 4)[1]
        os.close(file)
        until(lambda: served.server.figures["guests"] == 1, "the guest")
        made.sendall(tag(keys.asks, b"guest"))
        assert socket.recv_fds(made, 1024, 4)[:2] == (b"", [])
    until(lambda: served.server.figures["guests"] == 0, "its end")


def test_only_a_proof_of_this_connection_lets_in(serve: Serve) -> None:
    served = serve(guests=1)
    (first, keys), (second, _) = shaken(served), shaken(served)
    with closing(first), closing(second):
        second.sendall(tag(keys.asks, b"guest"))
        assert socket.recv_fds(second, 1024, 4)[:2] == (b"", [])
        first.sendall(tag(keys.asks, b"guest"))
        said, given, _, _ = socket.recv_fds(first, 1024, 4)
        assert said == struct.pack("<q", offset_ns()) + tag(keys.answers, struct.pack("<q", offset_ns()))
        (file,) = given
        os.close(file)
    until(lambda: served.server.counts == {DropReason.STRANGER: 1}, "the refusal")


def test_guests_are_told_that_their_owner_closes(serve: Serve) -> None:
    """And stay until they go."""
    served = serve(guests=1)
    found = enter(served.server.local, SECRET, ASKER, OWNER, SECONDS)
    os.close(found.file)
    served.server.close()
    with closing(found.connection) as made:
        made.settimeout(SECONDS)
        assert made.recv(1) == b"" and served.server.figures["guests"] == 1
    until(lambda: served.server.figures["guests"] == 0, "its end")


CHILD = """
import os, sys, time
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.wire.guests import enter
admitted = enter(sys.argv[1], b"a secret of the tests", Sender("child.0", 1), Sender("owner.0", 7), 20.0)
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


def test_a_guest_that_dies_and_has_a_child_has_gone(serve: Serve) -> None:
    """The child has a copy of the connection, and keeps it open."""
    served = serve(guests=1)
    command = [sys.executable, "-c", CHILD, served.server.local]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        child = int(made.stdout.readline())
        assert served.server.figures["guests"] == 1
        made.kill()
    try:
        until(lambda: served.server.figures["guests"] == 0, "its end")
    finally:
        os.kill(child, signal.SIGKILL)


# --- what a guest takes for an owner ---
def tag(key: bytes, said: bytes) -> bytes:
    """What a guest and its owner seal with."""
    return hmac.digest(key, b"nanokv guest\0" + said, "sha256")


@contextmanager
def owner(admit: Callable[[socket.socket, Keys], object]) -> Iterator[str]:
    """The address of an owner that does with its only guest, after the proof, what it is told."""
    listener = unix.Listener()
    listener.socket.settimeout(SECONDS)

    def run() -> None:
        made, _ = listener.socket.accept()
        with made, suppress(ConnectionError):
            made.settimeout(SECONDS)
            asker, said = welcome(SECRET, OWNER, made.recv(HELLO_BYTES, socket.MSG_WAITALL))
            made.sendall(said)
            assert made.recv(32, socket.MSG_WAITALL) == tag(asker.keys.asks, b"guest")
            admit(made, asker.keys)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.address
    finally:
        thread.join()
        listener.close()


def admitted(made: socket.socket, keys: Keys, files: int = 1, offset: int = 0, wrong: int = 0) -> None:
    """Admit a guest, with so many files. offset: added to that of the clock. wrong: bits of the seal to change."""
    said = struct.pack("<q", offset_ns() + offset)
    sealed = said + tag(keys.answers, said)
    with Path("/dev/null").open("rb") as file:
        changed = [sealed[:-1] + bytes([sealed[-1] ^ wrong])]
        socket.send_fds(made, changed, [file.fileno()] * files)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"files": 0}, HeapUnavailable, "it lets nobody in"),
        ({"wrong": 1}, NoHandshake, "what it says is not its own"),
        ({"offset": 1}, HeapUnavailable, "another time namespace"),
    ],
)
def test_what_is_no_admission_is_refused(how: dict[str, int], error: type[Exception], says: str) -> None:
    before = descriptors()
    with owner(lambda made, keys: admitted(made, keys, **how)) as address, pytest.raises(error, match=says):
        enter(address, SECRET, ASKER, OWNER, SECONDS)
    assert descriptors() == before  # what had come with it is closed


def test_an_admission_is_taken() -> None:
    with owner(admitted) as address:
        found = enter(address, SECRET, ASKER, OWNER, SECONDS)
        assert Path(f"/proc/self/fd/{found.file}").readlink() == Path("/dev/null")
        os.close(found.file)
        found.connection.close()


# --- the guest's heap ---
@pytest.fixture
def world() -> Iterator[nanokv.NanoKVCache]:
    with nanokv.NanoKVCache(1 << 20, page_bytes=4096, guests=2) as made:
        yield made


def test_each_guest_has_a_number_and_gives_it_back(world: nanokv.NanoKVCache) -> None:
    first, second = guest_of(world), guest_of(world)
    assert [first.rank, second.rank] == [1, 2]
    with pytest.raises(HeapUnavailable, match="the world has guests=2, and all are there"):
        guest_of(world)
    first.close()
    first.close()
    again = guest_of(world)
    assert again.rank == 1 and again.incarnation > first.incarnation
    again.close()
    second.close()


def test_a_world_that_has_closed_is_seen_at_once(world: nanokv.NanoKVCache) -> None:
    guest = guest_of(world)
    assert not guest.peer_closed(0)  # which is trusted for a while, but for this:
    world.close()
    assert guest.peer_closed(0)
    guest.close()


def test_a_world_that_has_ended_lets_nobody_in(world: nanokv.NanoKVCache) -> None:
    """Who takes it over does not wait for a guest that comes as late as that."""
    heap = world.engine.heap
    assert isinstance(heap, LocalHeap)
    file, geometry = heap.file_for_guest(), heap.geometry
    world.close()
    with pytest.raises(HeapUnavailable, match="all ranks of the world have ended"):
        GuestHeap("a guest", file, geometry)


def test_a_file_of_another_world_is_refused(world: nanokv.NanoKVCache) -> None:
    heap = world.engine.heap
    assert isinstance(heap, LocalHeap)
    with nanokv.NanoKVCache(8 << 20, page_bytes=4096, guests=2) as other:
        geometry = other.engine.machine.geometry
    with pytest.raises(HeapUnavailable, match=r"the file has \d+ bytes, not those of 1 segments of \d+"):
        GuestHeap("a guest", heap.file_for_guest(), geometry)
    file, empty = heap.file_for_guest(), os.memfd_create("empty")
    os.ftruncate(empty, os.fstat(file).st_size)
    os.close(file)
    with pytest.raises(HeapUnavailable, match="the file is that of no world"):
        GuestHeap("a guest", empty, heap.geometry)


def test_a_guest_finds_the_pages_that_are_used(world: nanokv.NanoKVCache) -> None:
    """Before it needs them: to find one takes longer than a small put."""
    world.put("key", torch.zeros(400_000, dtype=torch.uint8))
    guest = guest_of(world)

    def found() -> int:
        (about,) = (each for begin, end, each in mappings() if begin <= guest.bases[0] < end)
        return int(about["Rss"].split()[0])

    until(lambda: found() > 390, "its pages")
    guest.close()


def test_a_child_of_a_fork_does_not_have_the_memory(world: nanokv.NanoKVCache) -> None:
    """Else the memory of a world that has gone would stay as long as the child."""
    guest = guest_of(world)
    (about,) = (each for begin, end, each in mappings() if begin <= guest.bases[0] < end)
    assert "dc" in about["VmFlags"].split()  # which is: a fork does not copy it
    guest.close()
