"""The heartbeat of a member that has no file descriptor left."""

import errno
import os
import resource
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from nanokv.check.command_process import Commands, Program
from nanokv.cluster.membership import ClusterUnavailable, open_membership
from nanokv.cluster.membership.membership import Reserve
from tests.support.until import until


def descriptors() -> int:
    """How many this process has, but for the one that looks."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_work_has_what_was_kept() -> None:
    """Once: after it, they are kept again."""
    reserve, free = Reserve(), descriptors()
    taken: list[int] = []

    def work() -> None:
        taken.append(descriptors())
        if len(taken) % 2:
            raise OSError(errno.EMFILE, "too many open files")

    for _ in range(2):
        reserve.work(work)
    assert taken == [free, free - 3, free, free - 3]
    with pytest.raises(OSError, match="another error"):
        reserve.work(lambda: (_ for _ in ()).throw(OSError(errno.EIO, "another error")))
    reserve.close()
    assert descriptors() == free - 3


def test_a_registry_that_cannot_be_opened_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    before = descriptors()
    for _ in range(3):
        with pytest.raises(ClusterUnavailable):
            open_membership(f"file://{tmp_path}/file")
    assert descriptors() == before
    open_membership(f"file://{tmp_path}/folder").close()
    assert descriptors() == before


class StarvedCommands(Commands):
    """A member in a process of its own, which takes all file descriptors."""

    def __init__(self, url: str) -> None:
        self._membership = open_membership(url, ttl=0.5)
        self._membership.join("starved", b"")

    def starve(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with suppress(OSError):
            while True:
                os.open(os.devnull, os.O_RDONLY)

    def close(self) -> float:
        """Leave. Returns how long the registry did not answer."""
        away = self._membership.away_for()
        self._membership.close()
        return away


def test_a_member_without_file_descriptors_keeps_its_lease(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/cluster"
    with Program("the member", partial(StarvedCommands, url)) as process, open_membership(url, ttl=0.5) as here:
        process.ask("starve")
        until(lambda: "starved" in here.members())
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert "starved" in here.members()
            time.sleep(0.05)
        assert process.ask("close") < 0.5 and process.end() == 0
        until(lambda: "starved" not in here.members())
