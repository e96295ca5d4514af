"""Processes that do commands, and how the one that started them sees them. Every wait is bounded.

`python -m nanokv.check.command_process`, whose standard input is a socket, is the process of a `Program`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, Self

from nanokv.check.report import CheckFailure

_GONE = (EOFError, BrokenPipeError, ConnectionResetError)  #: the other end, of a connection
_TAIL = 3000  #: characters of a log


class Commands:
    """What a process does: each method is a command. A subclass is importable by name.

    Attributes:
        raises: the errors that `CommandProcess.answer` raises as they are. After any other error the process ends.
        told: True once the next command is there. A command that runs until told then ends.
    """

    raises: ClassVar[tuple[type[Exception], ...]] = ()
    told: Callable[[], bool]

    def at_end(self) -> None:
        """Done in a `Program` when no command will come any more, or one has failed."""


def serve(commands: Commands, connection: Connection) -> int:
    """Do the commands that come, until the other end hangs up (0), or one fails (1)."""
    commands.told = connection.poll
    with contextlib.suppress(*_GONE):
        while True:
            command, arguments, options = connection.recv()
            try:
                answer = getattr(commands, command)(*arguments, **options)
            except commands.raises as error:
                answer = error
            except Exception as error:
                traceback.print_exc()
                connection.send(CheckFailure(f"{type(error).__name__}: {error}"))
                return 1
            connection.send(answer)
    return 0


class CommandProcess(ABC):
    """A process. Commands are done in the order in which they are sent. The end of a `with` block ends it.

    Attributes:
        name: of the process, in messages.
        patience: seconds of each wait, which usually takes less than one.
        end_seconds: after them a process that was let go is killed.
    """

    patience: ClassVar[float] = 60.0
    end_seconds: ClassVar[float] = 10.0

    _process: subprocess.Popen[bytes] | BaseProcess

    def __init__(self, name: str, process: subprocess.Popen[bytes] | BaseProcess, connection: Connection) -> None:
        self.name = name
        self._process = process
        self._connection = connection
        self._unanswered: deque[str] = deque()

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    @abstractmethod
    def code(self) -> int | None:
        """The exit code; negative: minus the signal; None: it has not been found to have ended."""

    @abstractmethod
    def _join(self, seconds: float) -> bool:
        """Whether it ends in time."""

    def _said(self) -> str:
        """What else a message about its failure has to say."""
        return ""

    def send(self, command: str, *arguments: Any, **options: Any) -> None:
        """Begin a command. If the process has ended, the answer is that."""
        self._unanswered.append(command)
        with contextlib.suppress(*_GONE):
            self._connection.send((command, arguments, options))

    def answer(self, patience: float | None = None) -> Any:
        """Wait for the end of the oldest command without an answer; returns its result.

        Args:
            patience: another one than usual.

        Raises:
            CheckFailure: the process failed, ended, or does not answer in time.
            Commands.raises: from the command.
        """
        command, patience = self._unanswered.popleft(), patience or self.patience
        if not self._connection.poll(patience):
            raise CheckFailure(f"{self.name} does not answer {command} within {patience:.0f} s{self._said()}")
        try:
            answer = self._connection.recv()
        except _GONE:
            self._join(self.end_seconds)
            raise CheckFailure(
                f"{self.name} ended with {self.code} before it answered {command}{self._said()}"
            ) from None
        if isinstance(answer, CheckFailure):
            raise CheckFailure(f"{self.name}, asked for {command}: {answer}{self._said()}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Do a command. Returns and raises as `answer`."""
        self.send(command, *arguments, **options)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL, wherever it is; returns when it is gone.

        Raises:
            CheckFailure: it had ended before.
        """
        self._process.kill()
        self._join(self.patience)
        if self.code != -signal.SIGKILL:
            raise CheckFailure(f"{self.name} ended with {self.code} before it was killed{self._said()}")

    def end(self, seconds: float | None = None) -> int | None:
        """Hang up: it ends by itself, or is killed after `end_seconds`, or these. Returns its exit code. Idempotent."""
        self._connection.close()
        if not self._join(seconds or self.end_seconds):
            self._process.kill()
            self._join(self.patience)
        return self.code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Program(CommandProcess):
    """Commands in a Python of its own, which imports what this process imports. Ctrl-C does not end it.

    Args:
        commands: makes them in that process; importable by name, as its arguments are.
        enter: begins the command line.
        environment: what differs from this process's.
        log: the file for all that it prints, whose end is part of messages; None: stderr.
        options: of `subprocess.Popen`.
    """

    patience = 300.0  #: its start, too: on a busy machine imports take minutes
    _process: subprocess.Popen[bytes]

    def __init__(
        self,
        name: str,
        commands: Callable[[], Commands],
        *,
        enter: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        **options: Any,
    ) -> None:
        self._log = log
        ours, theirs = Pipe()
        # -P and sys.path: not what lies in the working directory
        where = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs, contextlib.nullcontext(2) if log is None else log.open("wb") as said:
            process = subprocess.Popen(
                [*enter, sys.executable, "-P", "-m", "nanokv.check.command_process"],
                stdin=theirs.fileno(),
                stdout=said,
                stderr=said,
                env=os.environ | where | dict(environment or {}),
                **options,
            )
        super().__init__(name, process, ours)
        with contextlib.suppress(*_GONE):
            ours.send(commands)

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def _join(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _said(self) -> str:
        return "" if self._log is None else f":\n{self._log.read_text(errors='replace')[-_TAIL:].strip()}"

    def suspend(self) -> None:
        """SIGSTOP. It has stopped when this returns."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, seconds: float | None = None) -> int | None:
        """Resume it, if it is suspended, and hang up."""
        self.resume()
        return super().end(seconds)


def main() -> int:
    """The process: 1 if it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    connection = Connection(os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # what it starts does not hold the other end back
    try:
        commands: Commands = connection.recv()()
        try:
            return serve(commands, connection)
        finally:
            commands.at_end()
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever a thread that hangs does; and the end of some libraries is a fault
