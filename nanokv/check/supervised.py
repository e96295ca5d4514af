"""The parts of `nanokv check` in a session of their own: Ctrl-C ends them all at once and leaves nothing behind.

Their processes (fork servers, ranks, victims) are one process group, which the terminal's signals do not reach: the
caller kills it whole. Their worlds and temporary files lie in a folder that is removed with them. What the parts find
comes through a pipe, a JSON object per line.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from nanokv.check.report import Row, telling
from nanokv.check.run import Options, run_parts
from nanokv.errors import NanoKVError

_REAP_SECONDS = 10.0
_BAD = 2


class Began(NamedTuple):
    """A part has begun."""

    part: str


class PartProgress(NamedTuple):
    """How far the part that runs has come."""

    doing: str


Event = Began | PartProgress | Row


class CheckEnded(NanoKVError):
    """The process that ran the checks ended before it was done."""


def run_supervised(names: list[str], options: Options) -> Generator[Event, None, None]:
    """Run parts in a child. If the caller stops early, or is interrupted, no process and no world is left.

    Raises:
        CheckEnded: the child ended by itself; what it wrote to stderr says why.
    """
    with _scratch() as environment:
        read, write = os.pipe()
        command = [sys.executable, "-m", __name__, str(write), json.dumps([names, options])]
        child = subprocess.Popen(command, pass_fds=[write], start_new_session=True, env=environment)
        os.close(write)
        try:
            with os.fdopen(read, encoding="utf-8") as lines:
                yield from map(_event, lines)
            code = child.wait()
            if code:
                raise CheckEnded(f"the process of the checks ended with {code}")
        finally:
            _kill_group(child)


@contextmanager
def _scratch() -> Iterator[dict[str, str]]:
    """An environment whose folders of worlds and of temporary files are new, and are removed afterwards."""
    from nanokv.heap.world_file_layout import directory

    with tempfile.TemporaryDirectory(prefix="nanokv-check-") as files:
        environment = os.environ | {"TMPDIR": files}
        if not directory().is_dir():
            yield environment  # the parts that need it say so
            return
        worlds = tempfile.mkdtemp(prefix="nanokv-check-", dir=directory())
        try:
            yield environment | {"NANOKV_SHM_DIR": worlds}
        finally:
            shutil.rmtree(worlds, ignore_errors=True)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(_REAP_SECONDS)


def _event(line: str) -> Event:
    content: dict[str, Any] = json.loads(line)
    for kind in (Began, PartProgress):
        if content.keys() == set(kind._fields):
            return kind(**content)
    return Row(**content)


def _plain(number: Any) -> Any:
    """A number of numpy as Python's."""
    return number.item()


def _serve(to: int, names: list[str], options: Options) -> int:
    """The child: run the parts, and write what happens."""
    with os.fdopen(to, "w", encoding="utf-8", buffering=1) as pipe:

        def write(content: dict[str, Any]) -> None:
            pipe.write(json.dumps(content, default=_plain) + "\n")

        try:
            with telling(lambda text: write({"doing": text})):
                for row in run_parts(names, options, lambda part: write({"part": part})):
                    write(asdict(row))
        except NanoKVError as error:
            print(f"nanokv: {error}", file=sys.stderr)
            return _BAD
        except BrokenPipeError:  # the caller was killed
            return _BAD
    return 0


if __name__ == "__main__":
    _to, (_names, _options) = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.exit(_serve(_to, _names, Options(*_options)))
