"""A file that takes an older one's place when it is whole, or not at all."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nanokv.errors import FileUnusable, InvalidArgument, NanoKVError

_PREFIX = ".nanokv-save-"  #: of the file before it has its name


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file to write, which gets the name `path` at the end of the block. Its user alone may read it.

    It is on the disk before it gets its name. If the block raises, it is removed, and what had the name is as it was.
    A process that is killed leaves it behind, under a name that begins with `.nanokv-save-`.

    Raises:
        InvalidArgument: the name is that of something else than a file.
        FileUnusable: the file cannot be made or written: no such folder, no permission, no space.
    """
    try:
        target = path.resolve()  # a symbolic link stays one
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise InvalidArgument(f"{path} is no file: nothing is saved there")
        with _temporary(target) as file:
            yield file
    except NanoKVError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FileUnusable(f"{path} cannot be written: {error}") from error


@contextmanager
def _temporary(target: Path) -> Iterator[BinaryIO]:
    fd, name = tempfile.mkstemp(prefix=_PREFIX, dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power, where the file system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
