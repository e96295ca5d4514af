"""The clock of all times in a segment: of last uses, ends of leases and of lives. All processes of a host read it.

It is Linux' CLOCK_BOOTTIME. Nobody sets it, so no step of the wall clock (NTP, an operator, a virtual machine that goes
on) ends a lease or keeps an object for ever. Unlike CLOCK_MONOTONIC it also counts while the machine is suspended: a
`ttl` says how old KV may become, and it grows old meanwhile.

It begins anew with each start of the machine, and is another one in a time namespace (time_namespaces(7)):
- times leave a host only as distances from now (`nanokv/cluster/relative_terms.py`, `nanokv/saved/times.py`);
- a segment that outlived its machine says when its owner swept it last (`swept_at`), and its times are moved
  (`last_access.move_times`);
- ranks of one world whose namespaces differ are refused (`nanokv/heap/world_entry.py`).
"""

import time
from pathlib import Path

#: Its number, of `time.clock_gettime`. A system without it never keeps a segment when it is suspended.
NUMBER: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_OFFSETS = Path("/proc/self/timens_offsets")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SECOND = 1_000_000_000


def now_ns() -> int:
    """The time, in ns."""
    return time.clock_gettime_ns(NUMBER)


def offset_ns() -> int:
    """How far this process' clock is ahead of the host's: 0 but in a time namespace."""
    try:
        lines = _OFFSETS.read_text().splitlines()
    except OSError:  # a kernel without time namespaces
        return 0
    for words in map(str.split, lines):
        if len(words) == 3 and words[0] == "boottime":
            return int(words[1]) * _SECOND + int(words[2])
    return 0


def boot_id() -> str:
    """A name of this start of the machine; empty where the system tells none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
