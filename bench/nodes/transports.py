"""How objects, and the bare bytes beside them, move between two processes of this machine."""

import os
from collections.abc import Mapping
from typing import NamedTuple

_QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"}


class Transport(NamedTuple):
    """One way.

    Attributes:
        link: as of `ClusterOptions`.
        environment: of both processes.
        is_near: over the wire: by the UNIX socket. Else both behave as on two hosts, and take TCP.
        is_mapped: the nodes that call have mapped the owner's memory.
    """

    link: str
    environment: Mapping[str, str]
    is_near: bool = True
    is_mapped: bool = False

    @property
    def guests(self) -> int:
        """How many the owner lets in."""
        return 2 if self.is_mapped else 0


#: by name
TRANSPORTS: Mapping[str, Transport] = {
    "mapped memory": Transport("wire", {}, is_mapped=True),
    "wire, UNIX socket": Transport("wire", {}),
    "wire, TCP": Transport("wire", {}, is_near=False),
    "NIXL, shared memory": Transport("nixl", {"UCX_TLS": "tcp,sm,self"} | _QUIET),
    "NIXL, TCP": Transport("nixl", {"UCX_TLS": "tcp,self"} | _QUIET, is_near=False),
}


def take_half(number: int) -> None:
    """Let this process run on one half of the processors, the first or the second: 0, 1.

    Else the system puts both ends on one processor at times, where nothing has to wake, and at times on two: medians
    of the same call are then 15 or 55 us by chance.
    """
    processors = sorted(os.sched_getaffinity(0))
    middle = len(processors) // 2
    if middle:
        os.sched_setaffinity(0, processors[middle:] if number else processors[:middle])
