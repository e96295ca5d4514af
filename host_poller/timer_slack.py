"""Lets the sleeps of a thread end on time: Linux lets each end up to 50 µs late, to wake processors less often."""

import ctypes
import sys

_SET_TIMERSLACK = 29  # prctl's number


def end_sleeps_on_time() -> bool:
    """Let the sleeps of the calling thread end within about a microsecond. False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        done: int = ctypes.CDLL(None).prctl(_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    except (OSError, AttributeError):  # no such library, or function
        return False
    return done == 0
