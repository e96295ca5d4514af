"""What a process sees in the folder of a cluster, look after look: who is there, who beats, what the dead left."""

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from nanokv.cluster.membership.base import MemberEntry
from nanokv.cluster.membership.member_file import LEFT, MemberFile, is_temporary, member_of, path_of, read, take
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View

logger = logging.getLogger("nanokv.cluster")

_FORGET = 10  #: lifetimes after which what a dead process left is removed
_PART = "folder"


@dataclass
class _Seen:
    file: MemberFile
    since: float  #: of `time.monotonic`: when it was first like this
    dead: bool = False  #: until it changes, even if the folder is away meanwhile


class FolderScan:
    """Feeds a view. Not for several threads at a time.

    All times are those at which this process saw something, and none counts during which the folder did not answer.
    """

    def __init__(self, folder: Path, ttl: float, view: View, pulse: Pulse) -> None:
        self._folder = folder
        self._ttl = ttl
        self._view = view
        self._pulse = pulse
        self._seen: dict[str, _Seen] = {}  # by member
        self._left: dict[str, float] = {}  # temporary files, and when they were first seen

    def look(self) -> None:
        """Learn who is there. Members whose files cannot be read now are as they were.

        Raises:
            OSError: the folder does not answer.
        """
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries]
        self._pulse.heard(_PART)
        listed = {member for name in names if (member := member_of(name)) is not None}
        for member in listed | self._seen.keys():  # a listing may miss a file that is being replaced
            self._look_at(member)
        alive = {member: seen.file for member, seen in self._seen.items() if not seen.dead}
        for member in self._seen.keys() - alive.keys():
            if self._seen[member].file.beat == LEFT:
                self._view.drop(member, surely=True)
        self._view.replace({member: MemberEntry(file.card, file.incarnation) for member, file in alive.items()})
        self._remove_left([name for name in names if is_temporary(name)])

    def is_dead(self, member: str, file: MemberFile) -> bool:
        """Whether a file is of a member that is known to be dead. May be asked by any thread."""
        seen = self._seen.get(member)
        return file.beat == LEFT or (seen is not None and seen.dead and seen.file == file)

    def _age(self, since: float) -> float:
        return min(time.monotonic() - since, self._pulse.answering_for())

    def _look_at(self, member: str) -> None:
        path = path_of(self._folder, member)
        seen = self._seen.get(member)
        gone, file = False, None
        try:
            file = read(path, None if seen is None else seen.file)
        except FileNotFoundError:
            gone = True
        except OSError as error:
            logger.debug("%s cannot be read now: %s", path, error)
        if file is not None and (seen is None or seen.file != file):
            self._seen[member] = _Seen(file, time.monotonic(), dead=file.beat == LEFT)
        elif seen is not None:
            self._bury(member, seen, gone)

    def _bury(self, member: str, seen: _Seen, gone: bool) -> None:
        """Find a member that shows no sign of life dead, and later remove what it left."""
        age = self._age(seen.since)
        seen.dead = seen.dead or age > self._ttl
        if gone and seen.dead:
            del self._seen[member]
        elif age > _FORGET * self._ttl:
            with contextlib.suppress(OSError):
                take(path_of(self._folder, member), lambda now: now == seen.file)

    def _remove_left(self, names: list[str]) -> None:
        now = time.monotonic()
        self._left = {name: self._left.get(name, now) for name in names}
        for name, since in self._left.items():
            if self._age(since) > _FORGET * self._ttl:
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
