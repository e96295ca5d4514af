"""A heap that is in use: a ring of objects in the owner's segment, and its twin for plain copies of the same bytes.

Each round removes the oldest object, puts a new one and reads one from the middle, so that the bytes are as cold as in
a cache that is in use. The plain copies walk a twin of that ring: as many places, as far apart, in the same segment. An
operation and its copy take turns at being first, since the second finds their common tensor in the processor's cache.

Other kinds of keys, tensors and puts have rows of their own. They take turns with the usual ones in the same ring:
before a turn it is filled with objects of that kind, and the first steps, which find the processor's caches as other
calls left them, do not count.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import NamedTuple, Protocol

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.owner import Owner, digest
from nanokv.bench.suite.settings import MAX_SIZE
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, PAGE_BYTES
from nanokv.types import Key

OPERATIONS = ("put", "get", "get new", "exists", "remove")  #: "get" into a tensor of the caller, or into a new one
COPIED = ("put", "get", "get new")  #: have a copy beside them: copy_ in, copy_ out, clone
EMPTY = "torch.empty"  #: beside "get new", too
PUT_GET = ("put", "get")  #: of the other kinds
PREFIX_KEYS = 250
MIN_SLOTS = 4
LEAD = 4  #: the first steps of a turn, which do not count
WARM_UP = 100  #: steps of the first turn at most, before those that count


class Mismatch(Exception):
    """A read returned other bytes than were put."""


class Plan:
    """How many objects of `size` bytes are in the ring, and how far apart. The twins are parts of large objects, lanes.

    Raises:
        ValueError: an object of this size does not fit into a heap with default size classes.
    """

    def __init__(self, size: int, ring_bytes: int) -> None:
        if size > MAX_SIZE:
            raise ValueError(f"a size is at most {MAX_SIZE} bytes, not {size}")
        pages = -(-size // PAGE_BYTES)
        self.size = size
        self.stride = PAGE_BYTES << (pages - 1).bit_length()  # an extent at least; lanes consist of whole ones
        self.slots = max(MIN_SLOTS, ring_bytes // self.stride)
        self.lane_bytes = min(MAX_SIZE, self.stride << (self.slots - 1).bit_length())
        self.lanes = -(-self.slots * self.stride // self.lane_bytes)

    @property
    def heap_bytes(self) -> int:
        """Room for the ring, its twin, and one more object."""
        return self.slots * self.stride + self.lanes * self.lane_bytes + self.stride


class Kind(NamedTuple):
    """What the objects of a ring are, and how they are put."""

    name: str  #: stands behind the operation in the names of its rows
    sources: Sequence[torch.Tensor]  #: object i is of number i modulo their count; all have the same number of bytes
    key: Callable[[int], Key]
    segment: int | None = OWNER  #: None: `put` is not told

    def source(self, number: int) -> torch.Tensor:
        """What the object with this number is a copy of."""
        return self.sources[number % len(self.sources)]


def usual(size: int) -> Kind:
    """Keys of str, flat uint8 tensors, and puts that name the owner."""
    return Kind("", [_random(size)], lambda i: f"object {i}")


def kinds(size: int) -> Iterator[Kind]:
    """The others. Those with float32 need a size that it divides."""
    yield Kind("default", [_random(size)], lambda i: f"default {i}", segment=None)
    yield Kind("bytes key", [_random(size)], lambda i: b"bytes key %d" % i)
    if size % torch.float32.itemsize == 0:
        floats = _random(size).view(torch.float32)
        yield Kind("float32", [floats], lambda i: f"float32 {i}")
        yield Kind("two kinds", [_random(size), floats], lambda i: f"two kinds {i}")


def _random(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


class Ring:
    """The objects, all of one kind at a time, and their twins."""

    def __init__(self, cache: NanoKVCache, plan: Plan) -> None:
        self.cache, self.slots, self.size = cache, plan.slots, plan.size
        self.next = 0  #: the number of the object that is put next; those of the last lap are there
        self._plan = plan
        self._kind: Kind | None = None
        self._twins = self._open_lanes()

    def _open_lanes(self) -> list[torch.Tensor]:
        """Memory of the owner's segment for the plain copies: objects that are opened for write and never committed."""
        twins: list[torch.Tensor] = []
        for lane in range(self._plan.lanes):
            place = self.cache.open_for_write(f"lane {lane}", self._plan.lane_bytes, preferred_segment=OWNER)
            address = self.cache.remote_ptr(OWNER, place.payload_base)
            raw = torch.frombuffer((ctypes.c_uint8 * self._plan.lane_bytes).from_address(address), dtype=torch.uint8)
            raw.fill_(0)
            twins += [raw[at : at + self.size] for at in range(0, self._plan.lane_bytes, self._plan.stride)]
        return twins[: self.slots]

    def close_lanes(self) -> None:
        """Give the memory of the twins back. They must not be used afterwards."""
        self._twins = []
        for lane in range(self._plan.lanes):
            self.cache.abort(f"lane {lane}")

    def twins_of(self, kind: Kind) -> list[list[torch.Tensor]]:
        """The twin of each slot, once as each of the tensors of a kind."""
        return [[twin.view(source.dtype) for source in kind.sources] for twin in self._twins]

    def fill(self, kind: Kind) -> None:
        """Make a lap that replaces all objects by those of a kind, and touches every page; not if they are of it."""
        if kind is self._kind:
            return
        for i in range(self.next, self.next + self.slots):
            if self._kind is not None:
                self.cache.remove(self._kind.key(i - self.slots))
            source = kind.source(i)
            self.cache.put(kind.key(i), source, preferred_segment=kind.segment)
            self._twins[i % self.slots].copy_(source.view(torch.uint8))
        self._kind = kind
        self.next += self.slots


class Calls:
    """Timed puts and gets of objects of one kind, and the copies beside them, for at most `steps` steps that count.

    A step is two puts, each after the removal of the oldest object, and two gets from the middle: where there are two
    kinds of tensors, each call has another one than the call before it.

    Every call is timed where it is written out, as a program would call it, with nothing else between the two looks at
    the clock.
    """

    step = 2  #: calls of each operation

    def __init__(self, ring: Ring, kind: Kind, steps: int) -> None:
        self._ring, self._cache, self.kind = ring, ring.cache, kind
        self._targets = [torch.empty_like(source) for source in kind.sources]
        self._twins = ring.twins_of(kind)
        self._room = (max(steps, WARM_UP) + LEAD) * self.step
        self.operations = {name: Samples(self._room) for name in PUT_GET}
        self.copies = {name: Samples(self._room) for name in PUT_GET}

    def close(self) -> None:
        """Forget the twins."""
        self._twins = []

    def _samples(self) -> Iterator[Samples]:
        yield from self.operations.values()
        yield from self.copies.values()

    def turn(self, steps: int, warm_up: int = LEAD) -> None:
        """Fill the ring with objects of this kind, and make `steps` steps that count, after some that do not."""
        self._ring.fill(self.kind)
        before = [(samples, len(samples)) for samples in self._samples()]
        for _ in range(warm_up):
            self._step()
        for samples, count in before:
            samples.keep(count)
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        first = self._ring.next
        self._ring.next += self.step
        middle = first - self._ring.slots // 4 * 2  # its tensor is of the kind of `first`
        for i in (first, first + 1):
            self._both(first // self.step, self._replace, self._copy_in, i)
        for i in (middle, middle + 1):
            self._both(first // self.step, self._get, self._copy_out, i)

    def _both(self, step: int, operation: Callable[[int], None], copy: Callable[[int], None], number: int) -> None:
        """An operation and its copy, which take turns at being first."""
        for one in (operation, copy) if step % 2 else (copy, operation):
            one(number)

    def _target(self, number: int) -> torch.Tensor:
        return self._targets[number % len(self._targets)]

    def _twin(self, number: int) -> torch.Tensor:
        return self._twins[number % self._ring.slots][number % len(self._targets)]

    def _replace(self, number: int) -> None:
        self._cache.remove(self.kind.key(number - self._ring.slots))
        self._put(self.kind.key(number), self.kind.source(number))

    def _put(self, key: Key, source: torch.Tensor) -> None:
        put = self._cache.put
        if self.kind.segment is None:
            start = perf_counter_ns()
            put(key, source)
            end = perf_counter_ns()
        else:
            start = perf_counter_ns()
            put(key, source, preferred_segment=OWNER)
            end = perf_counter_ns()
        self.operations["put"].add(end - start)

    def _get(self, number: int) -> None:
        get, key, target = self._cache.get, self.kind.key(number), self._target(number)
        start = perf_counter_ns()
        get(key, dst=target)
        end = perf_counter_ns()
        self.operations["get"].add(end - start)

    def _copy_in(self, number: int) -> None:
        copy, source = self._twin(number).copy_, self.kind.source(number)
        start = perf_counter_ns()
        copy(source)
        end = perf_counter_ns()
        self.copies["put"].add(end - start)

    def _copy_out(self, number: int) -> None:
        copy, twin = self._target(number).copy_, self._twin(number)
        start = perf_counter_ns()
        copy(twin)
        end = perf_counter_ns()
        self.copies["get"].add(end - start)

    def check_last(self) -> None:
        """After a turn: compare what the last step left in the heap, in the twin, and in the destination of gets.

        Raises:
            Mismatch: some bytes differ; the message names which.
        """
        last = self._ring.next - 1
        key, target = self.kind.key(last), self._target(last)
        target.zero_()
        found = {
            "the last object": self._cache.get(key),
            "the last plain copy": self._twin(last),
            "what get wrote into its destination": self._cache.get(key, dst=target),
        }
        wanted = self.kind.source(last).view(torch.uint8)
        for what, tensor in found.items():
            if not torch.equal(tensor.view(torch.uint8), wanted):
                raise Mismatch(f"{what} is not what was put, at {self._ring.size} bytes")


class UsualCalls(Calls):
    """All operations, on objects of the usual kind. A step is one round: each of them once.

    The copy beside "get new" is `clone`, which allocates too; what allocating alone takes is in `empty`.
    """

    step = 1

    def __init__(self, ring: Ring, steps: int) -> None:
        super().__init__(ring, usual(ring.size), steps)
        self.operations = {name: Samples(self._room) for name in OPERATIONS}
        self.copies = {name: Samples(self._room) for name in COPIED}
        self.empty = Samples(self._room)

    def _samples(self) -> Iterator[Samples]:
        yield from super()._samples()
        yield self.empty

    def _step(self) -> None:
        i, slots = self._ring.next, self._ring.slots
        self._ring.next += 1
        self._both(i, self._replace, self._copy_in, i)
        self._exists(i - 3 * slots // 4)
        self._both(i, self._get, self._copy_out, i - slots // 2)
        self._both(i, self._get_new, self._clone, i - slots // 4)
        self._empty()

    def _replace(self, number: int) -> None:
        old, new = self.kind.key(number - self._ring.slots), self.kind.key(number)
        remove, source = self._cache.remove, self.kind.source(number)
        start = perf_counter_ns()
        remove(old)
        end = perf_counter_ns()
        self.operations["remove"].add(end - start)
        self._put(new, source)

    def _exists(self, number: int) -> None:
        exists, key = self._cache.exists, self.kind.key(number)
        start = perf_counter_ns()
        exists(key)
        end = perf_counter_ns()
        self.operations["exists"].add(end - start)

    def _get_new(self, number: int) -> None:
        get, key = self._cache.get, self.kind.key(number)
        start = perf_counter_ns()
        get(key)
        end = perf_counter_ns()
        self.operations["get new"].add(end - start)

    def _clone(self, number: int) -> None:
        clone = self._twin(number).clone
        start = perf_counter_ns()
        clone()
        end = perf_counter_ns()
        self.copies["get new"].add(end - start)

    def _empty(self) -> None:
        empty, size, dtype = torch.empty, self._ring.size, torch.uint8
        start = perf_counter_ns()
        empty(size, dtype=dtype)
        end = perf_counter_ns()
        self.empty.add(end - start)


class Prefixes:
    """`prefix_length` of the newest keys, all of which are there; in a small ring some are asked for more than once."""

    def __init__(self, ring: Ring, kind: Kind, steps: int) -> None:
        self._ring, self._kind = ring, kind
        self.samples = Samples(steps)

    def turn(self, steps: int) -> None:
        """Ask `steps` times, after once that does not count. Raises Mismatch: a key was not found."""
        self._ring.fill(self._kind)
        prefix_length, last = self._ring.cache.prefix_length, self._ring.next - 1
        for step in range(-1, steps):
            keys = [self._kind.key(last - i % self._ring.slots) for i in range(PREFIX_KEYS)]
            start = perf_counter_ns()
            found = prefix_length(keys)
            end = perf_counter_ns()
            if step >= 0:
                self.samples.add(end - start)
            if found != PREFIX_KEYS:
                raise Mismatch(f"prefix_length found {found} of {PREFIX_KEYS} keys that are there")


class TakesTurns(Protocol):
    """Makes steps that count, some at a time."""

    def turn(self, steps: int) -> None:
        """Make `steps` steps that count."""


def take_turns(parts: Sequence[tuple[TakesTurns, int]], turns: int) -> None:
    """Let each part make its number of steps, spread evenly over the turns."""
    for number in range(turns):
        for part, steps in parts:
            part.turn(steps * (number + 1) // turns - steps * number // turns)


def check_bytes(cache: NanoKVCache, owner: Owner, size: int) -> None:
    """Put random bytes, and read them in each way, also as the other rank.

    Raises:
        Mismatch: a read returned other bytes; the message names it.
    """
    key = "checked"
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    cache.put(key, source, preferred_segment=OWNER)
    wanted = digest(source)
    found = {
        "get into a tensor": digest(cache.get(key, dst=torch.zeros_like(source))),
        "get": digest(cache.get(key)),
        "get by the owner": owner.digest(key),
    }
    for how, got in found.items():
        if got != wanted:
            raise Mismatch(f"{how} gave other bytes than were put, at {size} bytes")
    cache.remove(key)
