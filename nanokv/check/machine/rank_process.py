"""A rank in a process of its own: started, given commands, killed. Every wait is bounded.

One fork server that has imported everything (`preload`) makes the processes: one starts in 15 ms instead of 2 s.
"""

import multiprocessing
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from nanokv.check.command_process import CommandProcess, Commands, serve
from nanokv.check.machine.hammer import compiled_hammers, slow_hammers
from nanokv.check.report import CheckFailure
from nanokv.device.machines.native_code import compiled
from nanokv.heap.world_file import directory

PATIENCE = 60.0  #: seconds of each wait, which usually takes less than one

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["nanokv.check.machine.preload"])
_WARMING = threading.Lock()
_CHILDREN = threading.Lock()  #: starting one reads how all others ended; two readers would leave one without the answer


def warm() -> None:
    """Load the code that ranks run, compiled."""
    with _WARMING:
        compiled(rare=True)
        compiled_hammers()
        slow_hammers()


class RankCommands(Commands, ABC):
    """A rank, inside its own process.

    Attributes:
        progress: `progress.value` counts the steps of a command that runs until told; read by `RankProcess.steps`.
    """

    progress: Any

    @abstractmethod
    def attach(self) -> Any:
        """Join the world: the first command, which every process is given."""

    def stop(self) -> None:
        """Ends a command that runs until told, by being the next one."""


def _serve(commands: Callable[[], RankCommands], shm_dir: str, connection: Connection, progress: Any) -> None:
    os.environ["NANOKV_SHM_DIR"] = shm_dir  # the fork server keeps the environment of the process that started it
    rank = commands()
    rank.progress = progress
    sys.exit(serve(rank, connection))


class RankProcess(CommandProcess):
    """A rank in a process of its own. Its first command is `attach`.

    Let go, it ends as a script does that forgot to close.

    Args:
        commands: makes the rank in that process, from `rank`, `arguments` and `options`.
    """

    _process: ForkServerProcess

    def __init__(self, commands: Callable[..., RankCommands], rank: int, *arguments: Any, **options: Any) -> None:
        warm()  # here, if it has to be compiled: the fork server finds it in the cache
        self.rank = rank
        self._progress = PROCESSES.Value("q", 0, lock=False)
        ours, theirs = PROCESSES.Pipe()
        given = (partial(commands, rank, *arguments, **options), str(directory()), theirs, self._progress)
        process = PROCESSES.Process(target=_serve, args=given, daemon=True)
        with _CHILDREN:
            process.start()
        theirs.close()
        super().__init__(f"rank {rank}", process, ours)
        self.send("attach")

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    @property
    def steps(self) -> int:
        """Steps that commands which run until told have done so far."""
        return int(self._progress.value)

    arrive = CommandProcess.answer  #: of the first command, `attach`

    def stop(self) -> Any:
        """End a command that runs until told; returns its result."""
        self.send("stop")
        done = self.answer()
        self.answer()
        return done

    def _join(self, seconds: float) -> bool:
        if not wait([self._process.sentinel], seconds):
            return False
        with _CHILDREN:
            self._process.join()
        return True


def wait_until(
    what: str, condition: Callable[[], bool], describe: Callable[[], Any] = lambda: "", pause: float = 0.0005
) -> None:
    """Look at a condition, every `pause` seconds, until it is true.

    Raises:
        CheckFailure: it was not after PATIENCE; the message ends with `describe()`.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise CheckFailure(f"{what} did not happen within {PATIENCE:.0f} s: {describe()}")
        time.sleep(pause)
