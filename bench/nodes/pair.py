"""The owner and the reader as the benchmark sees them: two processes, which are ended with it."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from nanokv.bench.nodes.transports import TRANSPORTS
from nanokv.bench.peers.base import SystemFailed
from nanokv.bench.peers.server import Ours
from nanokv.bench.suite.settings import KIB, MIB

HEAP_BYTES = 384 * MIB
PLACES_BYTES = 64 * MIB  #: for bare transfers: more than the processor's cache has
LEAST_PAGE = 4 * KIB
GOODBYE = 30.0  #: seconds


class Pair(AbstractContextManager["Pair"]):
    """Two nodes. Used in a `with` block.

    Args:
        transport: of TRANSPORTS.
        size: bytes of an object.

    Raises:
        SystemFailed: a process ended.
    """

    def __init__(self, transport: str, size: int) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nanokv-bench-")))
            members = folder / "members"
            members.mkdir()
            environment = dict(TRANSPORTS[transport])
            page_bytes = max(size, LEAST_PAGE)
            place_bytes = min(128 * page_bytes, 8 * MIB)
            arguments: list[int | str] = [
                str(members),
                HEAP_BYTES,
                page_bytes,
                PLACES_BYTES // place_bytes,
                place_bytes,
            ]
            owner = Ours("nanokv.bench.nodes.owner", folder, stack, arguments, environment)
            command = [sys.executable, "-P", "-m", "nanokv.bench.nodes.reader", str(members)]
            self._log = folder / "reader.log"
            errors = stack.enter_context(self._log.open("w"))
            self._reader = subprocess.Popen(
                [*command, json.dumps(owner.note()), str(place_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | environment,
            )
            stack.callback(self._end)
            self._stack = stack.pop_all()

    def lap(self, what: str, nbytes: int, calls: int) -> dict[str, dict[str, list[int]]]:
        """See `Reader.lap`."""
        assert self._reader.stdin is not None and self._reader.stdout is not None
        line = ""
        try:
            print(json.dumps({"what": what, "nbytes": nbytes, "calls": calls}), file=self._reader.stdin, flush=True)
            line = self._reader.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            code, said = self._reader.wait(GOODBYE), self._log.read_text(errors="replace")[-1000:].strip()
            raise SystemFailed(f"the reader ended with {code}: {said}")
        found: Any = json.loads(line)
        return {call: dict(systems) for call, systems in found.items()}

    def _end(self) -> None:
        assert self._reader.stdin is not None and self._reader.stdout is not None
        try:
            self._reader.stdin.close()
            self._reader.wait(GOODBYE)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._reader.kill()
            self._reader.wait()
        self._reader.stdout.close()

    def __exit__(self, *error: object) -> None:
        self._stack.close()
