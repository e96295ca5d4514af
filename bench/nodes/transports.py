"""What moves bytes between two processes of this machine: UCX's shared memory, or TCP over loopback."""

from collections.abc import Mapping

#: the environment of both processes, by name
TRANSPORTS: Mapping[str, Mapping[str, str]] = {
    "shared memory": {"UCX_TLS": "tcp,sm,self", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"},
    "TCP": {"UCX_TLS": "tcp,self", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"},
}
