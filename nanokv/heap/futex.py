"""Sleeping on a word until another thread or process has left a hint: in one segment, or in any.

The poller sets `ann_asleep`, loads `ann_head` once more, and sleeps. A producer announces, then loads `ann_asleep`. At
least one of them sees the other's store. Source: Dekker's pattern. Each side has an atomic read-modify-write between
its store and its load, which is a full fence on x86. On a CPU with a weaker order a wake-up can be lost; it costs only
the timeout of the wait.

A reader that waits for an object does not know which segment it will lie in. It sets the world's `waiting` word, then
`ann_asleep` of every segment, looks for the object once more, and sleeps on `waiting`. A producer that rings clears
`ann_asleep`, then `waiting`, and wakes the sleepers of both. So producers pay nothing while nobody waits.
"""

import ctypes
import math
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Bell
from nanokv.device.segment.layout import HEAP_CTL

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # Linux' numbers of the system call
_WAIT, _WAKE = 0, 1  # without the private flag: poller and producer may be processes that share the page
_EVERYBODY = 0x7FFFFFFF
_STEP = 0.001  #: seconds between two loads where there is no futex

DEVICE_POLL = 0.001  #: seconds that the poller of a segment on a GPU sleeps at most: no kernel can wake it


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _system_call() -> Callable[..., int] | None:
    """`syscall(futex, address, operation, value, timeout, 0, 0)`, or None where it does not work."""
    number = _NUMBERS.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None or sys.maxsize < 2**32:
        return None
    call = ctypes.CDLL(None).syscall  # releases the interpreter's lock while it runs
    call.restype = ctypes.c_long
    word, pointer = ctypes.c_long, ctypes.c_void_p
    call.argtypes = (word, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer, ctypes.c_int)

    def futex(address: int, operation: int, value: int, timeout: "_Timespec | None" = None) -> int:
        return int(call(number, address, operation, value, timeout and ctypes.addressof(timeout), None, 0))

    probe = ctypes.c_uint32(0)
    return futex if futex(ctypes.addressof(probe), _WAKE, 1) == 0 else None


_futex = _system_call()


def system_call_number() -> int | None:
    """The number of the system call, for native code; None where this system cannot sleep on a word."""
    return None if _futex is None else _NUMBERS[platform.machine()]


def supported() -> bool:
    """True if this system can sleep on a word; otherwise a wait loads the word every millisecond."""
    return _futex is not None


def _sleep_while_set(word: npt.NDArray[np.uint32], timeout: float) -> None:
    """Sleep while the word is 1, at most `timeout` seconds."""
    if _futex is not None:
        fraction, whole = math.modf(min(timeout, 1e6))
        _futex(int(word.ctypes.data), _WAIT, 1, _Timespec(int(whole), int(fraction * 1e9)))
        return
    deadline = time.monotonic() + timeout
    while word[0] and time.monotonic() < deadline:
        time.sleep(min(_STEP, timeout))


def _wake_all(address: int) -> None:
    if _futex is not None:
        _futex(address, _WAKE, _EVERYBODY)


class WorldBell:
    """The `waiting` word of a world: ranks wait for a hint in any segment, producers ring. Any thread may call.

    Args:
        word: 1 while a rank waits: uint32 [1], shared by all ranks.
    """

    def __init__(self, word: npt.NDArray[np.uint32]) -> None:
        self._word = word
        self._address = int(word.ctypes.data)
        self._fence = threading.Lock()

    def wait(self, bells: "Sequence[Doorbell]", timeout: float, still: Callable[[], bool]) -> None:
        """Sleep until a hint is left in a segment of `bells`, at most `timeout` seconds.

        Args:
            still: called once the sleeper can be woken; the wait ends at once if it is False.
        """
        self._word[0] = 1
        for bell in bells:
            bell.watch()
        with self._fence:  # for the read-modify-write in it
            pass
        if still() and timeout > 0:
            _sleep_while_set(self._word, timeout)

    @property
    def for_native_code(self) -> Bell | None:
        """The bell as `Machine.waits_on` takes it; None where this system cannot sleep on a word."""
        number = system_call_number()
        return None if number is None else Bell(self._address, number)

    def ring(self) -> None:
        """Wake all ranks that wait."""
        if self._word[0]:
            self._word[0] = 0
            _wake_all(self._address)


class Doorbell:
    """The `ann_asleep` word of one segment in host memory: the owner's poller waits, producers ring.

    Only a ring clears the word, since others than the poller may wait for it (`WorldBell`).

    Args:
        raw: the segment, uint8; kept mapped while this object lives.
        world: rung with this one.
    """

    def __init__(self, raw: npt.NDArray[np.uint8], world: WorldBell) -> None:
        self._world = world
        asleep, head = HEAP_CTL.offsets["ann_asleep"], HEAP_CTL.offsets["ann_head"]
        self._asleep = raw[asleep : asleep + 4].view(np.uint32)
        self._head = raw[head : head + 8].view(np.uint64)
        self._address = int(self._asleep.ctypes.data)
        self._rung = False
        self._fence = threading.Lock()

    def wait(self, timeout: float, seen: int) -> None:
        """Sleep until rung, at most `timeout` seconds; return at once if `ann_head` is not `seen`. One thread only.

        A ring by this process before the wait ends it at once too: the poller then drains once more.
        """
        self._asleep[0] = 1
        with self._fence:  # for the read-modify-write in it
            pass
        if not self._rung and int(self._head[0]) == seen and timeout > 0:
            _sleep_while_set(self._asleep, timeout)
        self._rung = False

    def watch(self) -> None:
        """Ask the next producer to ring."""
        self._asleep[0] = 1

    def ring(self) -> None:
        """End the wait of the owner's poller, and those for any hint."""
        self._rung = True
        self._asleep[0] = 0
        with self._fence:  # a rank that sets both words now is woken, or finds `ann_asleep` as it set it
            pass
        self._world.ring()
        _wake_all(self._address)
