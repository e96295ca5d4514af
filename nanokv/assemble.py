"""Puts a cache together: heap, machine, path and poller, for one rank or for several virtual ones in a process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nanokv.config import Options
from nanokv.device.geometry import Geometry
from nanokv.device.machine import Machine
from nanokv.device.views import SegmentView
from nanokv.device_path import DevicePath
from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap
from nanokv.heap.shm import ShmHeap
from nanokv.host_poller.poller import Poller
from nanokv.path import Path

if TYPE_CHECKING:
    from nanokv.device.machine import Words


@dataclass(frozen=True)
class Parts:
    """What a cache is made of."""

    heap: Heap
    machine: Machine
    path: Path
    poller: Poller
    table: "Words"  #: the private world table; its last words are the bases


def plan_geometry(heap_bytes: int, page_bytes: int, world_size: int, options: Options) -> Geometry:
    """The geometry of a world; every wrong size is an InvalidArgument that names it."""
    try:
        return Geometry.plan(
            heap_bytes,
            page_bytes,
            world_size,
            size_classes=options.size_classes,
            max_objects=options.max_objects,
            ring_slots=options.ring_slots,
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def attach_shm(name: str, geometry: Geometry, rank: int, options: Options) -> Heap:
    """Join (or make) a world of processes on this host."""
    return ShmHeap.attach(
        name,
        geometry,
        rank,
        mode=options.alloc,
        may_evict=options.evict,
        water=options.water,
        timeout=options.attach_timeout,
        on_stale=options.on_stale,
    )


def assemble(heap: Heap, master_rank: int, options: Options) -> Parts:
    """Machine, path and poller of one rank. On failure the heap is closed again."""
    try:
        table = heap.geometry.world_table(heap.rank, heap.incarnation, heap.bases, checksum=options.checksum)
        machine = _machine(heap, table)
        path: Path = DevicePath(machine)
        if options.alloc == "host":
            from nanokv.compat_v1.host_path import HostPath  # brings torch.distributed, which v2 does not need

            path = HostPath(
                heap,
                machine,
                master_rank,
                may_evict=options.evict,
                water=options.water,
                policy=options.policy,
                write_timeout=options.write_timeout,
                rpc_timeout=options.rpc_timeout,
            )
        poller = Poller(machine, heap, write_timeout=options.write_timeout, reclaims=options.alloc == "device")
        poller.start()
    except BaseException:
        heap.close()
        raise
    return Parts(heap, machine, path, poller, table)


def _machine(heap: Heap, table: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Machine:
    views = [heap.host_view(rank) for rank in range(heap.world_size)]
    if all(view is not None for view in views):
        from nanokv.device.native_machine import NativeMachine

        return NativeMachine(
            heap.geometry, table, [SegmentView(v, heap.geometry) for v in views if v is not None], heap.wake
        )
    from nanokv.device.launch import LaunchMachine

    return LaunchMachine(heap.geometry, table, [heap.segment(r) for r in range(heap.world_size)], heap.device)
