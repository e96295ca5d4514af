"""Sealed connections: what goes is AES-256-GCM as its text says, and what was changed on its way is never taken."""

import logging
import mmap
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nanokv.check.wire.plain_wire import PlainParcels, pull
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.replies import Unanswered
from nanokv.cluster.seals import ALL, HEADS
from nanokv.cluster.wire import ciphers
from nanokv.cluster.wire.ciphers import Ciphers, Libcrypto
from nanokv.cluster.wire.handshake import Keys
from nanokv.device.fabric.records import PULLED
from nanokv.device.machines.native_code import wire_code
from nanokv.device.protocol.status import Status
from nanokv.device.wire.records import (
    CALL,
    CALLED,
    CONNECTION,
    DONE,
    END,
    EXISTS,
    FRAME_ROOM,
    HEAD,
    MAC,
    MOST_PARCEL,
    MOST_RECORDS,
    OFFER,
    PARCEL_ROOM,
    WRONG,
)
from nanokv.errors import LinkUnavailable
from nanokv.transfer.descriptors import what_of
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import SECONDS, Serve, Served, serve_world
from .relay import Deed, Relay, pass_on
from .test_exchange import get, put

OK = int(Status.OK)
KEYS = Keys(bytes(range(32)), bytes(range(100, 132)))
LARGE = 20 * MOST_PARCEL // 3  #: bytes of an object that goes in seven parcels
#: around a parcel, half of one, and several
SIZES = [0, 1, 4096, MOST_PARCEL // 2 - 1, MOST_PARCEL // 2, 1 << 16, MOST_PARCEL - 1, MOST_PARCEL, MOST_PARCEL + 1]
SIZES += [2 * MOST_PARCEL - 1, 2 * MOST_PARCEL, 2 * MOST_PARCEL + 1, (1 << 20) + 5]


@pytest.fixture
def seal() -> str:
    """All is sealed here."""
    return ALL


def some_bytes(size: int, seed: int = 0) -> torch.Tensor:
    """Bytes of 1 to 6."""
    return torch.randint(1, 7, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


# --- known answers ----------------------------------------------------------------------------
class Asker:
    """The asker's native end of a connection whose keys are known."""

    def __init__(self, each: int) -> None:
        self.here, self.there = socket.socketpair()
        self.ciphers, self._rooms = Ciphers(KEYS, asks=True), [np.zeros(FRAME_ROOM, np.uint8) for _ in range(3)]
        self._parcel, self._asked = np.zeros(PARCEL_ROOM, np.uint8), np.zeros(1, np.int64)
        self._record = np.zeros(1, CONNECTION.dtype)
        row = self._record[0]
        self.ciphers.fill(row, int(self._parcel.ctypes.data))
        row["fd"], row["each"], row["timeout"] = self.here.fileno(), each, int(SECONDS * 1e9)
        row["asked"] = self._asked.ctypes.data
        row["input"], row["output"] = (int(room.ctypes.data) for room in self._rooms[:2])

    def call(self, body: bytes) -> tuple[int, bytes]:
        """Ask a message of kind 5: how it ended, and the body of the answer."""
        sent = np.frombuffer(body + b"\0", np.uint8)
        at, room = int(self._record.ctypes.data), self._rooms[2]
        size = wire_code()["call"](at, 5, int(sent.ctypes.data), len(body))
        if size < 0:
            return size, b""
        how = wire_code()["receive_called"](at, int(room.ctypes.data))
        return how, room[HEAD.size : HEAD.size + size].tobytes()

    @property
    def key(self) -> bytes:
        """What is in the room for the next key."""
        return bytes(self._record[0]["key"].tobytes())

    def close(self) -> None:
        self.here.close()
        self.there.close()
        self.ciphers.close()


@pytest.fixture
def asker() -> Iterator[Callable[[int], Asker]]:
    """Makes askers."""
    with ExitStack() as ends:
        yield lambda each: ends.enter_context(closing(Asker(each)))


def frame(kind: int, number: int, body: bytes) -> bytes:
    """A frame of a message, as it is in a parcel."""
    return struct.pack("<IIqqq", kind, 5, number, len(body), 0) + body + bytes(-len(body) % 8) + bytes(MAC)


@pytest.mark.parametrize("body", [b"", b"a", b"12345678", bytes(range(256)) * 7])
def test_what_goes_is_aes_256_gcm(asker: Callable[[int], Asker], body: bytes) -> None:
    one, answer = asker(100), frame(CALLED.value, 1, b"yes")
    made = AESGCM(KEYS.answers).encrypt(bytes(12), answer, None)
    one.there.sendall(struct.pack("<q", len(answer)) + made[-16:] + made[:-16])
    assert one.call(body) == (DONE.value, b"yes")
    asked = frame(CALL.value, 1, body)
    sealed = AESGCM(KEYS.asks).encrypt(bytes(12), asked, None)
    assert one.there.recv(1 << 16) == struct.pack("<q", len(asked)) + sealed[-16:] + sealed[:-16]


def test_a_known_parcel(asker: Callable[[int], Asker]) -> None:
    """What a version has sent, the next ones send: else the purpose of the handshake must be another one."""
    one = asker(100)
    one.there.shutdown(socket.SHUT_WR)
    one.call(b"known")
    assert one.there.recv(1 << 16).hex() == PARCEL_OF_KNOWN


#: made by `cryptography`
PARCEL_OF_KNOWN = (
    "3800000000000000fba60a4e43bb9b2fa36bc66eb33d420209bcb5deb02c83bd09a8a935182c9199"
    "d74356532881602f809eb383c5ff5d56253189cb44f2b80633c371f5c1ce694ea90741e6797146a5"
)


@pytest.mark.parametrize("each", [1, 2, 3])
def test_keys_move_on_as_noise_has_it(asker: Callable[[int], Asker], each: int) -> None:
    one, keys = asker(each), list(KEYS)
    for number in range(7):
        if number and number % each == 0:
            keys = [AESGCM(key).encrypt(bytes(4) + b"\xff" * 8, bytes(32), None)[:32] for key in keys]
        nonce, body = struct.pack(">4xQ", number), bytes([number]) * 40
        answer = frame(CALLED.value, number + 1, body)
        made = AESGCM(keys[1]).encrypt(nonce, answer, None)
        one.there.sendall(struct.pack("<q", len(answer)) + made[-16:] + made[:-16])
        assert one.call(body) == (DONE.value, body)
        raw = one.there.recv(1 << 16)
        assert AESGCM(keys[0]).decrypt(nonce, raw[24:] + raw[8:24], None) == frame(CALL.value, number + 1, body)
        assert one.key == bytes(32)  # it is in the context, and nowhere else


def test_a_parcel_of_no_byte_or_too_many_is_none(asker: Callable[[int], Asker]) -> None:
    for size in (0, -1, MOST_PARCEL + 1, 1 << 62, -(1 << 63)):
        one = asker(100)
        one.there.sendall(struct.pack("<q", size) + bytes(16))
        assert one.call(b"") == (WRONG.value, b"")


# --- borders ----------------------------------------------------------------------------------
@pytest.mark.parametrize("by", ["unix", "tcp"])
def test_objects_around_the_size_of_a_parcel(serve: Serve, by: str) -> None:
    served = serve(64 << 20, page_bytes=65536)
    client = served.client(served.server.local if by == "unix" else served.server.address)
    for size in SIZES:
        tensor, there = some_bytes(size, size), torch.zeros(size, dtype=torch.uint8)
        assert put(served, client, [f"k{size}"], [tensor]) == [OK]
        assert torch.equal(served.world.get(f"k{size}"), tensor)
        assert get(served, client, [f"k{size}"], [there])["status"].tolist() == [OK] and torch.equal(there, tensor)


def test_objects_of_all_sizes_in_one_frame(serve: Serve) -> None:
    served = serve(64 << 20, page_bytes=16384)
    client = served.client()
    sizes = [3, *SIZES, 1, *SIZES[::-1], *([1500] * 60), MOST_PARCEL, 7]
    rows = torch.zeros(1 << 23, dtype=torch.uint8)
    for apart in (True, False):  # objects that lie apart, and neighbours in memory, which go as one
        tensors = [some_bytes(size, i) for i, size in enumerate(sizes)]
        dsts, at = [torch.zeros(size, dtype=torch.uint8) for size in sizes], 0
        for i, size in enumerate(sizes if not apart else ()):
            rows[at : at + size] = tensors[i]
            tensors[i], at = rows[at : at + size], at + size
        assert set(put(served, client, [f"{apart} {i}" for i in range(len(sizes))], tensors)) == {OK}
        if not apart:
            whole = torch.zeros(at, dtype=torch.uint8)
            dsts = list(torch.split(whole, sizes))
        gots = get(served, client, [f"{apart} {i}" for i in range(len(sizes))], dsts)
        assert set(gots["status"].tolist()) == {OK}
        assert all(torch.equal(a, b) for a, b in zip(tensors, dsts, strict=True))


@pytest.mark.parametrize("cut", [1000, 40_000, MOST_PARCEL])
def test_a_parcel_may_end_anywhere(serve: Serve, cut: int) -> None:
    """As no asker of this version cuts them: the end of an object, the next one and the frame behind them in one."""
    served = serve(64 << 20, page_bytes=4096)
    sizes, wire = (100_000, 3), served.plain()
    rows = [pull((5, size), size, what=what_of(torch.uint8, torch.Size((size,))).descriptor) for size in sizes]
    wire.send(wire.frame(OFFER.value, 2, b"".join(row.tobytes() for row in rows)))
    assert np.frombuffer(wire.answer()[2], PULLED.dtype)["status"].tolist() == [OK, OK]
    rest = bytes(sum(sizes)) + wire.frame(END.value, 0)
    for at in range(0, len(rest), cut):
        wire.send(rest[at : at + cut])
    assert np.frombuffer(wire.answer()[2], PULLED.dtype)["status"].tolist() == [OK, OK]


# --- the next keys ----------------------------------------------------------------------------
@pytest.mark.parametrize("each", [1, 2, 5])
def test_objects_while_keys_move_on(serve: Serve, limits: Limits, each: int) -> None:
    limits(ciphers, PARCELS_A_KEY=each)
    served = serve(64 << 20, page_bytes=65536)
    client, wire = served.client(), served.plain()
    for i in range(6):
        tensor, there = some_bytes(LARGE, i), torch.zeros(LARGE, dtype=torch.uint8)
        assert put(served, client, [f"k{i}"], [tensor]) == [OK]
        assert get(served, client, [f"k{i}"], [there])["status"].tolist() == [OK] and torch.equal(there, tensor)
        wire.send(wire.frame(EXISTS.value, 1, struct.pack("<2q", *served.world.digest(f"k{i}"))))
        assert np.frombuffer(wire.answer()[2], np.int64).tolist() == [OK]
    assert served.server.figures["wire_connections"] == 2


def test_the_key_before_opens_nothing(served: Served, limits: Limits) -> None:
    limits(ciphers, PARCELS_A_KEY=3)
    wire = served.plain()
    wire.parcels = PlainParcels(wire.keys.asks, 1 << 60)  # it goes on with its first key
    for _ in range(3):
        wire.send(wire.frame(EXISTS.value, 1, bytes(16)))
        wire.answer()
    wire.send(wire.frame(EXISTS.value, 1, bytes(16)))
    assert wire.is_ended()


def test_a_long_connection_comes_to_its_second_key(served: Served) -> None:
    client = served.client()
    key = np.array([served.world.digest("k")], np.int64)
    for _ in range(ciphers.PARCELS_A_KEY + 2):
        assert client.exists(key, SECONDS).tolist() == [int(Status.MISS)]
    assert served.server.figures["wire_connections"] == 1


# --- who stands between -----------------------------------------------------------------------
AT = 4  #: the parcel with which something is done, in the middle of the object


def flipped(at: int) -> Deed:
    """Change a bit of a byte of that parcel."""

    def deed(number: int, parcel: bytes) -> Any:
        changed = bytearray(parcel)
        changed[at] ^= 1 << at % 8
        return [bytes(changed) if number == AT else parcel]

    return deed


def swapped() -> Deed:
    """Let that parcel come behind the next one."""
    held: list[bytes] = []

    def deed(number: int, parcel: bytes) -> Any:
        if number == AT:
            held.append(parcel)
            return []
        return [parcel, held.pop()] if held else [parcel]

    return deed


def again() -> Deed:
    """Let the parcel before come in the place of that one, which has as many bytes."""
    before: list[bytes] = []

    def deed(number: int, parcel: bytes) -> Any:
        before.append(parcel)
        return [before[-2] if number == AT else parcel]

    return deed


def shortened(number: int, parcel: bytes) -> Any:
    """Take the last byte away, and say so."""
    return [struct.pack("<q", len(parcel) - 25) + parcel[8:-1] if number == AT else parcel]


DEEDS: dict[str, Callable[[], Deed]] = {
    "a bit of its first byte": lambda: flipped(24),
    "a bit of its last byte": lambda: flipped(-1),
    "a bit of its tag": lambda: flipped(11),
    "it is shortened": lambda: shortened,
    "it is left out": lambda: lambda number, parcel: [] if number == AT else [parcel],
    "it comes twice": lambda: lambda number, parcel: [parcel, parcel] if number == AT else [parcel],
    "the one before comes in its place": again,
    "it comes later": swapped,
    "the end comes in its place": lambda: lambda number, parcel: None if number == AT else [parcel],
}


@pytest.mark.parametrize("name", DEEDS)
def test_a_put_that_was_changed_leaves_nothing(serve: Serve, name: str) -> None:
    served = serve(64 << 20, page_bytes=65536)
    with closing(Relay(served.server.local, asks=DEEDS[name]())) as relay, pytest.raises(Unanswered):
        put(served, served.client(relay.address), ["k"], [some_bytes(LARGE)])
    until(lambda: served.server.figures["wire_connections"] == 0, "its end")
    assert served.server.figures["wire_given_up"] == 1 and served.server.figures["wire_puts"] == 0
    assert served.server.counts == ({} if "the end" in name else {DropReason.MALFORMED: 1})
    assert not served.world.exists("k")


@pytest.mark.parametrize("name", DEEDS)
def test_a_get_that_was_changed_brings_no_wrong_byte(serve: Serve, name: str) -> None:
    served = serve(64 << 20, page_bytes=65536)
    tensor, there = some_bytes(LARGE), torch.full((LARGE,), 9, dtype=torch.uint8)
    served.world.put("k", tensor)
    with closing(Relay(served.server.local, answers=DEEDS[name]())) as relay, pytest.raises(Unanswered):
        get(served, served.client(relay.address), ["k"], [there])
    right = there == tensor
    assert right[: MOST_PARCEL * (AT - 1)].all() and not right[MOST_PARCEL * AT :].any()
    assert (right | (there == 0) | (there == 9)).all()
    until(lambda: served.server.figures["wire_connections"] == 0, "its end")


@pytest.mark.parametrize("direction", ["asks", "answers"])
def test_a_parcel_of_another_connection_is_none(serve: Serve, direction: str) -> None:
    served = serve(64 << 20, page_bytes=65536)
    tensor, other = some_bytes(LARGE), list[bytes]()

    def note(number: int, parcel: bytes) -> Any:
        other.append(parcel)
        return [parcel]

    def replace(number: int, parcel: bytes) -> Any:
        return [other[AT] if number == AT else parcel]

    def work(deed: Deed, key: str) -> None:
        asks, answers = (deed, pass_on) if direction == "asks" else (pass_on, deed)
        with closing(Relay(served.server.local, asks, answers)) as relay:
            client = served.client(relay.address)
            assert put(served, client, [key], [tensor]) == [OK]
            get(served, client, [key], [torch.zeros_like(tensor)])

    work(note, "a")
    with pytest.raises(Unanswered):
        work(replace, "b")


def test_all_of_a_sealed_connection_is_unreadable(serve: Serve) -> None:
    served = serve(64 << 20, {1: lambda who, body: b"an answer"}, page_bytes=65536)
    tensor, small = some_bytes(LARGE), some_bytes(100, 1)
    with closing(Relay(served.server.local)) as relay:
        client = served.client(relay.address)
        put(served, client, ["k", "l"], [tensor, small])
        get(served, client, ["k"], [torch.zeros_like(tensor)])
        get(served, client, ["l"], [torch.zeros_like(small)])
        client.ask(1, b"a message", SECONDS)
        client.remove(np.array([served.world.digest("l")], np.int64), SECONDS)
        secrets = [tensor.numpy()[at : at + 16].tobytes() for at in range(0, LARGE, 1000)]
        secrets += [small.numpy()[:16].tobytes(), b"a message", b"an answer"]
        secrets += [struct.pack("<q", half) for key in "kl" for half in served.world.digest(key)]
        assert len(relay.heard) > 2 * LARGE and not any(secret in relay.heard for secret in secrets)


# --- who has another seal, or no library ------------------------------------------------------
@pytest.mark.parametrize("mine", [HEADS, ALL])
def test_ends_of_different_seals_say_what_to_set(serve: Serve, mine: str, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    server = served.server if mine == HEADS else serve_world(served.world, patience=SECONDS, seal=HEADS)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Unanswered, match="another secret, incarnation, version or seal"),
    ):
        served.client(server.local, seal=mine).exists(np.zeros((1, 2), np.int64), SECONDS)
    until(lambda: server.counts == {DropReason.STRANGER: 1}, "its count")
    its = ALL if mine == HEADS else HEADS
    assert f"its seal is {mine!r}, this member's {its!r}: give all members of a cluster the same `seal`" in caplog.text
    if server is not served.server:
        server.close()


@pytest.mark.parametrize(("library", "why"), [("no such library.so", "there is none"), ("libc.so.6", "is another")])
def test_without_libcrypto_it_is_refused(limits: Limits, library: str, why: str) -> None:
    limits(ciphers, LIBRARIES=(library,))
    with pytest.raises(LinkUnavailable, match=f"seal='all' needs the system's libcrypto.*{why}"):
        Libcrypto()


def test_contexts_are_freed_with_their_connections(serve: Serve, calls: Calls) -> None:
    made, freed = calls.noted(Libcrypto, "context"), calls.noted(Libcrypto, "free")
    served = serve()
    client, wires = served.client(), [served.plain() for _ in range(20)]
    client.exists(np.zeros((1, 2), np.int64), SECONDS)
    assert len(made) == 2 * (1 + 1 + len(wires))
    for wire in wires:
        wire.close()
    client.close()
    until(lambda: served.server.figures["wire_connections"] == 0, "their ends")
    assert len(freed) == len(made)


def test_what_is_freed_takes_no_memory() -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE

    def make(count: int) -> None:
        for _ in range(count):
            Ciphers(KEYS, asks=True).close()

    make(100)
    before = resident()
    make(20_000)
    assert resident() - before < 4 << 20  # of 20 MiB and more


def test_a_turn_of_many_objects_of_several_connections(serve: Serve) -> None:
    served = serve(64 << 20, page_bytes=4096)
    clients = [served.client() for _ in range(3)]
    names = [[f"{c} {i}" for i in range(MOST_RECORDS)] for c in range(3)]
    tensors = [some_bytes(5000 + i, i) for i in range(MOST_RECORDS)]
    for client, some in zip(clients, names, strict=True):
        assert set(put(served, client, some, tensors)) == {OK}
    for client, some in zip(clients, names[::-1], strict=True):
        dsts = [torch.zeros_like(tensor) for tensor in tensors]
        assert set(get(served, client, some, dsts)["status"].tolist()) == {OK}
        assert all(torch.equal(a, b) for a, b in zip(tensors, dsts, strict=True))
