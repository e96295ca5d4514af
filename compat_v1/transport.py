"""A connection between the master and one client: a gloo group of their own over the loopback interface.

A group is made for each connection, and never is torch.distributed's default one: a client that dies breaks its own group
and nobody else's, and the user's process groups are not touched. Members meet through a FileStore in a directory that
the master makes (`meeting_place`); every name in it is used once.

A group has three members: the master, the client, and the master's bell. gloo cannot interrupt a wait for a message, so
the master waits for one from anybody, and rings its own bell to end the wait, when it closes or the client is dead.
"""

import os
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo

MASTER, CLIENT, BELL = 0, 1, 2
_MEMBERS = 3
_TAG = 0
_PREFIX = "nanokv-v1."  #: of a directory's name; worlds begin with "nanokv.", and must not be taken for them


class LinkBroken(Exception):
    """The other side is gone, or did not answer in time. The link cannot be used any more."""


class Link:
    """One member of a connection. Used by one thread at a time, but for `Bell.ring`.

    Args:
        meeting: a file that all members name, and no other connection ever did.
        member: MASTER, CLIENT or BELL.
        timeout: seconds to wait for the others.

    Raises:
        LinkBroken: they did not come.
    """

    def __init__(self, meeting: Path, member: int, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        try:
            store = FileStore(str(meeting), -1)
            store.set_timeout(limit)
            options = ProcessGroupGloo._Options()
            options._devices = [ProcessGroupGloo.create_device(interface=_loopback())]
            options._timeout = limit
            options._threads = 1
            self._group: Any = ProcessGroupGloo(PrefixStore("link", store), member, _MEMBERS, options)
        except RuntimeError as error:
            raise LinkBroken(f"no connection within {timeout:.3g} s: {error}") from None

    def send(self, to: int, words: torch.Tensor, timeout: float) -> None:
        """Send a message, and wait until it is on its way: `words` may be used again."""
        _wait(self._group.send([words], to, _TAG), timeout)

    def expect(self, source: int, words: torch.Tensor) -> Any:
        """Begin to receive a message into `words`; give the result to `take`."""
        return self._group.recv([words], source, _TAG)

    def take(self, expected: Any, timeout: float) -> None:
        """Wait for an expected message."""
        _wait(expected, timeout)

    def receive_any(self, words: torch.Tensor, timeout: float) -> int:
        """Wait for a message from anybody; returns who sent it."""
        work = self._group.recv_anysource([words], _TAG)
        _wait(work, timeout)
        return int(work._source_rank())

    def close(self) -> None:
        """Let go of the connection; the other side sees that. Idempotent."""
        self._group = None


class Bell:
    """The master's third member. `ring` ends its wait."""

    def __init__(self, meeting: Path, timeout: float) -> None:
        self._lock = threading.Lock()
        self._rung = False
        self._link = Link(meeting, BELL, timeout)

    def ring(self) -> None:
        """End the master's wait, now or when it waits next. From any thread; idempotent."""
        with self._lock:
            if not self._rung:
                self._rung = True
                self._sent = self._link._group.send([torch.zeros(0, dtype=torch.int64)], MASTER, _TAG)


def _wait(work: Any, timeout: float) -> None:
    # 0 would mean for ever
    try:
        work.wait(timedelta(seconds=max(timeout, 0.001)))
    except RuntimeError as error:
        raise LinkBroken(str(error)) from None
