"""A process that a system starts and ends: bounded in time, and ended by its id alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nanokv.bench.peers.base import SystemFailed
from nanokv.bench.suite.environment import child_environment

START_SECONDS = 60.0
END_SECONDS = 5.0
_LOOK_SECONDS = 0.01


class Server:
    """A running process; what it prints is in a file.

    Args:
        command: the program and its arguments.
        log: the file.
        stack: ends the process when it is closed.
        environment: what differs from this process's environment.
        files: descriptors that the process inherits.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        stack: ExitStack,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
    ) -> None:
        self._name = Path(command[0]).name
        self._log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=child_environment() | dict(environment or {}),
                pass_fds=tuple(files),
            )
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def until(self, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until `ready()`.

        Raises:
            SystemFailed: the process ended, or the time is over; with the last lines that it printed.
        """
        end = time.monotonic() + seconds
        while not ready():
            code = self._process.poll()
            if code is not None:
                raise SystemFailed(f"{self._name} ended with {code}: {self._last_words()}")
            if time.monotonic() > end:
                raise SystemFailed(f"{self._name} was not ready after {seconds:.0f} s: {self._last_words()}")
            time.sleep(_LOOK_SECONDS)

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-1000:].strip()


class Ours(Server):
    """A module of this package as the other process: `main(NOTE, *arguments)` writes what it has to say into NOTE.

    Args:
        module: its name.
        folder: for its note and its log.
        arguments: of `main`, after the note.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        stack: ExitStack,
        arguments: Sequence[int | str],
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
    ) -> None:
        self._note = folder / "note.json"
        command = [sys.executable, "-P", "-m", module, str(self._note), *map(str, arguments)]
        super().__init__(command, folder / "log", stack, environment, files)

    def note(self) -> Any:
        """What the process wrote when it was ready. Raises SystemFailed like `until`."""
        self.until(self._note.exists)
        return json.loads(self._note.read_text(encoding="utf-8"))


def write_note(path: str, note: Any) -> None:
    """Say, in the other process, that it is ready, at once and as a whole."""
    draft = Path(f"{path}.draft")
    draft.write_text(json.dumps(note), encoding="utf-8")
    draft.rename(path)


def sleep_while_wanted() -> None:
    """Do nothing, in the other process, until the one that started it ends it, or is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
