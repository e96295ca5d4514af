"""How a process of this host is let into the memory of another one, as a guest (`nanokv.heap.guest`).

    guest -> owner   HELLO, as of the wire, with the purpose GUEST
    owner -> guest   WELCOME
    guest -> owner   PROOF    HMAC-SHA256 of the word "guest" under the key of what the asker sends
    owner -> guest   ADMITTED the offset of the owner's clock, HMAC-SHA256 of it under the key of what the owner
                              sends; and a descriptor of the world's file

Then nothing is sent any more. The guest takes a number by a lock of the file, by which all ranks of the world see
whether it lives (`nanokv.heap.guest`). The connection, a UNIX socket, stays open as long as the guest is there: so each
end hears at once of the other's.

Guarantees
- Only who knows the secret, and runs as the same user, gets the descriptor. A HELLO that is sent again does not: PROOF
  needs a key that only who made the HELLO can have.
- A guest that is told to go, and goes on, has its number until it ends it.
- A guest that sees the connection end begins nothing new there; what it has begun comes to its end in memory that
  stays mapped.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.wire.client import connected, exactly
from nanokv.cluster.wire.handshake import GUEST, WELCOME_BYTES, Asker, Greeting, NoHandshake
from nanokv.device.segment.clock import offset_ns
from nanokv.errors import HeapUnavailable
from nanokv.heap.base import HasGuests

_log = logging.getLogger("nanokv.cluster.wire")

_PROOF = b"guest"
_TAG = 32
_ADMITTED = struct.Struct("<q")  # offset of the clock
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
PROOF_SECONDS = 5.0  #: by then a guest must have sent its PROOF
_REST = 0.01  #: seconds after what should not happen


def user_of(made: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a UNIX socket; the process is 0 if it cannot be seen from here."""
    found = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return process, user


# --- the owner ----------------------------------------------------------------------------------
class _Connection:
    """A guest's connection. `is_in`: whether it has been given the file."""

    def __init__(self, made: socket.socket, asker: Asker) -> None:
        self.socket, self.asker, self.since = made, asker, time.monotonic()
        self.is_in, self.process = False, 0


class Guests:
    """The guests of a world: lets them in, and notices when they have gone.

    Its thread ends after `close`, with the last guest.

    Args:
        refused: told why somebody was not let in.
    """

    def __init__(self, heap: HasGuests, refused: Callable[[str], None]) -> None:
        self._heap, self._refused = heap, refused
        self._there: dict[int, _Connection] = {}  # by descriptor: of the socket, and of the process
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._closing = False
        self._lock = threading.Lock()
        self._new: list[_Connection] = []
        self._thread = threading.Thread(target=self._run, name="nanokv-guests", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """How many guests there are."""
        return len({id(each) for each in list(self._there.values()) if each.is_in})

    def add(self, made: socket.socket, asker: Asker) -> None:
        """Take a connection that has shaken hands. From any thread."""
        with self._lock:
            if not self._closing:
                self._new.append(_Connection(made, asker))
                os.eventfd_write(self._wake, 1)
                return
        made.close()

    def close(self) -> None:
        """Let nobody in any more, and tell those who are there to go. Returns at once. Idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not (self._closing and not self._there and not self._new):
            try:
                self._turn()
            except Exception:  # of one guest: the others go on
                _log.exception("a turn of the thread that lets guests in has failed")
                time.sleep(_REST)
        self._epoll.close()
        with self._lock:  # `close` may be about to write
            os.close(self._wake)

    def _turn(self) -> None:
        strangers = any(not each.is_in for each in self._there.values())
        for descriptor, _ in self._epoll.poll(PROOF_SECONDS if strangers else None):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif (each := self._there.get(descriptor)) is not None:
                self._look_at(each, descriptor)
        self._take_new()
        for each in set(self._there.values()):
            if not each.is_in and (self._closing or time.monotonic() >= each.since + PROOF_SECONDS):
                self._drop(each, "" if self._closing else "it sent no proof")
            elif self._closing:
                with contextlib.suppress(OSError):
                    each.socket.shutdown(socket.SHUT_WR)  # it sees the end, and ends its own side when it is done

    def _take_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for each in new:
            each.socket.setblocking(False)
            self._there[each.socket.fileno()] = each
            self._epoll.register(each.socket, select.EPOLLIN)

    def _look_at(self, each: _Connection, descriptor: int) -> None:
        try:
            if descriptor == each.process:
                self._drop(each)
                return
            said = each.socket.recv(_TAG)
            if each.is_in or not said:  # a guest says nothing: its end has come
                self._drop(each, "" if each.is_in else "it has closed")
            elif not hmac.compare_digest(said, _tag(each.asker.keys.asks, _PROOF)):
                self._drop(each, "it has no proof")
            else:
                self._admit(each)
        except BlockingIOError:
            return
        except (OSError, HeapUnavailable) as error:
            self._drop(each, str(error))

    def _admit(self, each: _Connection) -> None:
        process, user = user_of(each.socket)
        if user != os.geteuid():
            raise HeapUnavailable(f"it runs as user {user}, and not as {os.geteuid()}")
        # a child of a fork may keep the socket open when the guest has died: so its process is looked at too
        with contextlib.suppress(OSError, AttributeError):
            each.process = os.pidfd_open(process) if process else 0
        if each.process:
            self._there[each.process] = each
            self._epoll.register(each.process, select.EPOLLIN)
        said, file = _ADMITTED.pack(offset_ns()), self._heap.file_for_guest()
        try:
            socket.send_fds(each.socket, [said + _tag(each.asker.keys.answers, said)], [file])
        finally:
            os.close(file)
        each.is_in = True
        _log.info("member %s may map the memory of this one", each.asker.who.id)

    def _drop(self, each: _Connection, why: str = "") -> None:
        for descriptor in filter(None, (each.socket.fileno(), each.process)):
            self._there.pop(descriptor, None)
            self._epoll.unregister(descriptor)
        each.socket.close()
        if each.process:
            os.close(each.process)
        if each.is_in:  # what it has left is looked for now, and not with the next object
            for rank in range(self._heap.world_size):
                if not self._heap.peer_closed(rank):
                    self._heap.wake(rank)
        if why:
            self._refused(f"as a guest, from {each.asker.who.id}: {why}")


# --- the guest ----------------------------------------------------------------------------------
class Admitted(NamedTuple):
    """What a guest has been given."""

    connection: socket.socket  #: open as long as the memory is used
    file: int  #: a descriptor of the world's file, of the caller's own


def enter(address: str, secret: bytes, me: Sender, to: Sender, timeout: float) -> Admitted:
    """Ask the member that listens at an address, "unix:name", to be let in.

    Raises:
        NoHandshake, HeapUnavailable, OSError: it is not.
    """
    until = time.monotonic() + timeout
    made = connected(address, until)
    try:
        greeting = Greeting(secret, me, to, GUEST)
        made.sendall(greeting.hello)
        keys = greeting.keys(exactly(made, WELCOME_BYTES, until))
        made.sendall(_tag(keys.asks, _PROOF))
        said, given, _, _ = socket.recv_fds(made, _ADMITTED.size + _TAG, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if len(said) != _ADMITTED.size + _TAG or len(given) != 1:
                raise HeapUnavailable("it lets nobody in, or runs as another user")
            if not hmac.compare_digest(said[-_TAG:], _tag(keys.answers, said[:-_TAG])):
                raise NoHandshake("what it says is not its own")
            (offset,) = _ADMITTED.unpack(said[:-_TAG])
            if offset != offset_ns():
                raise HeapUnavailable("it lives in another time namespace: its times are others")
        except BaseException:
            for each in given:
                os.close(each)
            raise
        made.settimeout(None)
    except BaseException:
        made.close()
        raise
    return Admitted(made, given[0])


def _tag(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, b"nanokv guest\0" + said, hashlib.sha256)
