"""What native code calls that is not of the protocol, in simulated memory: sockets, and the C library.

Nobody sleeps here, and no clock goes: what wakes or tells the time does nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import WORD
from nanokv.device.sim.simulation import Simulation

AGAIN = 11  #: of errno
_IOV, _IOV_COUNT = 2, 3  #: words of struct msghdr


class SimulatedSocket:
    """A socket whose other end a scenario is. Each word that it brings into a page, or takes from one, is a step.

    A system call orders nothing: words that it has taken may be read as late as the protocol lets them.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._vocabulary = simulation, simulation.vocabulary
        self._coming, self._ends, self._is_late = bytearray(), False, False
        self._sent: list[npt.NDArray[np.int64]] = []

    def comes(self, data: bytes, *, last: bool) -> None:
        """Let bytes come, and the end behind them if they are the `last`."""
        self._coming += data
        self._ends = last

    def heard(self) -> bytes:
        """What was sent since the last call."""
        self._simulation.finish_copies()
        sent, self._sent = self._sent, []
        return b"".join(room.tobytes() for room in sent)

    @property
    def is_ready(self) -> bool:
        """Whether something will come, or has ended."""
        return bool(self._coming) or self._ends

    def _some(self, nbytes: int) -> int:
        """How many of so many bytes the kernel moves: all, or a first part."""
        return nbytes // 2 // WORD * WORD if nbytes >= 2 * WORD and self._simulation.decide(2) else nbytes

    def receive(self, at: int, nbytes: int, flags: int) -> int:
        """recv."""
        if not self._coming:
            return 0 if self._ends else -1
        self._is_late = not self._is_late and self._simulation.decide(2) == 1
        if self._is_late:  # nothing has come yet
            return -1
        some = self._some(min(nbytes, len(self._coming)))
        words = np.frombuffer(bytes(self._coming[:some]), np.int64)
        del self._coming[:some]
        for i, value in enumerate(words.tolist()):
            self._vocabulary["store64"](at + i * WORD, value, "relaxed")
        return some

    def send(self, at: int, nbytes: int, flags: int) -> int:
        """send."""
        some = self._some(nbytes)
        room = np.zeros(some // WORD, np.int64)
        self._vocabulary["copy_bytes"](room.ctypes.data, at, some)
        self._sent.append(room)
        return some

    def send_message(self, message: int, flags: int) -> int:
        """sendmsg."""
        load, sent = self._vocabulary["load64"], 0
        vectors, count = (load(message + place * WORD, "relaxed") for place in (_IOV, _IOV_COUNT))
        for vector in range(vectors, vectors + count * 2 * WORD, 2 * WORD):
            nbytes = load(vector + WORD, "relaxed")
            some = self.send(load(vector, "relaxed"), nbytes, flags)
            sent += some
            if some < nbytes:
                break
        return sent


def native_calls(
    sockets: Mapping[int, SimulatedSocket], simulation: Callable[[], Simulation]
) -> dict[str, Callable[..., Any]]:
    """The functions by name.

    Args:
        sockets: by file descriptor. simulation: in which they are called.
    """

    def memcpy(to: int, source: int, nbytes: int) -> None:
        simulation().vocabulary["copy_bytes"](to, source, nbytes)

    return {
        "receive": lambda socket, *words: sockets[socket].receive(*words),
        "send": lambda socket, *words: sockets[socket].send(*words),
        "send_message": lambda socket, *words: sockets[socket].send_message(*words),
        "error": lambda: AGAIN,
        "memcpy": memcpy,
        "monotonic_ns": lambda: 1,
        "epoll_control": lambda epoll, operation, socket, event: 0,
        "store_word": lambda at, value: None,  # of what epoll is told
        "clear_flag": lambda flag: 0,
        "wake_all": lambda futex, flag: 0,
        "tag_of": lambda *words: (0, 0),  # every MAC is zeros
        "owner_of": lambda calls, check: 0,  # the rank that a key chooses
        "may_have": lambda calls, owner, nbytes: True,  # all pages have memory
    }
