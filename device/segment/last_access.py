"""ACCESS words as a host reads them from header records: times of last use, and leases (`protocol/lease.py`)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import ACCESS_TIME, LEASED

NS = 1_000_000_000  #: per second


def time_of(words: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The time of each object's last use in ns; of a lease, its end. `words`: `last_access` of headers."""
    return words.astype(np.uint64) & np.uint64(ACCESS_TIME.value)


def is_leased(words: npt.NDArray[Any], now: int) -> npt.NDArray[np.bool_]:
    """Whether each object is under a lease at the time `now`, in ns."""
    leased = (words.astype(np.uint64) & np.uint64(LEASED.value)) == LEASED.value
    result: npt.NDArray[np.bool_] = leased & (time_of(words) > np.uint64(now))
    return result
