"""Terms of objects on their way to another host: times count from now, because each host has a clock of its own."""

from nanokv.device.machines.records import Terms
from nanokv.device.segment.layout import ACCESS_TIME, BITS

_UNTIL = next(bits for bits in BITS if (bits.word, bits.name) == ("TERMS", "until"))
_UNTIL_MASK = (1 << _UNTIL.width) - 1
_LONGEST: int = ACCESS_TIME.value  #: ns: such a time stands for all that are later, and for ever


def relative(terms: Terms, now: int) -> Terms:
    """Terms as of `now` (ns)."""
    return _moved(terms, -now)


def absolute(terms: Terms, now: int) -> Terms:
    """The times of which `relative` made distances, on a host whose clock shows `now` (ns)."""
    return _moved(terms, now)


def _moved(terms: Terms, by: int) -> Terms:
    lease = terms.access & _UNTIL_MASK
    priority = terms.access & ~_UNTIL_MASK
    if lease:
        lease = _later(lease, by) & ACCESS_TIME.value
    return Terms(priority | lease, terms.group, _later(terms.until, by) if terms.until else 0)


def _later(time: int, by: int) -> int:
    return time if time >= _LONGEST else min(max(time + by, 1), _LONGEST)
