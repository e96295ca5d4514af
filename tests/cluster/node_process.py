"""A node in a process of its own, and the handle by which a test holds one."""

import ctypes
import os
import time
from functools import partial
from typing import Any

import torch

import nanokv
from nanokv.check.command_process import Commands, Program
from nanokv.cluster import NanoKVCluster
from nanokv.device.protocol.status import Status
from nanokv.errors import NanoKVError
from nanokv.transfer.descriptors import what_of
from tests.support.until import until

from .conftest import HEAP_BYTES, PAGE, PATIENCE

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def value_of(key: str, nbytes: int) -> torch.Tensor:
    """The bytes that tests put under a key."""
    seed = sum(key.encode()) % 251
    return (torch.arange(nbytes, dtype=torch.int64) * 7 + seed).to(torch.uint8)


class NodeCommands(Commands):
    """What the process does; one method a command."""

    raises = (NanoKVError,)

    def __init__(self, node: str, url: str, world: dict[str, Any], options: dict[str, Any], *, apart: bool) -> None:
        if apart and ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
            raise PermissionError(ctypes.get_errno(), "this user makes no network namespaces")
        self._world = nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE, **world)
        self._cluster = NanoKVCluster(self._world, url, node=node, **options)

    def nodes(self) -> list[str]:
        """The nodes that it knows."""
        return self._cluster.nodes

    def put(self, key: str, nbytes: int, node: str | None = None) -> None:
        """Put the bytes of a key."""
        target = None if node is None else (node, None)
        self._cluster.put(key, value_of(key, nbytes), preferred_segment=target)

    def get(self, key: str, nbytes: int) -> str:
        """Whether a key has the right bytes: "right", "wrong" or "none"."""
        got = self._cluster.get(key, None)
        return "none" if got is None else "right" if torch.equal(got, value_of(key, nbytes)) else "wrong"

    def puts(self, prefix: str, count: int, nbytes: int, node: str) -> int:
        """Put many at once: how many were stored."""
        keys = [f"{prefix}{i}" for i in range(count)]
        return self._cluster.put_many(
            keys, [value_of(key, nbytes) for key in keys], preferred_segment=(node, None)
        ).count(None)

    def map(self, node: str) -> None:
        """Wait until the memory of a node is mapped."""
        member = self._cluster.member
        until(lambda: member.mapped.of(member.nodes[node]) is not None)

    def leave(self) -> bool:
        """Leave the cluster."""
        self._cluster.close()
        return True

    def begin(self, key: str, nbytes: int, node: str) -> bool:
        """Begin to put bytes in the memory of a node, which this one has mapped, and leave them unfinished."""
        self.map(node)
        member = self._cluster.member
        world = member.mapped[member.nodes[node]]
        what = what_of(torch.uint8, torch.Size((nbytes,)))
        self._kept = world  # or it would be no guest any more
        begun = world.allocation.begin(self._cluster.digest(key), nbytes, None, what.descriptor, plan=False)
        world.machine.enter(0)  # as amid a step that moves pages
        return begun.status == Status.OK

    def fork(self) -> int:
        """Leave a child of a fork behind, which does nothing until it is killed: its number."""
        child = os.fork()
        while not child:
            time.sleep(60.0)
        return child

    def put_forever(self, prefix: str, nbytes: int, node: str) -> None:
        """Put until the process is killed."""
        i = 0
        while not self.told():
            keys = [f"{prefix}{i + k}" for k in range(16)]
            self._cluster.put_many(keys, [value_of(key, nbytes) for key in keys], preferred_segment=(node, None))
            i += 16

    def generation(self) -> int:
        """Of its world, which it does not compare with others."""
        return self._world.generation()

    def at_end(self) -> None:
        """Leave."""
        self._cluster.close()
        self._world.close()


class NodeProcess(Program):
    """A running process: a member at once.

    Args:
        apart: it is in a network namespace of its own, in which there is nothing, as a container might be.
    """

    end_seconds = 60.0

    def __init__(
        self, node: str, url: str, world: dict[str, Any] | None = None, *, apart: bool = False, **options: Any
    ) -> None:
        usual = {"ttl": 2.0, "timeout": PATIENCE}
        commands = partial(NodeCommands, node, url, world or {}, usual | options, apart=apart)
        super().__init__(f"node {node}", commands)
        self.ask("nodes")
