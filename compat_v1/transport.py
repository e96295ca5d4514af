"""A connection between the master and one client: a gloo group of their own, over the loopback address.

Each connection has a group of its own, which is never torch.distributed's default group: a client that dies breaks no
other connection, and the user's process groups are not touched. Members exchange addresses through a FileStore in the
master's directory (`server`), under a name that is used once.

A group has three members: the master, the client, and the master's bell. gloo cannot interrupt a wait for a message,
so the master waits for a message from any member, and rings its own bell to end the wait when it closes, or when the
client is dead.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from nanokv.compat_v1.messages import new_message

_dist: Any = torch.distributed  # its stubs miss names that it exports
MASTER, CLIENT, BELL = 0, 1, 2
_MEMBERS = 3
_TAG = 0
_STORE = "store"
_ADDRESS = "127.0.0.1"
_LEAST_SECONDS = 0.001  #: gloo takes a wait of 0 for one without end
_FOR_EVER = timedelta(days=365)


class LinkBroken(Exception):
    """The other side is gone, or did not answer in time. The link cannot be used any more."""


@contextlib.contextmanager
def _as_link_broken() -> Iterator[None]:
    """gloo's RuntimeError becomes LinkBroken."""
    try:
        yield
    except RuntimeError as error:
        raise LinkBroken(str(error)) from None


class Link:
    """One member of a connection. Used by one thread at a time.

    Args:
        place: the master's directory, in which it has called `make_store`.
        name: the same for all members, and never used for another connection of this place.
        member: MASTER, CLIENT or BELL.
        timeout: seconds to wait for the other members, at least 1. Each value that a process uses costs an open file.

    Raises:
        LinkBroken: the others did not come, or the place is not there. All other methods except `close` raise it too.
    """

    def __init__(self, place: Path, name: str, member: int, timeout: float) -> None:
        limit = timedelta(seconds=max(timeout - 1, 0.5))  # gloo waits for whole seconds, and for one more
        try:
            options = _dist.ProcessGroupGloo._Options()
            options._devices = [_dist.ProcessGroupGloo.create_device(hostname=_ADDRESS)]
            options._timeout = limit
            options._threads = 1
            store = _dist.PrefixStore(name, _store(place / _STORE, limit))
            self._group: Any = _dist.ProcessGroupGloo(store, member, _MEMBERS, options)
        except OSError as error:
            raise LinkBroken(str(error)) from None
        except RuntimeError as error:
            raise LinkBroken(f"no connection within {timeout:.3g} s: {error}") from None

    @_as_link_broken()
    def send(self, to: int, words: torch.Tensor, timeout: float) -> None:
        """Send a message. On return `words` may be used again."""
        self._group.send([words], to, _TAG).wait(_limit(timeout))

    @_as_link_broken()
    def post(self, to: int, words: torch.Tensor) -> Any:
        """Begin to send a message, without waiting: the caller keeps the result and the link."""
        return self._group.send([words], to, _TAG)

    @_as_link_broken()
    def expect(self, source: int, words: torch.Tensor) -> Any:
        """Begin to receive a message into `words`; give the result to `take`."""
        return self._group.recv([words], source, _TAG)

    @_as_link_broken()
    def take(self, expected: Any, timeout: float) -> None:
        """Wait for an expected message."""
        expected.wait(_limit(timeout))

    @_as_link_broken()
    def receive_any(self, words: torch.Tensor) -> int:
        """Wait for a message from any member, without a limit; returns the member."""
        work = self._group.recv_anysource([words], _TAG)
        work.wait(_FOR_EVER)
        return int(work._source_rank())

    def close(self) -> None:
        """Close the connection; the other side sees that. Idempotent."""
        self._group = None


class Bell:
    """Ends the master's wait for messages. See `Link` for the arguments."""

    def __init__(self, place: Path, name: str, timeout: float) -> None:
        self._lock = threading.Lock()
        self._words = new_message()
        self._posted: Any = None
        self._link = Link(place, name, BELL, timeout)

    def ring(self) -> None:
        """End the master's wait, for good, without waiting for it. From any thread; once is enough."""
        with self._lock:
            if self._posted is None:
                with contextlib.suppress(LinkBroken):  # then the master's wait has ended
                    self._posted = self._link.post(MASTER, self._words)


def make_store(place: Path) -> None:
    """Make the file through which members meet in a directory."""
    (place / _STORE).touch(mode=0o600, exist_ok=False)


@cache
def _store(path: Path, limit: timedelta) -> Any:
    """The FileStore of a place: one per process, kept until the process ends, as is the descriptor of its file.

    It is opened by descriptor and not by name, because FileStore opens its file again and again, also when it is
    destroyed: without the directory it would try for minutes, and then abort the process.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    store = _dist.FileStore(f"/proc/self/fd/{file}", -1)
    store.set_timeout(limit)
    return store


def _limit(seconds: float) -> timedelta:
    return timedelta(seconds=max(seconds, _LEAST_SECONDS))
