"""A heap that is in use: a ring of objects in the owner's segment, and its twin for plain copies of the same bytes.

Each round removes the oldest object, puts a new one and reads one from the middle, so that the bytes are as cold as in
a cache that is in use. The plain copies walk a twin of that ring: as many places, as far apart, in the same segment. An
operation and its copy take turns at being first, since the second finds their common tensor in the processor's cache.
"""

import ctypes
from collections.abc import Callable
from time import perf_counter_ns

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.owner import Owner, digest
from nanokv.bench.suite.settings import MAX_SIZE
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, PAGE_BYTES

OPERATIONS = ("put", "get", "get new", "exists", "remove")  #: "get" into a tensor of the caller, or into a new one
COPIED = ("put", "get", "get new")  #: have a copy beside them: copy_ in, copy_ out, clone
MIN_SLOTS = 4


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


class Ring:
    """The objects, their twins, and the timed operations on them: at most `rounds` of each.

    Every call is timed where it is written out, as a program would call it, with nothing else between the two looks at
    the clock.
    """

    def __init__(self, cache: NanoKVCache, plan: Plan, rounds: int) -> None:
        self._cache = cache
        self._plan = plan
        self._source = torch.randint(0, 256, (plan.size,), dtype=torch.uint8)
        self._target = torch.empty_like(self._source)
        self._twins = self._open_lanes()
        self.operations = {name: Samples(rounds) for name in OPERATIONS}
        self.copies = {name: Samples(rounds) for name in COPIED}

    def _open_lanes(self) -> list[torch.Tensor]:
        """Memory of the owner's segment for the plain copies: objects that are opened for write and never committed."""
        twins: list[torch.Tensor] = []
        for lane in range(self._plan.lanes):
            place = self._cache.open_for_write(f"lane {lane}", self._plan.lane_bytes, preferred_segment=OWNER)
            address = self._cache.remote_ptr(OWNER, place.payload_base)
            raw = torch.frombuffer((ctypes.c_uint8 * self._plan.lane_bytes).from_address(address), dtype=torch.uint8)
            raw.fill_(0)
            twins += [raw[at : at + self._plan.size] for at in range(0, self._plan.lane_bytes, self._plan.stride)]
        return twins[: self._plan.slots]

    def close_lanes(self) -> None:
        """Give the memory of the twins back. They must not be used afterwards."""
        self._twins = []
        for lane in range(self._plan.lanes):
            self._cache.abort(f"lane {lane}")

    def fill(self) -> None:
        """The first lap, which touches every page of the ring."""
        for i in range(self._plan.slots):
            self._cache.put(_key(i), self._source, preferred_segment=OWNER)
            self._twins[i].copy_(self._source)

    def run(self, warm_up: int, rounds: int) -> None:
        """Fill the ring, run `warm_up` rounds that do not count, then those that do, and check the bytes.

        Raises:
            Mismatch: the bytes at the end are not what was put.
        """
        self.fill()
        first = self._plan.slots
        self._rounds(first, warm_up)
        for samples in (*self.operations.values(), *self.copies.values()):
            samples.clear()
        self._rounds(first + warm_up, rounds)
        self.check_last(first + warm_up + rounds - 1)

    def _rounds(self, first: int, count: int) -> None:
        """Run `count` rounds from number `first` on; round i puts object i, while the ring is full."""
        slots = self._plan.slots
        for i in range(first, first + count):
            middle, recent = i - slots // 2, i - slots // 4
            self._both(i, self._replace, self._copy_in, i)
            self._exists(_key(i - 3 * slots // 4))
            self._both(i, self._get, self._copy_out, middle)
            self._both(i, self._get_new, self._clone, recent)

    def _both(self, i: int, operation: Callable[[int], None], copy: Callable[[int], None], number: int) -> None:
        """An operation and its copy, which take turns at being first."""
        for one in (operation, copy) if i % 2 else (copy, operation):
            one(number)

    def _replace(self, number: int) -> None:
        old, new, remove, put = _key(number - self._plan.slots), _key(number), self._cache.remove, self._cache.put
        source = self._source
        start = perf_counter_ns()
        remove(old)
        end = perf_counter_ns()
        self.operations["remove"].add(end - start)
        start = perf_counter_ns()
        put(new, source, preferred_segment=OWNER)
        end = perf_counter_ns()
        self.operations["put"].add(end - start)

    def _exists(self, key: str) -> None:
        exists = self._cache.exists
        start = perf_counter_ns()
        exists(key)
        end = perf_counter_ns()
        self.operations["exists"].add(end - start)

    def _get(self, number: int) -> None:
        get, key, target = self._cache.get, _key(number), self._target
        start = perf_counter_ns()
        get(key, dst=target)
        end = perf_counter_ns()
        self.operations["get"].add(end - start)

    def _get_new(self, number: int) -> None:
        get, key = self._cache.get, _key(number)
        start = perf_counter_ns()
        get(key)
        end = perf_counter_ns()
        self.operations["get new"].add(end - start)

    def _copy_in(self, number: int) -> None:
        copy, source = self._twins[number % self._plan.slots].copy_, self._source
        start = perf_counter_ns()
        copy(source)
        end = perf_counter_ns()
        self.copies["put"].add(end - start)

    def _copy_out(self, number: int) -> None:
        copy, twin = self._target.copy_, self._twins[number % self._plan.slots]
        start = perf_counter_ns()
        copy(twin)
        end = perf_counter_ns()
        self.copies["get"].add(end - start)

    def _clone(self, number: int) -> None:
        clone = self._twins[number % self._plan.slots].clone
        start = perf_counter_ns()
        clone()
        end = perf_counter_ns()
        self.copies["get new"].add(end - start)

    def check_last(self, last: int) -> None:
        """Compare the bytes that the last round left in the heap, in the twin ring, and in the destination of gets.

        Raises:
            Mismatch: some bytes differ; the message names which.
        """
        self._target.zero_()
        found = {
            "the last object": self._cache.get(_key(last)),
            "the last plain copy": self._twins[last % self._plan.slots],
            "what get wrote into its destination": self._cache.get(_key(last), dst=self._target),
        }
        for what, tensor in found.items():
            if not torch.equal(tensor, self._source):
                raise Mismatch(f"{what} is not what was put, at {self._plan.size} bytes")


def _key(i: int) -> str:
    return f"object {i}"


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
