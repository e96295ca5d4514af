"""`hold=` of a put: a lease, for which an object is not evicted before it is read (`device/protocol/lease.py`)."""

import time

from nanokv.device.segment.last_access import NS
from nanokv.device.segment.layout import ACCESS_TIME
from nanokv.errors import InvalidArgument

NO_LEASE = 0


def lease_until(hold: float | None) -> int:
    """The time in ns at which a lease of `hold` seconds ends that begins now; 0 for None.

    Raises:
        InvalidArgument: `hold` is not a positive number.
    """
    if hold is None:
        return NO_LEASE
    if isinstance(hold, bool) or not isinstance(hold, int | float) or not hold > 0:
        raise InvalidArgument(f"hold must be positive seconds, or None for no lease, not {hold!r}")
    longest = ACCESS_TIME.value - time.time_ns()
    return time.time_ns() + int(min(hold * NS, longest))
