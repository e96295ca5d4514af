"""The timed part: a ring of objects, of which each round removes the oldest, puts one and reads one from the middle.

As in `objects`: the bytes are as cold as in a cache that is in use, the tensors of the caller are hot. Every object has
its number in its first and in its last 8 bytes, so a read of an old object, or of half a new one, is noticed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nanokv.bench.peers.base import System, SystemFailed
from nanokv.bench.suite.timing import Samples

BATCH = 100  #: keys of one exists_many
EXISTS_MANY, ROUND_TRIP = f"exists of {BATCH}", "round trip of 8 B"
EVERY = 10  #: rounds to one of each of these
LEAST_BYTES = 16
Found = dict[str, list[int]]  #: operation -> nanoseconds of each call


class Stamp:
    """The number of an object, in both ends of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        raw = tensor.numpy()
        self._ends = raw[:8].view(np.int64), raw[-8:].view(np.int64)

    def write(self, number: int) -> None:
        for end in self._ends:
            end[0] = number

    def read(self) -> tuple[int, int]:
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
        self._source, self._target = system.buffer(), system.buffer()
        generator = torch.Generator().manual_seed(seed)
        self._source.copy_(torch.randint(0, 256, (ring.size,), dtype=torch.uint8, generator=generator))
        self._put_stamp, self._got_stamp = Stamp(self._source), Stamp(self._target)
        self._slots = ring.slots
        self._control = control
        self._next = 0

    def fill(self) -> None:
        """The first lap, which touches every place, and reads each object once.

        Raises:
            SystemFailed: a read returned other bytes.
        """
        for i in range(self._slots):
            self._put_stamp.write(i)
            self._system.put(self._system.key(i), self._source)
        self._next = self._slots
        for i in range(self._slots):
            self._get_stamp(i, self._system.get_into)
        self._compare(self._slots - 1)

    def run(self, rounds: int, seconds: float, warm: int = 0) -> Found:
        """The durations of `rounds` rounds, or of as many as took `seconds`; `warm` rounds before them are not timed.

        Raises:
            SystemFailed: a read returned other bytes, or an operation failed.
        """
        end = time.monotonic() + seconds
        for _ in range(warm):
            self._round({})
        samples: dict[str, Samples] = {name: Samples(rounds) for name in self.operations()}
        for _ in range(rounds):
            self._round(samples)
            if time.monotonic() > end:
                break
        self._compare(self._next - 1 - self._slots // 2)
        return {name: one.ns.tolist() for name, one in samples.items() if len(one)}

    def operations(self) -> list[str]:
        """What is timed."""
        system = self._system
        have: dict[str, object] = {"put": system.put, "get": system.get_into}
        have |= {"exists": system.exists, "remove": system.remove}
        if self._control:
            many = system.exists_many if self._slots >= BATCH else None
            have |= {EXISTS_MANY: many, ROUND_TRIP: system.round_trip}
        return [name for name, function in have.items() if function is not None]

    def _round(self, samples: dict[str, Samples]) -> None:
        system, i = self._system, self._next
        self._next += 1

        def timed(name: str, function: Callable[..., Any], *args: Any) -> Any:
            return samples[name].time(function, *args) if samples else function(*args)

        if system.remove is not None:
            timed("remove", system.remove, system.key(i - self._slots))
        self._put_stamp.write(i)
        timed("put", system.put, system.key(i), self._source)
        if system.exists is not None:
            timed("exists", system.exists, system.key(i - 3 * self._slots // 4))
        self._get_stamp(i - self._slots // 2, lambda key, target: timed("get", system.get_into, key, target))
        if samples and len(samples["put"]) % EVERY == 1:
            self._control_calls(i, samples)

    def _get_stamp(self, number: int, get_into: Callable[[Any, torch.Tensor], Any]) -> None:
        key = self._system.key(number)
        self._got_stamp.write(-1)
        get_into(key, self._target)
        if self._got_stamp.read() != (number, number):
            raise SystemFailed(f"a read of object {number} returned the ends of {self._got_stamp.read()}")

    def _control_calls(self, i: int, samples: dict[str, Samples]) -> None:
        system = self._system
        if EXISTS_MANY in samples and system.exists_many is not None:
            keys = [system.key(number) for number in range(i - BATCH + 1, i + 1)]
            samples[EXISTS_MANY].time(system.exists_many, keys)
        if ROUND_TRIP in samples and system.round_trip is not None:
            samples[ROUND_TRIP].time(system.round_trip)

    def check(self) -> None:
        """What is there is found, and what was removed is not, by every way to ask.

        Raises:
            SystemFailed: it is not so.
        """
        system, last = self._system, self._next - 1
        answers: list[bool] = []
        wanted: list[bool] = []
        if system.exists is not None:
            answers, wanted = [system.exists(system.key(last))], [True]
            if system.remove is not None:
                answers.append(system.exists(system.key(last - self._slots)))
                wanted.append(False)
        if system.exists_many is not None:
            keys: Sequence[Any] = [system.key(last - back) for back in range(min(BATCH, self._slots))]
            answers += system.exists_many(keys)
            wanted += [True] * len(keys)
        if [bool(one) for one in answers] != wanted:
            raise SystemFailed("exists does not say what is there")

    def _compare(self, number: int) -> None:
        """The whole of what was read last, which is object `number`."""
        self._put_stamp.write(number)
        if not torch.equal(self._target, self._source):
            raise SystemFailed(f"a read of object {number} returned other bytes than were put")
