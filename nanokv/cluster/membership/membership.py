"""The membership of a process in a cluster: what callers use, and the thread that does the duties of a registry."""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from nanokv.cluster.membership.base import ClusterUnavailable, Listener, Registry, checked_card, member_id
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View
from nanokv.errors import InvalidArgument

# --- file descriptors that are kept for the heartbeat: a process that has none left must not lose its lease by that
_KEPT = 3  #: a folder, a file in it, and its temporary one; or a connection to etcd
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Descriptors of nothing, which are given up while work needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []
        self._fill()

    def work(self, work: Callable[[], None]) -> None:
        """Do some work; once more with the descriptors that are kept, if there were no others."""
        self._fill()
        try:
            work()
        except OSError as error:
            if _errno_of(error) not in _NONE_LEFT or not self._kept:
                raise
            self._release()
            try:
                work()
            finally:
                self._fill()

    def close(self) -> None:
        """Keep none any more. Idempotent."""
        self._release()

    def _fill(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            while len(self._kept) < _KEPT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _release(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for descriptor in kept:
            os.close(descriptor)


def _errno_of(error: BaseException | None) -> int | None:
    """The errno of an error, or of the one that caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None


# --- tells listeners who is in the cluster, on a thread of its own: a slow listener must not delay a heartbeat ---


class Listeners:
    """Each listener gets the newest mapping, if that is another one than it got last.

    Changes that come while a listener runs are told together.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._members: Mapping[str, bytes] = MappingProxyType({})
        self._told: dict[int, tuple[Listener, Mapping[str, bytes] | None]] = {}
        self._next = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nanokv-members-tell", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def publish(self, members: Mapping[str, bytes]) -> None:
        """There is a new mapping."""
        with self._news:
            self._members = members
            self._news.notify()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener the mapping soon, and each new one from then on. Returns what ends that; it is idempotent."""
        with self._news:
            number, self._next = self._next, self._next + 1
            self._told[number] = (listener, None)
            self._news.notify()

        def unsubscribe() -> None:
            with self._news:
                self._told.pop(number, None)

        return unsubscribe

    def close(self, timeout: float) -> None:
        """Begin no further call, and wait for one that runs, at most `timeout` seconds. Idempotent."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (turn := self._wait()) is not None:
            listener, members = turn
            try:
                listener(members)
            except BaseException:  # also SystemExit: the thread must live on
                logger.exception("a listener of the membership failed; it stays subscribed")

    def _wait(self) -> tuple[Listener, Mapping[str, bytes]] | None:
        """The next call to make; None at the end."""
        with self._news:
            while not self._closed:
                for number, (listener, told) in self._told.items():
                    if told is not self._members:
                        self._told[number] = (listener, self._members)
                        return listener, self._members
                self._news.wait()
        return None


# --- the membership ---------------------------------------------------------------------------
logger = logging.getLogger("nanokv.cluster")
T = TypeVar("T")

_FAREWELL = 1.0  #: seconds for the last words to a registry
_THREAD_END = 3.0  #: seconds for a thread to end; it is left alone after them
RegistryOf = Callable[[View, Pulse], Registry]


class Membership:
    """Made by `open_membership`. Methods may be called from any thread; none of them after a fork in the child.

    A process may only look (`members`, `listen`), or also `join`. While the registry is away, members stay as they are;
    once it is back this process joins again by itself if it has to, and members that do not come back within `ttl` are
    dropped. If this process was stopped for longer than `ttl`, others saw it go, and it joins again when it continues.

    Args:
        what: names the registry in messages.
        registry: makes it.
        ttl: seconds after which a process that died is dropped by the others; the same in all processes.
        timeout: seconds to try for until a registry that does not answer is an error.
        looks: this process only looks: it makes neither a folder nor a secret.

    Raises:
        ClusterUnavailable: the registry does not answer, or refuses this process.
    """

    def __init__(self, what: str, registry: RegistryOf, ttl: float, timeout: float, *, looks: bool = False) -> None:
        self._ttl = ttl
        self._timeout, self._looks = timeout, looks
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._calls = threading.RLock()  # join, update and leave: one at a time
        self._member: str | None = None
        self._reserve = Reserve()
        self._refused: set[str] = set()  # duties that the registry refused; logged once
        self._listeners = Listeners()
        self._pulse = Pulse(what, ttl)
        self._view = View(self._pulse, self._listeners.publish)
        self._registry = registry(self._view, self._pulse)
        self._keeper = threading.Thread(target=self._keep, name="nanokv-members-keep", daemon=True)
        try:
            self._insist(lambda: self._registry.open(make=not looks))
        except BaseException:
            self._registry.stop()
            self._reserve.close()
            raise
        self._registry.start()
        self._listeners.start()
        self._keeper.start()

    def join(self, member: str, card: bytes) -> None:
        """Publish this process' card, until `leave` or `close`. It is among the `members` when this returns.

        If a process that died held the id, this waits until its lease has ended.

        Args:
            member: the id of this process in the cluster, 1 to 64 characters of A-Z a-z 0-9 . _ -
            card: what the others get to know of it; at most 1 MiB.

        Raises:
            InvalidArgument: the id or the card cannot be used, or this process has joined already.
            ClusterUnavailable: a living process holds the id, or the registry does not answer.
        """
        member, card = member_id(member), checked_card(card)
        self._check()
        with self._calls:
            if self._member is not None:
                raise InvalidArgument(f"this process has joined already, as {self._member!r}")
            try:
                self._insist(lambda: self._registry.claim(member, card, self._pause))
            except BaseException:
                self._withdraw()
                raise
            self._member = member

    def update(self, card: bytes) -> None:
        """Replace the card of this process. If the registry is away, the others see it once it is back.

        Raises:
            InvalidArgument: the card cannot be used, or this process has not joined.
            ClusterUnavailable: this membership is closed.
        """
        card = checked_card(card)
        self._check()
        with self._calls:
            if self._member is None:
                raise InvalidArgument("this process has not joined: it has no card to update")
            try:
                self._registry.update(card)
            except OSError as error:
                logger.warning("the new card will be published later: %s", error)

    def leave(self) -> None:
        """Be no member any more. Others see that at once, or after `ttl` if the registry is away now. Idempotent.

        Raises:
            ClusterUnavailable: this membership is closed.
        """
        self._check()
        with self._calls:
            self._withdraw()

    def members(self) -> Mapping[str, bytes]:
        """Members and their cards as last known, with this process if it has joined; a mapping that does not change.

        A process that died stays for about `ttl`, so it may also be among those that a new process sees at first.
        """
        return self._view.members()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have a function called with all members: soon, and after each change, on one thread of this membership.

        Changes that come while it runs are told together. What it raises is logged, and it stays.

        Returns:
            a function that ends it; a call that has begun goes on to its end.

        Raises:
            ClusterUnavailable: this membership is closed.
        """
        self._check()
        return self._listeners.add(listener)

    @property
    def lapses(self) -> int:
        """How often the others may have seen this process leave and come back: its lease had ended meanwhile.

        Listeners are told the members anew then.
        """
        return self._view.lapses

    def away_for(self) -> float:
        """Seconds since the registry was last heard of; 0.0 while it answers."""
        return self._pulse.away_for()

    def secret(self) -> bytes:
        """32 random bytes, the same for all processes of the cluster; made by the first one that does not only look.

        Raises:
            ClusterUnavailable: the registry does not answer, or has something else in its place, or none yet.
        """
        self._check()
        return self._insist(lambda: self._registry.secret(make=not self._looks))

    def next_incarnation(self) -> int:
        """A number for a process that is about to join, larger than those of all that joined before.

        It is the time in ns, or, if some clock was ahead, one more than the last one: that a host's clock was set back
        must not make its next process look older than the one before.

        Raises:
            ClusterUnavailable: the registry does not answer, or has something else in its place.
        """
        self._check()
        return self._insist(lambda: self._registry.next_number(time.time_ns()))

    def close(self) -> None:
        """Leave, and end all threads, within a few seconds whatever the registry does. Idempotent.

        In a child of a fork it does nothing: the membership is the parent's.
        """
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._registry.hurry(_FAREWELL)
        if self._keeper is not threading.current_thread():
            self._keeper.join(_THREAD_END)
        self._listeners.close(_THREAD_END)

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClusterUnavailable("this membership is of the parent process: open one in the child")
        if self._stop.is_set():
            raise ClusterUnavailable("this membership is closed")

    def _pause(self) -> None:
        """Between two tries."""
        if self._stop.wait(min(self._ttl / 12, 0.25)):
            raise ClusterUnavailable("this membership was closed")

    def _insist(self, work: Callable[[], T]) -> T:
        """Try until it succeeds, or the registry has not answered for `timeout`."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return work()
            except ClusterUnavailable:
                raise
            except OSError as error:
                if time.monotonic() >= deadline:
                    message = f"{self._registry.what} did not answer within {self._timeout:g} s: {error}"
                    raise ClusterUnavailable(message) from error
            self._pause()

    def _withdraw(self) -> None:
        self._member = None
        try:
            self._registry.withdraw()
        except OSError as error:
            logger.info("left without telling the registry, where the lease will end by itself: %s", error)

    def _keep(self) -> None:
        """The keeper's thread. The last thing that it does is to leave: a hung registry then hangs only this thread."""
        pause = 0.0
        while not self._stop.wait(pause):
            well = [self._duty(part, work) for part, work in self._registry.duties.items()]
            self._view.settle()
            pause = self._registry.period if all(well) else min(self._registry.period, self._ttl / 6)
        with contextlib.suppress(OSError):
            self._reserve.work(self._withdraw)
        self._registry.stop()
        self._reserve.close()

    def _duty(self, part: str, work: Callable[[], None]) -> bool:
        """Do one duty; False if it is to be tried again soon."""
        try:
            self._reserve.work(work)
        except ClusterUnavailable as error:
            if part not in self._refused:
                logger.error("%s", error)
            self._refused.add(part)
            return True
        except OSError as error:
            self._pulse.lost(part, error)
            return False
        except Exception as error:  # the thread must live on: without it this process would be dropped
            logger.exception("unexpected, in the %s of the membership", part)
            self._pulse.lost(part, error)
            return False
        self._refused.discard(part)
        return True
