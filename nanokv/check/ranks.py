"""Ranks of a world of shared memory in processes of their own, which can be killed, and commands for them.

A fork server that has loaded everything (`preload`) makes the processes: one starts in 15 ms instead of 2 s.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from nanokv.cache import NanoKVCache
from nanokv.check.hammer import compiled_hammers, slow_hammers
from nanokv.check.report import CheckFailure
from nanokv.config import Stale
from nanokv.device.machines.native_code import compiled
from nanokv.fsck import check_cache

PATIENCE = 30.0  #: seconds to wait for what should come at once

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["nanokv.check.preload"])
_WARMING = threading.Lock()
_CHILDREN = threading.Lock()  #: starting one reads how all others ended; two readers would leave one without the answer


def warm() -> None:
    """Load what ranks run, compiled."""
    with _WARMING:
        compiled()
        compiled_hammers()
        slow_hammers()


class RankOptions(NamedTuple):
    """What a process needs to take a rank: the same for all of a world, but `rank` and `seed`."""

    world: str
    rank: int
    world_size: int
    heap_bytes: int
    page_bytes: int
    evict: bool
    seed: int
    keys: int  #: how many its work uses
    pins: bool  #: whether its work pins
    shm_dir: str  #: a fork server keeps the environment of the process that started it
    on_stale: Stale = "error"


def attach(options: RankOptions) -> NanoKVCache:
    """Take a rank in this process."""
    return NanoKVCache(
        options.heap_bytes,
        page_bytes=options.page_bytes,
        name=options.world,
        rank=options.rank,
        world_size=options.world_size,
        evict=options.evict,
        attach_timeout=PATIENCE,
        on_stale=options.on_stale,
    )


class Served:
    """One rank, in its own process: each method is a command. A subclass adds its own; it is importable by name."""

    def __init__(self, options: RankOptions, connection: Connection, progress: Any) -> None:
        self.options = options
        self.cache = attach(options)
        self._connection, self.progress = connection, progress
        self.who = (options.rank + 8 * self.cache._heap.incarnation) % 256  #: differs from all that live

    def told(self) -> bool:
        """True once the next command is there: a command that runs until told then ends."""
        return self._connection.poll()

    def stop(self) -> None:
        """What the commands wait for that run until told."""

    def check(self) -> str:
        """fsck through this cache, its index included; "" if there is no finding."""
        self.cache.flush()
        report = check_cache([self.cache])
        return "" if report.clean else str(report)

    def clear(self) -> int:
        """Remove what lies in this rank's segment; returns how many."""
        return self.cache.clear()

    def close(self) -> None:
        """Leave the world."""
        self.cache.close()


def _serve(options: RankOptions, served: type[Served], connection: Connection, progress: Any) -> None:
    os.environ["NANOKV_SHM_DIR"] = options.shm_dir
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            rank = served(options, connection, progress)
            connection.send(("attached", (rank.cache._heap.incarnation, rank.cache._heap.recovered)))
            while True:
                command, arguments = connection.recv()
                connection.send((command, getattr(rank, command)(*arguments)))
        except Exception as error:
            connection.send(("failed", f"{type(error).__name__}: {error}"))
            raise


class RankProcess:
    """A rank in a process of its own. The first answer is to "attached": (incarnation, recovered).

    Args:
        served: the commands that it takes.

    Raises (`answer` and what uses it):
        CheckFailure: the rank failed, or does not answer.
    """

    def __init__(self, options: RankOptions, served: type[Served] = Served) -> None:
        warm()  # here, if it has to be compiled: the fork server finds it in the cache
        self.rank = options.rank
        self._progress = _PROCESSES.Value("q", 0, lock=False)
        self._connection, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(options, served, theirs, self._progress), daemon=True)
        with _CHILDREN:
            self._process.start()
        theirs.close()

    @property
    def steps(self) -> int:
        """Steps that commands which run until told have done so far."""
        return int(self._progress.value)

    def send(self, command: str, *arguments: Any) -> None:
        """Begin a command."""
        self._connection.send((command, arguments))

    def answer(self, command: str) -> Any:
        """What a command answers, once it has ended."""
        if not self._connection.poll(PATIENCE):
            raise CheckFailure(f"rank {self.rank} does not answer {command} within {PATIENCE:.0f} s")
        try:
            what, answer = self._connection.recv()
        except EOFError:
            raise CheckFailure(f"rank {self.rank} ended before it answered {command}") from None
        if what != command:
            raise CheckFailure(f"rank {self.rank}, asked for {command}: {answer}")
        return answer

    def ask(self, command: str, *arguments: Any) -> Any:
        """Do a command."""
        self.send(command, *arguments)
        return self.answer(command)

    def stop(self, command: str) -> Any:
        """End a command that runs until told; what it answers."""
        self.send("stop")
        done = self.answer(command)
        self.answer("stop")
        return done

    def kill(self) -> None:
        """SIGKILL, wherever it is; returns when it is gone."""
        self._process.kill()
        self._join(PATIENCE)
        if self._process.exitcode != -signal.SIGKILL:
            raise CheckFailure(f"rank {self.rank} ended with {self._process.exitcode} before it was killed")

    def end(self) -> None:
        """Let it go, in whatever state it is."""
        self._connection.close()
        if not self._join(1.0):
            self._process.kill()
            self._join(PATIENCE)

    def _join(self, timeout: float) -> bool:
        if not wait([self._process.sentinel], timeout):
            return False
        with _CHILDREN:
            self._process.join()
        return True


def wait_until(
    what: str, condition: Callable[[], bool], say: Callable[[], Any] = lambda: "", pause: float = 0.0005
) -> None:
    """Come back to a condition, after `pause` seconds each time, until it is true.

    Raises:
        CheckFailure: it was not after PATIENCE, with what `say` has to say.
    """
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > PATIENCE:
            raise CheckFailure(f"{what} did not happen within {PATIENCE:.0f} s: {say()}")
        time.sleep(pause)
