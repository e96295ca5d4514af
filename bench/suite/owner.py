"""Rank 1, whose segment the measured rank puts into: asked by calls, or by messages if it is another process."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

import torch

from nanokv import Event, EventKind, NanoKVCache

PATIENCE = 30.0  #: seconds to wait for events, and for the other process


def digest(tensor: torch.Tensor) -> str:
    """A digest of a tensor's bytes."""
    return hashlib.blake2b(tensor.reshape(-1).view(torch.uint8).numpy().data, digest_size=16).hexdigest()


class Owner(Protocol):
    """Rank 1, as the measured rank sees it."""

    def digest(self, key: str) -> str:
        """Get an object as rank 1, and digest its bytes."""
        ...

    def listen(self) -> None:
        """Begin to note when objects in the segment of rank 1 reach its listener."""
        ...

    def stored(self, count: int) -> list[tuple[int, int]]:
        """Wait for `count` objects since `listen`, and stop listening. Returns (key_hash, time in ns) of each."""
        ...

    def await_each(self, keys: list[str]) -> None:
        """Begin to wait for the objects, one after the other, and to note when each wait returns."""
        ...

    def woken(self, count: int) -> list[int]:
        """When each of `count` waits returned, in ns."""
        ...


class OwnerHere:
    """An Owner in this process."""

    def __init__(self, cache: NanoKVCache) -> None:
        self._cache = cache
        self._changed = threading.Condition()
        self._seen: list[tuple[int, int]] = []
        self._stop: Callable[[], None] | None = None
        self._woken: list[int] = []
        self._waiting = threading.Thread()

    def digest(self, key: str) -> str:
        return digest(self._cache.get(key))

    def listen(self) -> None:
        self._seen = []
        self._stop = self._cache.subscribe(self._note)

    def _note(self, events: Sequence[Event]) -> None:
        now = perf_counter_ns()
        with self._changed:
            stored = [event.key for event in events if event.kind is EventKind.STORED]
            self._seen += [(key.key_hash, now) for key in stored if key is not None]
            self._changed.notify_all()

    def stored(self, count: int) -> list[tuple[int, int]]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._seen) >= count, PATIENCE):
                raise TimeoutError(f"{len(self._seen)} of {count} objects reached the listener in {PATIENCE:.0f} s")
        if self._stop is not None:
            self._stop()
        return self._seen

    def await_each(self, keys: list[str]) -> None:
        self._woken = []
        self._waiting = threading.Thread(target=self._await, args=(keys,), name="bench-wait")
        self._waiting.start()

    def _await(self, keys: list[str]) -> None:
        for key in keys:
            self._cache.wait(key, timeout=PATIENCE)
            self._woken.append(perf_counter_ns())

    def woken(self, count: int) -> list[int]:
        self._waiting.join()
        if len(self._woken) != count:
            raise TimeoutError(f"{len(self._woken)} of {count} waits returned, each within {PATIENCE:.0f} s")
        return self._woken
