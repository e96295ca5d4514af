"""The parts of one rank, joined: what a `NanoKVCache` works with, and what the rest of the project takes from it.

    heap        the memory of all ranks' segments, and who lives
    machine     runs the protocol on them
    allocation  allocates, publishes, looks up, removes: by the producer (v2), or by the master (v1)
    single, batched, calls      move the bytes of one object, of many, and of one by the shortest road
    poller      takes this rank's hints, keeps its index, sweeps, evicts
    pins, plans, replicas, room, worker     what lives longer than a call

A part is used by name (`cache.engine.machine`). Nobody but the cache keeps an engine: when the cache is closed, the
memory goes with it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import torch

from nanokv.allocation import quotas, stored_layouts
from nanokv.allocation.base import Allocation
from nanokv.allocation.generations import Generations
from nanokv.allocation.producer import ProducerAllocation
from nanokv.allocation.room import RoomWait
from nanokv.allocation.routing import Routing
from nanokv.allocation.status_errors import error_for
from nanokv.allocation.terms import Hold, terms_of
from nanokv.arguments import integer, listed
from nanokv.background import Worker
from nanokv.cache.ending import disown, forked
from nanokv.cache.waiting import Waiter
from nanokv.config import Options, job_name
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import POLICIES, Geometry
from nanokv.device.segment.layout import MAX_PRODUCERS
from nanokv.device.segment.views import SegmentView
from nanokv.errors import CacheClosed, HeapUnavailable, InvalidArgument, NanoKVError, WaitTimeout
from nanokv.fsck.recovery import examine
from nanokv.heap import Heap, HeapKind, WorldSpec, open_heap
from nanokv.heap.process_heap import ProcessHeap
from nanokv.host_poller.poller import Poller
from nanokv.keys.digests import Digests
from nanokv.keys.hashing import Hasher
from nanokv.keys.identity import digest_of
from nanokv.statistics import Traffic
from nanokv.transfer.batched import BatchedTransfer
from nanokv.transfer.object_calls import PythonCalls, checked_segment, object_calls
from nanokv.transfer.pinned import Pins
from nanokv.transfer.plans import Plans
from nanokv.transfer.replicas import Replicas
from nanokv.transfer.single import SingleTransfer
from nanokv.types import Key, KeyDigest


class Engine:
    """One rank's parts. On failure nothing is left: the heap is closed too; a world that was taken over stays.

    Args:
        heap: this rank's; it belongs to the engine from here on.

    Raises:
        HeapUnavailable: the protocol cannot be compiled for the device of this heap, or the code cannot be stored.
    """

    def __init__(self, heap: Heap, master_rank: int, options: Options) -> None:
        self.heap, self.master_rank, self.options = heap, master_rank, options
        self.is_open = True
        #: ends the parts, the last one first; it does not refer to the engine, nor to its cache
        self.ends = ExitStack()
        self.ends.callback(heap.close)
        try:
            self._join()
        except BaseException:
            if isinstance(heap, ProcessHeap) and (heap.recovered or (heap.elastic and heap.found_world)):
                heap.leaves_its_world = True  # it holds data
            self.ends.close()
            raise
        self.leave_lock = threading.Lock()
        self._lock = threading.Lock()
        self._leaving: list[Callable[[], None]] = []
        self._forked_from: int | None = None
        self._generations: Generations | None = None

    def _join(self) -> None:
        heap, options = self.heap, self.options
        self.geometry = heap.geometry
        self.hasher = Hasher(options.namespace, options.identity)
        self.machine = machine_of(heap, checksum=options.checksum, costs=options.costs)
        self.allocation = self._allocation()
        self.ends.callback(self.allocation.close)
        self.pins = Pins(self.machine, heap)
        self.ends.callback(self.pins.give_back_dropped)
        self.poller = Poller(
            self.machine,
            heap,
            write_timeout=options.write_timeout,
            reclaims=options.alloc == "device",
            removal=self.allocation,
            each_round=self.pins.give_back_dropped,
        )
        self.ends.callback(self.poller.stop)
        self.poller.start()
        self.plans = Plans(self.allocation, self.machine)
        self.ends.callback(self.plans.abort_all)
        self.worker = Worker(f"nanokv-async-{heap.rank}", heap.device)
        self.ends.callback(self.worker.close)
        self.traffic = Traffic(self.geometry)
        self.single = SingleTransfer(heap, self.machine, self.allocation, checksum=options.checksum)
        self.batched = BatchedTransfer(self.single, self.allocation)
        self.replicas = Replicas(
            heap,
            self.machine,
            self.allocation,
            self.single,
            self.batched,
            self.worker,
            costs=options.costs,
            promote=options.promote,
        )
        self.room = RoomWait(heap, self.worker, self.poller)
        self.python_calls = PythonCalls(
            heap, self.allocation, self.hasher, self.single, self.replicas, self.traffic, self.room
        )
        self.calls = object_calls(self.python_calls, self.machine)
        bell = heap.world_bell() if options.alloc == "device" else None  # v1 asks its master
        self.watch = None if bell is None else self.machine.waits_on(bell)

    def _allocation(self) -> Allocation:
        heap, machine, options = self.heap, self.machine, self.options
        note_owner = _noting_owners(machine, options)
        if options.alloc == "host":
            # brings torch.distributed, which v2 does not need
            from nanokv.compat_v1.host_allocation import HostAllocation

            return HostAllocation(
                heap,
                machine,
                self.master_rank,
                may_evict=options.evict,
                water=options.water_marks,
                policy="fifo" if options.policy == "fifo" else "last_access",
                write_timeout=options.write_timeout,
                rpc_timeout=options.rpc_timeout,
                checksum=options.checksum,
                note_owner=note_owner,
            )
        routing = Routing(heap.world_size, heap.rank, heap.peer_closed)
        checksum = options.checksum
        return ProducerAllocation(machine, heap.rank, routing, note_owner, backing=heap.backing, checksum=checksum)

    # --- the end ---
    def close(self) -> None:
        """Finish the queued operations, abort the open plans, end the threads and leave the world. Idempotent.

        What one step raises comes when all are done.
        """
        with ExitStack() as steps:  # the last one first
            steps.callback(self._end_parts)
            steps.callback(self.worker.close)  # what it does in the background still finds the rest at work
            for leave in reversed(self._leaving):
                steps.callback(leave)

    def _end_parts(self) -> None:
        with self._lock:
            was_open, self.is_open = self.is_open, False
        if was_open:
            self.ends.close()

    def before_close(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Call `leave` at the close, before the memory goes: for what shares the memory with others.

        The function returned takes that back.
        """
        self.check_open()
        self._leaving.append(leave)
        return lambda: self._leaving.remove(leave) if leave in self._leaving else None

    def disown(self, process: int) -> None:
        """Give up, in a child of a fork, an engine that is that of its parent, `process`, and cannot be used here."""
        self.is_open, self._forked_from = False, process
        disown(self.machine, process)  # for those who have it from us

    def closed_error(self) -> NanoKVError:
        """Why a closed engine cannot be used."""
        if self._forked_from is not None:
            return forked(self._forked_from)
        return CacheClosed(f"rank {self.heap.rank} of {self.heap.name!r} was closed")

    # --- what calls share ---
    def check_open(self) -> None:
        """Raise CacheClosed, or in a child of a fork Forked, if the engine is closed."""
        if not self.is_open:
            raise self.closed_error()

    def check_waits(self) -> None:
        """Raise CacheClosed, to what waits for room, where the end has begun."""
        self.check_open()
        self.room.check()

    def checked_segment(self, preferred: object) -> int | None:
        """A `preferred_segment`. Raises InvalidArgument where there is no such rank, PeerLost where it has ended."""
        self.check_open()
        return checked_segment(self.heap, preferred)

    def digests(self, keys: Iterable[Key]) -> Digests:
        """The digests of many keys; those that are there already are not made again."""
        return self.hasher.each(keys if type(keys) is Digests else listed("keys", keys))

    def terms(self, hold: float | Hold | None) -> Terms:
        """The terms of an object that is put with `hold` now."""
        return terms_of(hold, self.hasher.group)

    def look(self, digest: KeyDigest) -> int:
        """Whether an object can be read: a Status."""
        self.check_open()
        return self.allocation.exists(digest)

    def wait_for(self, digests: list[KeyDigest], timeout: float | None) -> None:
        """Wait until all objects can be read.

        Raises:
            WaitTimeout, PeerLost, InvalidArgument: as `NanoKVCache.wait`.
        """
        if self.poller.is_this_thread and any(self.look(digest) != Status.OK for digest in digests):
            self.poller.refuse_own_thread("a wait for objects that are not there")
        waiter = Waiter(self.heap, self.allocation, self.look, self.watch)
        try:  # not `counting_timeouts`: ending a context takes microseconds after a sleep
            waiter.wait(digests, timeout)
        except WaitTimeout:
            self.traffic.timed_out()
            raise

    def error(self, status: int, key: Key, nbytes: int = 0, preferred: int | None = None) -> NanoKVError:
        """The error that a status stands for."""
        owner = "its owner" if preferred is None else f"rank {preferred}"
        return error_for(status, key, self.geometry, nbytes=nbytes, owner=owner)

    def judge_put(self, status: int, key: Key, nbytes: int, preferred: int | None) -> NanoKVError | None:
        """Count a put, and say what went wrong."""
        self.traffic.put(status, nbytes)
        return self.error(status, key, nbytes, preferred) if status else None

    def judge_get(self, status: int, key: Key, nbytes: int) -> NanoKVError | None:
        """Count a get, and say what went wrong."""
        self.traffic.get(status, nbytes)
        return self.error(status, key, nbytes) if status else None

    def generations(self) -> Generations:
        """Return the generations of this cache's identity."""
        if self._generations is None:
            whose = self.options.identity, self.options.namespace
            self._generations = Generations(self.machine, self.heap.rank, *whose)
        return self._generations


# --- what an engine is made of ------------------------------------------------------------------
GUESTS = 16  #: that a world takes in shared memory, if its options do not say how many


def heap_kind(name: str | None, world_size: int, options: Options) -> HeapKind:
    """The provider that the options ask for, or that suits the name and the size."""
    return options.heap or ("local" if name is None and world_size == 1 else "shm")


def plan_geometry(
    heap_bytes: int, page_bytes: int, world_size: int, options: Options, kind: HeapKind = "local"
) -> Geometry:
    """The geometry of a world. Raises InvalidArgument, naming the size that is wrong, or if `costs` are too few."""
    if options.costs is not None and len(options.costs) != world_size:
        raise InvalidArgument(f"costs must have one number per rank, {world_size}, not {len(options.costs)}")
    guests = options.guests
    if guests is None:  # where the memory is shared anyway they cost some lines of it
        takes_some = kind == "shm" and options.alloc == "device"
        guests = max(min(GUESTS, MAX_PRODUCERS - world_size), 0) if takes_some else 0
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
            guests=guests,
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


def attach(
    kind: HeapKind, name: str | None, geometry: Geometry, rank: int, options: Options, master_rank: int = 0
) -> Heap:
    """Join (or make) a world of a provider.

    Raises:
        InvalidArgument: an option that the provider does not have, or more ranks than it can have.
    """
    if not all(isinstance(each, str) for each in options.heap_options):
        raise InvalidArgument(f"heap_options must have names that are str, not {list(options.heap_options)}")
    spec = world_spec(geometry, options, name or job_name(), master_rank)
    return open_heap(kind, spec, rank, **options.heap_options)


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


def machine_of(heap: Heap, *, checksum: bool, costs: Sequence[float] | None = None) -> Machine:
    """The machine that runs the protocol where the segments lie."""
    table = heap.geometry.world_table(heap.rank, heap.incarnation, heap.bases, checksum=checksum, costs=costs)
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
