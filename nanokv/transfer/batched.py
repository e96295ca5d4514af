"""Many keys in one call: one launch where the machine launches kernels, else one call of its code for tensors alike.

Both only where the producer allocates; v1's master takes a message per key. A key that they could not settle takes a
call of its own, which makes room, waits its turn or raises the error.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from nanokv.allocation.base import Allocation
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import NO_TERMS, Request, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.errors import NanoKVError
from nanokv.keys.digests import Digests
from nanokv.transfer.descriptors import (
    RAW,
    check_apart,
    descriptor_of,
    empty_like_described,
    is_plain,
)
from nanokv.transfer.growing_batch import GrowingBatch
from nanokv.transfer.host_tensors import alike_destinations, all_in_host_memory
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch

MOST = 4096  #: keys of a launch, or of a call of native code, which no signal interrupts
FIRST_LOOK = {"device": 64, "host": 8}  #: keys looked up at once for a prefix, without a launch; then twice as many
_OK, _FULL, _BUSY = int(Status.OK), int(Status.FULL), int(Status.BUSY)
_AGAIN = int(Status.TORN)
_ALONE = (_FULL, _BUSY)  #: a put that needs a call of its own
_FINAL = tuple(map(int, (Status.OK, Status.MISS, Status.NOT_READY, Status.CORRUPT)))  #: a get that needs none
Tensors: TypeAlias = Sequence[torch.Tensor] | torch.Tensor  #: a tensor stands for its rows
Outcome: TypeAlias = int | NanoKVError  #: a status, or the error that the call for this key raised


class BatchedTransfer:
    """Puts and gets many tensors; answers with a status per key."""

    def __init__(self, single: SingleTransfer, allocation: Allocation) -> None:
        self._single = single
        self._allocation = allocation
        self._batch = GrowingBatch(allocation)

    def put(self, keys: Digests, tensors: Tensors, preferred: int | None, terms: Terms = NO_TERMS) -> list[Outcome]:
        """`SingleTransfer.put` for each key. Of equal keys the first one is put."""
        outcomes: list[Outcome] | None = None
        if not self._batch.launches and terms is NO_TERMS:
            outcomes = self._put_alike(keys, tensors, preferred)
        if outcomes is None:
            outcomes = [_BUSY] * len(keys)
            if self._batch.launches:
                asked = self._put_requests(keys, tensors, preferred, terms)
                for some in _chunks(list(asked)):
                    found = self._batch.run(lambda batch: batch.put(), [asked[i] for i in some])
                    for i, status in zip(some, found, strict=True):
                        outcomes[i] = status
        if any(outcomes):
            for i in (i for i, outcome in enumerate(outcomes) if outcome in _ALONE):
                outcomes[i] = self._put_one(keys[i], tensors[i], preferred, terms, refused=outcomes[i] == _FULL)
        return outcomes

    def get(self, keys: Digests) -> list[torch.Tensor | int]:
        """`SingleTransfer.get` for each key."""
        done: dict[int, torch.Tensor | int] = {}
        if self._batch.launches:
            for some in _slices(len(keys)):
                done.update(self._get_new(range(len(keys))[some], list(keys[some])))
        return [done[i] if i in done else self._single.get(key) for i, key in enumerate(keys)]

    def get_into(self, keys: Digests, dsts: Tensors, *, reinterpret: bool = False) -> list[int]:
        """`SingleTransfer.get_into` for each key. Raises InvalidArgument, too, for `dsts` that share memory."""
        statuses = None if self._batch.launches else self._get_alike(keys, dsts, reinterpret)
        if statuses is None:
            dsts = [self._single.destination(dst) for dst in dsts]
            check_apart(dsts)
            statuses = [_AGAIN] * len(keys)
            if self._batch.launches:
                asked = [self._get_request(*pair, reinterpret) for pair in zip(keys, dsts, strict=True)]
                statuses = [s for some in _chunks(asked) for s in self._batch.run(lambda batch: batch.get(), some)]
        if any(statuses):
            for i in (i for i, status in enumerate(statuses) if status not in _FINAL):
                statuses[i] = self._single.get_into(keys[i], dsts[i], reinterpret=reinterpret)
        return statuses

    def find(self, keys: Digests) -> Words:
        """`Allocation.exists` for each key: int64 [n]."""
        if not self._batch.launches:
            return self._allocation.exist_each(keys)
        return self._launched(keys, lambda batch: batch.find())

    def remove(self, keys: Digests) -> Words:
        """`Allocation.remove` for each key: int64 [n]."""
        if not self._batch.launches:
            return self._allocation.remove_each(keys)
        return self._launched(keys, lambda batch: batch.remove())

    def _launched(self, keys: Digests, operation: Callable[["Batch"], None]) -> Words:
        statuses: list[int] = []
        for some in _chunks(keys):
            statuses += self._batch.run(operation, [Request(key, 0, 0) for key in some])
        return np.array(statuses, np.int64)

    @property
    def launches(self) -> bool:
        """Whether many keys take one launch; else each takes a call of its own."""
        return self._batch.launches

    def replicate(self, copies: Sequence[tuple[KeyDigest, int]]) -> list[int]:
        """`Machine.replicate` for each key and rank, by launches."""
        asked = [Request(key, 0, 0, rank) for key, rank in copies]
        return [status for some in _chunks(asked) for status in self._batch.run(lambda batch: batch.replicate(), some)]

    def prefix(self, keys: Digests) -> int:
        """How many of the first keys can be read, without a gap."""
        start, look = 0, MOST if self._batch.launches else FIRST_LOOK[self._allocation.alloc]
        while start < len(keys):
            missing = self.find(keys[start : start + look]) != _OK
            if missing.any():
                return start + int(missing.argmax())
            start, look = start + look, min(2 * look, MOST)
        return len(keys)

    # --- one call of native code ---
    def _put_alike(self, keys: Digests, tensors: Tensors, preferred: int | None) -> list[Outcome] | None:
        """None: the tensors are not alike, or v1 allocates, or an owner cannot have such objects."""
        alike = self._alike(tensors)
        if alike is None:
            return None
        what, sources = alike
        outcomes: list[Outcome] = []
        for some, places in _parts(keys, sources):
            statuses = self._allocation.put_each(some, places, what, preferred)
            outcomes += [_BUSY] * len(some) if statuses is None else statuses.tolist()
        return outcomes

    def _get_alike(self, keys: Digests, dsts: Tensors, reinterpret: bool) -> list[int] | None:
        """None: the tensors are not alike, or v1 finds objects."""
        alike = self._alike(dsts, alike_destinations)
        if alike is None:
            return None
        what, targets = alike
        wanted = What.of(what.nbytes, RAW) if reinterpret else what
        found: list[int] = []
        for some, places in _parts(keys, targets):
            statuses = self._allocation.get_each(some, places, wanted)
            if statuses is None:
                return None
            found += statuses.tolist()
        return found

    def _alike(
        self, tensors: Tensors, look: Callable[[Tensors], tuple[What, Words] | None] = all_in_host_memory
    ) -> tuple[What, Words] | None:
        """What `look` says; None too for tensors that torch copies faster, with more threads."""
        alike = look(tensors) if self._single.device.type == "cpu" else None
        return alike if alike is not None and self._single.is_at_once(alike[0].nbytes) else None

    # --- one launch ---
    def _put_requests(self, keys: Digests, tensors: Tensors, preferred: int | None, terms: Terms) -> dict[int, Request]:
        """The requests for a launch, by index: the first of equal keys, so that it wins; none that torch must copy."""
        digests = list(keys)
        firsts = {key: i for i, key in reversed(list(enumerate(digests)))}
        asked = {}
        for i in sorted(firsts.values()):
            with contextlib.suppress(NanoKVError):  # the call for this key alone raises it again
                tensor = plain_tensor(tensors[i])
                nbytes, descriptor = descriptor_of(tensor.dtype, tensor.shape)
                if tensor.device == self._single.device and is_plain(tensor):
                    owner = self._allocation.owner_of(digests[i], preferred)
                    asked[i] = Request(digests[i], tensor.data_ptr(), nbytes, owner, descriptor, terms=terms)
        return asked

    def _get_request(self, key: KeyDigest, dst: torch.Tensor, reinterpret: bool) -> Request:
        """`dst`: a checked one."""
        nbytes, descriptor = descriptor_of(dst.dtype, dst.shape)
        return Request(key, dst.data_ptr(), nbytes, what=RAW if reinterpret else descriptor)

    def _get_new(self, places: Sequence[int], keys: Sequence[KeyDigest]) -> dict[int, torch.Tensor | int]:
        """Look up, allocate, read: the results that two launches can settle, by index."""
        done: dict[int, torch.Tensor | int] = {}
        made: dict[int, torch.Tensor] = {}
        requests = []
        found = self._batch.lookup([Request(key, 0, 0) for key in keys])
        for i, key, (status, place, descriptor) in zip(places, keys, found, strict=True):
            if status != Status.OK:
                done[i] = status
                continue
            tensor = empty_like_described(descriptor, place.nbytes, self._single.device)
            if tensor is not None:  # else it was replaced while it was looked up, or is corrupt
                made[i] = tensor
                requests.append(Request(key, tensor.data_ptr(), place.nbytes, what=descriptor))
        for (i, tensor), status in zip(made.items(), self._batch.run(lambda batch: batch.get(), requests), strict=True):
            if status in (Status.OK, Status.MISS):
                done[i] = tensor if status == Status.OK else status
        return done

    def _put_one(
        self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, terms: Terms, *, refused: bool
    ) -> Outcome:
        def put() -> int:
            refused_by = self._allocation.owner_of(key, preferred) if refused else None
            return self._single.put(key, tensor, preferred, terms, refused_by=refused_by)

        return status_of(put)


def status_of(put: Callable[[], int]) -> Outcome:
    """What a call answers, or the error that it raises."""
    try:
        return put()
    except NanoKVError as error:
        return error


def _parts(keys: Digests, places: Words) -> Iterator[tuple[Digests, Words]]:
    """At most MOST of each; as they are, if they are no more."""
    if len(keys) <= MOST:
        return iter([(keys, places)])
    return ((keys[some], places[some]) for some in _slices(len(keys)))


def _slices(count: int) -> Iterator[slice]:
    """Slices of at most MOST items each."""
    return (slice(start, start + MOST) for start in range(0, count, MOST))


def _chunks(places: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Runs of at most MOST items."""
    for start in range(0, len(places), MOST):
        yield places[start : start + MOST]
