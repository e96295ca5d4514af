"""A member of a cluster in a process of its own: it takes commands, and can be killed and stopped."""

import json
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 60.0  #: seconds; of `rank_process`, whose import would take each process two seconds
ROOT = Path(__file__).parents[2]


class MemberProcess:
    """Opens a membership at once. Commands have the names of its methods; bytes are passed as text."""

    def __init__(self, url: str, ttl: float) -> None:
        command = [sys.executable, "-m", "tests.support.member_process", url, str(ttl)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.answer()

    def answer(self) -> Any:
        """The result of the oldest command without an answer."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), "the member does not answer"
        line = self._process.stdout.readline()
        assert line, f"the member has ended with {self._process.poll()}"
        kind, value = json.loads(line)
        assert kind == "answer", value
        return value

    def send(self, command: str, *arguments: str) -> None:
        """Begin a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]).encode() + b"\n")

    def ask(self, command: str, *arguments: str) -> Any:
        """Do a command."""
        self.send(command, *arguments)
        return self.answer()

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _main(url: str, ttl: float) -> None:
    from nanokv.cluster.membership import open_membership

    membership = open_membership(url, ttl=ttl, timeout=PATIENCE)
    print(json.dumps(["answer", None]), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command in ("join", "update"):
            arguments[-1] = arguments[-1].encode()
        try:
            result = getattr(membership, command)(*arguments)
        except Exception as error:
            print(json.dumps(["error", repr(error)]), flush=True)
            continue
        if command == "members":
            result = {member: card.decode() for member, card in result.items()}
        print(json.dumps(["answer", result.hex() if isinstance(result, bytes) else result]), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
