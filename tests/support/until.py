"""Waits of tests for what another thread or process does."""

import time
from collections.abc import Callable

PAUSE = 0.005  #: seconds


def until(
    condition: Callable[[], object],
    what: str | Callable[[], object] = "the condition of the test",
    seconds: float = 60.0,
) -> None:
    """Look at a condition again and again, until it is true.

    Args:
        what: what is waited for, or a function that says how it stands: for the message of the AssertionError.
        seconds: far above the usual; then the test fails.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not after {seconds:.0f} s: {what if isinstance(what, str) else what()}"
        time.sleep(PAUSE)
