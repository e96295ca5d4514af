"""Ranks in processes of their own, for tests: a folder for their worlds, and a way to start and end them."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanokv.check.machine.rank_process import PROCESSES, RankCommands, RankProcess

__all__ = ["Start", "new_folder", "starter"]

COMMANDS = ("concurrency_workers", "elastic_ranks", "heap_ranks", "v1_ranks")

sys.path.append(str(Path(__file__).parents[2]))  # passed on to other processes, which import commands from here
PROCESSES.set_forkserver_preload(["nanokv.check.machine.preload", *(f"tests.support.{module}" for module in COMMANDS)])

Start = Callable[..., RankProcess]


@contextlib.contextmanager
def new_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in shared memory, for the worlds of one test."""
    made = tempfile.mkdtemp(prefix="nanokv-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    monkeypatch.setenv("NANOKV_SHM_DIR", made)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made)


@contextlib.contextmanager
def starter(commands: Callable[..., RankCommands]) -> Iterator[Start]:
    """A function that starts ranks, `start(rank, ...)` as `commands` takes it; all end when the context does."""
    ranks: list[RankProcess] = []

    def start(rank: int, *arguments: object, **options: object) -> RankProcess:
        ranks.append(RankProcess(commands, rank, *arguments, **options))
        return ranks[-1]

    try:
        yield start
    finally:
        for rank in ranks:
            rank.end()
