"""Names of hosts become addresses in threads of their own: a resolver that does not answer holds up nobody else.

The C library's resolver takes tens of seconds if no name server answers, and cannot be told to take less. So whoever
wants an address waits as long as it has time. What was found is kept, and used on when a later look-up fails.
"""

import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable

_FRESH = 10.0  #: seconds for which what was found is taken for what is so
_MOST_KEPT = 1 << 14  #: names
_MOST_THREADS = 64  #: look-ups at the same time; each is of another name


class Unresolved(OSError):
    """A name has no address, or none was found in time."""


class _LookUp:
    """One look-up that is under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: OSError | None = None


_lock = threading.Lock()
_found: dict[str, tuple[str, float]] = {}  # name -> address, and when it was found
_running: dict[str, _LookUp] = {}


def address_of(host: str, until: float) -> str:
    """The IP address of a host, which is a name or an address.

    Args:
        until: of time.monotonic: when who asks has no more time.

    Raises:
        Unresolved: there is none, or none was found in time.
    """
    if is_address(host):
        return host
    with _lock:
        known, at = _found.get(host, ("", 0.0))
        if known and time.monotonic() - at < _FRESH:
            return known
        running = _running.get(host)
        if running is None:
            if len(_running) >= _MOST_THREADS:
                raise Unresolved(errno.EAGAIN, f"the address of {host} is not known: too many names are looked up")
            running = _running[host] = _LookUp()
            threading.Thread(target=_look_up, args=(host, running), name="nanokv-resolve", daemon=True).start()
    if running.done.wait(min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)):
        with _lock:
            fresh, _ = _found.get(host, ("", 0.0))
        if running.error is None and fresh:
            return fresh
    if known:
        return known
    raise Unresolved(errno.EHOSTUNREACH, f"the name {host} was not resolved: {running.error or 'no answer in time'}")


def when_known(host: str, wanted: Callable[[], bool], tell: Callable[[str], object]) -> None:
    """Call `tell` with the address of a host, on a thread: soon, or when it has one; not at all if it is `wanted` no
    more."""

    def insist() -> None:
        pause = 0.1
        while wanted():
            try:
                tell(address_of(host, time.monotonic() + 1.0))
                return
            except Unresolved:
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    threading.Thread(target=insist, name="nanokv-resolve-later", daemon=True).start()


def is_address(host: str) -> bool:
    """Whether a host is given by its address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _look_up(host: str, running: _LookUp) -> None:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found.sort(key=lambda each: each[0] != socket.AF_INET)  # who listens at all addresses does so at IPv4's
        address = str(found[0][4][0])
    except (OSError, UnicodeError) as error:
        running.error = error if isinstance(error, OSError) else Unresolved(errno.EINVAL, f"{host!r} is no name")
    else:
        with _lock:
            if len(_found) >= _MOST_KEPT:
                _found.clear()
            _found[host] = address, time.monotonic()
    finally:
        with _lock:
            _running.pop(host, None)
        running.done.set()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)
