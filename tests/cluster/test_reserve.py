"""The heartbeat of a member that has no file descriptor left."""

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


PROGRAM = """
import os, resource, sys, time
from nanokv.cluster.membership import open_membership
membership = open_membership(sys.argv[1], ttl=0.5)
membership.join("starved", b"")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
print("none left", flush=True)
sys.stdin.read()
assert membership.away_for() < 0.5, membership.away_for()
membership.close()
print("left", flush=True)
"""


def test_a_member_without_file_descriptors_keeps_its_lease(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/cluster"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([sys.executable, "-c", PROGRAM, url], text=True, **pipes) as process,  # type: ignore[call-overload]
        open_membership(url, ttl=0.5) as here,
    ):
        assert process.stdout.readline() == "none left\n"
        until(lambda: "starved" in here.members())
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert "starved" in here.members()
            time.sleep(0.05)
        process.stdin.close()
        assert process.stdout.readline() == "left\n" and process.wait(60) == 0
        until(lambda: "starved" not in here.members())
