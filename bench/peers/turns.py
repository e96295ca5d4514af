"""The timed part: a ring of objects, of which each round removes the oldest, puts one and reads one from the middle.

As in `latency`: the bytes are as cold as in a cache that is in use, the tensors of the caller are hot. Every object has
its number in its first and in its last 8 bytes, so a read of an old object, or of half a new one, is noticed.
"""

from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np
import torch

from nanokv.bench.peers.base import System, SystemFailed
from nanokv.bench.suite.timing import Samples

BATCH = 100  #: keys of one exists_many
EXISTS_MANY, ROUND_TRIP = f"exists of {BATCH}", "round trip of 8 B"
EVERY = 10  #: rounds to one of each of these
LEAST_SIZE = 16
Found = dict[str, list[int]]  #: operation -> nanoseconds of each call


class Stamp:
    """The number of an object, in both ends of a tensor of at least 16 bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        raw = tensor.numpy()
        self._ends = raw[:8].view(np.int64), raw[-8:].view(np.int64)

    def write(self, number: int) -> None:
        """Set both ends."""
        for end in self._ends:
            end[0] = number

    def read(self) -> tuple[int, int]:
        """Both ends; they are equal unless the tensor has parts of two objects."""
        first, last = self._ends
        return int(first[0]), int(last[0])


class Turns:
    """The ring of one system.

    Args:
        system: it runs.
        seed: of the payload: systems with the same seed get the same bytes.
        control: also time what does not depend on the size.
    """

    def __init__(self, system: System, seed: int, *, control: bool) -> None:
        ring = system.ring
        self._system = system
        self._source, self._target = system.source(), system.target()
        generator = torch.Generator().manual_seed(seed)
        self._source.copy_(torch.randint(0, 256, (ring.size,), dtype=torch.uint8, generator=generator))
        self._put_stamp, self._got_stamp = Stamp(self._source), Stamp(self._target)
        self._slots = ring.slots
        self._many = system.exists_many if control and ring.slots >= BATCH else None
        self._round_trip = system.round_trip if control else None
        self._next = 0  #: number of the next object
        self._samples: dict[str, Samples] = {}

    def fill(self) -> None:
        """The first lap, which touches every place and reads each object once.

        Raises:
            SystemFailed: a read returned other bytes.
        """
        system = self._system
        self._samples = {"get": Samples(self._slots)}
        for i in range(self._slots):
            self._put_stamp.write(i)
            system.put(system.key(i), self._source)
        for i in range(self._slots):
            self._get(i)
        self._next = self._slots
        self._compare(self._slots - 1)

    def run(self, rounds: int, seconds: float, warm: int) -> Found:
        """The durations of `rounds` rounds, or of as many as took `seconds`; those of the first `warm` do not count.

        Raises:
            SystemFailed: a read returned other bytes, or an operation failed.
        """
        self._samples = {name: Samples(max(rounds, warm)) for name in self._operations()}
        self._rounds(warm, monotonic() + seconds)
        for samples in self._samples.values():
            samples.clear()
        self._rounds(rounds, monotonic() + seconds)
        self._compare(self._next - 1 - self._slots // 2)
        return {name: samples.ns.tolist() for name, samples in self._samples.items()}

    def _operations(self) -> list[str]:
        system = self._system
        optional = {"exists": system.exists, "remove": system.remove}
        control = {EXISTS_MANY: self._many, ROUND_TRIP: self._round_trip}
        have = [name for few in (optional, control) for name, function in few.items() if function is not None]
        return ["put", "get", *have]

    def _rounds(self, count: int, end: float) -> None:
        """At least one, if there shall be any. Every call is timed where it is written out."""
        for done in range(count):
            i = self._next
            self._next += 1
            self._remove(i - self._slots)
            self._put(i)
            self._exists(i - 3 * self._slots // 4)
            self._get(i - self._slots // 2)
            if done % EVERY == 0:
                self._ask_for_many(i)
                self._ask()
            if monotonic() > end:
                break

    def _remove(self, number: int) -> None:
        remove, key = self._system.remove, self._system.key(number)
        if remove is None:
            return
        start = perf_counter_ns()
        remove(key)
        end = perf_counter_ns()
        self._samples["remove"].add(end - start)

    def _put(self, number: int) -> None:
        put, key, source = self._system.put, self._system.key(number), self._source
        self._put_stamp.write(number)
        start = perf_counter_ns()
        put(key, source)
        end = perf_counter_ns()
        self._samples["put"].add(end - start)

    def _exists(self, number: int) -> None:
        exists, key = self._system.exists, self._system.key(number)
        if exists is None:
            return
        start = perf_counter_ns()
        exists(key)
        end = perf_counter_ns()
        self._samples["exists"].add(end - start)

    def _get(self, number: int) -> None:
        get_into, key, target = self._system.get_into, self._system.key(number), self._target
        self._got_stamp.write(-1)
        start = perf_counter_ns()
        get_into(key, target)
        end = perf_counter_ns()
        self._samples["get"].add(end - start)
        ends = self._got_stamp.read()
        if ends != (number, number):
            raise SystemFailed(f"a read of object {number} returned the ends of {ends[0]} and {ends[1]}")

    def _ask_for_many(self, last: int) -> None:
        if self._many is None:
            return
        many, keys = self._many, [self._system.key(last - back) for back in range(BATCH)]
        start = perf_counter_ns()
        many(keys)
        end = perf_counter_ns()
        self._samples[EXISTS_MANY].add(end - start)

    def _ask(self) -> None:
        if self._round_trip is None:
            return
        start = perf_counter_ns()
        self._round_trip()
        end = perf_counter_ns()
        self._samples[ROUND_TRIP].add(end - start)

    def _compare(self, number: int) -> None:
        """All bytes of the last read, which was of object `number`. Raises SystemFailed: they are others."""
        self._put_stamp.write(number)
        if not torch.equal(self._target, self._source):
            raise SystemFailed(f"a read of object {number} returned other bytes than were put")

    def check(self) -> None:
        """Ask for what is there, and for what was removed.

        Raises:
            SystemFailed: an answer is wrong.
        """
        system, last = self._system, self._next - 1
        asked: list[tuple[Any, bool]] = [(last, True), (last + 1, False)]
        asked += [(last - self._slots, False)] if last >= self._slots else []
        for number, there in asked:
            if system.exists is not None and system.exists(system.key(number)) is not there:
                raise SystemFailed(f"exists does not answer {there} for object {number}, of {last}")
        if system.exists_many is not None:
            count = min(BATCH, self._slots)
            found = system.exists_many([system.key(last - back) for back in range(count)])
            if list(found) != [True] * count:
                raise SystemFailed(f"of {count} objects that are there, {sum(found)} exist")
