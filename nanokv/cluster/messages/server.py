"""Answers questions of other members, in one thread.

The thread sleeps until a message comes. While answers are pending it looks at them as often as each of them wants
(`Pending.rest`), so that a pull is answered soon and one that hangs takes no core.
"""

import logging
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
from nanokv.cluster.messages.stream import Stream

_log = logging.getLogger("nanokv.cluster.messages")

_TEXT_LIMIT = 300  #: characters of an error's text
_REST = 0.01  #: seconds, if the process has no room for another connection


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
        self._counts, self._taken = Counts(), Taken()
        self._later: list[_Later] = []
        self._listener, self.address = tcp.listener(bind, port)
        self._streams: dict[int, Stream] = {}  # by file descriptor
        self._is_full = False  # the last connection could not be taken
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
        rest = min(later.pending.rest for later in self._later) if self._later else None
        for number, events in self._epoll.poll(rest):
            if number == self._listener.fileno():
                self._accept()
            elif number in self._streams:
                self._attend(self._streams[number], events)
        self._look_at_pending()

    def _accept(self) -> None:
        try:
            made, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no room for another one: it waits, and the others go on
            if not self._is_full:
                _log.warning("a connection cannot be taken: %s", error)
            self._is_full = True
            time.sleep(_REST)
            return
        self._is_full = False
        tcp.prepare(made)
        self._streams[made.fileno()] = Stream(made)
        self._epoll.register(made, select.EPOLLIN)

    def _attend(self, stream: Stream, events: int) -> None:
        """Send what waited for room, and take what has come."""
        try:
            if events & select.EPOLLOUT and stream.flush():
                self._epoll.modify(stream.socket, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                for data in stream.receive():
                    self._take(stream, data)
        except (OSError, TooLong):
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Close a connection that has ended, or is of no use."""
        if self._streams.get(stream.number) is stream:  # another one may have its number by now
            del self._streams[stream.number]
            self._epoll.unregister(stream.number)
            stream.close()

    def _take(self, stream: Stream, data: bytes) -> None:
        """Handle a message."""
        try:
            self._handle(_Asked(stream, self._opened(data)))
        except Rejected as rejected:
            self._counts.add(rejected.reason)

    def _opened(self, data: bytes) -> Message:
        message = self._seal.open(data)
        if message.form not in (Form.QUESTION, Form.TOLD):
            raise Rejected(Reason.UNEXPECTED)
        self._taken.take(message.sender, message.number)
        return message

    def _handle(self, asked: _Asked) -> None:
        handler = self._handlers.get(asked.message.kind)
        if handler is None:
            self._counts.add(Dropped.NO_HANDLER)
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
        self._counts.add(Dropped.FAILED)
        _log.error("a message of kind %d from %s failed", asked.message.kind, asked.message.sender, exc_info=error)
        self._send(asked, Form.ERROR, _text(error))

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
