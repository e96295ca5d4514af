"""Answers questions of other members, in one thread.

Anybody may connect. Who has not shown that it knows the secret is a stranger, and costs little: there are few strangers
at a time, each for some seconds, with small messages, and file descriptors are left for what the process itself opens.

The thread sleeps until a message comes. While answers are pending it looks at them as often as each of them wants
(`PendingReply.rest`), so that a pull is answered soon and one that hangs takes no core.
"""

import logging
import resource
import select
import socket
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from nanokv.cluster.messages import tcp
from nanokv.cluster.messages.counts import DropReason, ReasonCounts
from nanokv.cluster.messages.frames import LONGEST, Frames, TooLong, framed
from nanokv.cluster.messages.loop import Loop, Wake
from nanokv.cluster.messages.replies import Handler, PendingReply, Reply
from nanokv.cluster.messages.sealed import MESSAGE_LIMIT, Form, Message, Reason, Rejected, Seal, Sender
from nanokv.seldom import Seldom

# --- A connection as a server has it: the messages that come by it, and what waits to go out ---
FIRST = 4096  #: bytes of a message, as long as none was authentic
MOST_REFUSED = 16  #: messages that were not authentic, before one that was
MOST_WAITING = 16 * MESSAGE_LIMIT  #: bytes of answers that the other end has not taken
_CHUNK = 1 << 16  #: bytes: more would be memory that the allocator takes from the kernel each time


class Stream:
    """A connected socket, which never blocks.

    Args:
        peer: where the other end is, for the log.

    Attributes:
        is_stranger: no authentic message has come yet. Until then it may cost little.
        since: when it was connected, of time.monotonic.
        refused: how many messages of a stranger were not authentic.
    """

    def __init__(self, made: socket.socket, peer: str = "") -> None:
        self.socket, self.number, self.peer = made, made.fileno(), peer
        self.is_stranger, self.since, self.refused = True, time.monotonic(), 0
        self._frames = Frames(FIRST)
        self._waiting = bytearray()

    def welcome(self) -> None:
        """An authentic message has come."""
        self.is_stranger, self._frames.longest = False, LONGEST

    def receive(self) -> Iterator[bytes]:
        """The messages that have come.

        Raises:
            OSError: it has ended.
            TooLong: what comes is of no use any more.
        """
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the other end has closed")
        yield from self._frames.feed(data)

    def send(self, message: bytes) -> bool:
        """Send, or keep what does not go out now. False: some was kept, for `flush`.

        Raises:
            OSError: it has ended, or too much waits.
        """
        self._waiting += framed(message)
        if len(self._waiting) > MOST_WAITING:
            raise BlockingIOError("the other end does not take its answers")
        return self.flush()

    def flush(self) -> bool:
        """Send what was kept: whether that is all. Raises OSError: it has ended."""
        try:
            while self._waiting:
                del self._waiting[: self.socket.send(self._waiting)]
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the socket. What waits is lost."""
        self.socket.close()


# --- the numbers of messages that a server has taken ------------------------------------------
# A message is taken once, however often it is sent.
#
# As in IPsec: of each sender the newest incarnation, its highest number, and which of the numbers just below were
# taken. What is further below is refused, for it may have been taken. Messages of one sender overtake each other,
# since each of its threads has a connection of its own; the window is as large as what such connections hold of small
# messages.
WINDOW = 1 << 14  #: numbers; 2 KiB for each sender
_ALL = (1 << WINDOW) - 1


class Window:
    """Which numbers of one incarnation of a sender were taken."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._highest = 0
        self._taken = 0  # bit i: the number `highest - i`

    def take(self, number: int) -> None:
        """Take a number.

        Raises:
            Rejected: it was taken, or is too far below the highest for anyone to know.
        """
        ahead = number - self._highest
        if ahead > 0:
            self._taken = ((self._taken << ahead) & _ALL | 1) if ahead < WINDOW else 1
            self._highest = number
            return
        if -ahead >= WINDOW:
            raise Rejected(Reason.TOO_OLD)
        if self._taken >> -ahead & 1:
            raise Rejected(Reason.REPLAYED)
        self._taken |= 1 << -ahead


class Taken:
    """The windows of all senders. For one thread."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    def take(self, sender: Sender, number: int) -> None:
        """Take a message that is authentic.

        Raises:
            Rejected: it was taken before, or may have been, or its sender was started again since.
        """
        window = self._windows.get(sender.id)
        if window is None or window.incarnation < sender.incarnation:
            window = self._windows[sender.id] = Window(sender.incarnation)
        elif window.incarnation > sender.incarnation:
            raise Rejected(Reason.OLD_INCARNATION)
        window.take(number)


# --- the server -------------------------------------------------------------------------------
_log = logging.getLogger("nanokv.cluster.messages")

_TEXT_LIMIT = 300  #: characters of an error's text
_REST = 0.01  #: seconds, if the process has no room for another connection
MOST_STRANGERS = 64  #: connections; one more, and the oldest goes
STRANGER_SECONDS = 5.0  #: by then an authentic message must have come
_LEFT = 32  #: file descriptors that connections leave to the process: files, a registry, other members


class _Request(NamedTuple):
    """A message under way, and the connection that it came by."""

    route: Stream
    message: Message


class _Later(NamedTuple):
    asked: _Request
    pending: PendingReply


class Server:
    """One member's end for questions. Close it; one that was dropped goes on.

    Args:
        me: this member's id, 1 to 64 bytes of UTF-8.
        incarnation: of this run of it, at least 1, and larger than those of runs before.
        secret: the cluster's, at least 16 bytes.
        handlers: by the kind of message. They run on the server's thread, one after the other.
        bind: the interface, or an IP address of it. "0.0.0.0", for all, only if you mean it.
        port: 0: any that is free.

    Raises:
        InvalidArgument: an argument is wrong.
        OSError: the address is in use, or not of this host.
    """

    def __init__(
        self,
        me: str,
        incarnation: int,
        secret: bytes,
        handlers: Mapping[int, Handler],
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._seal = Seal(secret, Sender(me, incarnation))
        self._handlers = dict(handlers)
        self._counts, self._taken = ReasonCounts(f"member {me}"), Taken()
        self._later: list[_Later] = []
        self._listener, self.address = tcp.listener(bind, port)
        self.streams: dict[int, Stream] = {}  # by file descriptor
        self._strangers: dict[Stream, None] = {}  # the oldest first
        self._failures = Seldom(_log)
        self._wake = Wake()
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake.fd, select.EPOLLIN)
        self._loop = Loop(f"nanokv-server-{me}", self._wake, self._turn, self._end)

    @property
    def counts(self) -> dict[StrEnum, int]:
        """Messages that were refused or dropped, by `Reason` or `DropReason`."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Stop after the handler that is running; abandon pending answers, and tell those who asked. Idempotent."""
        self._loop.stop()

    def _turn(self) -> None:
        for number, events in self._epoll.poll(self._rest()):
            if number == self._listener.fileno():
                self._accept()
            elif number in self.streams:
                self._attend(self.streams[number], events)
        self._look_at_pending()
        self._dismiss_strangers()

    def _rest(self) -> float | None:
        """Seconds until there is something to do though nothing comes; None: there will not be."""
        rests = [later.pending.rest for later in self._later]
        if self._strangers:
            rests.append(max(next(iter(self._strangers)).since + STRANGER_SECONDS - time.monotonic(), 0.0) + _REST)
        return min(rests) if rests else None

    def _accept(self) -> None:
        try:
            made, peer = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no room for another one: it waits, and the others go on
            self._counts.add(DropReason.NO_ROOM, str(error))
            self._dismiss(1)
            time.sleep(_REST)
            return
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and made.fileno() >= most - _LEFT:  # the lowest free number is taken
            made.close()
            self._counts.add(DropReason.NO_ROOM, f"from {peer[0]}")
            self._dismiss(1)
            return
        tcp.prepare(made)
        stream = self.streams[made.fileno()] = Stream(made, f"{peer[0]}:{peer[1]}")
        self._epoll.register(made, select.EPOLLIN)
        self._strangers[stream] = None
        self._dismiss(len(self._strangers) - MOST_STRANGERS)

    def _dismiss(self, count: int) -> None:
        """Close connections of strangers, the oldest first."""
        for stream in list(self._strangers)[: max(count, 0)]:
            self._counts.add(DropReason.STRANGER, f"from {stream.peer}")
            self._drop(stream)

    def _dismiss_strangers(self) -> None:
        """Close those that have had their time."""
        if self._strangers:
            begun = time.monotonic() - STRANGER_SECONDS
            self._dismiss(sum(stream.since <= begun for stream in self._strangers))

    def _attend(self, stream: Stream, events: int) -> None:
        """Send what waited for room, and take what has come."""
        try:
            if events & select.EPOLLOUT and stream.flush():
                self._epoll.modify(stream.socket, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                for data in stream.receive():
                    self._take(stream, data)
        except TooLong as error:
            reason = DropReason.STRANGER if stream.is_stranger else Reason.OVERSIZED
            self._counts.add(reason, f"{error}, from {stream.peer}")
            self._drop(stream)
        except OSError:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Close a connection that has ended, or is of no use."""
        if self.streams.get(stream.number) is stream:  # another one may have its number by now
            del self.streams[stream.number]
            self._strangers.pop(stream, None)
            self._epoll.unregister(stream.number)
            stream.close()

    def _take(self, stream: Stream, data: bytes) -> None:
        """Handle a message."""
        try:
            message = self._opened(data)
        except Rejected as rejected:
            self._counts.add(rejected.reason, f"from {stream.peer}")
            stream.refused += 1
            if stream.is_stranger and stream.refused >= MOST_REFUSED:
                raise ConnectionAbortedError("a stranger") from None
            return
        if stream.is_stranger:
            stream.welcome()
            self._strangers.pop(stream, None)
        if message.form is not Form.HELLO:
            self._handle(_Request(stream, message))

    def _opened(self, data: bytes) -> Message:
        message = self._seal.open(data)
        if message.form not in (Form.QUESTION, Form.TOLD, Form.HELLO):
            raise Rejected(Reason.UNEXPECTED)
        self._taken.take(message.sender, message.number)
        return message

    def _handle(self, asked: _Request) -> None:
        handler = self._handlers.get(asked.message.kind)
        if handler is None:
            self._counts.add(DropReason.NO_HANDLER, f"{asked.message.kind}, from {asked.message.sender.id}")
            self._send(asked, Form.ERROR, f"no handler for messages of kind {asked.message.kind}".encode())
            return
        try:
            self._reply(asked, handler(asked.message.sender, asked.message.body))
        except Exception as error:
            self._failed(asked, error)

    def _reply(self, asked: _Request, reply: Reply) -> None:
        if reply is None or isinstance(reply, bytes):
            self._send(asked, Form.ANSWER, reply or b"")
        elif (answer := reply.poll()) is not None:
            self._send(asked, Form.ANSWER, answer)
        else:
            self._later.append(_Later(asked, reply))

    def _look_at_pending(self) -> None:
        if self._later:
            looked, self._later = self._later, []
            self._later = [later for later in looked if not self._finished(later)] + self._later

    def _finished(self, later: _Later) -> bool:
        try:
            answer = later.pending.poll()
            if answer is not None:
                self._send(later.asked, Form.ANSWER, answer)
        except Exception as error:
            self._failed(later.asked, error)
            return True
        return answer is not None

    def _failed(self, asked: _Request, error: Exception) -> None:
        kind, sender, text = asked.message.kind, asked.message.sender, _text(error)
        self._counts.add(DropReason.FAILED)
        line = f"a message of kind {kind} from {sender.id} failed: {text.decode()}"
        self._failures.warn(f"{kind} {type(error).__name__}", line)
        _log.debug("%s", line, exc_info=error)
        self._send(asked, Form.ERROR, text)

    def _send(self, asked: _Request, form: Form, body: bytes) -> None:
        """Answer, if that is wanted. Never blocks."""
        message = asked.message
        if message.form is not Form.QUESTION:
            return
        answer = self._seal.seal(form, message.kind, message.number, message.sender, body)
        stream = asked.route
        try:
            if not stream.send(answer):
                self._epoll.modify(stream.socket, select.EPOLLIN | select.EPOLLOUT)
        except OSError:  # it has ended, or does not take its answers
            self._counts.add(DropReason.GONE)
            self._drop(stream)

    def _end(self) -> None:
        for later in self._later:
            try:
                later.pending.abandon()
            except Exception:
                _log.exception("a pending answer could not be abandoned")
            self._send(later.asked, Form.ERROR, b"the server closed before this was done")
        self._later.clear()
        for stream in list(self.streams.values()):
            self._drop(stream)
        self._epoll.close()
        self._listener.close()


def _text(error: Exception) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of the error's own __str__
        text = type(error).__name__
    return text.split("\n", 1)[0][:_TEXT_LIMIT].encode(errors="replace")
