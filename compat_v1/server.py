"""The master's threads: one accepts clients and reclaims, and one per client answers its requests.

The master makes a directory when it begins to serve (`meeting_place`), and removes it when it closes; its name carries
the world's random number and the master's incarnation. A client calls by making a file there, named by its rank, its
incarnation and a random number. So clients may come and come back at any time, and meet a new master in a new place.
"""

import atexit
import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path

from nanokv.compat_v1.dispatch import answer
from nanokv.compat_v1.master import Master
from nanokv.compat_v1.messages import Op, Reply, Request, new_message, pack, unpack_request
from nanokv.compat_v1.transport import CLIENT, MASTER, Bell, Link, LinkBroken, make_store
from nanokv.device.protocol.status import Status
from nanokv.host_poller.dead_pins import Alive
from nanokv.types import KeyDigest

_log = logging.getLogger("nanokv.master")

CALLS = "calls"  #: where clients make files, in the meeting place
_PREFIX = "nanokv-v1."  #: of a directory's name; worlds begin with "nanokv.", and must not be taken for them
_ACCEPT_SECONDS = 0.02  #: between two looks for new clients
_TICK_SECONDS = 0.25  #: between two ticks of the master
_STOP_SECONDS = 5.0  #: how long `close` waits for threads


def meeting_place(directory: Path, world_id: int, incarnation: int) -> Path:
    """The directory in which clients meet an incarnation of the master; it exists while the master serves."""
    return directory / f"{_PREFIX}{world_id:016x}.{incarnation}"


def remove_meeting_places(directory: Path, world_id: int) -> None:
    """Remove the meeting places that earlier masters of a world have left in `directory`."""
    for place in directory.glob(f"{_PREFIX}{world_id:016x}.*"):
        shutil.rmtree(place, ignore_errors=True)


class Session(threading.Thread):
    """The thread that answers one client, over a connection that it makes. It starts at once.

    Args:
        client: the client's rank and incarnation.
        place, call: the place and the name of the `Link`.
        timeout: seconds to wait for the client when connecting, and to send it a reply.
    """

    def __init__(self, master: Master, client: tuple[int, int], place: Path, call: str, timeout: float) -> None:
        super().__init__(name=f"nanokv-master-{call}", daemon=True)
        self.client = client
        self._master = master
        self._place = place
        self._call = call
        self._timeout = timeout
        self._bell: Bell | None = None
        self._stopping = False
        self.start()

    def stop(self) -> None:
        """End the connection, without waiting for its end."""
        self._stopping = True
        if self._bell is not None:
            self._bell.ring()

    def run(self) -> None:
        """The thread's body."""
        try:
            with contextlib.closing(self._connect()) as link:
                self._serve(link)
        except LinkBroken as error:
            _log.debug("the connection of rank %d.%d has ended: %s", *self.client, error)
        except Exception:
            _log.exception("the connection of rank %d.%d has failed", *self.client)
        finally:
            self._bell = None

    def _connect(self) -> Link:
        """Make the link and the bell at the same time: the members of a group wait for each other."""
        made: list[Bell] = []

        def make_bell() -> None:
            with contextlib.suppress(LinkBroken):
                made.append(Bell(self._place, self._call, self._timeout))

        other = threading.Thread(target=make_bell, name="nanokv-master-bell", daemon=True)
        other.start()
        try:
            link = Link(self._place, self._call, MASTER, self._timeout)
        finally:
            other.join()
        if not made:
            raise LinkBroken("the bell did not connect")
        self._bell = made[0]
        return link

    def _serve(self, link: Link) -> None:
        words, out = new_message(), new_message()
        while not self._stopping:
            if link.receive_any(words) != CLIENT:
                return
            request = unpack_request(words)
            if request is None:
                raise LinkBroken(f"no request: {words.tolist()}")
            reply = answer(self._master, request)
            pack(reply, out)
            try:
                link.send(CLIENT, out, self._timeout)
            except LinkBroken:
                self._take_back(request, reply)
                raise

    def _take_back(self, request: Request, reply: Reply) -> None:
        """Abort an object that the client opened and was never told of: nobody will write to it."""
        if request.op == Op.OPEN_FOR_WRITE and reply.status == Status.OK:
            key = KeyDigest(request.key_hash, request.key_check)
            self._master.abort(key, reply.place)


class Server:
    """Serves a master to other processes, and calls its `tick`.

    Args:
        place: the `meeting_place`; None if there are no clients in other processes.
        alive: (rank, incarnation) -> False if it has certainly ended.
        timeout: seconds, see `Session`.
    """

    def __init__(self, master: Master, place: Path | None, alive: Alive, timeout: float) -> None:
        self._master = master
        self._place = place
        self._alive = alive
        self._timeout = timeout
        self._sessions: dict[str, Session] = {}
        self._stop = threading.Event()
        self._process = os.getpid()
        if place is not None:
            place.mkdir(mode=0o700)
            make_store(place)
            (place / CALLS).mkdir()
        self._thread = threading.Thread(target=self._run, name="nanokv-master", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that wakes up in gloo after the interpreter's end aborts the process

    def close(self) -> None:
        """End all connections and threads. Idempotent. Nothing in a child of a fork: the clients are the parent's."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        deadline = time.monotonic() + _STOP_SECONDS
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
        for session in self._sessions.values():
            session.stop()
        for session in self._sessions.values():
            session.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        pause = _TICK_SECONDS if self._place is None else _ACCEPT_SECONDS
        ticked = time.monotonic()
        while not self._stop.wait(pause):
            try:
                if self._place is not None and not self._is_removed():
                    self._accept(self._place)
                if time.monotonic() - ticked >= _TICK_SECONDS:
                    ticked = time.monotonic()
                    self._end_sessions_of_the_dead()
                    self._master.tick(ticked)
            except Exception:  # one client's file must not end the service for the others
                if not self._stop.is_set() and not self._is_removed():
                    _log.exception("a round of the master failed")

    def _is_removed(self) -> bool:
        """Whether no client can call any more: the world was removed, as when this process ends without `close`."""
        return self._place is not None and not (self._place / CALLS).exists()

    def _accept(self, place: Path) -> None:
        for call in (place / CALLS).iterdir():
            call.unlink()
            rank, incarnation, _ = call.name.split(".")
            client = int(rank), int(incarnation)
            for session in self._sessions.values():
                if session.client[0] == client[0]:
                    session.stop()  # the client has come back
            self._sessions[call.name] = Session(self._master, client, place, call.name, self._timeout)

    def _end_sessions_of_the_dead(self) -> None:
        for name, session in list(self._sessions.items()):
            if not session.is_alive():
                del self._sessions[name]
            elif not self._alive(*session.client):
                session.stop()
