"""Waiting for objects that other ranks write: look-ups at growing intervals, up to a deadline."""

import time
from collections.abc import Callable

from nanokv.errors import WaitTimeout
from nanokv.types import KeyDigest

_LONGEST_PAUSE = 0.001  #: seconds between two look-ups, at most


def wait_until_ready(ready: Callable[[KeyDigest], bool], keys: list[KeyDigest], timeout: float) -> None:
    """Return when `ready` has been true of every key.

    Raises:
        WaitTimeout: after `timeout` seconds, with the number of missing keys.
    """
    started = time.monotonic()
    pause = 0.0
    missing = keys
    while True:
        missing = [key for key in missing if not ready(key)]
        waited = time.monotonic() - started
        if not missing:
            return
        if waited >= timeout:
            raise WaitTimeout(f"{len(missing)} of {len(keys)} objects are not READY after {timeout} s")
        time.sleep(min(pause, timeout - waited))
        pause = min(_LONGEST_PAUSE, waited / 8)  # at first a yield; later an eighth of the time spent so far
