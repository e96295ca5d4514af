"""Answers questions of other members, in one thread.

The thread sleeps until a message comes. While answers are pending it looks at them as often as each of them wants
(`Pending.rest`), so that a pull is answered soon and one that hangs takes no core.
"""

import logging
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import zmq

from nanokv.cluster.messages import sockets
from nanokv.cluster.messages.counts import Counts, Dropped
from nanokv.cluster.messages.loop import Loop, Wake
from nanokv.cluster.messages.replays import Taken
from nanokv.cluster.messages.replies import Handler, Pending, Reply
from nanokv.cluster.messages.sealed import Form, Message, Reason, Rejected, Seal, Sender

_log = logging.getLogger("nanokv.cluster.messages")

BATCH = 64  #: messages at most between two looks at pending answers
_TEXT_LIMIT = 300  #: characters of an error's text


class _Asked(NamedTuple):
    """A message under way, and the connection that it came by."""

    route: bytes
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
        local: listen at an abstract Unix socket too (`local_address`), which is faster for members on the same host
            and in the same network namespace. Linux only.

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
        local: bool = False,
    ) -> None:
        self._seal = Seal(secret, Sender(me, incarnation))
        self._handlers = dict(handlers)
        self._counts, self._taken = Counts(), Taken()
        self._later: list[_Later] = []
        self._socket, self.address, self.local_address = sockets.listener(
            zmq.ROUTER, bind, port, local, ROUTER_MANDATORY=1
        )
        self._wake = Wake()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake.fd, zmq.POLLIN)
        self._loop = Loop(f"nanokv-server-{me}", self._wake, self._turn, self._end)

    @property
    def counts(self) -> dict[StrEnum, int]:
        """Messages that were refused or dropped, by `Reason` or `Dropped`."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Stop after the handler that is running; abandon pending answers, and tell those who asked. Idempotent."""
        self._loop.stop()

    def _turn(self) -> None:
        more = all(self._take_one() for _ in range(BATCH))
        self._look_at_pending()
        if more:
            return
        if not self._later:
            self._poller.poll()
            return
        rest = min(later.pending.rest for later in self._later)
        if rest > 0:
            self._poller.poll(math.ceil(rest * 1000))  # ZeroMQ counts in whole ms

    def _take_one(self) -> bool:
        """Handle a message. False if there was none."""
        try:
            route, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            self._handle(_Asked(route, self._opened(parts)))
        except Rejected as rejected:
            self._counts.add(rejected.reason)
        return True

    def _opened(self, parts: list[bytes]) -> Message:
        if len(parts) != 1:
            raise Rejected(Reason.MALFORMED)
        message = self._seal.open(parts[0])
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
        try:
            self._socket.send_multipart([asked.route, answer], zmq.NOBLOCK)
        except zmq.ZMQError:  # no such route any more, or its queue is full
            self._counts.add(Dropped.GONE)

    def _end(self) -> None:
        for later in self._later:
            try:
                later.pending.abandon()
            except Exception:
                _log.exception("a pending answer could not be abandoned")
            self._send(later.asked, Form.ERROR, b"the server closed before this was done")
        self._later.clear()
        self._socket.close(sockets.LAST_WORDS)


def _text(error: Exception) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of the error's own __str__
        text = type(error).__name__
    return text.split("\n", 1)[0][:_TEXT_LIMIT].encode(errors="replace")
