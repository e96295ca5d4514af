"""The file of a member in a folder: how it is written, read, and taken away, so that no reader sees half of it.

A line `nanokv member 1 <incarnation> <beat> <bytes of the card> <CRC of the card>`, then the card. Its owner replaces
the whole file at each beat, and when it leaves, by one without a card and with the beat LEFT: a file that has only
vanished may be put there again, as when somebody empties the folder. A file that is anything else is ignored.
"""

import contextlib
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nanokv.cluster.membership.base import MAX_CARD, is_name

SUFFIX = ".member"
LEFT = -1  #: the beat of a member that has left
_HEAD = re.compile(rb"nanokv member 1 ([0-9a-f]{32}) (-1|\d{1,18}) (\d{1,7}) ([0-9a-f]{8})\n")
_TEMPORARY = re.compile(r"\.(secret|incarnation|[A-Za-z0-9._-]{1,64}\.member)\.[0-9a-f]{12}\.tmp", re.ASCII)
_FIRST_READ = 4096  #: bytes; enough for the line, and for most cards
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a FIFO of such a name must not block


class MemberFile(NamedTuple):
    """What a file says."""

    incarnation: str
    beat: int
    card: bytes
    crc: int

    @classmethod
    def of(cls, incarnation: str, beat: int, card: bytes) -> "MemberFile":
        """The file for a card."""
        return cls(incarnation, beat, card, zlib.crc32(card))

    def text(self) -> bytes:
        """The bytes of the file."""
        head = f"nanokv member 1 {self.incarnation} {self.beat} {len(self.card)} {self.crc:08x}\n"
        return head.encode() + self.card


def path_of(folder: Path, member: str) -> Path:
    """Where the file of a member is."""
    return folder / (member + SUFFIX)


def member_of(name: str) -> str | None:
    """The member whose file has this name; None for another file."""
    member = name.removesuffix(SUFFIX)
    return member if member != name and is_name(member) else None


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that `put` or `take` makes for a moment, and leaves if its process dies."""
    return _TEMPORARY.fullmatch(name) is not None


def read(path: Path, known: MemberFile | None = None) -> MemberFile | None:
    """What a file says; None if it is not the file of a member.

    Args:
        known: what it said before: its card is read only if it is another one.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, _OPEN)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return _read(descriptor, known) if regular else None
    finally:
        os.close(descriptor)


def _read(descriptor: int, known: MemberFile | None) -> MemberFile | None:
    text = os.read(descriptor, _FIRST_READ)
    head = _HEAD.match(text)
    if head is None:
        return None
    incarnation, beat, size, crc = head[1].decode(), int(head[2]), int(head[3]), int(head[4], 16)
    if known is not None and (known.incarnation, known.crc, len(known.card)) == (incarnation, crc, size):
        return known._replace(beat=beat)
    end = head.end() + size
    while len(text) < end <= MAX_CARD + _FIRST_READ and (more := os.read(descriptor, end - len(text))):
        text += more
    card = text[head.end() : end]
    return MemberFile(incarnation, beat, card, crc) if (len(card), zlib.crc32(card)) == (size, crc) else None


def put(path: Path, content: bytes, *, replace: bool, durable: bool = False) -> bool:
    """Write a file in one step, readable by this user only. False if there is one already, and `replace` is not set.

    Args:
        durable: not only half of it is there after a crash of the host either.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    temporary = _temporary(path)
    try:
        _write(temporary, content, durable)
        if replace:
            temporary.replace(path)
            return True
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def take(path: Path, wanted: Callable[[MemberFile | None], bool]) -> bool:
    """Take the file of a member away if it is `wanted`; if another process just replaced it, it is put back.

    Raises:
        OSError: the folder cannot be changed.
    """
    aside = _temporary(path)
    try:
        if not wanted(read(path)):
            return False
        path.rename(aside)
    except FileNotFoundError:
        return False
    try:
        taken = wanted(read(aside))
        if not taken:
            with contextlib.suppress(FileExistsError):  # its owner has put it there again by itself
                os.link(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return taken


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _write(path: Path, content: bytes, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
