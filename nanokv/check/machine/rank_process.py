"""A rank in a process of its own: started, given commands, killed. Every wait is bounded.

One fork server that has imported everything (`preload`) makes the processes: one starts in 15 ms instead of 2 s.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

from nanokv.check.machine.hammer import compiled_hammers, slow_hammers
from nanokv.check.report import CheckFailure
from nanokv.device.machines.native_code import compiled
from nanokv.heap.world_file import directory

PATIENCE = 60.0  #: seconds of each wait, which usually takes less than one
END_SECONDS = 10.0  #: after them a process that was let go is killed

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


class RankCommands(ABC):
    """A rank, inside its own process: each method is a command. A subclass is importable by name.

    Attributes:
        raises: the errors that `RankProcess.answer` raises as they are. After any other error the process ends.
        told: True once the next command is there. A command that runs until told then ends.
        progress: `progress.value` counts the steps of such a command; read by `RankProcess.steps`.
    """

    raises: ClassVar[tuple[type[Exception], ...]] = ()
    told: Callable[[], bool]
    progress: Any

    @abstractmethod
    def attach(self) -> Any:
        """Join the world: the first command, which every process is given."""

    def stop(self) -> None:  # noqa: B027 - to be received is all that it does
        """Ends a command that runs until told, by being the next one."""


def _serve(commands: Callable[[], RankCommands], shm_dir: str, connection: Connection, progress: Any) -> None:
    os.environ["NANOKV_SHM_DIR"] = shm_dir  # the fork server keeps the environment of the process that started it
    rank = commands()
    rank.told, rank.progress = connection.poll, progress
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            command, arguments, options = connection.recv()
            try:
                answer = getattr(rank, command)(*arguments, **options)
            except rank.raises as error:
                answer = error
            except Exception as error:
                connection.send(CheckFailure(f"{type(error).__name__}: {error}"))
                raise
            connection.send(answer)


class RankProcess:
    """A rank in a process of its own. Commands are done in the order in which they are sent; the first is `attach`.

    Args:
        commands: makes the rank in that process, from `rank`, `arguments` and `options`.
    """

    def __init__(self, commands: Callable[..., RankCommands], rank: int, *arguments: Any, **options: Any) -> None:
        warm()  # here, if it has to be compiled: the fork server finds it in the cache
        self.rank = rank
        self._unanswered: deque[str] = deque()
        self._progress = PROCESSES.Value("q", 0, lock=False)
        self._connection, theirs = PROCESSES.Pipe()
        given = (partial(commands, rank, *arguments, **options), str(directory()), theirs, self._progress)
        self._process = PROCESSES.Process(target=_serve, args=given, daemon=True)
        with _CHILDREN:
            self._process.start()
        theirs.close()
        self.send("attach")

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def steps(self) -> int:
        """Steps that commands which run until told have done so far."""
        return int(self._progress.value)

    def send(self, command: str, *arguments: Any, **options: Any) -> None:
        """Begin a command."""
        self._unanswered.append(command)
        self._connection.send((command, arguments, options))

    def answer(self) -> Any:
        """Wait for the end of the oldest command without an answer; returns its result.

        Raises:
            CheckFailure: the rank failed, ended, or does not answer within PATIENCE.
            RankCommands.raises: from the command.
        """
        command = self._unanswered.popleft()
        if not self._connection.poll(PATIENCE):
            raise CheckFailure(f"rank {self.rank} does not answer {command} within {PATIENCE:.0f} s")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise CheckFailure(f"rank {self.rank} ended before it answered {command}") from None
        if isinstance(answer, CheckFailure):
            raise CheckFailure(f"rank {self.rank}, asked for {command}: {answer}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    arrive = answer  #: of the first command, `attach`

    def ask(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Do a command. Returns and raises as `answer`."""
        self.send(command, *arguments, **options)
        return self.answer()

    def stop(self) -> Any:
        """End a command that runs until told; returns its result."""
        self.send("stop")
        done = self.answer()
        self.answer()
        return done

    def kill(self) -> None:
        """SIGKILL, wherever it is; returns when it is gone.

        Raises:
            CheckFailure: it had ended before.
        """
        self._process.kill()
        self._join(PATIENCE)
        if self._process.exitcode != -signal.SIGKILL:
            raise CheckFailure(f"rank {self.rank} ended with {self._process.exitcode} before it was killed")

    def end(self) -> None:
        """Hang up: the process ends as a script does that forgot to close, or is killed after END_SECONDS."""
        self._connection.close()
        if not self._join(END_SECONDS):
            self._process.kill()
            self._join(PATIENCE)

    def _join(self, timeout: float) -> bool:
        if not wait([self._process.sentinel], timeout):
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
