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

START_SECONDS = 180.0  #: all systems start at the same time; imports, and the first lap
GRACE_SECONDS = 60.0  #: beyond its own limit, for a turn: the call that was going on, and the check of the bytes
END_SECONDS = 20.0


class Lane:
    """One running system. It starts in the background: `wait` for it.

    Attributes:
        error: why it is over; None: it is not.
    """

    def __init__(self, wishes: Wishes) -> None:
        self.name = wishes.system
        self.error: str | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        before = isolation.prefix() or () if wishes.isolated else ()
        self._process = subprocess.Popen(
            [*before, sys.executable, "-P", "-m", "nanokv.bench.peers.child", wishes.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=child_environment(),
            start_new_session=True,  # so that its process group is all that it starts
        )

    def wait(self) -> None:
        """Until it is ready, or over."""
        if self._answer(START_SECONDS) is not None:
            self._log.seek(0, os.SEEK_END)

    def turn(self, rounds: int, seconds: float, warm: int) -> Found:
        """The durations of one turn; of none if it is over. The arguments are those of `Turns.run`."""
        if self.error is not None:
            return {}
        assert self._process.stdin is not None
        try:
            print(
                json.dumps({"rounds": rounds, "seconds": seconds, "warm": warm}), file=self._process.stdin, flush=True
            )
        except BrokenPipeError:
            self._fail("it has ended")
            return {}
        answer = self._answer(seconds + GRACE_SECONDS)
        return answer["found"] if answer is not None else {}

    def _answer(self, patience: float) -> dict[str, Any] | None:
        """The next line; None, and `error`, if there is none in time, or if it is an error."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._fail(self._ended() if ready else f"it did not answer in {patience:.0f} s")
            return None
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._fail(answer["error"])
            return None
        return answer

    def _ended(self) -> str:
        """How its process ended, which has closed its output; without collecting it, so that its id stays its own."""
        end = time.monotonic() + END_SECONDS
        while time.monotonic() < end:
            gone = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if gone is not None:
                how = "by signal" if gone.si_code != os.CLD_EXITED else "with"
                return f"it ended {how} {gone.si_status}"
            time.sleep(0.01)
        return "it closed its output"

    def _fail(self, why: str) -> None:
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()
        self.error = why + (f"; it said last:\n{words[-2000:]}" if words else "")
        self.close()

    def close(self) -> None:
        """End it, and whatever it has started that is still there. Idempotent."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self.error is None:
            self._ended()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
