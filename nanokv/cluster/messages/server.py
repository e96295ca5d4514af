"""Answers questions of other members, in one thread.

Anybody may connect. Who has not shown that it knows the secret is a stranger, and costs little: there are few strangers
at a time, each for some seconds, with small messages, and file descriptors are left for what the process itself opens.

The thread sleeps until a message comes. While answers are pending it looks at them as often as each of them wants
(`Pending.rest`), so that a pull is answered soon and one that hangs takes no core.
"""

import logging
import resource
import select
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from nanokv.cluster.messages import tcp
from nanokv.cluster.messages.counts import Counts, Dropped
from nanokv.cluster.messages.frames import TooLong
from nanokv.cluster.messages.loop import Loop, Wake
from nanokv.cluster.messages.replays import Taken
from nanokv.cluster.messages.replies import Handler, Pending, Reply
from nanokv.cluster.messages.sealed import Form, Message, Reason, Rejected, Seal, Sender
from nanokv.cluster.messages.stream import MOST_REFUSED, Stream
from nanokv.seldom import Seldom

_log = logging.getLogger("nanokv.cluster.messages")

_TEXT_LIMIT = 300  #: characters of an error's text
_REST = 0.01  #: seconds, if the process has no room for another connection
MOST_STRANGERS = 64  #: connections; one more, and the oldest goes
STRANGER_SECONDS = 5.0  #: by then an authentic message must have come
_LEFT = 32  #: file descriptors that connections leave to the process: files, a registry, other members


class _Asked(NamedTuple):
    """A message under way, and the connection that it came by."""

    route: Stream
    message: Message


class _Later(NamedTuple):
    asked: _Asked
    pending: Pending


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
        self._counts, self._taken = Counts(f"member {me}"), Taken()
        self._later: list[_Later] = []
        self._listener, self.address = tcp.listener(bind, port)
        self._streams: dict[int, Stream] = {}  # by file descriptor
        self._strangers: dict[Stream, None] = {}  # the oldest first
        self._failures = Seldom(_log)
        self._wake = Wake()
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake.fd, select.EPOLLIN)
        self._loop = Loop(f"nanokv-server-{me}", self._wake, self._turn, self._end)

    @property
    def counts(self) -> dict[StrEnum, int]:
        """Messages that were refused or dropped, by `Reason` or `Dropped`."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Stop after the handler that is running; abandon pending answers, and tell those who asked. Idempotent."""
        self._loop.stop()

    def _turn(self) -> None:
        for number, events in self._epoll.poll(self._rest()):
            if number == self._listener.fileno():
                self._accept()
            elif number in self._streams:
                self._attend(self._streams[number], events)
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
            self._counts.add(Dropped.NO_ROOM, str(error))
            self._dismiss(1)
            time.sleep(_REST)
            return
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and made.fileno() >= most - _LEFT:  # the lowest free number is taken
            made.close()
            self._counts.add(Dropped.NO_ROOM, f"from {peer[0]}")
            self._dismiss(1)
            return
        tcp.prepare(made)
        stream = self._streams[made.fileno()] = Stream(made, f"{peer[0]}:{peer[1]}")
        self._epoll.register(made, select.EPOLLIN)
        self._strangers[stream] = None
        self._dismiss(len(self._strangers) - MOST_STRANGERS)

    def _dismiss(self, count: int) -> None:
        """Close connections of strangers, the oldest first."""
        for stream in list(self._strangers)[: max(count, 0)]:
            self._counts.add(Dropped.STRANGER, f"from {stream.peer}")
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
            reason = Dropped.STRANGER if stream.is_stranger else Reason.OVERSIZED
            self._counts.add(reason, f"{error}, from {stream.peer}")
            self._drop(stream)
        except OSError:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Close a connection that has ended, or is of no use."""
        if self._streams.get(stream.number) is stream:  # another one may have its number by now
            del self._streams[stream.number]
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
            self._handle(_Asked(stream, message))

    def _opened(self, data: bytes) -> Message:
        message = self._seal.open(data)
        if message.form not in (Form.QUESTION, Form.TOLD, Form.HELLO):
            raise Rejected(Reason.UNEXPECTED)
        self._taken.take(message.sender, message.number)
        return message

    def _handle(self, asked: _Asked) -> None:
        handler = self._handlers.get(asked.message.kind)
        if handler is None:
            self._counts.add(Dropped.NO_HANDLER, f"{asked.message.kind}, from {asked.message.sender.id}")
            self._send(asked, Form.ERROR, f"no handler for messages of kind {asked.message.kind}".encode())
            return
        try:
            self._reply(asked, handler(asked.message.sender, asked.message.body))
        except Exception as error:
            self._failed(asked, error)

    def _reply(self, asked: _Asked, reply: Reply) -> None:
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

    def _failed(self, asked: _Asked, error: Exception) -> None:
        kind, sender, text = asked.message.kind, asked.message.sender, _text(error)
        self._counts.add(Dropped.FAILED)
        line = f"a message of kind {kind} from {sender.id} failed: {text.decode()}"
        self._failures.warn(f"{kind} {type(error).__name__}", line)
        _log.debug("%s", line, exc_info=error)
        self._send(asked, Form.ERROR, text)

    def _send(self, asked: _Asked, form: Form, body: bytes) -> None:
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
            self._counts.add(Dropped.GONE)
            self._drop(stream)

    def _end(self) -> None:
        for later in self._later:
            try:
                later.pending.abandon()
            except Exception:
                _log.exception("a pending answer could not be abandoned")
            self._send(later.asked, Form.ERROR, b"the server closed before this was done")
        self._later.clear()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._epoll.close()
        self._listener.close()


def _text(error: Exception) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of the error's own __str__
        text = type(error).__name__
    return text.split("\n", 1)[0][:_TEXT_LIMIT].encode(errors="replace")
