"""The process of one system, as the benchmark sees it: started, told to take turns, ended with all that it started.

Whatever goes wrong in it goes wrong in it alone: it is then over, and `error` says why.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from nanokv.bench.peers import isolation
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.turns import Found
from nanokv.bench.suite.environment import child_environment
from nanokv.heap.world_file_layout import directory

START_SECONDS = 180.0  #: imports, and the first lap: all systems start at the same time
GRACE_SECONDS = 60.0  #: beyond its own limits, for a turn: the call that was going on, and the check of the bytes
END_SECONDS = 20.0
_LOOK_SECONDS = 0.01
_FOLDERS = {"TMPDIR": None, "NANOKV_SHM_DIR": directory}  #: variable -> whose folder gets one; None: the usual one


class PeerLane:
    """One running system. It starts in the background: `wait` for it.

    Attributes:
        name: of the system.
        error: why it is over; None: it is not, or it ended well.
    """

    def __init__(self, wishes: Wishes) -> None:
        self.name = wishes.system
        self.error: str | None = None
        self._files = contextlib.ExitStack()  # they go even if the process had to be killed
        log = tempfile.TemporaryFile(prefix="nanokv-peers-")  # noqa: SIM115 - closed with `_files`
        self._log = self._files.enter_context(log)
        before = isolation.prefix() or () if wishes.isolated else ()
        self._process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", "nanokv.bench.peers.child", wishes.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=child_environment() | {name: self._folder(name) for name in _FOLDERS},
            start_new_session=True,  # so that its process group is all that it starts
        )

    def _folder(self, name: str) -> str:
        where = _FOLDERS[name]
        made = tempfile.TemporaryDirectory(prefix="nanokv-peers-", dir=where and where(), ignore_cleanup_errors=True)
        return self._files.enter_context(made)

    def wait(self) -> None:
        """Wait until the lane is ready, or over."""
        self._answer(START_SECONDS)

    def turn(self, rounds: int, seconds: float, warm: int) -> Found:
        """The durations of one turn; of none if it is over. The arguments are those of `Turns.run`."""
        if self.error is not None:
            return {}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer will say that it has ended
            print(
                json.dumps({"rounds": rounds, "seconds": seconds, "warm": warm}), file=self._process.stdin, flush=True
            )
        answer = self._answer(2 * seconds + GRACE_SECONDS)
        return {} if answer is None else answer["found"]

    def _answer(self, patience: float) -> dict[str, Any] | None:
        """The next line; None, and `error`, if there is none in time, or if it is an error."""
        line = self._line(patience)
        if line is None:
            self._fail(f"it did not answer in {patience:.0f} s")
        elif not line:
            self._fail(self._ending())
        else:
            answer: dict[str, Any] = json.loads(line)
            if "error" not in answer:
                return answer
            self._fail(answer["error"])
        return None

    def _line(self, patience: float) -> str | None:
        """What the process says next: "" if it says no more, None if it said nothing in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        return self._process.stdout.readline() if ready else None

    def _ending(self) -> str:
        """Wait for the end of the process, and say how it was. It is not collected: its id must stay its own."""
        end = time.monotonic() + END_SECONDS
        while time.monotonic() < end:
            gone = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if gone is not None:
                exited = gone.si_code == os.CLD_EXITED
                return f"it ended with {gone.si_status}" if exited else f"signal {gone.si_status} ended it"
            time.sleep(_LOOK_SECONDS)
        return "it closed its output"

    def _fail(self, why: str) -> None:
        self._kill()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()
        self.error = f"{why}\n{words[-3000:]}" if words else why
        self._files.close()

    def _kill(self) -> None:
        """End the process and whatever it has started that is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._await_others()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _await_others(self) -> None:
        """Wait until its process group is empty, whose id stays taken as long."""
        end = time.monotonic() + END_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:
                os.killpg(self._process.pid, 0)
                time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Let it end, which is also its last chance to say what is wrong. Its exit code says nothing. Idempotent."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        line = self._line(GRACE_SECONDS)
        if line:
            self._fail(json.loads(line)["error"])
            return
        self._ending()
        self._kill()
        self._files.close()
