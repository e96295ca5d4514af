"""A process with a link and memory that others read, for tests; the handle by which a test holds one; and reads."""

import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nanokv.check.command_process import Commands, Program
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


class OwnerCommands(Commands):
    """What the process does; one method a command."""

    raises = (LinkUnavailable,)

    def __init__(self, kind: str, member: str) -> None:
        self._kind, self._member = kind, member
        self._memory: dict[int, Memory] = {}

    def open(self) -> None:
        """Open the link: the first command."""
        self._link = open_link(self._kind, self._member)

    def card(self) -> bytes:
        """The link's card."""
        return self._link.card()

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

    def connect(self, card: bytes) -> int | None:
        """Connect to a card: the number of the peer, or None if it is lost."""
        try:
            return self._link.connect(card)
        except LinkLost:
            return None

    def pull(self, card: bytes, there: int, nbytes: int, seed: int) -> bool:
        """Read another process's memory: whether it has the pattern of a seed."""
        here = self._memory[self.register(nbytes, 0)]
        return gets(self._link, self._link.connect(card), here, there, seed)

    def close_under_reads(self, card: bytes, there: int, nbytes: int, rounds: int) -> int:
        """Close links while threads read over them; returns how many of their reads were done.

        A link that took what a thread was in would end this process.
        """
        done = 0
        for turn in range(rounds):
            link, begun = open_link(self._kind, f"{self._member}.{turn}"), threading.Semaphore(0)
            peer, places = link.connect(card), [memory(nbytes) for _ in range(3)]
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


class Owner(Program):
    """Such a process.

    Raises:
        LinkUnavailable: it says that the link does not work here.
    """

    def __init__(self, kind: str, member: str) -> None:
        super().__init__("the owner", partial(OwnerCommands, kind, member))
        try:
            self.ask("open")
        except BaseException:
            self.end()
            raise
