"""A process with a link and memory that others read, for tests; the handle by which a test holds one; and reads.

The process takes commands as lines of JSON, `[name, argument, ...]`, and answers each with a line. It ends with its
input.
"""

import base64
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nanokv.cluster.links import Link, LinkLost, LinkUnavailable, State, Transfer, open_link
from nanokv.cluster.links.base import Words

PATIENCE = 60.0  #: seconds of each wait, which usually takes less than one
_LOOK_SECONDS = 0.001

T = TypeVar("T")
Memory = npt.NDArray[np.uint8]


def pattern(seed: int, nbytes: int) -> Memory:
    """Bytes that differ by seed and place. `nbytes`: a multiple of 8. A longer pattern begins with the shorter one."""
    words = np.arange(nbytes // 8, dtype=np.uint64) + np.uint64(seed << 40)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return words.view(np.uint8)


def memory(nbytes: int) -> Memory:
    """Zeroed memory in pages of its own."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def address_of(made: Memory) -> int:
    """Where it begins."""
    return int(made.ctypes.data)


def words(*values: int) -> Words:
    """Addresses or sizes, as a link takes them."""
    return np.array(values, np.int64)


def finishes(call: Callable[[], T]) -> T:
    """The result of a call that must not block: on another process, or for ever."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(PATIENCE)
    finally:
        pool.shutdown(wait=False)


def ended(transfer: Transfer) -> State:
    """How it ends, which it must. It is let go then."""
    deadline = time.monotonic() + PATIENCE
    while (state := transfer.state()) == State.MOVING:
        assert time.monotonic() < deadline, "the transfer does not end"
        time.sleep(_LOOK_SECONDS)
    transfer.release()
    transfer.release()
    assert transfer.state() == state
    return state


def attempt(link: Link, peer: int, into: Memory, there: int) -> State | str:
    """How a read of one row ends, as long as the memory that it goes into; "lost" if it cannot begin."""
    try:
        return ended(link.read(peer, words(address_of(into)), words(there), words(len(into))))
    except LinkLost:
        return "lost"


def gets(link: Link, peer: int, into: Memory, there: int, seed: int) -> bool:
    """Whether such a read is done, and brings the pattern of a seed."""
    return attempt(link, peer, into, there) == State.DONE and np.array_equal(into, pattern(seed, len(into)))


class _Commands:
    """What the process does; one method a command."""

    def __init__(self, kind: str, member: str) -> None:
        self._kind, self._member = kind, member
        self._link: Link = open_link(kind, member)
        self._memory: dict[int, Memory] = {}

    def card(self) -> str:
        """The link's card."""
        return base64.b64encode(self._link.card()).decode()

    def register(self, nbytes: int, seed: int) -> int:
        """Register new memory with the pattern of a seed: its address."""
        made = memory(nbytes)
        address = address_of(made)
        self._memory[address] = made
        self.fill(address, seed)
        self._link.register(address, nbytes)
        return address

    def fill(self, address: int, seed: int) -> None:
        """Change memory to another pattern."""
        made = self._memory[address]
        made[:] = pattern(seed, len(made))

    def deregister(self, address: int) -> None:
        """Take memory back."""
        self._link.deregister(address)
        del self._memory[address]

    def connect(self, card: str) -> int | None:
        """Connect to a card: the number of the peer, or None if it is lost."""
        try:
            return self._link.connect(base64.b64decode(card))
        except LinkLost:
            return None

    def pull(self, card: str, there: int, nbytes: int, seed: int) -> bool:
        """Read another process's memory: whether it has the pattern of a seed."""
        here = self._memory[self.register(nbytes, 0)]
        return gets(self._link, self._link.connect(base64.b64decode(card)), here, there, seed)

    def close_under_reads(self, card: str, there: int, nbytes: int, rounds: int) -> int:
        """Close links while threads read over them; returns how many of their reads were done.

        A link that took what a thread was in would end this process.
        """
        done = 0
        for turn in range(rounds):
            link, begun = open_link(self._kind, f"{self._member}.{turn}"), threading.Semaphore(0)
            peer, places = link.connect(base64.b64decode(card)), [memory(nbytes) for _ in range(3)]
            for place in places:
                link.register(address_of(place), nbytes)

            def read(place: Memory, link: Link = link, peer: int = peer, begun: threading.Semaphore = begun) -> int:
                count = 0
                while attempt(link, peer, place, there) == State.DONE:
                    count += 1
                    begun.release()
                return count

            with ThreadPoolExecutor(len(places)) as pool:
                reads = [pool.submit(read, place) for place in places]
                for _ in places:
                    begun.acquire()
                time.sleep(turn * _LOOK_SECONDS)
                link.close()
                done += sum(each.result(PATIENCE) for each in reads)
        return done

    def close(self) -> None:
        """Close the link."""
        self._link.close()


class Owner:
    """Such a process.

    Raises:
        LinkUnavailable: it says that the link does not work here.
    """

    def __init__(self, kind: str, member: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.link_owner", kind, member]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        try:
            why = self._answer()
        except BaseException:
            self.end()
            raise
        if why is not None:
            self.end()
            raise LinkUnavailable(why)

    def ask(self, command: str, *arguments: object) -> Any:
        """Have a command done, and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        return self._answer()

    def card(self) -> bytes:
        """The card of its link."""
        return base64.b64decode(self.ask("card"))

    def _answer(self) -> Any:
        """The next line. A process that does not answer in time is killed, which ends the wait for it."""
        assert self._process.stdout is not None
        clock = threading.Timer(PATIENCE, self._process.kill)
        clock.start()
        try:
            line = self._process.stdout.readline()
        finally:
            clock.cancel()
        assert line, f"the owner has ended with {self._process.wait(PATIENCE)}"
        return json.loads(line)

    def stop(self) -> None:
        """Stop it, and wait until it has stopped."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let it run again."""
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, stopped or not, and wait until it has ended."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        """Kill it, and close the pipes. Idempotent."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main(kind: str, member: str) -> None:
    """Serve commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        commands = _Commands(kind, member)
    except LinkUnavailable as error:
        print(json.dumps(str(error)), file=answers)
        os._exit(1)
    print(json.dumps(None), file=answers)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(commands, name)(*arguments)), file=answers)
    os._exit(0)  # the interpreter's own end is a fault in some of the libraries


if __name__ == "__main__":
    main(*sys.argv[1:])
