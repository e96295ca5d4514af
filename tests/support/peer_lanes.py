"""Systems of the benchmark of peers, in processes of their own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nanokv.bench.peers import isolation
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.lane import PeerLane
from nanokv.bench.peers.turns import BATCH


def wishes(system: str, size: int = 1024, slots: int = BATCH) -> Wishes:
    isolated = isolation.prefix() is not None
    return Wishes(system, size, slots, seed=7, threads=1, control=True, isolated=isolated)


@contextlib.contextmanager
def running(wanted: Wishes) -> Iterator[PeerLane]:
    one = PeerLane(wanted)
    try:
        one.wait()
        yield one
    finally:
        one.close()


def members(group: int) -> list[int]:
    """The processes of a process group, without those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(folder.name))
    return found
