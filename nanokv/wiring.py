"""Puts a cache together: heap, machine, path and poller, for one rank or for several virtual ones in a process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.config import Options, job_name
from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import InvalidArgument
from nanokv.heap import open_heap
from nanokv.heap.base import Heap
from nanokv.heap.local import LocalWorld
from nanokv.host_poller.poller import Poller

if TYPE_CHECKING:
    from nanokv.device.machines.records import Words


@dataclass(frozen=True)
class Parts:
    """What a cache is made of."""

    heap: Heap
    machine: Machine
    allocation: Allocation
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
            shards=(None if _on_gpu(options) else 1) if options.shards is None else options.shards,
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def _on_gpu(options: Options) -> bool:
    """True if the provider that is asked for lays segments on GPUs."""
    if options.heap in ("torch_symm", "iris"):
        return True
    device = options.heap_options.get("device", "cpu")
    try:
        several = [device] if isinstance(device, str | torch.device) else list(device)
        return any(torch.device(each).type != "cpu" for each in several)
    except (RuntimeError, TypeError):
        return False  # the provider says what is wrong with it


def attach(name: str | None, geometry: Geometry, rank: int, options: Options) -> Heap:
    """Join (or make) a world of the provider that is asked for: processes on this host, or this one alone.

    Raises:
        InvalidArgument: an option that the provider does not have, or more ranks than it can have.
    """
    kind = options.heap or ("local" if name is None and geometry.world_size == 1 else "shm")
    how: dict[str, Any] = {"mode": options.alloc, "may_evict": options.evict, "water": options.water}
    if kind != "local":
        how["timeout"] = options.attach_timeout
    if kind == "shm":
        how["on_stale"] = options.on_stale
    try:
        if kind != "local":
            return open_heap(kind, name or job_name(), geometry, rank, **how, **options.heap_options)
        if geometry.world_size > 1:
            raise InvalidArgument("heap='local' has all its ranks in one process: make them with nanokv.local_world")
        return LocalWorld(geometry, **how, **options.heap_options).heap(0)
    except TypeError as error:
        raise InvalidArgument(f"heap_options of heap={kind!r}: {error}") from None


def assemble(heap: Heap, master_rank: int, options: Options) -> Parts:
    """Machine, path and poller of one rank. On failure the heap is closed again."""
    try:
        table = heap.geometry.world_table(heap.rank, heap.incarnation, heap.bases, checksum=options.checksum)
        machine = _machine(heap, table)
        allocation: Allocation = ProducerAllocation(machine)
        if options.alloc == "host":
            from nanokv.compat_v1.host_allocation import (
                HostAllocation,  # brings torch.distributed, which v2 does not need
            )

            allocation = HostAllocation(
                heap,
                machine,
                master_rank,
                may_evict=options.evict,
                water=options.water,
                policy=options.policy,
                write_timeout=options.write_timeout,
                rpc_timeout=options.rpc_timeout,
                checksum=options.checksum,
            )
        poller = Poller(machine, heap, write_timeout=options.write_timeout, reclaims=options.alloc == "device")
        poller.start()
    except BaseException:
        heap.close()
        raise
    return Parts(heap, machine, allocation, poller, table)


def _machine(heap: Heap, table: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Machine:
    views = [heap.host_view(rank) for rank in range(heap.world_size)]
    if all(view is not None for view in views):
        from nanokv.device.machines.native import NativeMachine

        return NativeMachine(
            heap.geometry, table, [SegmentView(v, heap.geometry) for v in views if v is not None], heap.wake
        )
    from nanokv.device.machines.launch import LaunchMachine

    return LaunchMachine(heap.geometry, table, [heap.segment(r) for r in range(heap.world_size)], heap.device)
