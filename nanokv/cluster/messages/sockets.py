"""ZeroMQ sockets as members make them: all in one context of the process, with limits, and never those of a parent.

A child of a fork has copies of its parent's sockets, which it must neither use nor close. So a child has a context of
its own, and keeps what it inherited, unused, to its end.
"""

import contextlib
import ipaddress
import os
import re
import secrets
import threading
from typing import Any, TypeAlias

import zmq

from nanokv.arguments import integer
from nanokv.cluster.messages.sealed import MESSAGE_LIMIT
from nanokv.cluster.resolving import is_address
from nanokv.errors import InvalidArgument, NanoKVError

Socket: TypeAlias = "zmq.Socket[bytes]"

SOCKETS = 1 << 14  #: at most, in one process: a follower has one for each member that it follows
LAST_WORDS = 200  #: ms in which a closed server or publisher may still send; nobody waits for it
_ADDRESS = re.compile(r"tcp://[^\s/]+:([0-9]{1,5})|ipc://\S+")

#: ms, and seconds of keepalive: a connection whose other host is gone ends, instead of taking messages for minutes
_OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: 2 * MESSAGE_LIMIT,  # twice: what is a little too long is counted, and its sender not cut off
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 30_000,
    zmq.HANDSHAKE_IVL: 5_000,  # who connects and says nothing keeps a file descriptor no longer
    zmq.RECONNECT_IVL: 20,
    zmq.RECONNECT_IVL_MAX: 1000,
}

_context: "zmq.Context[Any] | None" = None
_lock = threading.Lock()
_inherited: list[object] = []


def new_socket(kind: int, **options: int) -> Socket:
    """A socket of this process. `options` are by their names in ZeroMQ, on top of those that all have."""
    global _context
    with _lock:
        if _context is None:
            _context = zmq.Context()
            _context.set(zmq.MAX_SOCKETS, SOCKETS)
        made: Socket = _context.socket(kind)
    for option, value in (_OPTIONS | {getattr(zmq, name): value for name, value in options.items()}).items():
        made.set(option, value)
    return made


def connect(socket: Socket, address: str) -> None:
    """Connect to an address, now or when somebody is there.

    Raises:
        InvalidArgument: it is no address.
    """
    check_address(address)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise InvalidArgument(f"{address!r} is no address: {error}") from None


def check_address(address: object) -> None:
    """Raise InvalidArgument unless this looks like an address: "tcp://127.0.0.1:4711" or "ipc://..."."""
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 0 < int(found[1] or 1) <= 65535:  # ZeroMQ would take any port, and never connect
        raise InvalidArgument(f"an address must be like tcp://127.0.0.1:4711 or ipc://@name, not {address!r}")


def name_in(address: str) -> str:
    """The name of a host in an address; "": it has an IP address, or needs none. ZeroMQ resolves names in the thread
    in which it does everything, and would stand still."""
    if not address.startswith("tcp://"):
        return ""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return "" if is_address(host) else host


def with_host(address: str, host: str) -> str:
    """An address "tcp://...:port" with another host."""
    shown = f"[{host}]" if ":" in host else host
    return f"tcp://{shown}:{address.rpartition(':')[2]}"


def listener(kind: int, bind: str, port: int, local: bool, **options: int) -> tuple[Socket, str, str | None]:
    """A socket that listens, its TCP address, and its local one.

    Args:
        bind: an interface, or an IP address of this host.
        port: 0: any that is free.
        local: at an abstract Unix socket too: it leaves no file behind, whatever becomes of the process.
        options: as of `new_socket`.

    Raises:
        InvalidArgument: `port` is none.
        OSError: the address is in use, or not of this host.
    """
    port = integer("port", port, 0, 65535)
    socket = new_socket(kind, **options)
    try:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(bind).version == 6:
                socket.set(zmq.IPV6, 1)
                bind = f"[{bind}]"
        address = _bound(socket, f"tcp://{bind}:{port or '*'}")
        return socket, address, _bound(socket, f"ipc://@nanokv-{secrets.token_hex(8)}") if local else None
    except BaseException:
        socket.close()
        raise


def _bound(socket: Socket, address: str) -> str:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"cannot listen at {address}: {error}") from None
    found = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return found.decode()


def close(socket: Socket, process: int, linger: int = 0) -> None:
    """Close a socket that `process` made; what it has not sent by then may go out for `linger` ms. Idempotent."""
    if process == os.getpid():
        socket.close(linger)
    else:
        _inherited.append(socket)


def check_process(what: str, process: int) -> None:
    """Raise NanoKVError if this process is not the one that made something, but its fork."""
    if os.getpid() != process:
        raise NanoKVError(
            f"this {what} was made in process {process}, of which this one ({os.getpid()}) is a fork: make another, "
            "with an incarnation of its own, in the child"
        )


def _after_fork() -> None:
    global _context, _lock
    _inherited.append(_context)
    _context, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
