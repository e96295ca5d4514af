"""UNIX sockets, and their addresses.

unix:name            abstract: of one network namespace. It leaves no file behind, whatever becomes of the process
unix:/folder/name    of all who see that folder: also processes of other network namespaces, as containers are
"""

import contextlib
import secrets
import socket
import stat
from pathlib import Path

from nanokv.errors import InvalidArgument

_BACKLOG = 1024
_SCHEME = "unix:"
_NAME = "nanokv-{}"
_RANDOM_BYTES = 12
#: bytes of a folder's path: the system takes 107 in all
LONGEST_FOLDER = 107 - len(_NAME.format("")) - 2 * _RANDOM_BYTES - 1


def listener(folder: str = "") -> tuple[socket.socket, str]:
    """A socket that listens, which does not block, and its address. `remove` it in the end.

    Args:
        folder: "": the socket is abstract. What processes that died have left in a folder is removed.

    Raises:
        InvalidArgument: no socket can be made in that folder.
    """
    name = _NAME.format(secrets.token_hex(_RANDOM_BYTES))
    path = f"{folder}/{name}"
    if folder:
        _remove_dead(Path(folder))
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path if folder else f"\0{name}")
        if folder:
            Path(path).chmod(stat.S_IRUSR | stat.S_IWUSR)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise InvalidArgument(f"sockets={folder!r}: {error.strerror or error}") from None
    made.setblocking(False)
    return made, f"{_SCHEME}{path if folder else name}"


def target(address: str) -> str | None:
    """What the system takes for an address; None: it is none of a UNIX socket."""
    if not address.startswith(_SCHEME):
        return None
    name = address.removeprefix(_SCHEME)
    return name if is_in_folder(address) else f"\0{name}"


def is_in_folder(address: str) -> bool:
    """Whether the socket is in a folder, and not abstract."""
    return address.startswith(f"{_SCHEME}/")


def is_seen(address: str) -> bool:
    """Whether this process sees the socket in its folder."""
    try:
        return Path(address.removeprefix(_SCHEME)).is_socket()
    except OSError:
        return False


def remove(address: str) -> None:
    """Remove the file of a socket, if it has one."""
    if is_in_folder(address):
        with contextlib.suppress(OSError):
            Path(address.removeprefix(_SCHEME)).unlink()


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of NanoKV in a folder at which nobody listens any more."""
    for path in folder.glob(_NAME.format("*")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
