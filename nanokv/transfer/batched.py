"""Many keys in one call: one launch where the machine launches kernels and the producer allocates, else one by one.

A key that a launch could not settle takes a call of its own, which makes room, waits its turn or raises the error.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from nanokv.allocation.base import Allocation
from nanokv.device.machines.records import NO_TERMS, Request, Terms
from nanokv.device.protocol.status import Status
from nanokv.errors import NanoKVError
from nanokv.transfer.descriptors import RAW, check_place, describe, empty_like_described, is_plain
from nanokv.transfer.growing_batch import GrowingBatch
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest

MOST = 4096  #: requests of a launch
FIRST_LOOK = 8  #: keys that are looked up at once for a prefix, where each is a call: twice as many each time
_OK = int(Status.OK)
Outcome: TypeAlias = int | NanoKVError  #: a status, or the error that the call for this key raised


class BatchedTransfer:
    """Puts and gets many tensors; answers with a status per key."""

    def __init__(self, single: SingleTransfer, allocation: Allocation) -> None:
        self._single = single
        self._allocation = allocation
        self._batch = GrowingBatch(allocation)

    def put(
        self, keys: Sequence[KeyDigest], tensors: Sequence[torch.Tensor], preferred: int | None, terms: Terms = NO_TERMS
    ) -> list[Outcome]:
        """`SingleTransfer.put` for each key. Of equal keys the first one is put."""
        done: dict[int, Outcome] = {}
        if self._batch.launches:
            asked = self._put_requests(keys, tensors, preferred, terms)
            for some in _chunks(list(asked)):
                done.update(
                    zip(some, self._batch.run(lambda batch: batch.put(), [asked[i] for i in some]), strict=True)
                )
        for i, (key, tensor) in enumerate(zip(keys, tensors, strict=True)):
            if done.get(i, Status.FULL) in (Status.FULL, Status.BUSY):
                done[i] = self._put_one(key, tensor, preferred, terms)
        return [done[i] for i in range(len(keys))]

    def get(self, keys: Sequence[KeyDigest]) -> list[torch.Tensor | int]:
        """`SingleTransfer.get` for each key."""
        done: dict[int, torch.Tensor | int] = {}
        if self._batch.launches:
            for some in _chunks(range(len(keys))):
                done.update(self._get_new(some, [keys[i] for i in some]))
        return [done[i] if i in done else self._single.get(key) for i, key in enumerate(keys)]

    def get_into(
        self, keys: Sequence[KeyDigest], dsts: Sequence[torch.Tensor], *, reinterpret: bool = False
    ) -> list[int]:
        """`SingleTransfer.get_into` for each key."""
        done: dict[int, int] = {}
        if self._batch.launches:
            asked = [self._get_request(*pair, reinterpret) for pair in zip(keys, dsts, strict=True)]
            for some in _chunks(range(len(keys))):
                requests = [asked[i] for i in some]
                done.update(zip(some, self._batch.run(lambda batch: batch.get(), requests), strict=True))
        final = (Status.OK, Status.MISS, Status.NOT_READY, Status.CORRUPT)
        return [
            done[i] if done.get(i) in final else self._single.get_into(key, dst, reinterpret=reinterpret)
            for i, (key, dst) in enumerate(zip(keys, dsts, strict=True))
        ]

    def find(self, keys: Sequence[KeyDigest]) -> list[int]:
        """`Allocation.exists` for each key."""
        if not self._batch.launches:
            return self._allocation.exist_each(keys)
        return [
            s
            for some in _chunks(keys)
            for s in self._batch.run(lambda batch: batch.find(), [Request(key, 0, 0) for key in some])
        ]

    def remove(self, keys: Sequence[KeyDigest]) -> list[int]:
        """`Allocation.remove` for each key."""
        if not self._batch.launches:
            return [self._allocation.remove(key) for key in keys]
        statuses = []
        for some in _chunks(keys):
            statuses += self._batch.run(lambda batch: batch.remove(), [Request(key, 0, 0) for key in some])
        return statuses

    @property
    def launches(self) -> bool:
        """Whether many keys take one launch; else each takes a call of its own."""
        return self._batch.launches

    def replicate(self, copies: Sequence[tuple[KeyDigest, int]]) -> list[int]:
        """`Machine.replicate` for each key and rank, by launches."""
        asked = [Request(key, 0, 0, rank) for key, rank in copies]
        return [status for some in _chunks(asked) for status in self._batch.run(lambda batch: batch.replicate(), some)]

    def prefix(self, keys: Sequence[KeyDigest]) -> int:
        """How many of the first keys can be read, without a gap."""
        start, look = 0, MOST if self._batch.launches else FIRST_LOOK
        while start < len(keys):
            statuses = self.find(keys[start : start + look])
            gap = next((i for i, status in enumerate(statuses) if status != _OK), None)
            if gap is not None:
                return start + gap
            start, look = start + look, min(2 * look, MOST)
        return len(keys)

    # --- one launch ---
    def _put_requests(
        self, keys: Sequence[KeyDigest], tensors: Sequence[torch.Tensor], preferred: int | None, terms: Terms
    ) -> dict[int, Request]:
        """The requests for a launch, by index: the first of equal keys, so that it wins; none that torch must copy."""
        firsts = {key: i for i, key in reversed(list(enumerate(keys)))}
        asked = {}
        for i in sorted(firsts.values()):
            with contextlib.suppress(NanoKVError):  # the call for this key alone raises it again
                nbytes, descriptor = describe(tensors[i])
                if tensors[i].device == self._single.device and is_plain(tensors[i]):
                    owner = self._allocation.owner_of(keys[i], preferred)
                    asked[i] = Request(keys[i], tensors[i].data_ptr(), nbytes, owner, descriptor, terms=terms)
        return asked

    def _get_request(self, key: KeyDigest, dst: torch.Tensor, reinterpret: bool) -> Request:
        nbytes, descriptor = describe(dst)
        check_place(dst, self._single.device)
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

    def _put_one(self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, terms: Terms) -> Outcome:
        return status_of(lambda: self._single.put(key, tensor, preferred, terms))


def status_of(put: Callable[[], int]) -> Outcome:
    """What a call answers, or the error that it raises."""
    try:
        return put()
    except NanoKVError as error:
        return error


def _chunks(places: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Runs of at most MOST items."""
    for start in range(0, len(places), MOST):
        yield places[start : start + MOST]
