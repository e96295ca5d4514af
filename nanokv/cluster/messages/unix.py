"""UNIX sockets, and their addresses.

    unix:name            abstract: of one network namespace. It leaves no file behind, whatever becomes of the process
    unix:/folder/name    of all who see that folder: also processes of other network namespaces, as containers are

Beside a socket in a folder lies a file, `name.lock`, which its process holds a lock of (flock): so others see whether
it lives, and ask nobody.
"""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
from pathlib import Path

from nanokv.errors import InvalidArgument

_BACKLOG = 1024
_SCHEME = "unix:"
_RANDOM_BYTES = 12
_LOCK = re.compile(r"(nanokv-[0-9a-f]{24})\.lock")
#: bytes of a folder's path: the system takes 107 of a socket's in all
LONGEST_FOLDER = 107 - len("/nanokv-") - 2 * _RANDOM_BYTES


class Listener:
    """A socket that listens, and does not block.

    Args:
        folder: "": the socket is abstract. What processes that died have left in a folder is removed.

    Attributes:
        socket: it. address: its own.

    Raises:
        InvalidArgument: no socket can be made in that folder.
    """

    def __init__(self, folder: str = "") -> None:
        self._path: Path | None = None
        self._lock = -1
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if folder:
                _remove_dead(Path(folder))
                self._path, self._lock = _locked(Path(folder))
                self.socket.bind(str(self._path))
                self._path.chmod(stat.S_IRUSR | stat.S_IWUSR)
                self.address = f"{_SCHEME}{self._path}"
            else:
                name = f"nanokv-{secrets.token_hex(_RANDOM_BYTES)}"
                self.socket.bind(f"\0{name}")
                self.address = f"{_SCHEME}{name}"
            self.socket.listen(_BACKLOG)
        except OSError as error:
            self.close()
            raise InvalidArgument(f"sockets={folder!r}: {error.strerror or error}") from None
        self.socket.setblocking(False)

    def close(self) -> None:
        """Listen no more, and remove the files. Idempotent."""
        self.socket.close()
        if self._path is not None:
            _remove(self._path)
            self._path = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


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


def _locked(folder: Path) -> tuple[Path, int]:
    """A path for a socket that nobody has, and the descriptor of its file with a lock."""
    while True:
        path = folder / f"nanokv-{secrets.token_hex(_RANDOM_BYTES)}"
        made = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
        try:
            fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(Path(f"{path}.lock").stat(), os.fstat(made)):
                return path, made
        except (BlockingIOError, FileNotFoundError):
            pass  # another one has looked in between, and has taken it for that of a process that died
        except BaseException:
            os.close(made)
            raise
        os.close(made)


def _remove(path: Path) -> None:
    """Remove a socket and its file, of whoever holds the lock."""
    with contextlib.suppress(OSError):
        if path.is_socket():
            path.unlink()
    with contextlib.suppress(OSError):
        path.with_name(f"{path.name}.lock").unlink()


def _remove_dead(folder: Path) -> None:
    """Remove the sockets in a folder whose processes have died."""
    for each in folder.iterdir():
        found = _LOCK.fullmatch(each.name)
        if found is None:
            continue
        with contextlib.suppress(OSError):
            file = os.open(each, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder / found[1])
            finally:
                os.close(file)
