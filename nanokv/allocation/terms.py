"""The terms of an object as a caller states them: who may evict it, and when it goes by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nanokv.arguments import number
from nanokv.device.machines.records import NO_TERMS, Terms
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import NS, latest, lease_until
from nanokv.device.segment.layout import ACCESS_TIME, HIGH, KEPT, LOW, PRIORITY, TERMS_PRIORITY_SHIFT, unpack
from nanokv.errors import InvalidArgument

Priority = Literal["low", "normal", "high", "kept"]
PRIORITIES: dict[Priority, int] = {"low": LOW.value, "normal": 0, "high": HIGH.value, "kept": KEPT.value}

GroupOf = Callable[[str], int]  #: the word of a group's name: `Hasher.group`


@dataclass(frozen=True, slots=True)
class Hold:
    """How an object is held, for `hold=` of a put and for `NanoKVCache.hold`.

    Attributes:
        seconds: a lease: until its first read, or until so much time is over, the object is not evicted.
        priority: an object of "high" priority lives eight times as long without use as a "normal" one, and one of "low"
            priority an eighth as long. The policies "clock" and "fifo" pass objects of high priority as long as they
            find others. A "kept" object is never evicted; a removal by key still removes it.
        ttl: seconds after which the owner removes the object, used or not: half a second late at most, and 2.5 us more
            per header slot in use. Neither a lease nor a priority puts it off, a pin does.
        group: a name: `NanoKVCache.drop_group` removes all objects of a group at once. Groups of two identities or
            namespaces have nothing in common.

    Raises:
        InvalidArgument: one of them is something else.
    """

    seconds: float | None = None
    priority: Priority = "normal"
    ttl: float | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "ttl"):
            if getattr(self, name) is not None:
                _positive(getattr(self, name), f"{name} of a Hold must be a positive number or None")
        if self.priority not in PRIORITIES:
            raise InvalidArgument(f"priority must be one of {', '.join(PRIORITIES)}, not {self.priority!r}")
        if self.group is not None and not (isinstance(self.group, str) and self.group):
            raise InvalidArgument(f"group must be a non-empty str or None, not {self.group!r}")


class TermsChange(NamedTuple):
    """A change of the terms of an object that exists."""

    without: int  #: the bits of its ACCESS word that go
    access: int  #: the bits that come
    group: int | None  #: None: stays as it is
    until: int | None


def check_hold(hold: float | Hold | None) -> None:
    """Raise InvalidArgument if `hold` is neither a positive number of seconds, nor a Hold, nor None."""
    if hold is not None and not isinstance(hold, Hold):
        _positive(hold, "hold must be positive seconds, a Hold, or None")


def terms_of(hold: float | Hold | None, group_of: GroupOf) -> Terms:
    """The terms of a new object.

    Raises:
        InvalidArgument: as `check_hold`.
    """
    if hold is None:
        return NO_TERMS
    check_hold(hold)
    if not isinstance(hold, Hold):
        return Terms(_ns_after(hold))
    access = 0 if hold.seconds is None else _ns_after(hold.seconds)
    return Terms(
        access | PRIORITIES[hold.priority] << TERMS_PRIORITY_SHIFT.value,
        0 if hold.group is None else group_of(hold.group),
        0 if hold.ttl is None else _ns_after(hold.ttl),
    )


def change_to(hold: float | Hold, group_of: GroupOf) -> TermsChange:
    """The change that gives an object other terms: seconds lease it; a Hold changes the priority, and what it states.

    Raises:
        InvalidArgument: as `check_hold`; or `hold` is None.
    """
    if hold is None:
        raise InvalidArgument("hold must be a positive number of seconds or a Hold, not None")
    terms = terms_of(hold, group_of)
    without, access = lease_until(terms.access) if terms.access & ACCESS_TIME.value else (0, 0)
    if isinstance(hold, Hold):
        without, access = without | PRIORITY.value, access | int(unpack("TERMS", "priority", terms.access))
    return TermsChange(without, access, terms.group or None, terms.until or None)


def _ns_after(seconds: float) -> int:
    """The time so many seconds from now, in ns; at most the latest that an ACCESS word can state."""
    return latest(now_ns() + seconds * NS)


def _positive(given: object, rule: str) -> None:
    try:
        if number("it", given) > 0:
            return
    except InvalidArgument:
        pass
    raise InvalidArgument(f"{rule}, not {given!r}")
