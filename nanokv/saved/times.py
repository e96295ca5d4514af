"""Times in a file: by the wall clock of its saving, because a segment's clock begins anew with the machine.

How much time has passed since is told by the clock that nobody sets, if the machine has not started anew since; else by
the wall clock, which may have been set meanwhile. So an object keeps its time to live, and the file ages with it.
"""

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from nanokv.device.segment.clock import boot_id, now_ns
from nanokv.device.segment.last_access import latest
from nanokv.device.segment.layout import WORD


class Moment(NamedTuple):
    """One moment in ns, by both clocks. `boot` names the start of the machine that `clock` counts from; 0: unknown."""

    wall: int
    clock: int
    boot: int

    @classmethod
    def now(cls) -> "Moment":
        """This one."""
        return cls(time.time_ns(), now_ns(), _boot())

    @classmethod
    def stated_in(cls, header: Mapping[str, int]) -> "Moment":
        """The moment when a file was saved. Files of builds before state none: all zeros."""
        return cls(header["saved_wall"], header["saved_clock"], header["saved_boot"])

    def to_wall(self, at: int) -> int:
        """A time of a segment's clock, 0 excepted, by the wall clock."""
        return max(latest(at - self.clock + self.wall), 1) if at else 0

    def from_wall(self, at: int) -> int:
        """`to_wall` of a file that was saved at this moment, by the clock of now."""
        now = Moment.now()
        if self.boot and self.boot == now.boot and self.clock <= now.clock:
            passed = now.clock - self.clock
        else:
            passed = max(now.wall - self.wall, 0)
        return max(latest(max(at - self.wall - passed + now.clock, 1)), 1) if at else 0


@cache
def _boot() -> int:
    name = boot_id()
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=WORD).digest(), "little") if name else 0
