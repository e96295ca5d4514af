"""What an asker takes for an answer: an owner in plain Python sends right ones, wrong ones, and none."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch

import nanokv
from nanokv.check.wire.plain_wire import pull, siphash, wanted
from nanokv.cluster.messages import unix
from nanokv.cluster.messages.replies import Unanswered
from nanokv.cluster.wire.client import Unreached, WireClient
from nanokv.cluster.wire.handshake import HELLO_BYTES, Keys, welcome
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.protocol.status import Status
from nanokv.device.wire.records import (
    CALL,
    CALLED,
    COVERED,
    END,
    EXISTS,
    GET,
    GO,
    GOT,
    GOT_THEM,
    HEAD,
    MAC,
    MOST_CALLED,
    MOST_INLINE,
    OFFER,
    PUT,
    PUT_DONE,
    STATUSES,
    WANTED,
)
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.object_calls import hashing_record
from nanokv.types import KeyDigest

from .conftest import ASKER, OWNER, SECONDS, SECRET

OK, SIZE, BEYOND = int(Status.OK), int(Status.SIZE), max(Status) + 1
LARGE = 2 * MOST_INLINE
_RECORDS = {PUT.value: PULL.size, OFFER.value: PULL.size, GET.value: WANTED.size, EXISTS.value: 16}


class PlainOwner:
    """An owner's end of a connection, which sends what it is told."""

    def __init__(self, made: socket.socket, keys: Keys) -> None:
        self.socket, self.keys, self.sent = made, keys, 0

    def question(self) -> tuple[int, bytes]:
        """The kind of a frame that has come, and the frame without its MAC."""
        head = self.exactly(HEAD.size)
        kind, count, payload = (int(np.frombuffer(head, HEAD.dtype)[0][name]) for name in ("kind", "count", "payload"))
        body = self.exactly(_RECORDS.get(kind, 0) * (count if kind != CALL.value else 0) + -(-payload // 8) * 8 + MAC)
        return kind, head + body[:-MAC]

    def frame(
        self,
        kind: Any,
        count: int,
        records: bytes = b"",
        payload: bytes = b"",
        statuses: bytes = b"",
        *,
        size: int | None = None,
        more: int = 0,
        number: int | None = None,
    ) -> bytes:
        """The next frame. size: bytes of the payload that HEAD names. number: another one than the right one."""
        self.sent += 1
        head = np.zeros(1, HEAD.dtype)
        head["kind"], head["count"], head["number"] = kind.value, count, self.sent if number is None else number
        head["payload"], head["more"] = len(payload) if size is None else size, more
        padded = payload + bytes(-len(payload) % 8)
        is_covered = len(payload) <= COVERED.value or kind.value == CALLED.value
        covered = head.tobytes() + records + (padded if is_covered else b"") + statuses
        return head.tobytes() + records + padded + statuses + siphash(self.keys.answers, covered)

    def exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises EOFError: the asker has closed."""
        data = bytearray()
        while len(data) < count:
            some = self.socket.recv(count - len(data))
            if not some:
                raise EOFError
            data += some
        return bytes(data)


@contextmanager
def owner(serve: Callable[[PlainOwner], object], *, knows: bool = True) -> Iterator[WireClient]:
    """A client of an owner that does with its only connection what it is told, and closes it then.

    knows: whether it knows the secret of the cluster.
    """
    listener = unix.Listener()
    listener.socket.settimeout(SECONDS)

    def run() -> None:
        made, _ = listener.socket.accept()
        with made, suppress(EOFError, ConnectionError):
            made.settimeout(SECONDS)
            asker, said = welcome(SECRET, OWNER, made.recv(HELLO_BYTES, socket.MSG_WAITALL))
            made.sendall(said if knows else flipped(said, -1))
            serve(PlainOwner(made, asker.keys))

    thread = threading.Thread(target=run)
    thread.start()
    client = WireClient(SECRET, ASKER, OWNER, (listener.address,))
    try:
        yield client
    finally:
        client.close()
        thread.join()
        listener.close()


def answers(*made: Callable[[PlainOwner], bytes]) -> Callable[[PlainOwner], None]:
    """What answers one question after the other, and then waits until the asker has closed."""

    def serve(owner: PlainOwner) -> None:
        for each in made:
            owner.question()
            owner.socket.sendall(each(owner))
        owner.exactly(1)

    return serve


# --- questions ---
def exists(client: WireClient) -> list[int]:
    found: list[int] = client.exists(np.array([[1, 2]]), SECONDS).tolist()
    return found


def put(client: WireClient, nbytes: int = 8, timeout: float = SECONDS) -> list[int]:
    data, row = np.zeros(nbytes, np.uint8), pull((1, 2), nbytes)
    row["source"] = data.ctypes.data
    client.put(row, timeout)
    found: list[int] = row["status"].tolist()
    return found


def get(client: WireClient, *rooms: int, any_size: int = 1, timeout: float = SECONDS) -> list[tuple[int, bytes]]:
    """Statuses, and the bytes that have come. Behind each room there is more, which must stay as it is."""
    rows = np.concatenate([wanted((1, 2), room, any_size=any_size) for room in rooms])
    there = [np.zeros(room + LARGE, np.uint8) for room in rooms]
    gots = client.get(rows, np.array([each.ctypes.data for each in there], np.int64), timeout)
    assert not any(each[room:].any() for each, room in zip(there, rooms, strict=True))
    return [(int(got["status"]), each[: got["nbytes"]].tobytes()) for got, each in zip(gots, there, strict=True)]


# --- answers ---
def words(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


def pulled(status: int) -> bytes:
    row = np.zeros(1, PULLED.dtype)
    row["status"] = status
    return row.tobytes()


def gots(*objects: tuple[int, int]) -> bytes:
    """GOT records of objects with these statuses and sizes."""
    rows = np.zeros(len(objects), GOT.dtype)
    rows["status"], rows["nbytes"] = zip(*objects, strict=True)
    return rows.tobytes()


def flipped(frame: bytes, at: int) -> bytes:
    """With one bit of a byte changed, which may be counted from the end."""
    changed = bytearray(frame)
    changed[at] ^= 1
    return bytes(changed)


def go(owner: PlainOwner) -> bytes:
    return owner.frame(GO, 1, pulled(OK))


def few(
    owner: PlainOwner,
    data: bytes = b"8 bytes.",
    *,
    status: int = OK,
    nbytes: int | None = None,
    last: int = OK,
    size: int | None = None,
) -> bytes:
    """A GOT of one object with its bytes."""
    records = gots((status, len(data) if nbytes is None else nbytes))
    return owner.frame(GOT_THEM, 1, records, data, words(last), more=1, size=size)


def many(owner: PlainOwner, nbytes: int = LARGE, last: int = OK) -> bytes:
    """A GOT of one object whose bytes follow."""
    return owner.frame(GOT_THEM, 1, gots((OK, nbytes)), b"x" * nbytes, words(last))


def large_put(client: WireClient) -> list[int]:
    return put(client, LARGE)


def get_few(client: WireClient) -> list[tuple[int, bytes]]:
    return get(client, 8)


def get_many(client: WireClient) -> list[tuple[int, bytes]]:
    return get(client, LARGE)


def ask(client: WireClient) -> bytes:
    return client.ask(1, b"", SECONDS)


#: of each name the question, and the answers, each authentic but for what the name says
WRONG: dict[str, tuple[Callable[[WireClient], Any], tuple[Callable[[PlainOwner], bytes], ...]]] = {
    "statuses of another kind": (exists, (lambda it: it.frame(PUT_DONE, 1, words(OK)),)),
    "statuses of another count": (exists, (lambda it: it.frame(STATUSES, 2, words(OK)),)),
    "statuses with a wrong first word of the MAC": (
        exists,
        (lambda it: flipped(it.frame(STATUSES, 1, words(OK)), -9),),
    ),
    "statuses with a wrong last word of the MAC": (exists, (lambda it: flipped(it.frame(STATUSES, 1, words(OK)), -1),)),
    "statuses with an old number": (exists, (lambda it: it.frame(STATUSES, 1, words(OK), number=0),)),
    "statuses with a number left out": (exists, (lambda it: it.frame(STATUSES, 1, words(OK), number=2),)),
    "a status below all": (exists, (lambda it: it.frame(STATUSES, 1, words(-1)),)),
    "a status beyond all": (exists, (lambda it: it.frame(STATUSES, 1, words(BEYOND)),)),
    "a put's answer of another kind": (put, (lambda it: it.frame(GO, 1, pulled(OK)),)),
    "a put's status below all": (put, (lambda it: it.frame(PUT_DONE, 1, pulled(-1)),)),
    "a put's status beyond all": (put, (lambda it: it.frame(PUT_DONE, 1, pulled(BEYOND)),)),
    "a put's answer that is another one's": (put, (lambda it: flipped(it.frame(PUT_DONE, 1, pulled(OK)), HEAD.size),)),
    "done before the bytes": (large_put, (lambda it: it.frame(PUT_DONE, 1, pulled(OK)),)),
    "bytes allowed by another one": (large_put, (lambda it: flipped(it.frame(GO, 1, pulled(OK)), -1),)),
    "few: another kind": (get_few, (lambda it: it.frame(STATUSES, 1, words(*[OK] * 16)),)),
    "few: another count": (
        get_few,
        (lambda it: it.frame(GOT_THEM, 2, gots((OK, 8)), b"8 bytes.", words(OK), more=1),),
    ),
    "few: a wrong MAC": (get_few, (lambda it: flipped(few(it), -1),)),
    "few: another byte": (get_few, (lambda it: flipped(few(it), HEAD.size + GOT.size),)),
    "few: another status behind the bytes": (get_few, (lambda it: flipped(few(it), -MAC - 8),)),
    "few: a status below all": (get_few, (lambda it: few(it, b"", status=-1),)),
    "few: a status beyond all": (get_few, (lambda it: few(it, b"", status=BEYOND),)),
    "few: a last status below all": (get_few, (lambda it: few(it, last=-1),)),
    "few: a last status beyond all": (get_few, (lambda it: few(it, last=BEYOND),)),
    "few: more than there is room for": (lambda client: get(client, 7), (few,)),
    "few: less than is wanted": (lambda client: get(client, 9, any_size=0), (few,)),
    "few: other bytes than those of its objects": (lambda client: get(client, 16), (lambda it: few(it, nbytes=7),)),
    "few: a size below nothing": (
        lambda client: get(client, 16, 16),
        (lambda it: it.frame(GOT_THEM, 2, gots((OK, -8), (OK, 16)), b"8 bytes.", words(OK, OK), more=1),),
    ),
    "few: a payload below nothing": (get_few, (lambda it: few(it, size=-8),)),
    "few: a payload that is not few": (
        get_many,
        (lambda it: it.frame(GOT_THEM, 1, gots((OK, MOST_INLINE + 8)), bytes(MOST_INLINE + 8), words(OK), more=1),),
    ),
    "few: more behind it": (lambda client: get(client, 16), (lambda it: few(it) + bytes(8),)),
    "few: its bytes where none can be": (
        get_few,
        (lambda it: it.frame(GOT_THEM, 1, gots((OK, 8)), b"8 bytes.", words(OK)),),
    ),
    "many: more than there is room for": (get_many, (lambda it: many(it, LARGE + 8),)),
    "many: less than is wanted": (
        lambda client: get(client, LARGE, any_size=0),
        (lambda it: many(it, LARGE - 8),),
    ),
    "many: a wrong MAC": (get_many, (lambda it: flipped(many(it), -1),)),
    "many: another status behind the bytes": (get_many, (lambda it: flipped(many(it), -MAC - 8),)),
    "many: a last status below all": (get_many, (lambda it: many(it, last=-1),)),
    "many: a last status beyond all": (get_many, (lambda it: many(it, last=BEYOND),)),
    "a message's answer of another kind": (ask, (lambda it: it.frame(CALLED, 2, payload=b"body"),)),
    "a message's answer below nothing": (ask, (lambda it: it.frame(CALLED, 1, size=-8),)),
    "a message's answer beyond all": (ask, (lambda it: it.frame(CALLED, 1, size=MOST_CALLED + 1),)),
    "a message's answer with another byte": (
        ask,
        (lambda it: flipped(it.frame(CALLED, 1, payload=b"body"), HEAD.size),),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_is_not_taken_for_one(name: str) -> None:
    question, made = WRONG[name]
    with owner(answers(*made)) as client, pytest.raises(Unanswered, match="sends what is no answer"):
        question(client)


def test_right_answers_are_taken() -> None:
    """As the wrong ones are made, but for what is wrong."""
    statuses, done = (lambda it: it.frame(STATUSES, 1, words(SIZE))), (lambda it: it.frame(PUT_DONE, 1, pulled(SIZE)))
    called = lambda it: it.frame(CALLED, 1, payload=b"body")  # noqa: E731
    with owner(answers(statuses, done, few, many, called)) as client:
        assert exists(client) == put(client) == [SIZE]
        assert get(client, 9) == [(OK, b"8 bytes.")] and get(client, LARGE, any_size=0) == [(OK, b"x" * LARGE)]
        assert client.ask(1, b"", SECONDS) == b"body"
    with owner(answers(lambda it: few(it, last=SIZE))) as client:  # what stands behind the bytes counts
        assert [status for status, _ in get_few(client)] == [SIZE]
    with owner(answers(lambda it: many(it, last=SIZE))) as client:
        assert [status for status, _ in get_many(client)] == [SIZE]


def test_the_last_status_is_one() -> None:
    last = BEYOND - 1
    statuses, done = (lambda it: it.frame(STATUSES, 1, words(last))), (lambda it: it.frame(PUT_DONE, 1, pulled(last)))
    begins = lambda it: it.frame(GOT_THEM, 1, gots((last, 8)), b"", words(last), more=1)  # noqa: E731
    with owner(
        answers(statuses, done, begins, lambda it: few(it, last=last), lambda it: many(it, last=last))
    ) as client:
        assert exists(client) == put(client) == [last]
        found = [get(client, room) for room in (8, 8, LARGE)]
    assert [status for ((status, _),) in found] == [last] * 3


def test_python_goes_on_while_native_code_waits() -> None:
    """The owner is a thread of this process: it needs the interpreter's lock."""
    with nanokv.NanoKVCache(1 << 20, page_bytes=4096) as world:
        record = hashing_record(world.engine.hasher)
    hashing, look, there = int(record.ctypes.data), native_look().record, torch.zeros(8, dtype=torch.uint8)
    with owner(answers(lambda it: it.frame(PUT_DONE, 1, pulled(OK)), few, few)) as client:
        assert client.put_one("key", there, -1, hashing, look, SECONDS) == OK
        assert client.get_one("key", there, hashing, look, SECONDS) == OK
        assert client.get_any(KeyDigest(1, 2), 0, 0, hashing, SECONDS)[3] == bytes(there.numpy()) == b"8 bytes."


def test_who_does_not_know_the_secret_is_no_owner() -> None:
    says = "who listens does not know the secret of this cluster"
    with owner(answers(), knows=False) as client, pytest.raises(Unreached, match=says):
        exists(client)


#: of each name the question, what would answer it, and how many bytes of that come before the owner goes
HALF: dict[str, tuple[Callable[[WireClient], Any], Callable[[PlainOwner], bytes], tuple[int, ...]]] = {
    "statuses": (exists, lambda it: it.frame(STATUSES, 1, words(OK)), (0, HEAD.size, -1)),
    "of a put": (put, lambda it: it.frame(PUT_DONE, 1, pulled(OK)), (0, HEAD.size, -1)),
    "that a put may go on": (large_put, go, (0, HEAD.size, -1)),
    "few": (get_few, few, (0, HEAD.size, HEAD.size + GOT.size, -1)),
    "many": (get_many, many, (0, HEAD.size, HEAD.size + GOT.size, HEAD.size + GOT.size + LARGE, -1)),
    "a message's": (ask, lambda it: it.frame(CALLED, 1, payload=b"body"), (0, HEAD.size, -1)),
}


@pytest.mark.parametrize("name", HALF)
def test_half_an_answer_is_none(name: str) -> None:
    question, made, parts = HALF[name]
    for part in parts:

        def serve(owner: PlainOwner) -> None:
            owner.question()
            owner.socket.sendall(made(owner)[:part])  # noqa: B023

        with owner(serve) as client, pytest.raises(Unanswered, match="has gone"):
            question(client)


def test_who_does_not_answer_a_get_has_not() -> None:
    with owner(lambda it: it.exactly(1 << 20)) as client, pytest.raises(Unanswered, match="did not answer"):
        get(client, 8, timeout=0.3)


def test_an_owner_that_goes_while_bytes_are_sent_has_gone() -> None:
    """It is said at once that it has gone, and not after the time in which it may answer."""

    def serve(owner: PlainOwner) -> None:
        owner.question()
        owner.socket.sendall(go(owner))

    with owner(serve) as client, pytest.raises(Unanswered, match="has gone"):
        put(client, 16 << 20, timeout=2.0)


def test_a_payload_is_filled_up_with_zeros() -> None:
    """And not with what the memory had before."""
    seen: list[bytes] = []

    def serve(owner: PlainOwner) -> None:
        for _ in range(2):
            seen.append(owner.question()[1])
            owner.socket.sendall(owner.frame(CALLED, 1, payload=b"body"))

    with owner(serve) as client:
        for body in (b"\xff" * 16, b"\x01"):
            assert client.ask(1, body, SECONDS) == b"body"
    assert seen[1][HEAD.size :] == b"\x01" + bytes(7)


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """Signals that come to this thread all the time: how many have come."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def test_signals_end_no_exchange(alarms: list[int]) -> None:
    """The system lets a call that waits end when one comes."""

    def serve(owner: PlainOwner) -> None:
        kind, _ = owner.question()
        assert kind == OFFER.value
        owner.socket.sendall(go(owner))
        time.sleep(0.3)  # the asker's bytes wait
        owner.exactly(16 << 20)
        assert owner.question()[0] == END.value
        time.sleep(0.3)  # and then itself
        owner.socket.sendall(owner.frame(PUT_DONE, 1, pulled(OK)))

    with owner(serve) as client:
        assert put(client, 16 << 20) == [OK]
    assert alarms
