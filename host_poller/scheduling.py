"""How the system schedules the poller's thread: its sleeps end on time, and it interrupts nobody."""

import ctypes
import os
import sys

_SET_TIMERSLACK = 29  # prctl's number


def end_sleeps_on_time() -> bool:
    """Let the sleeps of the calling thread end within about a microsecond. False where the system cannot.

    Linux lets each end up to 50 µs late, to wake processors less often.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        done: int = ctypes.CDLL(None).prctl(_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    except (OSError, AttributeError):  # no such library, or function
        return False
    return done == 0


def interrupt_nobody() -> bool:
    """Let the calling thread wait when it wakes up on a processor that works. False where the system cannot.

    A thread that sleeps for microseconds is mostly woken where it ran last, also beside an idle processor. If a
    producer runs there, each of its pauses costs that producer two changes of threads. One of the policy for batches
    waits instead, until an idle processor takes it over, or the producer's time is up; then it stays where it does not
    disturb.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):  # refused, for instance to a real-time process; or no such system
        return False
    return True
