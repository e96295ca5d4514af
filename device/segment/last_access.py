"""ACCESS words as a host reads them from header records: times of last use, and terms (`protocol/lease.py`)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import ACCESS_TIME, HIGH, KEPT, LEASED, LOW, PRIORITY_STEP, unpack
from nanokv.device.segment.views import SegmentView

NS = 1_000_000_000  #: per second


def time_of(words: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The time of each object's last use in ns; of a lease, its end. `words`: `last_access` of headers."""
    return words.astype(np.uint64) & np.uint64(ACCESS_TIME.value)


def lease_until(until: int) -> tuple[int, int]:
    """The bits of an ACCESS word that go, and those that come, where an object is leased until a time in ns."""
    return ACCESS_TIME.value | LEASED.value, until & ACCESS_TIME.value | LEASED.value


def latest(until: float) -> int:
    """A time in ns as an ACCESS word can state it: one that lies beyond counts as the last one, 73 years after 0."""
    return int(min(until, ACCESS_TIME.value)) & ACCESS_TIME.value


def move_times(view: SegmentView, by: int) -> None:
    """Add `by` ns to all times of a segment in which nobody works: the clock began anew (`segment/clock.py`)."""
    words = view.headers["last_access"]
    times = np.clip(time_of(words).astype(np.int64) + by, 0, ACCESS_TIME.value).astype(np.uint64)
    view.headers["last_access"] = words & ~np.uint64(ACCESS_TIME.value) | times & np.uint64(ACCESS_TIME.value)
    until = np.minimum(view.labels["until"], np.uint64(ACCESS_TIME.value)).astype(np.int64)
    view.labels["until"] = np.where(until > 0, np.maximum(until + by, 1), 0)


def is_leased(word: int, now: int) -> bool:
    """Whether an object is under a lease at the time `now`, in ns."""
    return word & LEASED.value == LEASED.value and word & ACCESS_TIME.value > now


def stays(words: npt.NDArray[Any], now: int) -> npt.NDArray[np.bool_]:
    """Whether each object is kept, or under a lease at the time `now`, in ns."""
    words = words.astype(np.uint64)
    leased = (words & np.uint64(LEASED.value)) == LEASED.value
    kept = unpack("ACCESS", "priority", words) == KEPT.value
    result: npt.NDArray[np.bool_] = kept | (leased & (time_of(words) > np.uint64(now)))
    return result


def idle(words: npt.NDArray[Any], now: int) -> npt.NDArray[np.int64]:
    """The time in ns since each object's last use, as its priority counts it. Of a lease: 0 until its end."""
    words = words.astype(np.uint64)
    ages = np.maximum(now - time_of(words).astype(np.int64), 0)
    priority = unpack("ACCESS", "priority", words)
    by_priority = [priority == HIGH.value, priority == LOW.value]
    return np.select(by_priority, [ages >> PRIORITY_STEP.value, ages << PRIORITY_STEP.value], ages)
