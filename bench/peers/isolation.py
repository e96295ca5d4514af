"""A network namespace of its own for each measured process, with loopback alone.

Some peers listen on all interfaces, whatever they are told. In such a namespace nobody else can reach them, they cannot
reach anybody, and their fixed ports are free.
"""

import fcntl
import functools
import socket
import struct
import subprocess

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
_REQUEST = "16sh14x"  # struct ifreq: a name, and flags
_SECONDS = 10.0


class NotIsolated(Exception):
    """This process can be reached by an interface other than loopback."""


@functools.cache
def prefix() -> tuple[str, ...] | None:
    """What comes before a command, so that it runs in a new network namespace; None: this user cannot make one."""
    for words in (("unshare", "--net"), ("unshare", "--map-root-user", "--net")):
        try:
            subprocess.run([*words, "true"], capture_output=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return words
    return None


def enter() -> None:
    """Enter a new namespace: set loopback up, and make sure that nothing else is.

    Raises:
        NotIsolated: another interface is up, so this is not a new namespace.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = [name for _, name in socket.if_nameindex() if name != "lo" and _flags(any_socket, name) & _UP]
        if up:
            raise NotIsolated(f"the interfaces {', '.join(up)} are up")
        request = struct.pack(_REQUEST, b"lo", _flags(any_socket, "lo") | _UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)


def _flags(any_socket: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack(_REQUEST, name.encode(), 0))
    return int(struct.unpack(_REQUEST, answer)[1])
