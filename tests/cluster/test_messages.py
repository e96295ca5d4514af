"""Questions and answers between members: who gets which answer, what is refused, and who is not held up."""

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanokv.check.command_process import Commands, Program
from nanokv.check.machine.rank_process import wait_until
from nanokv.cluster.messages import server as server_module
from nanokv.cluster.messages.asker import Asker, Connection
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.messages.frames import Frames, framed
from nanokv.cluster.messages.replies import Handler, Refused, Unanswered
from nanokv.cluster.messages.sealed import BODY_LIMIT, MESSAGE_LIMIT, Form, Reason, Seal, Sender
from nanokv.cluster.messages.server import Server
from nanokv.cluster.messages.tcp import host_and_port
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from tests.support.faults import Calls, Limits

ROOT = Path(__file__).resolve().parents[2]
SECRET = b"the secret of this cluster, only"
PATIENCE = 60.0  #: seconds for what comes in microseconds on a machine that is not busy
SHORT = 0.2  #: seconds for what never comes
ECHO, TOLD, FAIL, LATER, NEVER = range(5)


class Later:
    """An answer that is there when it was looked for often enough."""

    rest = 0.0

    def __init__(self, body: bytes, looks: float) -> None:
        self.body, self.left, self.abandoned = body, looks, 0

    def poll(self) -> bytes | None:
        self.left -= 1
        return self.body if self.left < 0 else None

    def abandon(self) -> None:
        self.abandoned += 1


class Handlers(dict[int, Handler]):
    """Of a server under test, and what they were given."""

    def __init__(self) -> None:
        self.told: list[tuple[Sender, bytes]] = []
        self.never: list[Later] = []
        echo: Handler = lambda sender, body: f"{sender.id}/{sender.incarnation}: ".encode() + body  # noqa: E731
        later: Handler = lambda sender, body: Later(body, 20)  # noqa: E731
        super().__init__({ECHO: echo, TOLD: self._tell, FAIL: self._fail, LATER: later, NEVER: self._never})

    def _tell(self, sender: Sender, body: bytes) -> None:
        self.told.append((sender, body))

    def _fail(self, sender: Sender, body: bytes) -> bytes:
        raise ValueError(body.decode())

    def _never(self, sender: Sender, body: bytes) -> Later:
        self.never.append(Later(body, float("inf")))
        return self.never[-1]


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(handlers: Handlers, ends: ExitStack) -> Server:
    made = Server("b", 9, SECRET, handlers)
    ends.callback(made.close)
    return made


@pytest.fixture
def asker(ends: ExitStack) -> Asker:
    made = Asker("a", 7, SECRET)
    ends.callback(made.close)
    return made


@contextmanager
def raw(address: str) -> Iterator[socket.socket]:
    """A connection of somebody who does not keep to the rules."""
    with socket.create_connection(host_and_port(address), PATIENCE) as made:
        yield made


@contextmanager
def raw_server() -> Iterator[tuple[socket.socket, str]]:
    """Somebody who listens, and does not keep to the rules."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE)
        yield made, f"tcp://127.0.0.1:{made.getsockname()[1]}"


def heard(made: socket.socket) -> bytes:
    """The next message that is no greeting."""
    frames = Frames()
    while True:
        for message in frames.feed(made.recv(1 << 16)):
            if message[1] != Form.HELLO:
                return message


def greet(made: socket.socket) -> None:
    """Show that one knows the secret."""
    made.sendall(framed(Seal(SECRET, Sender("known", 1)).seal(Form.HELLO, 0, 1, Sender("b", 9), b"")))


def counted(member: Server | Asker, **counts: int) -> None:
    """Wait until a member has counted this and no more."""
    expected: dict[StrEnum, int] = {}
    for name, count in counts.items():
        expected[Reason[name] if name in Reason.__members__ else DropReason[name]] = count
    wait_until(f"{expected}", lambda: member.counts == expected)


def test_a_question_is_answered(server: Server, asker: Asker) -> None:
    address = server.address
    assert address.startswith("tcp://127.0.0.1:")
    assert asker.ask(address, "b", ECHO, b"hello", PATIENCE) == b"a/7: hello"
    assert asker.ask(address, "b", ECHO, b"", PATIENCE, to_incarnation=9) == b"a/7: "
    long = bytes(BODY_LIMIT - 10)
    assert asker.ask(address, "b", ECHO, long, PATIENCE) == b"a/7: " + long
    assert (server.counts, asker.counts) == ({}, {})


def test_what_a_thread_tells_and_asks_arrives_in_that_order(server: Server, asker: Asker, handlers: Handlers) -> None:
    for number in range(500):
        asker.tell(server.address, "b", TOLD, b"%d" % number)
    assert asker.ask(server.address, "b", TOLD, b"last", PATIENCE) == b""
    assert handlers.told == [(Sender("a", 7), body) for body in [*(b"%d" % number for number in range(500)), b"last"]]


def test_each_thread_gets_its_own_answers(server: Server, asker: Asker) -> None:
    def ask(thread: int) -> None:
        for turn in range(200):
            kind, body = (ECHO, LATER)[turn % 2], b"%d of %d" % (turn, thread)
            expected = body if turn % 2 else b"a/7: " + body
            assert asker.ask(server.address, "b", kind, body, PATIENCE) == expected

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert (server.counts, asker.counts) == ({}, {})


def test_a_pending_answer_comes_when_it_is_there_and_holds_up_nobody(
    server: Server, asker: Asker, handlers: Handlers
) -> None:
    with ThreadPoolExecutor(1) as pool:
        never = pool.submit(asker.ask, server.address, "b", NEVER, b"x", PATIENCE)
        wait_until("the question to be pending", lambda: bool(handlers.never))
        assert asker.ask(server.address, "b", LATER, b"later", PATIENCE) == b"later"
        assert asker.ask(server.address, "b", ECHO, b"now", PATIENCE) == b"a/7: now"
        assert not never.done()
        handlers.never[0].left = 0
        assert never.result(PATIENCE) == b"x"
    assert handlers.never[0].abandoned == 0


def test_a_handler_that_raises_is_logged_and_who_asked_gets_a_short_text(
    server: Server, asker: Asker, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Refused, match=r"^ValueError: no such page$"):
        asker.ask(server.address, "b", FAIL, b"no such page\nTraceback", PATIENCE)
    assert "ValueError: no such page" in caplog.text
    with pytest.raises(Refused, match=r"^ValueError: x{288}$"):
        asker.ask(server.address, "b", FAIL, b"x" * 5000, PATIENCE)
    asker.tell(server.address, "b", FAIL, b"told")
    handlers[LATER] = handlers[FAIL]  # too late: the server has a copy
    assert asker.ask(server.address, "b", LATER, b"on", PATIENCE) == b"on"
    counted(server, FAILED=3)


@pytest.mark.parametrize("wrong", ["text", bytes(BODY_LIMIT + 1), Later("text", 3), Later(bytes(BODY_LIMIT + 1), 3)])  # type: ignore[arg-type]
def test_an_answer_that_is_none_is_refused(asker: Asker, ends: ExitStack, wrong: Any) -> None:
    server = Server("b", 9, SECRET, {1: lambda sender, body: wrong})
    ends.callback(server.close)
    with pytest.raises(Refused, match=r"Error|InvalidArgument"):
        asker.ask(server.address, "b", 1, b"", PATIENCE)
    counted(server, FAILED=1)


def test_a_kind_without_handler_is_refused(server: Server, asker: Asker) -> None:
    with pytest.raises(Refused, match="no handler for messages of kind 77"):
        asker.ask(server.address, "b", 77, b"", PATIENCE)
    asker.tell(server.address, "b", 77, b"")
    counted(server, NO_HANDLER=2)


def test_a_server_that_closes_abandons_what_is_pending(server: Server, asker: Asker, handlers: Handlers) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(asker.ask, server.address, "b", NEVER, b"", PATIENCE) for _ in range(2)]
        wait_until("both to be pending", lambda: len(handlers.never) == 2)
        server.close()
        for future in asked:
            with pytest.raises(Refused, match="the server closed before this was done"):
                future.result(PATIENCE)
    server.close()
    assert [later.abandoned for later in handlers.never] == [1, 1]


def test_a_handler_may_close_its_server(asker: Asker) -> None:
    server: list[Server] = []
    server.append(Server("b", 9, SECRET, {1: lambda sender, body: server[0].close()}))
    assert asker.ask(server[0].address, "b", 1, b"", PATIENCE) == b""
    server[0].close()


def test_nobody_answers(asker: Asker, server: Server, handlers: Handlers) -> None:
    def asked() -> bool:
        with pytest.raises(Unanswered, match=r"b at .* did not answer within 0.2 s"):
            asker.ask(server.address, "b", NEVER, b"", SHORT)
        return bool(handlers.never)

    wait_until("the question to be pending", asked)
    handlers.never[0].left = 0  # the late answer has nowhere to go, or comes when it is not waited for
    assert asker.ask(server.address, "b", ECHO, b"next", PATIENCE) == b"a/7: next"
    assert isinstance(Unanswered(), TimeoutError)
    server.close()
    with pytest.raises(Unanswered):
        asker.ask(server.address, "b", ECHO, b"", 0)


def test_only_the_answer_to_the_question_is_taken(asker: Asker) -> None:
    with raw_server() as (listener, address), ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        asked = pool.submit(asker.ask, address, "b", ECHO, b"", PATIENCE)
        stream = stack.enter_context(listener.accept()[0])
        seal, me = Seal(SECRET, Sender("b", 9)), Sender("a", 7)
        number = seal.open(heard(stream)).number

        def answer(form: Form = Form.ANSWER, number: int = number, to: Sender = me, seal: Seal = seal) -> bytes:
            return seal.seal(form, ECHO, number, to, b"wrong")

        wrong = [answer(number=number - 1), answer(number=number + 1), answer(form=Form.QUESTION)]
        wrong += [answer(to=Sender("a", 0)), answer(seal=Seal(SECRET, Sender("c", 9)))]
        for sent in (*wrong, answer(to=Sender("a", 6)), answer(to=Sender("b", 9)), b"junk", answer()[:-1], b""):
            stream.sendall(framed(sent))
        right = framed(seal.seal(Form.ANSWER, ECHO, number, me, b"right"))
        for part in (right[:3], right[3:50], right[50:]):
            stream.sendall(part)
            time.sleep(0.01)
        assert asked.result(PATIENCE) == b"right"
    counted(asker, UNEXPECTED=5, ADDRESSEE=2, TRUNCATED=2, MAC=1)


def test_a_message_that_is_sent_again_is_not_taken_again(server: Server, handlers: Handlers) -> None:
    seal, old = Seal(SECRET, Sender("c", 5)), Seal(SECRET, Sender("c", 4))
    to = Sender("b", 9)
    told = [seal.seal(Form.TOLD, TOLD, number, to, b"%d" % number) for number in (2, 1, 3)]
    with raw(server.address) as first, raw(server.address) as other:
        for stream in (first, other):
            for data in told:
                stream.sendall(framed(data))
            counted(server, **({} if stream is first else {"REPLAYED": 3}))
            wait_until("all to be taken", lambda: len(handlers.told) == 3)
        other.sendall(framed(old.seal(Form.TOLD, TOLD, 9, to, b"old")))
        other.sendall(framed(seal.seal(Form.TOLD, TOLD, 9, Sender("b", 8), b"to the server that was there before")))
        counted(server, REPLAYED=3, OLD_INCARNATION=1, ADDRESSEE=1)
    assert [body for _, body in handlers.told] == [b"2", b"1", b"3"]


def test_what_is_not_a_question_is_refused_and_counted(server: Server, asker: Asker, handlers: Handlers) -> None:
    seal, to = Seal(SECRET, Sender("c", 5)), Sender("b", 9)
    with raw(server.address) as stream:
        greet(stream)
        for data in (b"", b"junk" * 100, bytes(MESSAGE_LIMIT + 1), b"\1" + bytes(300)):
            stream.sendall(framed(data))
        for form in (Form.ANSWER, Form.ERROR, Form.EVENT, Form.BEAT):
            stream.sendall(framed(seal.seal(form, TOLD, 1, to, b"")))
        stream.sendall(framed(seal.seal(Form.TOLD, TOLD, 1, Sender("c", 5), b"to itself")))
        counted(server, TRUNCATED=1, VERSION=1, OVERSIZED=1, MAC=1, UNEXPECTED=4, ADDRESSEE=1)
        stream.sendall((4 * MESSAGE_LIMIT).to_bytes(4, "little"))  # cut off
        assert stream.recv(1) == b""
    counted(server, TRUNCATED=1, VERSION=1, OVERSIZED=2, MAC=1, UNEXPECTED=4, ADDRESSEE=1)
    with raw(server.address) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n")  # as above: its first letters are a length
        assert stream.recv(1) == b""
    assert asker.ask(server.address, "b", ECHO, b"on", PATIENCE) == b"a/7: on"
    assert handlers.told == []


# --- strangers ---
def test_strangers_are_few_and_stay_for_a_while(
    server: Server, asker: Asker, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    """Who knows the secret comes in at any time; the log tells of the others once."""
    limits(server_module, MOST_STRANGERS=5)
    with ExitStack() as stack:
        strangers = [stack.enter_context(raw(server.address)) for _ in range(12)]
        counted(server, STRANGER=7)
        assert [stranger.recv(1) for stranger in strangers[:7]] == [b""] * 7
        assert asker.ask(server.address, "b", ECHO, b"x", PATIENCE) == b"a/7: x"
        assert strangers[7].recv(1) == b"" and len(server.streams) == 5
        limits(server_module, STRANGER_SECONDS=0.01)
        assert asker.ask(server.address, "b", ECHO, b"y", PATIENCE) == b"a/7: y"
        assert [stranger.recv(1) for stranger in strangers[8:]] == [b""] * 4
    counted(server, STRANGER=12)
    assert asker.ask(server.address, "b", ECHO, b"z", PATIENCE) == b"a/7: z"  # by the connection that it had
    assert caplog.text.count("by which no authentic message came") == 1


def test_a_stranger_goes_by_itself_though_nothing_comes(server: Server, limits: Limits) -> None:
    limits(server_module, STRANGER_SECONDS=0.1)
    with raw(server.address) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.sendall(b"\0")
        assert stranger.recv(1) == b""


def test_a_stranger_gets_no_memory(server: Server, asker: Asker) -> None:
    """The first message of a connection is short, or from a member that has greeted."""
    with raw(server.address) as stranger:
        stranger.sendall(framed(bytes(5000)))
        assert stranger.recv(1) == b""
    with raw(server.address) as stranger, suppress(OSError):
        for _ in range(1000):
            stranger.sendall(framed(b"junk"))
        assert stranger.recv(1) == b""
    counted(server, STRANGER=1, TRUNCATED=16)
    long = bytes(BODY_LIMIT - 10)
    assert asker.ask(server.address, "b", ECHO, long, PATIENCE) == b"a/7: " + long


def test_a_greeting_that_is_sent_again_opens_nothing(server: Server) -> None:
    greeting = framed(Seal(SECRET, Sender("c", 5)).seal(Form.HELLO, 0, 1, Sender("b", 9), b""))
    with raw(server.address) as member, raw(server.address) as stranger:
        member.sendall(greeting)
        wait_until("it to be known", lambda: any(not each.is_stranger for each in server.streams.values()))
        stranger.sendall(greeting)
        counted(server, REPLAYED=1)
        assert sorted(each.is_stranger for each in server.streams.values()) == [False, True]


def test_connections_leave_file_descriptors(
    server: Server, asker: Asker, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker.ask(server.address, "b", ECHO, b"", PATIENCE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    limits(server_module, _LEFT=resource.getrlimit(resource.RLIMIT_NOFILE)[0] - lowest)
    with raw(server.address) as stranger:
        assert stranger.recv(1) == b""
    counted(server, NO_ROOM=1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with raw(server.address) as member:
        greet(member)
        wait_until("it to be known", lambda: sum(not each.is_stranger for each in server.streams.values()) == 2)
    assert asker.ask(server.address, "b", ECHO, b"on", PATIENCE) == b"a/7: on"


def test_frames_that_come_byte_by_byte_take_linear_time() -> None:
    message, frames = bytes(range(256)) * 6000, Frames()
    data = framed(message)
    assert list(frames.feed(data[:-40_000])) == []
    begun = time.process_time()
    found = [each for i in range(len(data) - 40_000, len(data)) for each in frames.feed(data[i : i + 1])]
    assert found == [message] and time.process_time() - begun < 2  # copies of all that is there would take 10 s
    cut = framed(b"one") + framed(b"") + framed(b"three") * 2
    for size in range(1, len(cut) + 1):
        parts = [cut[i : i + size] for i in range(0, len(cut), size)]
        assert [each for part in parts for each in frames.feed(part)] == [b"one", b"", b"three", b"three"]


# --- names ---
def test_a_name_that_nobody_resolves_holds_up_no_call(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = [], threading.Event()
    real = socket.getaddrinfo

    def hangs(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "slow.messages.example":
            return real(host, *arguments, **options)
        asked.append(host)
        answered.wait(PATIENCE)
        return real("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    handlers = Handlers()
    with ExitStack() as stack:
        server = Server("b", 9, SECRET, handlers)
        stack.callback(server.close)
        address = server.address.replace("127.0.0.1", "slow.messages.example")
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(Unanswered):
                asker.ask(address, "b", ECHO, b"", SHORT)
            asker.tell(address, "b", TOLD, b"")
            assert time.monotonic() - begun < SHORT + 2
        assert asked == ["slow.messages.example"]  # one look-up for all
        answered.set()
        assert asker.ask(address, "b", ECHO, b"x", PATIENCE) == b"a/7: x"
        asker.forget(address)
        assert asker.ask(address, "b", ECHO, b"y", PATIENCE) == b"a/7: y" and asked == ["slow.messages.example"]
    with pytest.raises(OSError, match=r"cannot listen at tcp://no\.such\.name\.invalid:"):
        Server("b", 9, SECRET, {}, bind="no.such.name.invalid")


def test_another_secret_gets_no_answer(server: Server, ends: ExitStack) -> None:
    stranger = Asker("a", 7, SECRET[::-1])
    ends.callback(stranger.close)
    stranger.tell(server.address, "b", ECHO, b"")
    counted(server, MAC=2)  # the greeting too
    with pytest.raises(Unanswered):
        stranger.ask(server.address, "b", ECHO, b"", SHORT)
    assert set(server.counts) == {Reason.MAC}


def test_an_answer_to_someone_who_has_gone_is_dropped(server: Server, asker: Asker, handlers: Handlers) -> None:
    question = Seal(SECRET, Sender("c", 5)).seal(Form.QUESTION, NEVER, 1, Sender("b", 9), b"")
    with raw(server.address) as stream:
        stream.sendall(framed(question))
        wait_until("the question to be pending", lambda: bool(handlers.never))

    def gone() -> bool:  # the server is told that a connection ended as it is told of messages: a little later
        for later in handlers.never:
            later.left = 0
        if server.counts:
            return True
        with raw(server.address) as stream:
            number = 1 + len(handlers.never)
            again = Seal(SECRET, Sender("c", 5)).seal(Form.QUESTION, NEVER, number, Sender("b", 9), b"")
            stream.sendall(framed(again))
            wait_until("the question to be pending", lambda: len(handlers.never) == number)
        return False

    wait_until("an answer to be dropped", gone)
    assert set(server.counts) == {DropReason.GONE}
    assert asker.ask(server.address, "b", ECHO, b"on", PATIENCE) == b"a/7: on"


def test_what_is_told_to_nobody_is_dropped(asker: Asker) -> None:
    with raw_server() as (_, address):
        pass
    for _ in range(3):
        asker.tell(address, "b", TOLD, b"x")
    counted(asker, FULL=3)
    with pytest.raises(Unanswered):
        asker.ask(address, "b", ECHO, b"", SHORT)
    assert not asker.connections


def test_what_is_told_to_someone_who_does_not_read_is_dropped(asker: Asker) -> None:
    with raw_server() as (_, address):
        for _ in range(16):  # the kernel takes some of it
            asker.tell(address, "b", TOLD, bytes(BODY_LIMIT))
        assert 0 < asker.counts[DropReason.FULL] < 16


def test_someone_who_does_not_take_answers_holds_up_nobody(server: Server, asker: Asker) -> None:
    seal, body = Seal(SECRET, Sender("c", 5)), bytes(BODY_LIMIT - 100)

    def ask_on() -> None:
        with raw(server.address) as stream, suppress(OSError):
            greet(stream)
            for number in range(1, 200):
                stream.sendall(framed(seal.seal(Form.QUESTION, ECHO, number, Sender("b", 9), body)))

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_on)
        while not asked.done():
            assert asker.ask(server.address, "b", ECHO, b"on", PATIENCE) == b"a/7: on"
    assert server.counts == {DropReason.GONE: 1}


def test_the_end_of_a_connection_ends_the_wait_for_an_answer(asker: Asker) -> None:
    with raw_server() as (listener, address), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asker.ask, address, "b", ECHO, b"", PATIENCE)
        with listener.accept()[0] as stream:
            heard(stream)
        with pytest.raises(Unanswered, match=r"b at .* did not answer, and has gone"):
            asked.result(PATIENCE)


def test_the_sockets_of_a_thread_end_with_it(server: Server, asker: Asker) -> None:
    for _ in range(3):
        thread = threading.Thread(target=asker.ask, args=(server.address, "b", ECHO, b"", PATIENCE))
        thread.start()
        thread.join()
    wait_until("the sockets to be closed", lambda: not asker.connections)
    asker.ask(server.address, "b", ECHO, b"", PATIENCE)
    other = Server("b", 10, SECRET, Handlers())
    asker.ask(other.address, "b", ECHO, b"", PATIENCE)
    assert len(asker.connections) == 2
    asker.forget(server.address)
    assert [each.address for each in asker.connections] == [other.address]
    other.close()
    assert asker.ask(server.address, "b", ECHO, b"again", PATIENCE) == b"a/7: again"


def test_a_finalizer_may_tell_while_its_thread_asks(
    server: Server, asker: Asker, handlers: Handlers, calls: Calls
) -> None:
    calls.before(Connection, "receive", lambda *_: asker.tell(server.address, "b", TOLD, b"released"))
    assert asker.ask(server.address, "b", LATER, b"x", PATIENCE) == b"x"
    wait_until("the finalizer's words to be taken", lambda: len(handlers.told) == 1)


def test_close_ends_calls_that_wait(server: Server, asker: Asker, handlers: Handlers) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(asker.ask, server.address, "b", NEVER, b"", float("inf")) for _ in range(3)]
        wait_until("all to be pending", lambda: len(handlers.never) == 3)
        asker.close()
        for future in asked:
            with pytest.raises(CacheClosed):
                future.result(PATIENCE)
    asker.close()
    for call in (asker.ask, asker.tell):
        with pytest.raises(CacheClosed, match="this asker is closed"):
            call(server.address, "b", ECHO, b"", *([PATIENCE] if call == asker.ask else []))
    assert not asker.connections


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:0",
        "inproc://x",
        "ipc://@x",
        "tcp://::1:5",
        5,
    ],
)
def test_a_wrong_address_is_refused(asker: Asker, address: Any) -> None:
    with pytest.raises(InvalidArgument):
        asker.ask(address, "b", ECHO, b"", SHORT)
    assert not asker.connections


@pytest.mark.parametrize(
    ("wrong", "value"), [("to", ""), ("kind", -1), ("body", "text"), ("timeout", "x"), ("to_incarnation", -1)]
)
def test_a_wrong_argument_is_refused(server: Server, asker: Asker, wrong: str, value: Any) -> None:
    right: dict[str, Any] = {"to": "b", "kind": ECHO, "body": b"", "timeout": SHORT}
    with pytest.raises(InvalidArgument):
        asker.ask(server.address, **right | {wrong: value})
    assert asker.ask(server.address, "b", ECHO, b"", PATIENCE) == b"a/7: "


def test_an_address_in_use_is_refused(server: Server) -> None:
    with pytest.raises(OSError, match=r"cannot listen at tcp://127\.0\.0\.1:"):
        Server("c", 1, SECRET, {}, port=int(server.address.rsplit(":", 1)[1]))
    with pytest.raises(OSError, match=r"cannot listen at tcp://192\.0\.2\.1:"):
        Server("c", 1, SECRET, {}, bind="192.0.2.1")
    with pytest.raises(InvalidArgument, match="port must be"):
        Server("c", 1, SECRET, {}, port=65536)


def test_an_interface_and_another_family(asker: Asker, ends: ExitStack) -> None:
    for bind, start in (("lo", "tcp://127.0.0.1:"), ("::1", "tcp://[::1]:"), ("0.0.0.0", "tcp://0.0.0.0:")):
        if bind == "::1" and not socket.has_dualstack_ipv6():
            continue
        server = Server("b", 9, SECRET, {ECHO: lambda sender, body: body}, bind=bind)
        ends.callback(server.close)
        assert server.address.startswith(start)
        assert asker.ask(server.address.replace("0.0.0.0", "127.0.0.1"), "b", ECHO, b"x", PATIENCE) == b"x"


def test_an_idle_server_sleeps(server: Server, asker: Asker, calls: Calls) -> None:
    turns = calls.noted(server._loop, "_turn")
    asker.ask(server.address, "b", LATER, b"", PATIENCE)

    def no_turn_for_a_second() -> bool:
        before = len(turns)
        time.sleep(1)
        return len(turns) == before

    wait_until("the server to sleep for a second", no_turn_for_a_second)


class ServerCommands(Commands):
    """A server in a process of its own."""

    def __init__(self, incarnation: int, port: int) -> None:
        self._server = Server("b", incarnation, SECRET, {0: lambda sender, body: body}, port=port)

    def address(self) -> str:
        return self._server.address


def test_a_server_in_another_process_that_is_killed_and_started_again(ends: ExitStack, asker: Asker) -> None:
    def start(incarnation: int, port: int) -> Program:
        return ends.enter_context(Program("the server", partial(ServerCommands, incarnation, port)))

    first = start(1, 0)
    address = first.ask("address")
    assert asker.ask(address, "b", 0, b"one", PATIENCE, to_incarnation=1) == b"one"
    first.kill()
    with pytest.raises(Unanswered):
        asker.ask(address, "b", 0, b"", SHORT)
    asker.tell(address, "b", 0, b"to nobody")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asker.ask, address, "b", 0, b"before it is there", PATIENCE)
        assert start(2, int(address.rsplit(":", 1)[1])).ask("address") == address
        assert waiting.result(PATIENCE) == b"before it is there"
    assert asker.ask(address, "b", 0, b"two", PATIENCE) == b"two"
    with pytest.raises(Unanswered):  # meant for the first
        asker.ask(address, "b", 0, b"", SHORT, to_incarnation=1)


FORKS = """
import warnings; warnings.simplefilter("error")
import os, sys
from nanokv.cluster.messages.asker import Asker
from nanokv.cluster.messages.feed import Publisher, Subscriber
from nanokv.cluster.messages.server import Server
from nanokv.cluster.messages.tcp import host_and_port
from nanokv.errors import NanoKVError
address, secret = sys.argv[1], sys.argv[2].encode()
asker = Asker("a", 1, secret)
server = Server("s", 1, secret, {0: lambda sender, body: body})
publisher, subscriber = Publisher("s", 1, secret), Subscriber(secret, print, print)
assert asker.ask(address, "b", 0, b"parent", 60) == b"parent"
child = os.fork()
if not child:
    for call in (lambda: asker.ask(address, "b", 0, b"", 60), lambda: publisher.publish(b"")):
        try:
            call()
        except NanoKVError as error:
            assert "is a fork: make another" in str(error)
        else:
            sys.exit(3)
    own = Asker("a", 2, secret)
    assert own.ask(address, "b", 0, b"child", 60) == b"child"
    for each in (asker, server, publisher, subscriber, own):
        each.close()
    del asker, server, publisher, subscriber
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
own = Asker("c", 1, secret)  # the server has heard the child, and takes the parent for an older run
assert own.ask(address, "b", 0, b"on", 60) == b"on"
assert own.ask(server.address, "s", 0, b"on", 60) == b"on"
print("done", flush=True)  # and ends without closing any of them
"""


def test_a_fork_makes_its_own_and_an_exit_needs_no_close(ends: ExitStack) -> None:
    server = Server("b", 9, SECRET, {0: lambda sender, body: body})
    ends.callback(server.close)
    command = [sys.executable, "-c", FORKS, server.address, SECRET.decode()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "done\n"
    assert server.counts == {}


def test_errors_are_of_their_kinds() -> None:
    assert issubclass(Unanswered, TimeoutError)
    assert issubclass(CacheClosed, NanoKVError)
