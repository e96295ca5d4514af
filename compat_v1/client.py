"""The client of a master in another process. A request ends before its deadline, with a reply or with PeerLost.

The first request makes the connection; the next one after the connection broke, or the master came back, makes it
anew. A request is never sent twice: after PeerLost the master may have done it, or not.
"""

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nanokv.compat_v1.messages import Reply, Request, new_message, pack, unpack_reply
from nanokv.compat_v1.server import CALLS
from nanokv.compat_v1.transport import CLIENT, MASTER, Link, LinkBroken
from nanokv.errors import PeerLost

START_SECONDS = 60.0  #: how long the first request waits for a master that lives and does not serve yet
_LOOK_SECONDS = 0.005  #: between two looks whether it serves


class Client:
    """Sends one rank's requests to the master; requests of several threads go one after the other.

    Args:
        rank, incarnation: of this rank.
        master: the master's rank, for error messages.
        place: returns the meeting place of the master's present incarnation, or None if that has ended.
        timeout: seconds for a request, and for connecting (there at least 1).
    """

    def __init__(
        self, rank: int, incarnation: int, master: int, place: Callable[[], Path | None], timeout: float
    ) -> None:
        self._me = f"{rank}.{incarnation}"
        self._master = master
        self._place = place
        self._timeout = timeout
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._met: Path | None = None  # where the link was made
        self._number = 0
        self._out, self._in = new_message(), new_message()

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            PeerLost: the master has ended, has closed, or does not answer within `timeout` seconds.
        """
        deadline = time.monotonic() + self._timeout
        if not self._lock.acquire(timeout=self._timeout):
            raise self._lost(f"does not answer within {self._timeout} s")
        try:
            link, deadline = self._connected(deadline)
            return self._exchange(link, request, deadline)
        except LinkBroken as error:
            self._drop()
            if self._place() is None:
                raise self._lost("has ended") from None
            raise self._lost(f"did not answer within {self._timeout} s, or has closed: {error}") from None
        except BaseException:
            self._drop()  # interrupted: the next message on this link would be the reply to this request
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection, and remove the meeting place of a master that was killed. Idempotent."""
        if self._lock.acquire(timeout=self._timeout):
            self._drop()
            if self._met is not None and self._place() != self._met:
                shutil.rmtree(self._met, ignore_errors=True)
            self._lock.release()

    def _exchange(self, link: Link, request: Request, deadline: float) -> Reply:
        self._number += 1
        pack(request._replace(number=self._number), self._out)
        expected = link.expect(MASTER, self._in)
        link.send(MASTER, self._out, deadline - time.monotonic())
        link.take(expected, deadline - time.monotonic())
        reply = unpack_reply(self._in)
        if reply is None or reply.number != self._number:
            raise LinkBroken(f"no reply to request {self._number}: {self._in.tolist()}")
        return reply

    def _connected(self, deadline: float) -> tuple[Link, float]:
        """The link to the present master, and the deadline, which is later if the master had to be waited for."""
        place = self._place()
        if self._link is None or place != self._met:
            self._drop()
            started = time.monotonic()
            place = self._find_master()
            deadline += time.monotonic() - started
            self._link = self._connect(place)
            self._met = place
        return self._link, deadline

    def _find_master(self) -> Path:
        """Wait until the master serves; returns its meeting place. A master that was met there before has closed."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            place = self._place()
            if place is None:
                raise self._lost("has ended")
            if (place / CALLS).is_dir():
                return place
            if place == self._met:
                raise self._lost("has closed")
            if time.monotonic() >= deadline:
                raise self._lost(f"does not serve after {START_SECONDS} s")
            time.sleep(_LOOK_SECONDS)

    def _connect(self, place: Path) -> Link:
        name = f"{self._me}.{secrets.token_hex(8)}"
        try:
            (place / CALLS / name).touch(mode=0o600, exist_ok=False)
        except OSError as error:
            raise LinkBroken(str(error)) from None
        return Link(place, name, CLIENT, self._timeout)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _lost(self, why: str) -> PeerLost:
        return PeerLost(f"rank {self._master}, the master, {why}")
