"""Many objects in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch

from nanokv.api.objects import MISSING, Objects, check_reinterpret
from nanokv.arguments import listed, seconds
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_ROOM, until_room
from nanokv.terms import Hold
from nanokv.transfer.batched import Outcome
from nanokv.types import Key

_OK = int(Status.OK)


class Many(Objects):
    """Calls about many keys."""

    def put_many(
        self,
        keys: Sequence[Key],
        tensors: Sequence[torch.Tensor],
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
        replicas: int = NO_COPIES,
    ) -> list[NanoKVError | None]:
        """Put each tensor; returns per key an error or None. Raises only if the call as a whole is wrong.

        Args:
            preferred_segment, hold, replicas: as for `put`.
            timeout: seconds to wait for room, for all together.

        Raises:
            InvalidArgument, PeerLost: as for `put`; or there are not as many keys as tensors.
        """
        keys, tensors = listed("keys", keys), listed("tensors", tensors)
        if len(keys) != len(tensors):
            raise InvalidArgument(f"{len(keys)} keys and {len(tensors)} tensors")
        preferred_segment = self._checked_segment(preferred_segment)
        deadline = time.monotonic() + seconds("timeout", timeout)
        digests = self._digests(keys)
        copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
        outcomes: list[Outcome]
        if copies:
            outcomes = self._replicas.put_many(digests, tensors, preferred_segment, self._terms(hold), copies)
        else:
            outcomes = self._batched.put(digests, tensors, preferred_segment, self._terms(hold))
        for i in (i for i, outcome in enumerate(outcomes) if outcome in NO_ROOM):
            again = partial(self._put_once, digests[i], tensors[i], preferred_segment, hold, copies)
            outcomes[i] = until_room(self._heap, deadline - time.monotonic(), again)
        return [
            outcome
            if isinstance(outcome, NanoKVError)
            else self._judge_put(outcome, key, tensor.nbytes, preferred_segment)
            for key, tensor, outcome in zip(keys, tensors, outcomes, strict=True)
        ]

    def get_many(
        self, keys: Sequence[Key], *, dsts: Sequence[torch.Tensor] | None = None, reinterpret: bool = False
    ) -> list[torch.Tensor | None]:
        """Get each object; None for a key that has none (yet). `dsts`: as `dst` of `get`, one per key.

        Raises:
            InvalidArgument, SegmentCorrupt, PeerLost: as `get`.
        """
        self._check_open()
        keys, dsts = listed("keys", keys), None if dsts is None else listed("dsts", dsts)
        if dsts is not None and len(keys) != len(dsts):
            raise InvalidArgument(f"{len(keys)} keys and {len(dsts)} dsts")
        digests = [self._hash(key) for key in keys]
        results: list[torch.Tensor | int]
        if reinterpret is not False:
            check_reinterpret(reinterpret, dsts)
        if dsts is None:
            results = self._batched.get(digests)
        else:
            statuses = self._batched.get_into(digests, dsts, reinterpret=reinterpret)
            results = [status or dst for status, dst in zip(statuses, dsts, strict=True)]
        for key, digest, found in zip(keys, digests, results, strict=True):
            self._count_get(found)
            if self._promotion is not None and not isinstance(found, int):
                self._promotion.note(digest)
            if isinstance(found, int) and found not in MISSING:
                raise self._error(found, key)
        return [None if isinstance(found, int) else found for found in results]

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now."""
        self._check_open()
        return [status == _OK for status in self._batched.find(self._digests(keys))]

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain."""
        self._check_open()
        return self._batched.prefix(self._digests(keys))

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object; per key False if there was none, or if it is being written or pinned."""
        self._check_open()
        return [status == Status.OK for status in self._batched.remove(self._digests(keys))]

    def _judge_put(self, status: int, key: Key, nbytes: int, preferred: int | None) -> NanoKVError | None:
        self._traffic.put(status, nbytes)
        return self._error(status, key, nbytes, preferred) if status else None

    def _judge_get(self, status: int, key: Key, nbytes: int) -> NanoKVError | None:
        self._traffic.get(status, nbytes)
        return self._error(status, key, nbytes) if status else None
