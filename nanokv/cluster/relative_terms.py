"""Terms of objects on their way to another host: times count from now, because each host has a clock of its own."""

from nanokv.device.machines.records import Terms
from nanokv.device.segment.last_access import latest
from nanokv.device.segment.layout import BITS

_UNTIL = next(bits for bits in BITS if (bits.word, bits.name) == ("TERMS", "until"))
_UNTIL_MASK = (1 << _UNTIL.width) - 1


def relative(terms: Terms, now: int) -> Terms:
    """Terms as of `now` (ns)."""
    return _moved(terms, -now)


def absolute(terms: Terms, now: int) -> Terms:
    """Of `relative`, on a host whose clock shows `now` (ns)."""
    return _moved(terms, now)


def _moved(terms: Terms, by: int) -> Terms:
    lease = terms.access & _UNTIL_MASK
    priority = terms.access & ~_UNTIL_MASK
    if lease:
        lease = latest(max(lease + by, 1))
    return Terms(priority | lease, terms.group, max(latest(terms.until + by), 1) if terms.until else 0)
