"""Asks questions of other members, and tells them things, from any thread.

The calling thread itself sends and receives, by a socket of its own for each address: a question waits for no other
thread here, and what a thread sends to an address arrives in that order. A socket is closed when its thread ends, and
when an answer did not come: what still waited in it would only do work that nobody wants any more.
"""

import itertools
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from nanokv.arguments import integer, seconds
from nanokv.cluster.messages import sockets, tcp
from nanokv.cluster.messages.counts import DropReason, ReasonCounts
from nanokv.cluster.messages.frames import Frames, TooLong, framed
from nanokv.cluster.messages.loop import Wake
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.messages.sealed import ANY, Form, Message, Reason, Rejected, Seal, Sender, check_id
from nanokv.errors import CacheClosed

# --- the connection by which one thread asks one address --------------------------------------
# Other threads may end it, also while it is used.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  #: seconds between two tries to connect
_CHUNK = 1 << 16  #: bytes: more would be memory that the allocator takes from the kernel each time


class Connection:
    """A connection that is made when there is something to send. `take` it before use, and `give_back` it.

    Args:
        wake: when it rings, who waits here stops waiting.

    Attributes:
        lost: the other end has gone since the last message was sent: no answer will come.

    Raises:
        InvalidArgument: `address` is none.
    """

    def __init__(self, address: str, wake: Wake) -> None:
        self.address, self._target, self._wake = address, tcp.host_and_port(address), wake
        self._process = os.getpid()
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._poll = select.poll()
        self._poll.register(wake.fd, select.POLLIN)
        self._frames, self._come = Frames(), deque[bytes]()
        self._message, self._sent = b"", 0
        self._whole: bytes = b""  # with the greeting, if the connection is new
        self._greeting: Callable[[], bytes] = bytes
        self._pause = _FIRST_PAUSE
        self._lock = threading.Lock()  # held while it is used or closed
        self.ended = self.lost = False

    # --- whose it is ---
    def take(self) -> bool:
        """Begin to use it. False if it has ended."""
        self._lock.acquire()
        if self.ended:
            self._lock.release()
            return False
        return True

    def give_back(self) -> None:
        """Stop using it."""
        self._lock.release()
        if self.ended:
            self.end()

    def end(self) -> None:
        """Close it, once nobody uses it. From any thread; idempotent."""
        self.ended = True
        if os.getpid() != self._process:  # in a child of a fork the lock may be held by a thread that is not there
            self._close()
        elif self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        made, self._socket, self._is_connected = self._socket, None, False
        if made is not None:
            if os.getpid() == self._process:
                self._poll.unregister(made)
            made.close()
        self._frames, self._sent = Frames(), 0
        self._come.clear()

    # --- what goes ---
    def begin(self, message: bytes, greeting: Callable[[], bytes]) -> None:
        """What `send` sends; and what makes the message that goes before it, each time that this connects."""
        self._message, self._greeting, self._sent, self.lost = framed(message), greeting, 0, False
        self._whole = self._message
        if self._is_connected and self._has_gone():
            self._close()

    def send(self, until: float) -> bool:
        """Connect, and send. False: not done at `until` of time.monotonic; another call goes on with it."""
        while self._sent < len(self._whole):
            if not self._is_connected and not self._connect(until):
                return False
            assert self._socket is not None
            try:
                self._sent += self._socket.send(memoryview(self._whole)[self._sent :])
            except BlockingIOError:
                if not self._wait(select.POLLOUT, until):
                    return False
            except OSError:
                self._close()
        return True

    def _connect(self, until: float) -> bool:
        try:
            if self._socket is None:
                self._socket = tcp.connecting(self._target, until)
                self._poll.register(self._socket, 0)
            if not self._wait(select.POLLOUT, until):
                return False
            self._is_connected = tcp.has_connected(self._socket)
        except OSError:
            self._is_connected = False
        if self._is_connected:
            self._pause = _FIRST_PAUSE
            self._whole, self._sent = framed(self._greeting()) + self._message, 0
            return True
        self._close()
        self._rest(until)
        return False

    def _rest(self, until: float) -> None:
        """Nobody is there. The next try comes a little later."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._poll.poll(_ms_until(min(until, time.monotonic() + pause)))

    def _has_gone(self) -> bool:
        assert self._socket is not None
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # --- what comes ---
    def receive(self, until: float) -> bytes | None:
        """A message. None: none has come at about `until` of time.monotonic; or none will (`lost`)."""
        while not self._come:
            if self._socket is None or not self._wait(select.POLLIN, until):
                return None
            if not self._hear(self._socket):
                self._close()
                self.lost = True
                return None
        return self._come.popleft()

    def _hear(self, made: socket.socket) -> bool:
        """Take what has come. False: the other end has gone, or sends what is no message."""
        try:
            data = made.recv(_CHUNK)
            self._come.extend(self._frames.feed(data))
        except BlockingIOError:
            return True
        except (OSError, TooLong):
            return False
        return bool(data)

    def _wait(self, events: int, until: float) -> bool:
        """Whether the socket is ready, or has failed, before `until`."""
        made = self._socket
        assert made is not None
        self._poll.modify(made, events)
        ready = self._poll.poll(_ms_until(until))
        return any(number == made.fileno() for number, _ in ready)


def _ms_until(deadline: float) -> int:
    """The milliseconds for a poll, which takes no more than 31 bits."""
    return min(max(0, math.ceil((deadline - time.monotonic()) * 1000)), 1 << 30)


# --- the asker --------------------------------------------------------------------------------
_LOOK = 0.1  #: seconds between two calls of `meanwhile`
_NO_KIND = 0
_PATIENCE = 0.1  #: seconds in which what is told must find its way out


def _soon(deadline: float, meanwhile: object) -> float:
    return deadline if meanwhile is None else min(deadline, time.monotonic() + _LOOK)


class Asker:
    """One member's end for asking. One for each incarnation of a member: numbers of messages are counted here.

    Args:
        me, incarnation, secret: as of `Server`.

    Raises:
        InvalidArgument: an argument is wrong.
    """

    def __init__(self, me: str, incarnation: int, secret: bytes) -> None:
        self._seal = Seal(secret, Sender(me, incarnation))
        self._process = os.getpid()
        self._numbers: dict[str, itertools.count[int]] = {}  # a server takes those of its own
        self._counts = ReasonCounts(f"member {me}")
        self._wake = Wake()
        self._closed = False
        self.connections: set[Connection] = set()  #: all that are open
        self._mine = _Mine(self.connections)

    @property
    def counts(self) -> dict[StrEnum, int]:
        """Answers that were refused, and messages that were not sent, by `Reason` or `DropReason`."""
        return self._counts.snapshot()

    def ask(
        self,
        address: str,
        to: str,
        kind: int,
        body: bytes,
        timeout: float,
        *,
        to_incarnation: int = ANY,
        meanwhile: Callable[[], object] | None = None,
    ) -> bytes:
        """Ask a member; returns its answer.

        Args:
            address: of its server. If nobody is there, the question waits until somebody is; if who has it goes,
                nobody will answer.
            to: the member's id.
            kind: 0 to 65535.
            body: at most 1 MiB.
            timeout: seconds.
            to_incarnation: the run of the member that is meant. Others do not take the question, neither now nor when
                somebody who listened sends it again after the member was started anew.
            meanwhile: called every 0.1 s while there is no answer. What it raises ends the wait.

        Raises:
            Unanswered: no answer came within `timeout`, or the connection has ended, as when the member's process has.
            Refused: the answer is an error.
            InvalidArgument: an argument is wrong; nothing was sent.
            CacheClosed: this asker is closed, or was while it waited.
            NanoKVError: it belongs to the parent of this process.
        """
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        number, sealed = self._sealed(Form.QUESTION, to, kind, body, to_incarnation)
        connection = self._take(address)
        answer = None
        try:
            greeting = self._greeting(to, to_incarnation)
            answer = self._exchange(connection, sealed, greeting, to, number, deadline, meanwhile)
        finally:
            self._give_back(connection, of_use=answer is not None)
        if answer is None:
            self._check_open()
            why = "did not answer, and has gone" if connection.lost else f"did not answer within {timeout} s"
            raise Unanswered(f"{to} at {address} {why}")
        if answer.form is Form.ERROR:
            raise Refused(answer.body.decode(errors="replace"))
        return answer.body

    def tell(self, address: str, to: str, kind: int, body: bytes, *, to_incarnation: int = ANY) -> None:
        """Send a message that gets no answer. It may be lost, and is dropped if the address does not take it at once.

        Takes at most 0.1 s.

        Args:
            address, to, kind, body, to_incarnation: as of `ask`.

        Raises:
            InvalidArgument, CacheClosed, NanoKVError: as of `ask`.
        """
        _, sealed = self._sealed(Form.TOLD, to, kind, body, to_incarnation)
        connection = self._take(address)
        sent = False
        try:
            connection.begin(sealed, self._greeting(to, to_incarnation))
            sent = connection.send(time.monotonic() + _PATIENCE)
        finally:
            self._give_back(connection, of_use=sent)
        if not sent:
            self._counts.add(DropReason.FULL, f"{to} at {address}")

    def forget(self, address: str) -> None:
        """Close all sockets to an address where nobody is any more: they would try to connect for ever."""
        for connection in list(self.connections):
            if connection.address == address:
                connection.end()
                self.connections.discard(connection)

    def close(self) -> None:
        """Close all sockets; calls that wait raise CacheClosed. From any thread; idempotent."""
        self._closed = True
        self._wake.ring()
        for connection in list(self.connections):
            connection.end()
            self.connections.discard(connection)

    def _check_open(self) -> None:
        sockets.check_process("asker", self._process)
        if self._closed:
            raise CacheClosed("this asker is closed")

    def _sealed(self, form: Form, to: str, kind: int, body: bytes, to_incarnation: int) -> tuple[int, bytes]:
        self._check_open()
        numbers = self._numbers.get(to)
        if numbers is None:
            check_id("to", to)
            numbers = self._numbers.setdefault(to, itertools.count(1))
        number = next(numbers)
        addressee = Sender(to, integer("to_incarnation", to_incarnation, 0, (1 << 64) - 1))
        return number, self._seal.seal(form, kind, number, addressee, body)

    def _greeting(self, to: str, to_incarnation: int) -> Callable[[], bytes]:
        """Makes what a new connection begins with: who listens takes long messages only of those that know the secret.

        It is sealed by then, with a number of its own: nobody who has heard it can send it again.
        """
        return lambda: self._sealed(Form.HELLO, to, _NO_KIND, b"", to_incarnation)[1]

    def _take(self, address: str) -> Connection:
        """A connection of this thread, taken."""
        free = self._mine.connections.free.get(address, [])
        while True:
            if free:  # none: it is the first, or a finalizer tells while its thread asks
                connection = free.pop()
            else:
                connection = Connection(address, self._wake)
                self.connections.add(connection)
                if self._closed:
                    connection.end()
            if connection.take():
                return connection
            self._check_open()

    def _give_back(self, connection: Connection, *, of_use: bool) -> None:
        if of_use:
            self._mine.connections.free.setdefault(connection.address, []).append(connection)
        else:
            connection.ended = True
            self.connections.discard(connection)
        connection.give_back()

    def _exchange(
        self,
        connection: Connection,
        data: bytes,
        greeting: Callable[[], bytes],
        to: str,
        number: int,
        deadline: float,
        meanwhile: Callable[[], object] | None,
    ) -> Message | None:
        """Send a question and wait for its answer. None: there was none in time, or this was closed."""
        connection.begin(data, greeting)
        sent = False
        while not self._closed and not connection.lost:
            until = _soon(deadline, meanwhile)
            if not sent:
                sent = connection.send(until)
            elif (found := connection.receive(until)) is not None:
                try:
                    return self._answer(found, to, number)
                except Rejected as rejected:
                    self._counts.add(rejected.reason, f"from {connection.address}")
            if time.monotonic() >= until:
                if until >= deadline:
                    break
                assert meanwhile is not None
                meanwhile()
        return None

    def _answer(self, data: bytes, to: str, number: int) -> Message:
        """The answer to the question `number` to a member, if this is that."""
        message = self._seal.open(data)
        if message.form not in (Form.ANSWER, Form.ERROR) or message.to != self._seal.me:
            raise Rejected(Reason.UNEXPECTED)
        if message.sender.id != to or message.number != number:
            raise Rejected(Reason.UNEXPECTED)
        return message


class _OfThread:
    """The connections of a thread that it does not use just now. They end with it."""

    def __init__(self, everybodys: set[Connection]) -> None:
        self.free: dict[str, list[Connection]] = {}
        self._everybodys = everybodys

    def __del__(self) -> None:
        for connections in self.free.values():
            for connection in connections:
                connection.end()
                self._everybodys.discard(connection)


class _Mine(threading.local):
    """What each thread sees of its own."""

    def __init__(self, everybodys: set[Connection]) -> None:
        self.connections = _OfThread(everybodys)
