"""The registry of a cluster in a folder that all its processes see, of one host or shared by several.

Each member has a file (`member_file`) that it replaces every ttl / 3, with a beat one higher. Who sees no new beat for
`ttl`, by its own clock, drops the member: clocks of hosts are never compared. The folder needs hard links.
"""

import contextlib
import fcntl
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from nanokv.cluster.membership.addresses import FolderAddress
from nanokv.cluster.membership.base import NO_SECRET, SECRET_BYTES, ClusterUnavailable, number_after
from nanokv.cluster.membership.folder_scan import FolderScan
from nanokv.cluster.membership.member_file import LEFT, MemberFile, path_of, put, read, take
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View

logger = logging.getLogger("nanokv.cluster")

_PART = "heartbeat"
_LOCK_SECONDS, _LOCK_REST = 1.0, 0.01


class FileRegistry:
    """See `base.Registry`. A folder that vanishes is not made again: it may be on a disk that is only not mounted now.

    Args:
        ttl: seconds without a beat after which a member is dead.
    """

    def __init__(self, address: FolderAddress, ttl: float, view: View, pulse: Pulse) -> None:
        self.what = str(address)
        self.period = ttl / 6
        self.duties: Mapping[str, Callable[[], None]] = {_PART: self._beat, "folder": self._look}
        self._folder = address.path
        self._ttl = ttl
        self._view = view
        self._pulse = pulse
        self._lock = threading.Lock()  # of what follows, which calls and the duties change
        self._scan = FolderScan(address.path, ttl, view, pulse)
        self._own: tuple[str, MemberFile] | None = None
        self._due = -math.inf  # when the next beat is
        self._shown = math.inf  # when the last one was
        self._secret: bytes | None = None

    def open(self, *, make: bool = True) -> None:
        """See `Registry`."""
        if not make and not self._folder.is_dir():
            raise ClusterUnavailable(f"{self.what} is no folder, so there is no cluster")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise ClusterUnavailable(f"{self.what} is no folder") from None
        self._look()

    def start(self) -> None:
        """See `Registry`."""

    def claim(self, member: str, card: bytes, pause: Callable[[], None]) -> None:
        """See `Registry`."""
        path, file = path_of(self._folder, member), MemberFile.of(secrets.token_hex(16), 0, card)
        while not put(path, file.text(), replace=False):
            self._await_end(member, pause)
        with self._lock:
            self._set_own(member, file)
            self._shown = time.monotonic()
            self._due = self._shown + self._ttl / 3

    def update(self, card: bytes) -> None:
        """See `Registry`."""
        with self._lock:
            assert self._own is not None
            member, file = self._own
            self._set_own(member, MemberFile.of(file.incarnation, file.beat, card))
            self._due = -math.inf
        self._beat()

    def withdraw(self) -> None:
        """See `Registry`."""
        with self._lock:
            own, self._own = self._own, None
            self._view.disown()
            if own is not None:
                self._say_goodbye(*own)

    def secret(self, *, make: bool = True) -> bytes:
        """See `Registry`."""
        with self._lock:
            if self._secret is None:
                self._secret = self._stored_secret(secrets.token_bytes(SECRET_BYTES) if make else None)
            return self._secret

    def next_number(self, least: int) -> int:
        """See `Registry`."""
        path = self._folder / "incarnation"
        with self._lock, _alone(self._folder):
            try:
                stored = path.read_bytes()
            except FileNotFoundError:
                stored = b""
            number = number_after(stored.strip(), least, str(path))
            put(path, b"%d" % number, replace=True, durable=True)
            return number

    def hurry(self, seconds: float) -> None:
        """See `Registry`. Nothing can hurry a file system."""

    def stop(self) -> None:
        """See `Registry`."""

    def _look(self) -> None:
        """A duty: learn who is there."""
        with self._lock:
            self._scan.look()

    def _beat(self) -> None:
        """A duty: show the others that this process lives."""
        with self._lock:
            now = time.monotonic()
            if self._own is not None:
                if now < self._due:
                    return
                self._show(*self._own)
                before, self._shown = self._shown, time.monotonic()  # after it: it may have been stopped meanwhile
                if self._shown - before > self._ttl:
                    self._view.lapsed()
                self._due = now + self._ttl / 3 - self.period / 2  # the round that is nearest to it
            self._pulse.heard(_PART)

    def _set_own(self, member: str, file: MemberFile) -> None:
        self._own = (member, file)
        self._view.own(member, file.card, file.incarnation)

    def _show(self, member: str, before: MemberFile) -> None:
        """Replace the file of this process by one with the next beat; put it there again if it is gone.

        Raises:
            ClusterUnavailable: another process took the id while this one was stopped.
        """
        path, file = path_of(self._folder, member), before._replace(beat=before.beat + 1)
        gone = not self._is_there(member, file.incarnation)
        # first the secret: who sees old members of a folder that was empty must not get a new one
        same = not gone or self._secret is None or self._stored_secret(self._secret) == self._secret
        if not put(path, file.text(), replace=not gone):
            return  # somebody took the id just now: the next round finds out
        self._set_own(member, file)
        if gone:
            logger.warning("%s had lost member %r, which has joined again", self.what, member)
        if not same:
            raise ClusterUnavailable(f"{self.what} has got another secret than the one that this process has")

    def _is_there(self, member: str, incarnation: str) -> bool:
        """Whether this process' file is there, or one of nobody. The file of a dead process is taken away."""
        path = path_of(self._folder, member)
        try:
            found = read(path)
        except FileNotFoundError:
            return False
        if found is None or found.incarnation == incarnation:
            return True
        if not (self._scan.is_dead(member, found) and take(path, lambda now: now == found)):
            self._pulse.heard(_PART)
            raise _held(member, self.what, ", while this one was away")
        return False

    def _say_goodbye(self, member: str, file: MemberFile) -> None:
        path = path_of(self._folder, member)
        found = read(path)
        if found is not None and found.incarnation == file.incarnation:
            put(path, MemberFile.of(file.incarnation, LEFT, b"").text(), replace=True)

    def _await_end(self, member: str, pause: Callable[[], None]) -> None:
        """Take the file of a dead member away, once it was seen unchanged for `ttl`; at once if it has left.

        Raises:
            ClusterUnavailable: it has changed: its owner lives.
        """
        path = path_of(self._folder, member)
        try:
            first = read(path)
            since = last = time.monotonic()
            while first is not None and last <= since + self._ttl and not self._scan.is_dead(member, first):
                pause()
                found, before, last = read(path), last, time.monotonic()
                if last - before > self._ttl / 2:
                    since = last  # the folder, or this process, stood still: so may have the owner
                if found is not None and found.beat == LEFT:
                    first = found
                elif found != first:
                    raise _held(member, self.what)
        except FileNotFoundError:
            return  # it has left
        take(path, lambda found: found == first)

    def _stored_secret(self, proposed: bytes | None) -> bytes:
        """What the folder has as the secret; that is `proposed` if it had none."""
        path = self._folder / "secret"
        if proposed is not None and put(path, proposed, replace=False, durable=True):
            return proposed
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            raise ClusterUnavailable(f"{self.what} has no secret: {NO_SECRET}") from None
        if len(stored) != SECRET_BYTES:
            raise ClusterUnavailable(f"{path} is not the secret of a cluster")
        return stored


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process does this meanwhile, if the file system has locks, and nobody keeps the lock for long."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_REST)
            except OSError:  # it has none: two members that join at the same moment may get one number
                break
        yield
    finally:
        os.close(descriptor)


def _held(member: str, what: str, when: str = "") -> ClusterUnavailable:
    return ClusterUnavailable(f"member id {member!r} is held by another living process, in {what}{when}")
