"""How a cache is put together: heap, machine, allocation and poller of one rank."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from nanokv import quotas, stored_layouts
from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.allocation.routing import Routing
from nanokv.arguments import integer
from nanokv.config import Options, job_name
from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import POLICIES, Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.fsck.recovery import examine
from nanokv.heap import Heap, WorldSpec, open_heap
from nanokv.heap.process_heap import ProcessHeap
from nanokv.heap.shm import ShmHeap
from nanokv.host_poller.poller import Poller
from nanokv.identity import digest_of
from nanokv.pinned import Pins


class Wired(NamedTuple):
    """The parts of a cache, wired to each other."""

    heap: Heap
    machine: Machine
    allocation: Allocation
    poller: Poller
    pins: Pins


def plan_geometry(heap_bytes: int, page_bytes: int, world_size: int, options: Options) -> Geometry:
    """The geometry of a world. Raises InvalidArgument, naming the size that is wrong, or if `costs` are too few."""
    if options.costs is not None and len(options.costs) != world_size:
        raise InvalidArgument(f"costs must have one number per rank, {world_size}, not {len(options.costs)}")
    try:
        return Geometry.plan(
            integer("heap_bytes", heap_bytes, 1),
            integer("page_bytes", page_bytes, 1),
            world_size,
            size_classes=options.size_classes,
            max_objects=options.max_objects,
            ring_slots=options.ring_slots,
            shards=options.shards,
            many=_on_gpu(options),
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def _on_gpu(options: Options) -> bool:
    """True if the options ask for segments on GPUs."""
    if options.heap in ("torch_symm", "iris"):
        return True
    device = options.heap_options.get("device", "cpu")
    try:
        several = [device] if isinstance(device, str | torch.device) else list(device)
        return any(torch.device(each).type != "cpu" for each in several)
    except (RuntimeError, TypeError):
        return False  # the provider refuses it, and says why


def world_spec(geometry: Geometry, options: Options, name: str = "local", master_rank: int = 0) -> WorldSpec:
    """The world that the options ask for."""
    of_v1 = {"master_rank": master_rank} if options.alloc == "host" else {}
    return WorldSpec(
        geometry,
        mode=options.alloc,
        may_evict=options.evict,
        policy=str(options.policy) if options.alloc == "device" else POLICIES[0],
        water=options.water_marks,
        name=name,
        timeout=options.attach_timeout,
        on_stale=options.on_stale,
        examine=examine,
        elastic=options.elastic,
        alike={"checksum": options.checksum, "policy": options.policy} | of_v1,
    )


def attach(name: str | None, geometry: Geometry, rank: int, options: Options, master_rank: int = 0) -> Heap:
    """Join (or make) a world of the provider that the options ask for, or that suits the name and the size.

    Raises:
        InvalidArgument: an option that the provider does not have, or more ranks than it can have.
    """
    kind = options.heap or ("local" if name is None and geometry.world_size == 1 else "shm")
    try:
        spec = world_spec(geometry, options, name or job_name(), master_rank)
        return open_heap(kind, spec, rank, **options.heap_options)
    except TypeError as error:
        raise InvalidArgument(f"heap_options of heap={kind!r}: {error}") from None


def wire(heap: Heap, master_rank: int, options: Options) -> Wired:
    """Machine, allocation and poller on a heap. The poller runs. On failure the heap is closed; a world that was taken
    over stays.

    Raises:
        HeapUnavailable: the protocol cannot be compiled for the device of this heap, or the code cannot be stored.
    """
    try:
        machine = _machine(heap, options)
        routing = Routing(heap.world_size, heap.rank, heap.peer_closed)
        note_owner = _noting_owners(machine, options)
        backing = heap.backing if isinstance(heap, ShmHeap) else None
        allocation: Allocation = ProducerAllocation(
            machine, heap.rank, routing, note_owner, backing=backing, checksum=options.checksum
        )
        if options.alloc == "host":
            from nanokv.compat_v1.host_allocation import (
                HostAllocation,  # brings torch.distributed, which v2 does not need
            )

            allocation = HostAllocation(
                heap,
                machine,
                master_rank,
                may_evict=options.evict,
                water=options.water_marks,
                policy="fifo" if options.policy == "fifo" else "last_access",
                write_timeout=options.write_timeout,
                rpc_timeout=options.rpc_timeout,
                checksum=options.checksum,
                note_owner=note_owner,
            )
        pins = Pins(machine, heap)
        poller = Poller(
            machine,
            heap,
            write_timeout=options.write_timeout,
            reclaims=options.alloc == "device",
            removal=allocation,
            each_round=pins.give_back_dropped,
        )
        poller.start()
    except BaseException:
        if isinstance(heap, ProcessHeap) and (heap.recovered or (heap.elastic and heap.found_world)):
            heap.leaves_its_world = True  # it holds data
        heap.close()
        raise
    return Wired(heap, machine, allocation, poller, pins)


def _noting_owners(machine: Machine, options: Options) -> Callable[[int], None] | None:
    """A function that is called with each rank that gets an object; None if nothing is to be noted there.

    It raises OutOfMemory and ReuseViolation, as `stored_layouts.writer` and `quotas.writer`.
    """
    layout = stored_layouts.writer(machine, options.identity, options.namespace)
    if options.quota_bytes is None:
        return layout
    quota = quotas.writer(machine, digest_of(options.identity, options.namespace).tag, options.quota_bytes)

    def note(rank: int) -> None:
        if layout is not None:
            layout(rank)
        quota(rank)

    return note


def _machine(heap: Heap, options: Options) -> Machine:
    """The machine that runs the protocol where the segments lie."""
    table = heap.geometry.world_table(
        heap.rank, heap.incarnation, heap.bases, checksum=options.checksum, costs=options.costs
    )
    views = [heap.host_view(rank) for rank in range(heap.world_size)]
    try:
        if all(view is not None for view in views):
            from nanokv.device.machines.native import NativeMachine

            segments = [SegmentView(v, heap.geometry) for v in views if v is not None]
            return NativeMachine(heap.geometry, table, segments, heap.wake)
        from nanokv.device.machines.launch import LaunchMachine

        return LaunchMachine(heap.geometry, table, [heap.segment(r) for r in range(heap.world_size)], heap.device)
    except (OSError, RuntimeError) as error:
        raise HeapUnavailable(f"the protocol cannot be compiled for {heap.device}: {error}") from error
