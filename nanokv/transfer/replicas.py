"""Copies of objects in the segments of other ranks (docs/replicas.md): asked for, put along, or because of reads."""

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import torch

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.arguments import integer
from nanokv.background import Worker
from nanokv.device.machines.base import Machine
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import NO_TERMS, Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import nearest_first
from nanokv.device.segment.layout import MOST_COPIES
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, PeerLost
from nanokv.heap.base import Heap
from nanokv.keys.digests import Digests
from nanokv.transfer.batched import BatchedTransfer, Outcome, Tensors, status_of
from nanokv.transfer.descriptors import descriptor_of, is_plain
from nanokv.transfer.single import TRIES, SingleTransfer
from nanokv.types import KeyDigest

NO_COPIES = 0  #: the default of `put`, known by its identity: other values are checked
COUNTED = 4096  #: keys whose reads are counted
PENDING = 16  #: promotions that wait for the background thread; others are left out, and counted anew
_AGAIN = (Status.NOT_READY, Status.TORN, Status.LOST)  #: a copy that met another call of its key may try again


class Replicas:
    """The copies that one cache makes.

    Args:
        costs: what a read from each rank costs; None: each the same.
        promote: reads by this rank after which it makes a copy of its own; 0: never.
        worker: makes them.
    """

    def __init__(
        self,
        heap: Heap,
        machine: Machine,
        allocation: Allocation,
        single: SingleTransfer,
        batched: BatchedTransfer,
        worker: Worker,
        *,
        costs: tuple[float, ...] | None,
        promote: int,
    ) -> None:
        self._heap = heap
        self._machine = machine
        self._allocation = allocation if isinstance(allocation, ProducerAllocation) else None
        self._single = single
        self._batched = batched
        self._order = nearest_first(heap.rank, heap.world_size, costs)
        self.promotion = Promotion(self.try_copy, worker, promote) if promote else None
        self.made = self.refused = 0

    def checked(self, count: object) -> int:
        """A number of copies.

        Raises:
            InvalidArgument: it cannot be: there are not as many other ranks; or v1 is asked for one.
        """
        most = min(MOST_COPIES, self._heap.world_size - 1)
        found = integer("replicas", count, 0)
        if found:
            self.needed()
        if found > most:
            raise InvalidArgument(f"replicas must be 0 to {most} (other ranks, at most {MOST_COPIES}), not {count!r}")
        return found

    def needed(self) -> ProducerAllocation:
        """The allocation of v2.

        Raises:
            InvalidArgument: this cache is of v1.
        """
        if self._allocation is None:
            raise InvalidArgument('copies of objects need alloc="device"')
        return self._allocation

    def put(self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, terms: Terms, count: int) -> int:
        """Put a tensor with `count` copies, all in one call of the machine if it has no terms. Answers as
        `SingleTransfer.put`.

        `terms`: of the object, and of its copies. A read ends the lease of the copy that it reads.
        """
        if terms is not NO_TERMS:
            return self._put_then_copy(key, tensor, preferred, terms, count)
        source = plain_tensor(tensor)
        nbytes, descriptor = descriptor_of(source.dtype, source.shape)
        if nbytes > self._machine.geometry.max_object_bytes:
            return Status.TOO_LARGE  # before an expanded tensor is made contiguous
        if not is_plain(source) or source.device != self._heap.device:
            source = source.detach().to(self._heap.device).resolve_conj().resolve_neg().contiguous()
        status, made = self.needed().put_copied(key, source.data_ptr(), nbytes, preferred, descriptor, count)
        if status == Status.OK:
            self.made += len(made)
            self.refused += count - len(made)
        return status

    def put_many(
        self,
        keys: Digests,
        tensors: Tensors,
        preferred: int | None,
        terms: Terms,
        count: int,
    ) -> list[Outcome]:
        """`put` for each key: one launch for the objects and one for their copies, where the machine launches."""
        allocation, pairs = self.needed(), zip(keys, tensors, strict=True)
        if not self._batched.launches:
            return [status_of(partial(self.put, *pair, preferred, terms, count)) for pair in pairs]
        outcomes = self._batched.put(keys, tensors, preferred, terms)
        stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome == Status.OK]
        asked = [
            (key, rank)
            for key in stored
            for rank in allocation.routing.others(allocation.routing.owner_of(key, preferred), count)
            if allocation.may_have(rank)
        ]
        self.refused += len(stored) * count - len(asked)
        for (key, rank), status in zip(asked, self._batched.replicate(asked), strict=True):
            if status in (Status.OK, Status.DUPLICATE):
                self.made += status == Status.OK
            else:
                status_of(partial(self.copy, key, rank))  # which makes room, waits its turn, and counts
        return outcomes

    def _put_then_copy(
        self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, terms: Terms, count: int
    ) -> int:
        allocation = self.needed()
        status = self._single.put(key, tensor, preferred, terms)
        if status == Status.OK:
            for rank in allocation.routing.others(allocation.routing.owner_of(key, preferred), count):
                self.copy(key, rank)
        return status

    def copy(self, key: KeyDigest, rank: int | None) -> int:
        """Make a copy in the segment of a rank, by default this one: OK, DUPLICATE, or why there is none.

        Raises:
            InvalidArgument: there is no such rank. PeerLost: it has ended.
        """
        allocation = self.needed()
        target = self._heap.rank if rank is None else integer("rank", rank, 0, self._heap.world_size - 1)
        if target != self._heap.rank and self._heap.peer_closed(target):
            raise PeerLost(f"rank {target} of {self._heap.name!r} has ended")
        status = allocation.replicate(key, target)
        for _ in range(TRIES):
            if status not in _AGAIN:
                break
            time.sleep(0.0001)
            status = allocation.replicate(key, target)
        self.made += status == Status.OK
        self.refused += status not in (Status.OK, Status.DUPLICATE)
        return status

    def try_copy(self, key: KeyDigest) -> bool:
        """Make a copy of an object in this rank's segment, unless it has one: whether one was made."""
        try:
            found = self._machine.lookup(key)
            if found.status != Status.OK or found.place.owner == self._heap.rank or not found.place.nbytes:
                return False
            return self.copy(key, None) == Status.OK
        except NanoKVError:
            self.refused += 1
            return False

    def ranks(self, key: KeyDigest) -> list[int]:
        """The ranks whose segments have an object of the key, the nearest first."""
        self.needed()
        have = {place.owner for place in self._machine.find_copies(key)}
        return [rank for rank in self._order if rank in have]

    def as_dict(self) -> dict[str, Any]:
        """The counters."""
        promotions = self.promotion.done if self.promotion is not None else 0
        return {"replicas": self.made, "replicas_refused": self.refused, "promotions": promotions}


class Promotion:
    """Counts reads per key, and copies what is read often.

    Args:
        copy: makes a copy for this rank; False if it has one.
        worker: calls it.
        reads: after so many.
    """

    def __init__(self, copy: Callable[[KeyDigest], bool], worker: Worker, reads: int) -> None:
        self.done = 0
        self._copy = copy
        self._worker = worker
        self._reads = reads
        self._counts: OrderedDict[KeyDigest, int] = OrderedDict()  # the key read last is the last
        self._pending = 0
        self._lock = Lock()

    def note(self, key: KeyDigest) -> None:
        """Count a read."""
        with self._lock:
            count = self._counts.pop(key, 0) + 1
            due = count >= self._reads and self._pending < PENDING
            if due:
                self._pending += 1
            else:
                self._counts[key] = count
                if len(self._counts) > COUNTED:
                    self._counts.popitem(last=False)
        if due:
            try:
                self._worker.submit(lambda: self._promote(key))
            except CacheClosed:
                self._ended()

    def _promote(self, key: KeyDigest) -> None:
        try:
            made = self._copy(key)
        finally:
            self._ended()
        self.done += made

    def _ended(self) -> None:
        with self._lock:
            self._pending -= 1
