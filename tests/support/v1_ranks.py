"""Ranks of a v1 world in processes of their own, for tests: each does what it is told over a pipe."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nanokv.compat_v1.host_allocation import HostAllocation
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import NanoKVError
from nanokv.heap.shm import ShmHeap
from nanokv.types import KeyDigest

PAGE = 4096
PAGES = 32
PATIENCE = 30.0
RPC_TIMEOUT = 2.0
MASTER = 0
RAW = (0,) * 8


def geometry(n: int) -> Geometry:
    return Geometry.plan(PAGES * PAGE, PAGE, n)


def key_of(key: int) -> KeyDigest:
    return KeyDigest(key * 7919, key * 104729)


class HostRank:
    """A rank: heap, machine and path."""

    def __init__(self, name: str, rank: int, n: int, **options: Any) -> None:
        self.heap = ShmHeap.attach(
            name, geometry(n), rank, mode="host", may_evict=False, water=(85, 95), timeout=PATIENCE
        )
        table = self.heap.geometry.world_table(rank, self.heap.incarnation, self.heap.bases)
        self.views = [SegmentView(self.heap.host_view(r), self.heap.geometry) for r in range(n)]
        self.machine = NativeMachine(self.heap.geometry, table, self.views, self.heap.wake)
        wishes: dict[str, Any] = {"may_evict": False, "rpc_timeout": RPC_TIMEOUT} | options
        self.path = HostAllocation(self.heap, self.machine, MASTER, **wishes)

    def put(self, key: int, nbytes: int, owner: int | None) -> int:
        begun = self.open(key, nbytes, owner)
        if begun.status != Status.OK:
            return begun.status
        start = begun.place.payload
        self.views[begun.place.owner].raw[start : start + nbytes] = key % 251
        return self.path.finish(key_of(key), begun)

    def open(self, key: int, nbytes: int, owner: int | None, plan: bool = False) -> Begun:
        return self.path.begin(key_of(key), nbytes, owner, RAW, plan=plan)

    def get(self, key: int) -> tuple[int, bytes]:
        """The status, and the different bytes that there are in the payload."""
        found = self.path.locate(key_of(key))
        payload = self.views[found.place.owner].raw[found.place.payload : found.place.payload + found.place.nbytes]
        return found.status, bytes(sorted(set(payload.tobytes())))

    def remove(self, key: int) -> int:
        return self.path.remove(key_of(key))

    def exists(self, key: int) -> int:
        return self.path.exists(key_of(key))

    def finish(self, key: int, write: Begun) -> int:
        return self.path.finish(key_of(key), write)

    def abort(self, key: int, write: Begun) -> int:
        return self.path.abort(key_of(key), write)

    def counts(self) -> Any:
        assert self.path.master is not None
        return self.path.master.counts()

    def round_trips(self, count: int) -> list[float]:
        """Seconds of OPEN_FOR_WRITE, for keys from 1000 on; each is aborted again."""
        took = []
        for key in range(1000, 1000 + count):
            started = time.perf_counter()
            write = self.open(key, PAGE, None)
            took.append(time.perf_counter() - started)
            self.abort(key, write)
        return took

    def close(self) -> None:
        self.path.close()
        self.heap.close()


def _serve(connection: Connection, folder: str, name: str, rank: int, n: int, options: dict[str, Any]) -> None:
    os.environ["NANOKV_SHM_DIR"] = folder
    me = HostRank(name, rank, n, **options)
    connection.send(me.heap.incarnation)
    with contextlib.suppress(EOFError):
        while True:
            command, arguments = connection.recv()
            try:
                connection.send(getattr(me, command)(*arguments))
            except NanoKVError as error:
                connection.send(error)


class Remote:
    """A `HostRank` in a process of its own. What it raises, `ask` raises."""

    def __init__(self, folder: str, name: str, rank: int, n: int, options: dict[str, Any]) -> None:
        self._connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=_serve, args=(theirs, folder, name, rank, n, options), daemon=True)
        self.process.start()
        theirs.close()

    def arrive(self) -> int:
        """Wait until it has attached; returns its incarnation."""
        return int(self.answer())

    def send(self, command: str, *arguments: Any) -> None:
        self._connection.send((command, arguments))

    def ask(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.answer()

    def answer(self) -> Any:
        assert self._connection.poll(PATIENCE), "the rank does not answer"
        said = self._connection.recv()
        if isinstance(said, NanoKVError):
            raise said
        return said

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join(PATIENCE)
        assert self.process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        """Hang up: it ends as a script does that forgot to close."""
        self._connection.close()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(PATIENCE)


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.v1_ranks"])

Start = Callable[..., Remote]


@contextlib.contextmanager
def starter(folder: Path, name: str) -> Iterator[Start]:
    """A function that starts a rank of the world `name` in a process; all end with the context."""
    ranks: list[Remote] = []

    def begin(rank: int, n: int, **options: Any) -> Remote:
        ranks.append(Remote(str(folder), name, rank, n, options))
        return ranks[-1]

    try:
        yield begin
    finally:
        for rank in ranks:
            rank.end()
