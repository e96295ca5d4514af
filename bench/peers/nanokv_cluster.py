"""NanoKV between two nodes of a cluster: in mapped memory, over the wire, and over NIXL."""

import itertools
import os
import time
from collections.abc import Sequence
from typing import ClassVar

import torch

from nanokv.bench.nodes.transports import TRANSPORTS
from nanokv.bench.peers.base import Guarantees, System, SystemFailed
from nanokv.bench.peers.server import Ours
from nanokv.bench.suite.settings import MIB

_PAGE = 4096
_SMALL_HEAP = 1 * MIB  #: of this node, which has no objects


class _NanoKVCluster(System):
    """The owner of the objects is the home of their keys, as for any key that no other node is preferred for."""

    module = "zmq"
    packages: ClassVar[tuple[str, ...]] = ("nanokv", "pyzmq")
    transport: ClassVar[str]

    def start(self) -> None:
        way = TRANSPORTS[self.transport]
        os.environ.update(way.environment)
        from nanokv import NanoKVCache
        from nanokv.bench.nodes.owner import NODE, PATIENCE
        from nanokv.cluster import NanoKVCluster, place

        if not way.is_near:
            place.here = str  # type: ignore[assignment]  # nobody knows where it is, so it takes no UNIX socket

        folder = self.folder()
        members = folder / "members"
        members.mkdir()
        page = max(self.ring.size, _PAGE)
        heap = (self.ring.slots + 2) * page + 64 * MIB
        arguments: list[int | str] = [str(members), way.link, way.guests, heap, page, 0, page]
        Ours("nanokv.bench.nodes.owner", folder, self.stack, arguments, way.environment).note()
        world = self.stack.enter_context(NanoKVCache(_SMALL_HEAP, page_bytes=_PAGE))
        cluster = NanoKVCluster(world, f"file://{members}", node="client", timeout=PATIENCE, link=way.link)
        self._cluster, self._there = self.stack.enter_context(cluster), NODE
        if self._there not in cluster.nodes:
            raise SystemFailed(f"the cluster has the nodes {', '.join(cluster.nodes)}")
        while way.is_mapped and cluster.member.mapped.of(cluster.member.nodes[self._there]) is None:
            time.sleep(0.01)

    def buffer(self) -> torch.Tensor:
        tensor = super().buffer()
        self._cluster.register(tensor)
        return tensor

    def key(self, i: int) -> str:
        names = (f"object {i} {k}" for k in itertools.count())
        return next(name for name in names if self._cluster.home(name) == self._there)

    def put(self, key: str, tensor: torch.Tensor) -> None:
        self._cluster.put(key, tensor)

    def get_into(self, key: str, tensor: torch.Tensor) -> None:
        self._cluster.get(key, dst=tensor)

    def exists(self, key: str) -> bool:
        return self._cluster.exists(key)

    def remove(self, key: str) -> None:
        self._cluster.remove(key)

    def exists_many(self, keys: Sequence[str]) -> Sequence[bool]:
        return self._cluster.exists_many(keys)


class NanoKVClusterMapped(_NanoKVCluster):
    """Objects in the owner's memory, which this process has mapped: as between processes of a host and a user."""

    name = "NanoKV cluster, mapped memory"
    transport = "mapped memory"
    guarantees = Guarantees(
        keys="yes, hashed in the call",
        allocation="by the caller, in the owner's memory",
        process="the memory is another process's, which need not run",
        copies="one: out of the caller's memory, and into the object",
        checksum="off, as by default",
        promise="every node can get the object, which has one copy; torn reads are noticed and repeated",
    )


class NanoKVClusterTCP(_NanoKVCluster):
    """All bytes over the wire, by TCP, as between hosts."""

    name = "NanoKV cluster, TCP"
    transport = "wire, TCP"
    guarantees = Guarantees(
        keys="yes, hashed in the call",
        allocation="by the owner, which is asked by each put",
        process="the memory is another process's, where a native thread answers",
        copies="by the kernel's TCP over loopback: out of the caller's memory, and into the object",
        checksum="off, as by default",
        promise="every node can get the object, which has one copy; torn reads are noticed and repeated",
    )


class NanoKVClusterUnix(_NanoKVCluster):
    """All bytes over the wire, by a UNIX socket, as between processes of a host."""

    name = "NanoKV cluster, UNIX socket"
    transport = "wire, UNIX socket"
    guarantees = NanoKVClusterTCP.guarantees._replace(
        copies="by the kernel: out of the caller's memory, and into the object"
    )


class NanoKVClusterNixl(_NanoKVCluster):
    """A cluster over NIXL's shared memory: a get reads the owner's memory, which need not run."""

    name = "NanoKV cluster, NIXL shared memory"
    packages = ("nanokv", "nixl", "nixl-cu12", "pyzmq")
    transport = "NIXL, shared memory"
    guarantees = NanoKVClusterTCP.guarantees._replace(
        process="the memory is another process's, which is asked by puts alone",
        copies="1 and 2, by the kernel (cross-memory attach), and out of memory that is registered",
    )
