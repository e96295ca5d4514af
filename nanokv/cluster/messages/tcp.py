"""TCP sockets, and their addresses: "tcp://127.0.0.1:4711", "tcp://[::1]:4711"."""

import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
import time

from nanokv.arguments import integer
from nanokv.cluster.resolving import Unresolved, address_of
from nanokv.errors import InvalidArgument

_ADDRESS = re.compile(r"tcp://(\[[^\s/\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR: the IPv4 address of an interface
_REQUEST = struct.Struct("16s4x4s8x")  # struct ifreq: a name, and a sockaddr_in with the address behind family and port
_BACKLOG = 1024
_BIND_SECONDS = 5.0  #: for the name of a host, where an interface or an address is wanted
#: seconds: a connection whose other host is gone ends, instead of taking messages for minutes
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
_UNACKNOWLEDGED_MS = 30_000


def host_and_port(address: object) -> tuple[str, int]:
    """The two parts of an address.

    Raises:
        InvalidArgument: it is none.
    """
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 0 < int(found[2]) <= 65535:
        raise InvalidArgument(f"an address must be like tcp://127.0.0.1:4711, not {address!r}")
    return found[1].strip("[]"), int(found[2])


def listener(bind: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens, and its address.

    Args:
        bind: an interface, or an IP address of this host.
        port: 0: any that is free.

    Raises:
        InvalidArgument: `port` is none.
        OSError: the address is in use, or not of this host.
    """
    port = integer("port", port, 0, 65535)
    host = _address_of(bind)
    shown = f"[{host}]" if ":" in host else host
    try:
        address = address_of(host, time.monotonic() + _BIND_SECONDS)
    except Unresolved as error:
        raise OSError(error.errno, f"cannot listen at tcp://{shown}:{port}: {error}") from None
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen at tcp://{shown}:{port}: {error}") from None
    made.setblocking(False)
    return made, f"tcp://{shown}:{made.getsockname()[1]}"


def _address_of(bind: str) -> str:
    """An IP address, or that of an interface; what is neither stays, for the error."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(bind))
    with contextlib.suppress(OSError, struct.error), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _GET_ADDRESS, _REQUEST.pack(bind.encode(), b""))
        return socket.inet_ntoa(_REQUEST.unpack(answer)[1])
    return bind


def prepare(made: socket.socket) -> None:
    """Let a socket of either end never block, nor hold back what is short, nor outlive the other host for long."""
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
