"""Many objects in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, overload

import torch

from nanokv.api.objects import Objects
from nanokv.arguments import listed, seconds
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_ROOM
from nanokv.terms import Hold
from nanokv.transfer.batched import Outcome
from nanokv.transfer.object_calls import MISSING, check_reinterpret
from nanokv.types import Key

_OK = int(Status.OK)
_nbytes = attrgetter("nbytes")


class Many(Objects):
    """Calls about many keys."""

    def put_many(
        self,
        keys: Sequence[Key],
        tensors: Sequence[torch.Tensor] | torch.Tensor,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
        replicas: int = NO_COPIES,
    ) -> list[NanoKVError | None]:
        """Put each tensor; returns per key an error or None. Raises only if the call as a whole is wrong.

        Args:
            tensors: one per key; or one tensor of the rows [n, ...], which is the fastest: an object of each.
            preferred_segment, hold, replicas: as for `put`.
            timeout: seconds to wait for room, for all together.

        Raises:
            InvalidArgument, PeerLost: as for `put`; or there are not as many keys as tensors.
        """
        keys, tensors = _listed_keys(keys), listed_tensors("tensors", tensors)
        if len(keys) != len(tensors):
            raise InvalidArgument(f"{len(keys)} keys and {len(tensors)} tensors")
        preferred_segment = self._checked_segment(preferred_segment)
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        digests = self._hasher.each(keys)
        copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
        outcomes: list[Outcome]
        if copies:
            outcomes = self._replicas.put_many(digests, tensors, preferred_segment, self._terms(hold), copies)
        else:
            outcomes = self._batched.put(digests, tensors, preferred_segment, self._terms(hold))
        if not any(outcomes):
            self._traffic.put_all(len(outcomes), _bytes_of(tensors))
            return [None] * len(outcomes)
        for i in [i for i, outcome in enumerate(outcomes) if outcome in NO_ROOM] if timeout > 0 else ():
            again = partial(self._python_calls.put_once, digests[i], tensors[i], preferred_segment, hold, copies)
            outcomes[i] = self._room(deadline - time.monotonic(), again)
        return [
            outcome
            if isinstance(outcome, NanoKVError)
            else self._judge_put(outcome, key, tensor.nbytes, preferred_segment)
            for key, tensor, outcome in zip(keys, tensors, outcomes, strict=True)
        ]

    @overload
    def get_many(
        self, keys: Sequence[Key], *, dsts: Sequence[torch.Tensor] | None = None, reinterpret: bool = False
    ) -> list[torch.Tensor | None]: ...
    @overload
    def get_many(self, keys: Sequence[Key], *, dsts: torch.Tensor, reinterpret: bool = False) -> list[bool]: ...
    def get_many(
        self,
        keys: Sequence[Key],
        *,
        dsts: Sequence[torch.Tensor] | torch.Tensor | None = None,
        reinterpret: bool = False,
    ) -> list[torch.Tensor | None] | list[bool]:
        """Get each object; None for a key that has none (yet).

        Args:
            dsts: as `dst` of `get`, one per key. Or one tensor [n, ...], whose rows are filled: the fastest. Then the
                answers are per key whether its row was filled.
            reinterpret: as for `get`.

        Raises:
            InvalidArgument, SegmentCorrupt, PeerLost: as `get`.
        """
        self._check_open()
        if reinterpret is not False:
            check_reinterpret(reinterpret, dsts)
        keys = _listed_keys(keys)
        digests = self._hasher.each(keys)
        if dsts is None and self._calls.is_native:
            get = self._calls.get
            return [get(key, None, None, False) for key in keys]
        if dsts is None:
            found = self._batched.get(digests)
            self._settle(keys, digests, [each if isinstance(each, int) else _OK for each in found], found)
            return [None if isinstance(each, int) else each for each in found]
        rows = listed_tensors("dsts", dsts)
        if len(keys) != len(rows):
            raise InvalidArgument(f"{len(keys)} keys and {len(rows)} dsts")
        statuses = self._batched.get_into(digests, rows, reinterpret=reinterpret)
        self._settle(keys, digests, statuses, rows)
        if isinstance(rows, torch.Tensor):
            return [not status for status in statuses]
        return [None if status else dst for status, dst in zip(statuses, rows, strict=True)]

    def _settle(self, keys: Sequence[Key], digests: Digests, statuses: list[int], tensors: Any) -> None:
        """Count the gets, and raise the error of the first one that found neither an object nor none."""
        if self._promotion is None and not any(statuses):
            self._traffic.get_all(len(statuses), _bytes_of(tensors))
            return
        for i, status in enumerate(statuses):
            self._traffic.get(status, 0 if status else tensors[i].nbytes)
            if self._promotion is not None and not status:
                self._promotion.note(digests[i])
            if status and status not in MISSING:
                raise self._error(status, keys[i])

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now."""
        self._check_open()
        found: list[bool] = (self._batched.find(self._digests(keys)) == _OK).tolist()
        return found

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain."""
        self._check_open()
        return self._batched.prefix(self._digests(keys))

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object; per key False if there was none, or if it is being written or pinned."""
        self._check_open()
        removed: list[bool] = (self._batched.remove(self._digests(keys)) == _OK).tolist()
        return removed

    def _judge_put(self, status: int, key: Key, nbytes: int, preferred: int | None) -> NanoKVError | None:
        self._traffic.put(status, nbytes)
        return self._error(status, key, nbytes, preferred) if status else None

    def _judge_get(self, status: int, key: Key, nbytes: int) -> NanoKVError | None:
        self._traffic.get(status, nbytes)
        return self._error(status, key, nbytes) if status else None


def _listed_keys(keys: Sequence[Key]) -> Sequence[Key]:
    return keys if type(keys) is Digests else listed("keys", keys)


def listed_tensors(name: str, tensors: Sequence[torch.Tensor] | torch.Tensor) -> Sequence[torch.Tensor] | torch.Tensor:
    """A list of them; or one plain tensor, which stands for its rows."""
    if not isinstance(tensors, torch.Tensor):
        return listed(name, tensors)
    rows = plain_tensor(tensors)
    if not rows.ndim:
        raise InvalidArgument(f"{name} must be a sequence of tensors, or a tensor that has rows, not {rows!r}")
    return rows


def _bytes_of(tensors: Sequence[torch.Tensor] | torch.Tensor) -> int:
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_nbytes, tensors))
