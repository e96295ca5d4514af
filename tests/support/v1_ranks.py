"""Ranks of a v1 world, in this process or in one of their own, for tests."""

import time
from typing import Any

from nanokv.check.machine.rank_process import RankCommands
from nanokv.compat_v1.host_allocation import HostAllocation
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import NanoKVError
from nanokv.heap import WorldSpec
from nanokv.heap.shm import ShmHeap
from nanokv.types import KeyDigest

PAGE = 4096
PAGES = 32
RPC_TIMEOUT = 2.0
MASTER = 0
RAW = (0,) * 8


def key_of(key: int) -> KeyDigest:
    return KeyDigest(key * 7919, key * 104729)


class HostRank(RankCommands):
    """A rank: heap, machine and allocation. `options`: of `HostAllocation`."""

    raises = (NanoKVError,)

    def __init__(self, rank: int, n: int, name: str, **options: Any) -> None:
        self.rank = rank
        self.spec = WorldSpec(
            Geometry.plan(PAGES * PAGE, PAGE, n), mode="host", may_evict=False, water=(85, 95), name=name
        )
        self.options: dict[str, Any] = {"may_evict": False, "rpc_timeout": RPC_TIMEOUT} | options

    def attach(self) -> int:
        """Returns the incarnation."""
        self.heap = heap = ShmHeap.attach(self.spec, self.rank)
        table = heap.geometry.world_table(self.rank, heap.incarnation, heap.bases)
        self.views = [SegmentView(heap.host_view(r), heap.geometry) for r in range(heap.world_size)]
        self.machine = NativeMachine(heap.geometry, table, self.views, heap.wake)
        self.allocation = HostAllocation(heap, self.machine, MASTER, **self.options)
        return heap.incarnation

    def put(self, key: int, nbytes: int, owner: int | None) -> int:
        begun = self.open(key, nbytes, owner)
        if begun.status != Status.OK:
            return begun.status
        start = begun.place.payload
        self.views[begun.place.owner].raw[start : start + nbytes] = key % 251
        return self.allocation.finish(key_of(key), begun)

    def open(self, key: int, nbytes: int, owner: int | None, plan: bool = False) -> Begun:
        return self.allocation.begin(key_of(key), nbytes, owner, RAW, plan=plan)

    def get(self, key: int) -> tuple[int, bytes]:
        """The status, and the distinct bytes in the payload."""
        found = self.allocation.locate(key_of(key))
        payload = self.views[found.place.owner].raw[found.place.payload : found.place.payload + found.place.nbytes]
        return found.status, bytes(sorted(set(payload.tobytes())))

    def remove(self, key: int) -> int:
        return self.allocation.remove(key_of(key))

    def exists(self, key: int) -> int:
        return self.allocation.exists(key_of(key))

    def finish(self, key: int, write: Begun) -> int:
        return self.allocation.finish(key_of(key), write)

    def abort(self, key: int, write: Begun) -> int:
        return self.allocation.abort(key_of(key), write)

    def counts(self) -> Any:
        assert self.allocation.master is not None
        return self.allocation.master.counts()

    def round_trips(self, count: int) -> list[float]:
        """Seconds of OPEN_FOR_WRITE, for keys from 1000 on; each is aborted again."""
        took = []
        for key in range(1000, 1000 + count):
            started = time.perf_counter()
            write = self.open(key, PAGE, None)
            took.append(time.perf_counter() - started)
            self.abort(key, write)
        return took

    def close(self) -> None:
        self.allocation.close()
        self.heap.close()
