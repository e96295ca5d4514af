"""Events from one member to all who follow it. They may be lost, and then followers are told that they were.

A publisher numbers its events, and beats once a second with the number of the last one: so a follower that missed
events knows it with the next event, or a second later. A follower that is too slow misses events; it holds up neither
the publisher nor the other followers.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import zmq

from nanokv.arguments import integer
from nanokv.cluster.messages import sockets
from nanokv.cluster.messages.counts import ReasonCounts
from nanokv.cluster.messages.loop import Loop, Wake
from nanokv.cluster.messages.sealed import Form, Message, Reason, Rejected, Seal, Sender, check_id, checked_sender
from nanokv.cluster.resolving import when_known
from nanokv.cluster.seals import HEADS
from nanokv.errors import CacheClosed


# --- what a follower has heard of one member: which messages come next, and whether any were missed ---
class Sequence:
    """The events of one sender, numbered from 1, anew in each of its incarnations."""

    def __init__(self) -> None:
        self._incarnation = 0  # below any: nothing was heard
        self._last = 0

    def hear(self, message: Message) -> bool:
        """Take an event or a beat. True if messages before it were missed, or may have been, as before the first.

        Raises:
            Rejected: it was heard before, or its sender was started again since.
        """
        incarnation = message.sender.incarnation
        if incarnation < self._incarnation:
            raise Rejected(Reason.OLD_INCARNATION)
        anew = incarnation > self._incarnation
        expected = self._last + (message.form is Form.EVENT)
        if message.number < expected and not anew:
            raise Rejected(Reason.REPLAYED)
        self._incarnation, self._last = incarnation, message.number
        return anew or message.number > expected


# --- the feed ---------------------------------------------------------------------------------
_log = logging.getLogger("nanokv.cluster.messages")

BEAT = 1.0  #: seconds between two beats of a publisher
QUEUE = 1000  #: events that wait for one follower, at the publisher and again at the follower
BATCH = 64  #: messages between two looks at whom to follow


class Publisher:
    """One member's end for its events. Close it; one that was dropped goes on beating.

    Args:
        me, incarnation: whose events these are.
        secret: the cluster's, at least 16 bytes.
        bind: the interface, or an IP address of it. "0.0.0.0", for all, only if you mean it.
        port: 0: any that is free.
        local: publish at an abstract Unix socket too (`local_address`), for followers on the same host and in the same
            network namespace. Linux only.
        queue: events that wait for one follower; more are dropped, for that one.
        seal: of the cluster.

    Raises:
        InvalidArgument: an argument is wrong.
        OSError: the address is in use, or not of this host.
    """

    def __init__(
        self,
        me: str,
        incarnation: int,
        secret: bytes,
        bind: str = "127.0.0.1",
        port: int = 0,
        *,
        local: bool = False,
        queue: int = QUEUE,
        seal: str = HEADS,
    ) -> None:
        self._seal, self._me = Seal(secret, seal), checked_sender(me, incarnation)
        self._process = os.getpid()
        self._lock = threading.RLock()  # a finalizer may publish while its thread does
        self._number = 0
        self._socket, self.address, self.local_address = sockets.listener(
            zmq.PUB, bind, port, local, SNDHWM=integer("queue", queue, 1, 1 << 20)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beats, name=f"nanokv-publisher-{me}", daemon=True)
        self._thread.start()

    def publish(self, body: bytes) -> None:
        """Send an event of at most 1 MiB to all who follow. From any thread; never blocks.

        Raises:
            InvalidArgument: the body is too long, or not bytes.
            CacheClosed: this publisher is closed.
            NanoKVError: it belongs to the parent of this process.
        """
        sockets.check_process("publisher", self._process)
        with self._lock:
            if self._stop.is_set():
                raise CacheClosed("this publisher is closed")
            sealed = self._seal.seal(Form.EVENT, self._number + 1, self._me, body)
            self._number += 1
            self._socket.send(sealed, zmq.NOBLOCK)

    def skip(self) -> None:
        """Let all who follow know that they have missed something, as if an event had been lost on its way to each.

        From any thread; never blocks. Nothing if this publisher is closed.

        Raises:
            NanoKVError: it belongs to the parent of this process.
        """
        sockets.check_process("publisher", self._process)
        with self._lock:
            self._number += 1
            self._beat()

    def close(self) -> None:
        """Stop. From any thread; idempotent."""
        if os.getpid() != self._process:
            sockets.close(self._socket, self._process)
            return
        with self._lock:
            self._stop.set()
            self._socket.close(sockets.LAST_WORDS)
        self._thread.join()

    def _beats(self) -> None:
        while not self._stop.wait(BEAT):
            with self._lock:
                self._beat()

    def _beat(self) -> None:
        if not self._stop.is_set():
            self._socket.send(self._seal.seal(Form.BEAT, self._number, self._me, b""), zmq.NOBLOCK)


class Subscriber:
    """Follows publishers, in one thread. Close it; one that was dropped goes on.

    Args:
        secret: the cluster's, at least 16 bytes.
        listener: gets the sender and the body of each event, in the order of their numbers. What it raises is logged.
        lost: gets the sender when it is heard for the first time or in a new incarnation, and when events of it were
            missed: before the listener gets what came after them. What it raises is logged.
        queue: events that wait for the listener, of each publisher.
        seal: of the cluster.

    Raises:
        InvalidArgument: an argument is wrong.
    """

    def __init__(
        self,
        secret: bytes,
        listener: Callable[[Sender, bytes], object],
        lost: Callable[[Sender], object],
        *,
        queue: int = QUEUE,
        seal: str = HEADS,
    ) -> None:
        self._seal = Seal(secret, seal)
        self._listener, self._lost = listener, lost
        self._counts = ReasonCounts("a follower of events")
        self._changes: deque[tuple[str, str | None, str]] = deque()  # address, whom to follow, and where that is
        self._followed: dict[str, str] = {}  # address -> id
        self._wanted: dict[str, str] = {}  # the same, as callers want it
        self._connected: dict[str, str] = {}  # address -> where the socket is connected: there it is no name
        self._sequences: dict[str, Sequence] = {}  # id -> what was heard
        self._socket = sockets.new_socket(zmq.SUB, RCVHWM=integer("queue", queue, 1, 1 << 20))
        self._socket.set(zmq.SUBSCRIBE, b"")
        self._wake = Wake()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake.fd, zmq.POLLIN)
        self._loop = Loop("nanokv-subscriber", self._wake, self._turn, self._socket.close)

    @property
    def counts(self) -> dict[StrEnum, int]:
        """Messages that were refused, by `Reason`."""
        return self._counts.snapshot()

    def follow(self, address: str, sender: str) -> None:
        """Listen to a member's publisher, from soon on: as soon as its host's name has an address. From any thread.

        Once more for an address that is followed: its name is resolved anew.

        Raises:
            InvalidArgument: `address` is none, or `sender` is not a member's id.
        """
        sockets.check_address(address)
        check_id("sender", sender)
        self._wanted[address] = sender
        name = sockets.name_in(address)
        if not name:
            self._change(address, sender, address)
            return

        def is_wanted() -> bool:
            return self._wanted.get(address) == sender

        when_known(name, is_wanted, lambda found: self._change(address, sender, sockets.with_host(address, found)))

    def unfollow(self, address: str) -> None:
        """Do not listen there any more, from soon on. From any thread. Nothing if that is so already."""
        self._wanted.pop(address, None)
        self._change(address, None, "")

    def close(self) -> None:
        """Stop after the call of the listener that is running. From any thread; idempotent."""
        self._wanted.clear()
        self._loop.stop()

    def _change(self, address: str, sender: str | None, where: str) -> None:
        self._changes.append((address, sender, where))
        self._wake.ring()

    def _turn(self) -> None:
        if (self._wake.fd, zmq.POLLIN) in self._poller.poll():
            self._wake.reset()
        while self._changes:
            self._follow(*self._changes.popleft())
        for _ in range(BATCH):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._hear(parts)
            except Rejected as rejected:
                self._counts.add(rejected.reason)

    def _follow(self, address: str, sender: str | None, where: str) -> None:
        if sender is not None and self._wanted.get(address) != sender:
            return  # it was resolved too late
        self._followed.pop(address, None)
        before = self._connected.get(address)
        try:
            if before is not None and before != where:
                self._socket.disconnect(before)
                del self._connected[address]
            if sender is not None:
                if before != where:
                    if "[" in where:
                        self._socket.set(zmq.IPV6, 1)
                    self._socket.connect(where)
                    self._connected[address] = where
                self._followed[address] = sender
                self._sequences.setdefault(sender, Sequence())
        except zmq.ZMQError:
            _log.exception("cannot follow %s at %s", sender, address)
        for each in self._sequences.keys() - self._followed.values():
            del self._sequences[each]

    def _hear(self, parts: list[bytes]) -> None:
        if len(parts) != 1:
            raise Rejected(Reason.MALFORMED)
        message = self._seal.open(parts[0])
        sender = message.sender
        sequence = self._sequences.get(sender.id)
        if sequence is None:
            raise Rejected(Reason.UNEXPECTED)
        if sequence.hear(message):
            self._call(self._lost, sender)
        if message.form is Form.EVENT:
            self._call(self._listener, sender, message.body)

    @staticmethod
    def _call(function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException:  # also SystemExit: the thread must live on
            _log.exception("a listener to events failed")
