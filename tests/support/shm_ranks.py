"""Ranks of a world of processes, for tests: each in a process of its own, forked off a server that has torch."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from nanokv.device.segment.geometry import Geometry
from nanokv.errors import NanoKVError
from nanokv.heap.shm import ShmHeap, list_worlds

PAGE = 4096
PATIENCE = 30.0


def plan(n: int, pages: int = 16) -> Geometry:
    return Geometry.plan(pages * PAGE, PAGE, n, max_objects=8, ring_slots=16, pin_slots=8)


def attach(name: str, rank: int, n: int, **wishes: Any) -> ShmHeap:
    options: dict[str, Any] = {"mode": "device", "may_evict": True, "water": (80, 90), "timeout": PATIENCE}
    geometry = wishes.pop("geometry", None) or plan(n)
    return ShmHeap.attach(name, geometry, rank, **(options | wishes))


# --- a rank in a process of its own ---
def _fork_and_wait(fifo: str) -> int:
    """Fork a child that lives until somebody opens `fifo`, whatever happens to its parent."""
    child = os.fork()
    if child == 0:
        Path(fifo).read_bytes()
        os._exit(0)
    return child


def _serve(connection: Connection, folder: str, name: str, rank: int, n: int, wishes: dict[str, Any]) -> None:
    os.environ["NANOKV_SHM_DIR"] = folder
    try:
        heap = attach(name, rank, n, **wishes)
    except NanoKVError as error:
        connection.send(error)
        return
    commands: dict[str, Callable[..., Any]] = {
        "peek": lambda owner, at: int(heap.host_view(owner)[at]),
        "poke": lambda owner, at, value: heap.host_view(owner).__setitem__(at, value),
        "barrier": heap.barrier,
        "wait_for_hint": heap.wait_for_hint,
        "fork": _fork_and_wait,
        "close": heap.close,
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }
    connection.send((heap.incarnation, heap.recovered))
    with contextlib.suppress(EOFError):
        while True:
            command, arguments = connection.recv()
            connection.send(commands[command](*arguments))


class Rank:
    """A rank in a process of its own. What its attach raises, `arrive` raises."""

    def __init__(self, folder: str, name: str, rank: int, n: int, wishes: dict[str, Any]) -> None:
        self._connection, theirs = _PROCESSES.Pipe()
        arguments = (theirs, folder, name, rank, n, wishes)
        self.process = _PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def arrive(self) -> tuple[int, bool]:
        """Wait for the end of `attach`: (incarnation, recovered)."""
        answer = self._answer()
        if isinstance(answer, NanoKVError):
            raise answer
        incarnation, recovered = answer
        return incarnation, recovered

    def send(self, command: str, *arguments: Any) -> None:
        self._connection.send((command, arguments))

    def ask(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self._answer()

    def _answer(self) -> Any:
        assert self._connection.poll(PATIENCE), "the rank does not answer"
        return self._connection.recv()

    def kill(self) -> None:
        """SIGKILL, by its own hand; returns when it is gone."""
        self.send("die")
        self.process.join(PATIENCE)
        assert self.process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        """Hang up: it ends as a script does that forgot to close."""
        self._connection.close()
        self.process.join(PATIENCE)


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.shm_ranks"])


Start = Callable[..., Rank]


@contextlib.contextmanager
def new_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder in shared memory, for the worlds of one test."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # so that other processes can import this file
    made = tempfile.mkdtemp(prefix="nanokv-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    monkeypatch.setenv("NANOKV_SHM_DIR", made)
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextlib.contextmanager
def starter(folder: str, name: str) -> Iterator[Start]:
    """A function that starts a rank of the world `name` in a process; all end with the context."""
    ranks: list[Rank] = []

    def begin(rank: int, n: int, **wishes: Any) -> Rank:
        ranks.append(Rank(folder, name, rank, n, wishes))
        return ranks[-1]

    try:
        yield begin
    finally:
        for rank in ranks:
            rank.end()


def pair(name: str, **wishes: Any) -> list[ShmHeap]:
    """Both ranks of a world of two, in this process."""
    found: dict[int, ShmHeap] = {}
    other = threading.Thread(target=lambda: found.__setitem__(1, attach(name, 1, 2, **wishes)))
    other.start()
    found[0] = attach(name, 0, 2, **wishes)
    other.join(PATIENCE)
    return [found[0], found[1]]


def leave_stale(name: str, start: Start) -> None:
    """A world of one whose rank has crashed with 42 in its last byte."""
    rank = start(0, 1)
    rank.arrive()
    rank.ask("poke", 0, -1, 42)
    rank.kill()
    assert list_worlds() == [name]
