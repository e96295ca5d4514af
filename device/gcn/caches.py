"""Memory with the caches of gfx942, as weak as its memory model lets them be.

Each workgroup is an agent of its own, with one cache:

- what it stores stays there, visible to itself only, until it is written back: at some moment, by `buffer_wbl2 sc0
  sc1`, or at the end of the launch. A writeback takes the stores that are complete: those of its wave, and those for
  which another wave of the workgroup has waited;
- what it loads fills lines of 128 bytes, and later loads may find these old lines, until `buffer_inv sc0 sc1`;
- loads and stores with sc0 sc1, and atomics with sc1, go to memory.

So a release is `buffer_wbl2 sc0 sc1`, `s_waitcnt vmcnt(0)`, atomic; an acquire is atomic, `s_waitcnt vmcnt(0)`,
`buffer_inv sc0 sc1`; and without one of these a reader can find old bytes. Accesses of one workgroup to one address
stay in order. Source: LLVM, "User Guide for AMDGPU Backend", memory model gfx942.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.coherence import CoherentMemory
from nanokv.device.gcn.memory import Addresses, Dwords, HostMemory
from nanokv.device.gcn.outstanding import Operation
from nanokv.device.gcn.wave import Wave, Workgroup

LINE = 128
Bytes = npt.NDArray[np.uint8]


class CachedStore:
    """One store that is in a cache, and not in memory."""

    __slots__ = ("addresses", "complete", "span", "values", "width")

    def __init__(self, addresses: Addresses, width: int, values: Dwords) -> None:
        self.addresses, self.width, self.values = addresses, width, values
        self.span = int(addresses.min()), int(addresses.max()) + width
        self.complete = False

    def overlaps(self, first: int, end: int) -> bool:
        """Whether it may have stored some of these bytes."""
        return self.span[0] < end and first < self.span[1]

    def completed(self) -> None:
        """Note that the store has reached the cache: a writeback takes it along."""
        self.complete = True


class Cache:
    """The cache of one workgroup: stores, oldest first, and lines that were loaded."""

    def __init__(self) -> None:
        self.stores: list[CachedStore] = []
        self.lines: dict[int, Dwords] = {}

    def forget(self, first: int, end: int) -> None:
        """Memory has newer bytes than the lines."""
        for line in range(first // LINE, (end - 1) // LINE + 1):
            self.lines.pop(line, None)


class CachedMemory(CoherentMemory):
    """Caches that show old bytes, and keep new ones, as often as they may.

    Args:
        host: where the bytes are.
        dice: chooses among what may happen.
        stale: the chance that a load finds a line that was loaded before.
        settle: the chance that some store is written back between two turns.
    """

    def __init__(self, host: HostMemory, dice: Random, *, stale: float = 0.7, settle: float = 0.02) -> None:
        super().__init__(host)
        self._dice, self._stale, self._settle = dice, stale, settle
        self._caches: dict[Workgroup, Cache] = {}

    def _cache(self, workgroup: Workgroup) -> Cache:
        return self._caches.setdefault(workgroup, Cache())

    def load(self, wave: Wave, addresses: Addresses, width: int, system: bool) -> Dwords:
        cache = self._cache(wave.workgroup)
        first, end = int(addresses.min()), int(addresses.max()) + width
        if system:
            self._write_back(cache, [each for each in cache.stores if each.overlaps(first, end)])
            cache.forget(first, end)
            return self.host.read(addresses, width)
        unit = min(width, 4)
        places: Addresses = addresses[:, None] + np.arange(0, width, unit).astype(np.uint64)
        found = self._from_lines(cache, places.reshape(-1), unit)
        for stored in cache.stores:
            if stored.overlaps(first, end):
                _overlay(found, places.reshape(-1), unit, stored)
        words = np.zeros((found.shape[0], 4), np.uint8)
        words[:, :unit] = found
        return words.view(np.uint32).reshape(places.shape).T

    def _from_lines(self, cache: Cache, places: Addresses, unit: int) -> Bytes:
        """The bytes [places, unit], each from its line."""
        numbers, which = np.unique(places // np.uint64(LINE), return_inverse=True)
        rows = []
        for number in numbers.tolist():
            if number not in cache.lines or self._dice.random() >= self._stale:
                start: Addresses = np.arange(number * LINE, (number + 1) * LINE, 8).astype(np.uint64)
                cache.lines[number] = np.ascontiguousarray(self.host.read(start, 8).T).reshape(-1)
            rows.append(cache.lines[number])
        lines = np.stack(rows).view(np.uint8)
        inside = (places % np.uint64(LINE)).astype(np.int64)[:, None] + np.arange(unit)
        return lines[which.reshape(-1, 1), inside]

    def store(self, wave: Wave, addresses: Addresses, width: int, values: Dwords, system: bool) -> Operation:
        cache, stored = self._cache(wave.workgroup), CachedStore(addresses, width, values)
        if not system:
            cache.stores.append(stored)
            return Operation(stored.completed, span=stored.span)

        def through() -> None:
            self._write_back(cache, [each for each in cache.stores if each.overlaps(*stored.span)])
            cache.forget(*stored.span)
            self.host.write(addresses, width, values)

        return Operation(through, span=stored.span)

    def atomic(self, wave: Wave, address: int, size: int, operation: str, operands: Sequence[int], system: bool) -> int:
        if not system:
            raise Unsupported("an atomic below system scope: each workgroup is an agent of its own here")
        cache = self._cache(wave.workgroup)
        self._write_back(cache, [each for each in cache.stores if each.overlaps(address, address + size)])
        cache.forget(address, address + size)
        return self.host.atomic(address, size, operation, operands)

    def write_back(self, wave: Wave, system: bool) -> None:
        cache = self._cache(wave.workgroup)
        if system:
            self._write_back(cache, [each for each in cache.stores if each.complete])

    def invalidate(self, wave: Wave, system: bool) -> None:
        if system:
            self._cache(wave.workgroup).lines.clear()

    def _write_back(self, cache: Cache, chosen: list[CachedStore]) -> None:
        """Write stores to memory, and before each the older ones of the same bytes."""
        for stored in chosen:
            if stored in cache.stores:
                at = cache.stores.index(stored)
                self._write_back(cache, [each for each in cache.stores[:at] if each.overlaps(*stored.span)])
                cache.stores.remove(stored)
                cache.forget(*stored.span)
                self.host.write(stored.addresses, stored.width, stored.values)

    def stir(self) -> None:
        if self._dice.random() < self._settle:
            cache = self._dice.choice([*self._caches.values(), Cache()])
            complete = [each for each in cache.stores if each.complete]
            self._write_back(cache, [self._dice.choice(complete)] if complete else [])

    def end(self) -> None:
        for cache in self._caches.values():
            self._write_back(cache, cache.stores[:])
        self._caches.clear()


def _overlay(found: Bytes, places: Addresses, unit: int, stored: CachedStore) -> None:
    """Put the bytes of a store over what was found."""
    size = min(stored.width, 4)
    starts = (stored.addresses[:, None] + np.arange(0, stored.width, size, dtype=np.uint64)).reshape(-1)
    raw = np.ascontiguousarray(stored.values.T).reshape(-1, 1).view(np.uint8)[:, :size].reshape(-1)
    at = (starts[:, None] + np.arange(size, dtype=np.uint64)).reshape(-1)
    bytes_ = dict(zip(at.tolist(), raw.tolist(), strict=True))  # of several lanes the last one counts
    for row, place in enumerate(places.tolist()):
        for n in range(unit):
            if place + n in bytes_:
                found[row, n] = bytes_[place + n]
