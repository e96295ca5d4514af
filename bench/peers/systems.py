"""All systems, in the order of the tables, and which of them this machine can run."""

from nanokv.bench.peers import isolation
from nanokv.bench.peers.base import System
from nanokv.bench.peers.copy import Copy
from nanokv.bench.peers.gloo import Gloo
from nanokv.bench.peers.lmcache import LMCache
from nanokv.bench.peers.mooncake import MooncakeSharedMemory, MooncakeTCP
from nanokv.bench.peers.nanokv import NanoKV
from nanokv.bench.peers.nanokv_cluster import (
    NanoKVClusterMapped,
    NanoKVClusterNixl,
    NanoKVClusterTCP,
    NanoKVClusterUnix,
)
from nanokv.bench.peers.nanokv_mooncake import NanoKVAsMooncake
from nanokv.bench.peers.nixl import NixlNewHandle, NixlReusedHandle
from nanokv.bench.peers.redis import Redis
from nanokv.bench.peers.shared_memory import SharedMemory

SYSTEMS: dict[str, type[System]] = {
    one.name: one
    for one in (
        NanoKV,
        NanoKVAsMooncake,
        NanoKVClusterMapped,
        NanoKVClusterTCP,
        NanoKVClusterUnix,
        NanoKVClusterNixl,
        MooncakeTCP,
        MooncakeSharedMemory,
        Redis,
        NixlReusedHandle,
        NixlNewHandle,
        SharedMemory,
        Gloo,
        LMCache,
        Copy,
    )
}


def left_out() -> dict[str, str]:
    """The systems that cannot run on this machine, and why."""
    reasons = {name: system.why_not() for name, system in SYSTEMS.items()}
    if isolation.prefix() is None:
        why = "it listens on all interfaces, and this user cannot make a network namespace (unshare --net)"
        reasons |= {name: reasons[name] or why for name, system in SYSTEMS.items() if system.everywhere}
    return {name: why for name, why in reasons.items() if why is not None}


def versions() -> dict[str, str]:
    """The versions of all systems' packages and programs that are on this machine."""
    return {name: number for system in SYSTEMS.values() for name, number in system.versions().items()}
