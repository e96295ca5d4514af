"""What a process holds, sampled at quiet moments, and the verdict: flat, or growing.

Samples of the first quarter are warm-up: code is loaded, every page of the heap is touched, allocators find their size.
Of the rest, the median of the last third is compared with the median of the first one, so that a single sample decides
nothing, and no clock does.
"""

import gc
import os
from pathlib import Path
from statistics import median
from typing import NamedTuple

WARM_UP = 4  #: one of so many samples is warm-up
LEAST = 3  #: samples after the warm-up
MIB = 2**20


class Sample(NamedTuple):
    """What one process holds, or (`of_folder`) what its world's files do."""

    rss: int = 0  #: resident bytes, those of shared memory not counted
    objects: int = 0  #: that Python's garbage collector knows: those of the poller, the index and the sweeper too
    fds: int = 0
    threads: int = 0
    indexed: int = 0  #: objects in the rank's index beyond those that its segment holds
    files: int = 0  #: of the world, in shared memory
    file_bytes: int = 0  #: of these


#: how much the last third may be above the first one: share of the first, and in absolute terms
BOUNDS = {
    "rss": (0.0, 4 * MIB),
    "objects": (0.01, 1000),
    "fds": (0.0, 2),
    "threads": (0.0, 1),
    "indexed": (0.0, 0),
    "files": (0.0, 0),
    "file_bytes": (0.0, MIB),
}


def sample_process(indexed: int) -> Sample:
    """Sample the memory of this process."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, shared = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "RssShmem"))
    return Sample(resident - shared, len(gc.get_objects()), _open_files(), int(status["Threads"]), indexed)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not Paths: the folder changes


def sample_folder(folder: Path) -> Sample:
    """Sample the files of a world."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return Sample(files=len(found), file_bytes=sum(each.st_blocks * 512 for each in found))


class Trend(NamedTuple):
    """The first and the last third of the samples of one process, after the warm-up."""

    who: str
    first: Sample
    last: Sample

    @staticmethod
    def of(who: str, samples: list[Sample]) -> "Trend | None":
        """None if there are too few samples."""
        warm = samples[len(samples) // WARM_UP :]
        if len(warm) < LEAST:
            return None
        third = max(len(warm) // 3, 1)
        return Trend(who, _middle(warm[:third]), _middle(warm[-third:]))

    def growth(self) -> list[str]:
        """What grew beyond its bound."""
        found = []
        for name, (share, absolute) in BOUNDS.items():
            first, last = getattr(self.first, name), getattr(self.last, name)
            if last > first + max(first * share, absolute):
                found.append(f"{self.who}: {name} grew from {first:,} to {last:,}")
        return found

    @property
    def note(self) -> str:
        """The samples in words, for people."""
        first, last = self.first, self.last
        if first.files:
            return f"{self.who} {first.files} to {last.files} files, {_mib(first.file_bytes, last.file_bytes)}"
        return f"{self.who} {_mib(first.rss, last.rss)}, {first.fds} to {last.fds} fds, {last.threads} threads"


def _mib(first: int, last: int) -> str:
    return f"{first / MIB:.1f} to {last / MIB:.1f} MiB"


def _middle(samples: list[Sample]) -> Sample:
    return Sample(*(int(median(values)) for values in zip(*samples, strict=True)))
