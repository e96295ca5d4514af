"""Objects that look-ups have found, held in place until LMCache unlocks them.

A lock is a pin: NanoKV neither evicts nor removes what is pinned, and it stays readable when the process whose segment
has it ends. An object has one pin, however many locks it has. The pins of a process that dies are given back by the
owners of the segments.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from lmcache.v1.distributed.api import ObjectKey

from nanokv.cache import NanoKVCache
from nanokv.errors import KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.integrations.refusals import Refusals
from nanokv.pinned import Pinned


class _Lock:
    def __init__(self, pinned: Pinned) -> None:
        self.pinned, self.count = pinned, 1


class Locks:
    """The locks of one adapter. Any thread may call.

    Args:
        refusals: counts objects that are there, and cannot be held.
    """

    def __init__(self, world: NanoKVCache, refusals: Refusals) -> None:
        self._world, self._refusals = world, refusals
        self._mutex = threading.Lock()
        self._locks: dict[ObjectKey, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, key: ObjectKey, name: str) -> bool:
        """Lock an object once more; False if it is not there, or cannot be held."""
        with self._mutex:
            held = self._locks.get(key)
            if held is not None:
                held.count += 1
                return True
            try:
                self._locks[key] = _Lock(self._world.pin(name))
            except (KeyNotFound, NotReady):
                return False
            except NanoKVError as error:  # damaged; or there is no pin left
                self._refusals.note("lock", error, "an object that is there is not found")
                if isinstance(error, SegmentCorrupt):
                    with suppress(NanoKVError):
                        self._world.remove(name)
                return False
            return True

    def unlock(self, keys: Sequence[ObjectKey]) -> None:
        """Take one lock from each object. One that has none is left alone."""
        with self._mutex:
            for key in keys:
                self._unlock(key)

    @contextmanager
    def held(self, key: ObjectKey) -> Iterator[torch.Tensor | None]:
        """The bytes of an object that is locked, which stays so in the `with` block; None: it is not."""
        with self._mutex:
            held = self._locks.get(key)
            if held is not None:
                held.count += 1
        try:
            yield None if held is None else held.pinned.tensor
        finally:
            if held is not None:
                self.unlock([key])

    def close(self) -> None:
        """Unlock all."""
        with self._mutex:
            for held in self._locks.values():
                held.pinned.release()
            self._locks.clear()

    def _unlock(self, key: ObjectKey) -> None:
        held = self._locks.get(key)
        if held is not None:
            held.count -= 1
            if not held.count:
                del self._locks[key]
                held.pinned.release()
