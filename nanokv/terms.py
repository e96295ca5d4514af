"""The terms of an object, as one word for the device (`device/protocol/lease.py`): who may evict it, and when."""

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nanokv.arguments import number
from nanokv.device.segment.last_access import NS, lease_until
from nanokv.device.segment.layout import ACCESS_TIME, HIGH, KEPT, LOW, PRIORITY, TERMS_PRIORITY_SHIFT, unpack
from nanokv.errors import InvalidArgument

NO_TERMS = 0

Priority = Literal["low", "normal", "high", "kept"]
PRIORITIES: dict[Priority, int] = {"low": LOW.value, "normal": 0, "high": HIGH.value, "kept": KEPT.value}


@dataclass(frozen=True, slots=True)
class Hold:
    """How an object is held against eviction, for `hold=` of a put and for `NanoKVCache.hold`.

    Attributes:
        seconds: a lease: until its first read, or until so much time is over, the object is not evicted.
        priority: an object of "high" priority lives eight times as long without use as a "normal" one, and one of "low"
            priority an eighth as long. The policies "clock" and "fifo" pass objects of high priority as long as they
            find others. A "kept" object is never evicted; a removal by key still removes it.

    Raises:
        InvalidArgument: one of them is something else.
    """

    seconds: float | None = None
    priority: Priority = "normal"

    def __post_init__(self) -> None:
        if self.seconds is not None:
            _positive(self.seconds)
        if self.priority not in PRIORITIES:
            raise InvalidArgument(f"priority must be one of {', '.join(PRIORITIES)}, not {self.priority!r}")


class Change(NamedTuple):
    """A change of the ACCESS word of an object."""

    without: int  #: the bits that go
    terms: int  #: the bits that come


def terms_of(hold: float | Hold | None) -> int:
    """The terms of a new object, as `lease` takes them: TERMS bits.

    Raises:
        InvalidArgument: `hold` is neither a positive number of seconds, nor a Hold, nor None.
    """
    if hold is None:
        return NO_TERMS
    if isinstance(hold, Hold):
        lease = NO_TERMS if hold.seconds is None else terms_of(hold.seconds)
        return lease | PRIORITIES[hold.priority] << TERMS_PRIORITY_SHIFT.value
    now = time.time_ns()
    return now + int(min(_positive(hold) * NS, ACCESS_TIME.value - now))


def change_to(hold: float | Hold) -> Change:
    """The change that gives an object new terms. Seconds only lease it; a Hold without seconds leaves a lease alone.

    Raises:
        InvalidArgument: as `terms_of`; or `hold` is None.
    """
    if hold is None:
        raise InvalidArgument("hold must be a positive number of seconds or a Hold, not None")
    terms = terms_of(hold)
    without, bits = (PRIORITY.value, unpack("TERMS", "priority", terms)) if isinstance(hold, Hold) else (0, 0)
    gone, come = lease_until(terms) if terms & ACCESS_TIME.value else (0, 0)
    return Change(without | gone, bits | come)


def _positive(hold: object) -> float:
    try:
        found = number("hold", hold)
    except InvalidArgument:
        found = 0.0
    if not found > 0:
        raise InvalidArgument(f"hold must be positive seconds, a Hold, or None, not {hold!r}")
    return found
