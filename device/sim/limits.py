"""A limit for what the simulated machine runs: code that makes no access to memory for long ends with an error.

A loop without an access is no step of an execution, so the bounds on steps never see it, and nothing else would end it.
One thread of the process looks, from time to time, whether the code in the limit has made a step; if not, and the
thread that runs it has taken so much time of a CPU meanwhile, the exception `Stuck` is raised there.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE = 10.0  #: seconds of a CPU: a whole execution takes some milliseconds
_LOOK = 0.25  #: seconds between two looks


class Stuck(Exception):
    """Code made no access to memory for PATIENCE: it loops on something that nobody changes."""

    def __str__(self) -> str:
        return f"no access to memory in {PATIENCE:g} s of a CPU: a loop that does not end"


@dataclass
class _Limit:
    steps: Callable[[], int]
    thread: int
    seen: int = -1
    since: float = 0.0  #: the thread's time of a CPU at the last step that was seen


_lock = threading.Lock()
_limits: list[_Limit] = []
_started: list[threading.Thread] = []


@contextmanager
def limited(steps: Callable[[], int]) -> Iterator[None]:
    """Limit the block, which is pure Python and in which `steps()` grows.

    Raises:
        Stuck: from anywhere in the block.
    """
    limit = _Limit(steps, threading.get_ident())
    with _lock:
        _limits.append(limit)
        if not _started:
            _started.append(threading.Thread(target=_look_for_ever, name="nanokv-simulation-limit", daemon=True))
            _started[0].start()
    try:
        yield
    finally:
        with _lock:
            _limits.remove(limit)


def _look_for_ever() -> None:
    while True:
        time.sleep(_LOOK)
        with _lock:
            for limit in _limits:
                _look(limit)


def _look(limit: _Limit) -> None:
    steps, now = limit.steps(), time.clock_gettime(time.pthread_getcpuclockid(limit.thread))
    if steps != limit.seen:
        limit.seen, limit.since = steps, now
    elif now - limit.since > PATIENCE:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(limit.thread), ctypes.py_object(Stuck))
        limit.since = now
