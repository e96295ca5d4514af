"""The owner's end of the wire: two threads of one member.

One, in native code (`device.wire.owner.serve`), attends to all connections and never returns to Python: it puts, gets,
finds and removes. The other, here, does what that cannot: it accepts connections and shakes hands, answers messages,
makes room for puts that find none, and lets go of connections that have ended. A connection belongs to one of them at a
time.

Anybody may connect. Who has not shown that it knows the secret is a stranger, and costs little: there are few strangers
at a time, each for some seconds, and file descriptors are left for what the process itself opens.
"""

import atexit
import contextlib
import ctypes
import logging
import mmap
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.allocation.base import Allocation
from nanokv.cluster.messages import tcp, unix
from nanokv.cluster.messages.counts import DropReason, ReasonCounts
from nanokv.cluster.messages.replies import Handler, PendingReply, Reply
from nanokv.cluster.messages.sealed import Sender, check_id
from nanokv.cluster.seals import ALL, HEADS
from nanokv.cluster.wire import handshake
from nanokv.cluster.wire.ciphers import Ciphers, libcrypto
from nanokv.cluster.wire.client import shut
from nanokv.cluster.wire.guests import Guests
from nanokv.cluster.wire.handshake import GUEST, HELLO_BYTES, NoHandshake
from nanokv.device.fabric.records import PULL
from nanokv.device.machines.native_code import wire_code
from nanokv.device.native.sockets import CAN_READ, CAN_WRITE, EVENT_BYTES, EVENT_DATA
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.world_table import WORLD
from nanokv.device.wire.records import (
    BELL,
    CALL,
    CONNECTION,
    GONE,
    HEAD,
    INPUT_ROOM,
    MAC,
    MOST_CALLED,
    MOST_CONNECTIONS,
    MOST_EVENTS,
    OUTPUT_ROOM,
    READING,
    ROOMS,
    SEALED_ROOMS,
    SERVE,
)
from nanokv.dtypes import DTYPE_BYTES
from nanokv.errors import NanoKVError
from nanokv.heap.base import Heap
from nanokv.heap.local import LocalHeap
from nanokv.heap.shm import ShmHeap
from nanokv.seldom import Seldom
from nanokv.transfer.object_calls import Routing
from nanokv.types import KeyDigest

_log = logging.getLogger("nanokv.cluster.wire")

MOST_STRANGERS = 64  #: connections; one more, and the oldest goes
STRANGER_SECONDS = 5.0  #: by then a handshake must have been done
_LEFT = 32  #: file descriptors that connections leave to the process: files, a registry, other members
_REST = 0.01  #: seconds, if the process has no room for another connection
_MOST_BYTES = 1 << 40  #: of an object; what is larger than the world allows is answered TOO_LARGE
_TURN = 0.002  #: seconds of this thread that a put without room has at a time
_TEXT_LIMIT = 300  #: characters of an error's text
GRACE_NS = 5_000_000_000  #: for which nobody is silent that is handed back: till then both threads know of it
_ADD = 1  # EPOLL_CTL_ADD
_FULL = int(Status.FULL)
_NO_CONNECTION = np.zeros(1, CONNECTION.dtype)[0]
_NO_CONNECTION["fd"], _NO_CONNECTION["hosted"] = -1, 1


class World(NamedTuple):
    """What a server serves."""

    heap: Heap
    table: int  #: address of the world table of this process
    allocation: Allocation
    routing: Routing


class _Stranger:
    """A connection that has not shaken hands."""

    def __init__(self, made: socket.socket, peer: str) -> None:
        self.socket, self.peer, self.since, self.hello = made, peer, time.monotonic(), b""


class _Peer:
    """A connection of a member.

    Args:
        ciphers: None: it is not sealed.

    Attributes:
        answer: the body that goes, or went last: it stays until the connection is the host's again.
        pending: an answer that comes later; or a put that looks for room.
    """

    def __init__(self, made: socket.socket, who: Sender, rooms: mmap.mmap, ciphers: Ciphers | None) -> None:
        self.socket, self.who, self.rooms, self.ciphers = made, who, rooms, ciphers
        self.answer: Any = None
        self.pending: PendingReply | None = None


class WireServer:
    """One member's end for what others ask. Close it; one that was dropped goes on.

    Args:
        world: that it serves; None: its objects lie where native code cannot reach them, and only messages are taken.
        me: this member.
        secret: the cluster's, at least 16 bytes.
        handlers: of messages, by their kind. They run in one thread, one after the other.
        bind: the interface, or an IP address of it. "0.0.0.0", for all, only if you mean it.
        port: 0: any that is free. folder: of the UNIX socket; "": it is in none.
        patience: seconds for which a connection may be silent when a question has begun.
        spin: seconds for which the native thread looks for more before it sleeps.
        seal: of the cluster.

    Attributes:
        address: "tcp://host:port". local: of a UNIX socket, for processes of this host: see `messages.unix`.

    Raises:
        InvalidArgument: an argument is wrong.
        OSError: the address is in use, or not of this host.
        LinkUnavailable: it is to be sealed, and the library for it is not there.
    """

    def __init__(
        self,
        world: World | None,
        me: Sender,
        secret: bytes,
        handlers: Mapping[int, Handler],
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        folder: str = "",
        patience: float = 1.0,
        spin: float = 0.0,
        seal: str = HEADS,
    ) -> None:
        check_id("the member's id", me.id)
        self._world, self._me, self._secret, self._handlers = world, me, secret, dict(handlers)
        self._seal = seal
        if seal == ALL:
            libcrypto()
        self._code = wire_code()
        self._code.require_common()
        self._counts, self._failures = ReasonCounts(f"member {me.id}"), Seldom(_log)
        self._records = np.full(MOST_CONNECTIONS, _NO_CONNECTION, CONNECTION.dtype)
        self._queue = np.zeros(MOST_CONNECTIONS, np.int64)
        self._seen = 0
        self._peers: dict[int, _Peer] = {}  # by the number of the connection
        self._free = list(range(MOST_CONNECTIONS))[::-1]
        self._strangers: dict[int, _Stranger] = {}  # by file descriptor, the oldest first
        self._searches: list[int] = []  # numbers of connections with something pending
        self._closing = False
        self._tcp, self.address = tcp.listener(bind, port)
        try:
            self._near = unix.Listener(folder)
        except BaseException:
            self._tcp.close()
            raise
        self._unix, self.local = self._near.socket, self._near.address
        self._native, self._epoll = select.epoll(), select.epoll()  # of the native thread, and of this one
        self._to_native, self._to_host = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._box, self._mine = self._boxes(patience, spin)
        self._watch(self._to_native, BELL.value, CAN_READ.value)
        for each in (self._tcp.fileno(), self._unix.fileno(), self._to_host):
            self._epoll.register(each, select.EPOLLIN)
        table, box = self._table, int(self._box.ctypes.data)
        self._threads = [
            threading.Thread(target=self._code["serve"], args=(table, box), name="nanokv-wire", daemon=True),
            threading.Thread(target=self._run, name="nanokv-wire-host", daemon=True),
        ]
        heap = None if world is None else world.heap
        #: for guests; None: the world lets none in
        self._guests: Guests | None = None
        if isinstance(heap, LocalHeap | ShmHeap) and heap.geometry.guests:
            self._guests = Guests(heap, lambda why: self._counts.add(DropReason.STRANGER, why))
        self._process = os.getpid()
        atexit.register(self.close)  # else the native thread would go on in memory that is not there any more
        for thread in self._threads:
            thread.start()

    def _boxes(self, patience: float, spin: float) -> tuple[Any, Any]:
        """The SERVE record of each thread: the native one counts by its own, and this thread's calls by the other."""
        world, self._nobody = self._world, np.zeros(WORLD.size // WORD, np.int64)
        self._table = int(self._nobody.ctypes.data) if world is None else world.table
        self._sizes = np.zeros(256, np.int64)
        self._sizes[1 : 1 + len(DTYPE_BYTES)] = DTYPE_BYTES
        self._events = np.zeros(EVENT_BYTES.value * (1 + MOST_EVENTS.value), np.uint8)
        bell = (0, 0) if world is None else world.heap.world_bell()
        assert bell is not None
        box = np.zeros(2, SERVE.dtype)
        for name, value in {
            "epoll": self._native.fileno(),
            "events": self._events.ctypes.data,
            "connections": self._records.ctypes.data,
            "most": _MOST_BYTES,
            "sizes": self._sizes.ctypes.data,
            "serves": int(world is not None),
            "calls": 0 if world is None else world.routing.record.ctypes.data,
            "patience": int(patience * 1e9),
            "spin": int(spin * 1e9),
            "bell": bell[0],
            "futex": bell[1],
            "queue": self._queue.ctypes.data,
            "host": self._to_host,
            "one": 1,
        }.items():
            box[name] = value
        self._patience = patience
        return box[:1], box[1:]

    # --- from any thread ---
    @property
    def counts(self) -> dict[StrEnum, int]:
        """What was refused or dropped, by `DropReason`."""
        found = self._counts.snapshot()
        for reason, name in ((DropReason.MALFORMED, "bad"), (DropReason.SILENT, "silent")):
            if count := int(self._box[name][0]):
                found[reason] = count
        return found

    @property
    def figures(self) -> dict[str, int]:
        """Objects that were put, looked for, removed and given up for other members, and connections that are open."""
        names = {"wire_puts": "puts", "wire_gets": "gets", "wire_removals": "removals", "wire_given_up": "given_up"}
        found = {name: int(self._box[of][0] + self._mine[of][0]) for name, of in names.items()}
        guests = 0 if self._guests is None else self._guests.count
        return found | {"wire_connections": len(self._peers), "guests": guests}

    def close(self) -> None:
        """End all connections and both threads; pending answers are abandoned, and who asked is told. Idempotent."""
        if self._closing or os.getpid() != self._process:
            return
        self._closing = True
        if self._guests is not None:
            self._guests.close()
        atexit.unregister(self.close)
        os.eventfd_write(self._to_host, 1)
        if threading.current_thread() is self._threads[1]:  # a handler: its thread ends after this turn
            return
        for thread in self._threads[::-1]:
            thread.join()
        os.close(self._to_host)  # not by the thread, which may see that it is to end before it is woken

    # --- the host's thread ---
    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception:  # of one connection: the others go on
                    _log.exception("a turn of the thread that serves other members has failed")
                    time.sleep(_REST)
        finally:
            self._end()

    def _turn(self) -> None:
        for number, _ in self._epoll.poll(self._pause()):
            if number == self._to_host:
                os.eventfd_read(number)
            elif number in (self._tcp.fileno(), self._unix.fileno()):
                self._accept(self._tcp if number == self._tcp.fileno() else self._unix)
            elif number in self._strangers:
                self._greet(self._strangers[number])
        self._take_queue()
        self._look_at_pending()
        self._dismiss_late()

    def _pause(self) -> float | None:
        """Seconds until there is something to do though nothing comes; None: there will not be."""
        rests = [peer.pending.rest for number in self._searches if (peer := self._peers[number]).pending is not None]
        if self._strangers:
            first = next(iter(self._strangers.values()))
            rests.append(max(first.since + STRANGER_SECONDS - time.monotonic(), 0.0) + _REST)
        return min(rests) if rests else None

    # --- strangers ---
    def _accept(self, listener: socket.socket) -> None:
        try:
            made, peer = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no room for another one: it waits, and the others go on
            self._counts.add(DropReason.NO_ROOM, str(error))
            self._dismiss(1)
            time.sleep(_REST)
            return
        where = f"{peer[0]}:{peer[1]}" if listener is self._tcp else "this host"
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and made.fileno() >= most - _LEFT:  # the lowest free number is taken
            made.close()
            self._counts.add(DropReason.NO_ROOM, f"from {where}")
            self._dismiss(1)
            return
        made.setblocking(False)
        if listener is self._tcp:
            tcp.prepare(made)
        self._strangers[made.fileno()] = _Stranger(made, where)
        self._epoll.register(made, select.EPOLLIN)
        self._dismiss(len(self._strangers) - MOST_STRANGERS)

    def _greet(self, stranger: _Stranger) -> None:
        """Take what a stranger says. When its HELLO is whole and right, it is a member."""
        try:
            some = stranger.socket.recv(HELLO_BYTES - len(stranger.hello))
            stranger.hello += some
            if some and len(stranger.hello) < HELLO_BYTES:
                return
            if not some:
                raise NoHandshake("it has closed")
            asker, said = handshake.welcome(self._secret, self._me, stranger.hello, self._seal)
            comes_in = asker.purpose == GUEST
            if comes_in and (self._guests is None or stranger.socket.family != socket.AF_UNIX):
                raise NoHandshake("this world lets no guests in")
            if not self._free and not comes_in:
                self._counts.add(DropReason.NO_ROOM, f"from {asker.who.id}, beyond {MOST_CONNECTIONS} connections")
                shut(self._forget(stranger))
                return
            if stranger.socket.send(said) != len(said):
                raise NoHandshake("it does not read")
        except BlockingIOError:
            return
        except (OSError, NoHandshake, UnicodeDecodeError) as error:
            self._counts.add(DropReason.STRANGER, f"{error}, from {stranger.peer}")
            shut(self._forget(stranger))
        else:
            made = self._forget(stranger)
            if comes_in and self._guests is not None:
                self._guests.add(made, asker)
            else:
                self._add(made, asker.who, asker.keys)

    def _forget(self, stranger: _Stranger) -> socket.socket:
        del self._strangers[stranger.socket.fileno()]
        self._epoll.unregister(stranger.socket)
        return stranger.socket

    def _dismiss(self, count: int) -> None:
        """Close connections of strangers, the oldest first."""
        for stranger in list(self._strangers.values())[: max(count, 0)]:
            self._counts.add(DropReason.STRANGER, f"from {stranger.peer}")
            shut(self._forget(stranger))

    def _dismiss_late(self) -> None:
        """Close those that have had their time."""
        if self._strangers:
            begun = time.monotonic() - STRANGER_SECONDS
            self._dismiss(sum(stranger.since <= begun for stranger in self._strangers.values()))

    # --- connections ---
    def _add(self, made: socket.socket, who: Sender, keys: handshake.Keys) -> None:
        """Let the native thread attend to a connection."""
        sealed = self._seal == ALL
        nbytes = SEALED_ROOMS if sealed else ROOMS
        rooms = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # untouched it takes no memory
        ciphers = Ciphers(keys, asks=False) if sealed else None
        number = self._free.pop()
        self._peers[number] = _Peer(made, who, rooms, ciphers)
        at = ctypes.addressof(ctypes.c_char.from_buffer(rooms))
        row = np.zeros(1, CONNECTION.dtype)[0]
        row["hosted"], row["fd"] = 1, made.fileno()
        if ciphers is None:
            row["key_in"], row["key_out"] = (np.frombuffer(key, np.int64) for key in keys)
        else:
            ciphers.fill(row, at + ROOMS)
        row["input"], row["output"], row["pulls"] = at, at + INPUT_ROOM, at + INPUT_ROOM + OUTPUT_ROOM
        self._records[number] = row  # it was, and is, the host's: the native thread does not look at it meanwhile
        for box in (self._box, self._mine):
            box["used"] = max(int(box["used"][0]), number + 1)
        self._hand_back(number)

    def _watch(self, fd: int, number: int, events: int) -> None:
        """Let the native thread's epoll tell of a descriptor by a number: Python's own would tell of the descriptor."""
        event = ctypes.create_string_buffer(EVENT_BYTES.value)
        struct.pack_into("<I", event, 0, events)
        struct.pack_into("<q", event, EVENT_DATA.value, number)
        if _epoll_ctl(self._native.fileno(), _ADD, fd, event) != 0:
            raise OSError(ctypes.get_errno(), "epoll_ctl has failed")

    def _hand_back(self, number: int) -> None:
        """After a native call about a connection that is the host's: the native thread has it again, or it goes."""
        row, peer = self._records[number], self._peers[number]
        if int(row["state"]) == GONE.value:
            self._drop(number)
            return
        events = CAN_WRITE.value if row["waits"] else CAN_READ.value
        if int(row["state"]) == READING.value:
            peer.answer = None
        row["since"] = time.monotonic_ns() + GRACE_NS
        row["hosted"] = 0
        try:
            self._watch(peer.socket.fileno(), number, events)
        except OSError as error:  # no memory for another one
            self._counts.add(DropReason.NO_ROOM, str(error))
            row["hosted"] = 1
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Let go of a connection that is the host's, and of what it had begun."""
        self.give_up(number)
        peer = self._peers.pop(number)
        if peer.pending is not None:
            self._searches.remove(number)
            _abandon(peer.pending)
        self._records[number] = _NO_CONNECTION
        if peer.ciphers is not None:
            peer.ciphers.close()
        shut(peer.socket)
        self._free.append(number)

    def give_up(self, number: int) -> None:
        """Free what a connection had begun, which is this thread's, and of which no byte can come any more."""
        self._call("give_up", number)

    def _call(self, name: str, number: int, *more: int) -> Any:
        at = int(self._records.ctypes.data) + number * CONNECTION.size
        return self._code[name](self._table, int(self._mine.ctypes.data), at, *more)

    # --- what the native thread leaves to this one ---
    def _take_queue(self) -> None:
        end = int(self._box["queued"][0])
        while self._seen < end:
            number = int(self._queue[self._seen % MOST_CONNECTIONS])
            self._seen += 1
            peer = self._peers[number]
            peer.answer = None
            if int(self._records[number]["state"]) == GONE.value:
                self._drop(number)
            elif self._head(number)["kind"] == CALL.value:
                self._handle(number, peer)
            else:
                self._later(number, _RoomSearch(self, number))

    def _head(self, number: int) -> Any:
        return np.frombuffer(self._peers[number].rooms, HEAD.dtype, 1)[0]

    def pulls(self, number: int) -> npt.NDArray[Any]:
        """The PULL records of a put that is the host's."""
        return np.frombuffer(self._peers[number].rooms, PULL.dtype, int(self._head(number)["count"]), HEAD.size)

    def begin(self, pull: npt.NDArray[Any]) -> None:
        """Claim for one PULL, as a put from the host does, which makes room."""
        assert self._world is not None
        row = pull[0]
        key, what = KeyDigest(int(row["key_hash"]), int(row["key_check"])), tuple(row["what"].tolist())
        try:
            begun = self._world.allocation.begin(key, int(row["nbytes"]), int(row["rank"]), what, plan=True)
        except NanoKVError as error:  # it is answered FULL; its owner reads why
            self._failures.warn(f"room {type(error).__name__}", f"no room could be made for a put: {error}")
            return
        pull["status"], pull["rank"] = begun.status, begun.place.owner
        _, pull["slot"], pull["epoch"], pull["payload"], _ = begun.place

    def patience(self) -> float:
        """Seconds in which a put must find room."""
        return self._patience / 2

    def _handle(self, number: int, peer: _Peer) -> None:
        head = self._head(number)
        kind, nbytes = int(head["count"]), int(head["payload"])
        handler = self._handlers.get(kind)
        if handler is None:
            self._counts.add(DropReason.NO_HANDLER, f"{kind}, from {peer.who.id}")
            self._answer(number, f"no handler for messages of kind {kind}".encode(), failed=True)
            return
        try:
            reply = handler(peer.who, peer.rooms[HEAD.size : HEAD.size + nbytes])
        except Exception as error:
            self._failed(number, error)
        else:
            self._reply(number, reply)

    def _reply(self, number: int, reply: Reply) -> None:
        if reply is None or isinstance(reply, bytes):
            self._answer(number, reply or b"")
        else:
            self._later(number, reply)

    def _later(self, number: int, pending: PendingReply) -> None:
        self._peers[number].pending = pending
        self._searches.append(number)
        self._poll(number)

    def _look_at_pending(self) -> None:
        for number in list(self._searches):
            self._poll(number)

    def _poll(self, number: int) -> None:
        peer = self._peers[number]
        pending = peer.pending
        assert pending is not None
        try:
            answer = pending.poll()
        except Exception as error:
            self._done(number)
            if isinstance(
                pending, _RoomSearch
            ):  # what it had claimed is free again, and who put sees its connection end
                _log.exception("a put of %s has failed", peer.who.id)
                self._drop(number)
            else:
                self._failed(number, error)
            return
        if answer is not None:
            self._done(number)
            if isinstance(pending, _RoomSearch):
                self._call("go_on", number)
                self._hand_back(number)
            else:
                self._answer(number, answer)

    def _done(self, number: int) -> None:
        self._peers[number].pending = None
        self._searches.remove(number)

    def _failed(self, number: int, error: Exception) -> None:
        who, text, kind = self._peers[number].who, _text(error), int(self._head(number)["count"])
        self._counts.add(DropReason.FAILED)
        line = f"a message of kind {kind} from {who.id} failed: {text.decode()}"
        self._failures.warn(f"{kind} {type(error).__name__}", line)
        _log.debug("%s", line, exc_info=error)
        self._answer(number, text, failed=True)

    def _answer(self, number: int, body: bytes, *, failed: bool = False) -> None:
        """Answer a CALL."""
        if len(body) > MOST_CALLED:
            body, failed = f"the answer has {len(body)} bytes, more than {MOST_CALLED}".encode(), True
        whole = -(-len(body) // WORD) * WORD
        room = np.zeros(HEAD.size + whole + MAC, np.uint8)
        room[HEAD.size : HEAD.size + len(body)] = np.frombuffer(body, np.uint8)
        self._peers[number].answer = room
        self._call("answer", number, int(room.ctypes.data), len(body), int(failed))
        self._hand_back(number)

    # --- the end ---
    def _end(self) -> None:
        """End the native thread, then all connections."""
        for number in list(self._searches):
            pending = self._peers[number].pending
            self._done(number)
            if pending is not None and not isinstance(pending, _RoomSearch):
                _abandon(pending)
                with contextlib.suppress(OSError):
                    self._answer(number, b"the server closed before this was done", failed=True)
        self._box["stop"] = 1
        os.eventfd_write(self._to_native, 1)
        self._threads[0].join()
        for number in list(self._peers):
            self._drop(number)
        for stranger in list(self._strangers.values()):
            shut(self._forget(stranger))
        self._native.close()
        self._epoll.close()
        self._tcp.close()
        self._near.close()
        os.close(self._to_native)


class _RoomSearch:
    """A put that found no room, or pages that may have no memory yet: its host begins what is FULL, one by one.

    It does so in turns, between which others have theirs. What has no room by half of the patience has none.
    """

    rest = 0.0

    def __init__(self, server: WireServer, number: int) -> None:
        self._server, self._pulls = server, server.pulls(number)
        self._left = np.flatnonzero(self._pulls["status"] == _FULL).tolist()[::-1]
        self._end = time.monotonic() + server.patience()

    def poll(self) -> bytes | None:
        """Something, when all have been begun that can be."""
        now = time.monotonic()
        turn = now + _TURN
        while self._left and now < min(self._end, turn):
            i = self._left.pop()
            self._server.begin(self._pulls[i : i + 1])
            now = time.monotonic()
        return b"done" if not self._left or now >= self._end else None

    def abandon(self) -> None:
        """Leave it: `give_up` frees what was begun."""


def _abandon(pending: PendingReply) -> None:
    try:
        pending.abandon()
    except Exception:
        _log.exception("a pending answer could not be abandoned")


def _text(error: Exception) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of the error's own __str__
        text = type(error).__name__
    return text.split("\n", 1)[0][:_TEXT_LIMIT].encode(errors="replace")


_epoll_ctl = ctypes.CDLL(None, use_errno=True).epoll_ctl
_epoll_ctl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
