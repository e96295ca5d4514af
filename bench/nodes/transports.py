"""How objects, and the bare bytes beside them, move between two processes of this machine."""

from collections.abc import Mapping
from typing import NamedTuple

_QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"}


class Transport(NamedTuple):
    """One way.

    Attributes:
        link: as of `ClusterOptions`.
        environment: of both processes.
        is_near: over the wire: by the UNIX socket. Else both behave as on two hosts, and take TCP.
    """

    link: str
    environment: Mapping[str, str]
    is_near: bool = True


#: by name
TRANSPORTS: Mapping[str, Transport] = {
    "wire, UNIX socket": Transport("wire", {}),
    "wire, TCP": Transport("wire", {}, is_near=False),
    "NIXL, shared memory": Transport("nixl", {"UCX_TLS": "tcp,sm,self"} | _QUIET),
    "NIXL, TCP": Transport("nixl", {"UCX_TLS": "tcp,self"} | _QUIET, is_near=False),
}
