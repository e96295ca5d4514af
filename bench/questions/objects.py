"""put, get, exists and remove, beside a plain `copy_` of the same bytes.

The heap holds a ring of objects. Each round removes the oldest, puts a new one and reads one from the middle, so that
the bytes are as cold as in a cache that is in use. The plain copies walk a twin of that ring: as many places, as far
apart, in the same segment. An operation and its copy take turns at being first, since the second finds their common
tensor in the processor's cache.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.owner import Owner, digest
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, PAGE_BYTES, Worlds

MAX_BYTES = 128 * PAGE_BYTES  #: the largest object of a heap with default size classes
COPY_OF = {"put": "copy_in", "get": "copy_out", "get_new": "clone"}  #: operation -> the copy beside it
OPERATIONS = ("put", "get", "get_new", "exists", "remove")
MIN_SLOTS = 4
Call = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Mismatch(Exception):
    """A read returned other bytes than were put."""


class Plan:
    """How many objects of `size` bytes are in the ring, and how far apart. The twins are parts of large objects, lanes.

    Raises:
        ValueError: an object of this size does not fit into a heap with default size classes.
    """

    def __init__(self, size: int, ring_bytes: int) -> None:
        if size > MAX_BYTES:
            raise ValueError(f"a size is at most {MAX_BYTES} bytes, not {size}")
        pages = -(-size // PAGE_BYTES)
        self.size = size
        self.stride = PAGE_BYTES << (pages - 1).bit_length()  # an extent at least; lanes consist of whole ones
        self.slots = max(MIN_SLOTS, ring_bytes // self.stride)
        self.lane_bytes = min(MAX_BYTES, self.stride << (self.slots - 1).bit_length())
        self.lanes = -(-self.slots * self.stride // self.lane_bytes)

    @property
    def heap_bytes(self) -> int:
        """Room for the ring, its twin, and one more object."""
        return self.slots * self.stride + self.lanes * self.lane_bytes + self.stride


class Ring:
    """The objects, their twins, and the timed operations on them."""

    def __init__(self, cache: NanoKVCache, plan: Plan) -> None:
        self._cache = cache
        self._plan = plan
        self._source = torch.randint(0, 256, (plan.size,), dtype=torch.uint8)
        self._target = torch.empty_like(self._source)
        self._twins = self._open_lanes()
        self.samples = {name: Samples() for name in (*OPERATIONS, *COPY_OF.values())}

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

    def rounds(self, first: int, count: int) -> None:
        """Run `count` rounds from number `first` on; round i puts object i, while the ring is full."""
        cache, slots, source, target = self._cache, self._plan.slots, self._source, self._target
        time = {name: samples.time for name, samples in self.samples.items()}
        for i in range(first, first + count):
            middle, recent = i - slots // 2, i - slots // 4
            self._time_pair(
                i,
                ("put", cache.put, (_key(i), source), {"preferred_segment": OWNER}),
                ("copy_in", self._twins[i % slots].copy_, (source,), {}),
                before=("remove", cache.remove, (_key(i - slots),), {}),
            )
            time["exists"](cache.exists, _key(i - 3 * slots // 4))
            self._time_pair(
                i,
                ("get", cache.get, (_key(middle),), {"dst": target}),
                ("copy_out", target.copy_, (self._twins[middle % slots],), {}),
            )
            self._time_pair(
                i,
                ("get_new", cache.get, (_key(recent),), {}),
                ("clone", self._twins[recent % slots].clone, (), {}),
            )

    def _time_pair(self, i: int, operation: Call, copy: Call, before: Call | None = None) -> None:
        """Time an operation and its copy, which take turns at being first; `before` makes room for the operation."""
        calls = [one for one in (before, operation) if one is not None]
        for name, function, args, keywords in [*calls, copy] if i % 2 else [copy, *calls]:
            self.samples[name].time(function, *args, **keywords)

    def check_last(self, last: int) -> None:
        """Compare the bytes that the last round left in the heap, in the twin ring, and in the destination of gets.

        Raises:
            Mismatch: some bytes differ; the message names which.
        """
        found = {
            "the last object": self._cache.get(_key(last)),
            "the last plain copy": self._twins[last % self._plan.slots],
            "what get wrote into its destination": self._target,
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


def measure(worlds: Worlds, heap: str, alloc: str, size: int, settings: Settings) -> dict[str, Any]:
    """One row of the results: every operation at one size, in a world of its own."""
    plan = Plan(size, settings.ring_bytes)
    with worlds.open(heap, alloc, plan.heap_bytes) as (cache, owner):
        check_bytes(cache, owner, size)
        ring = Ring(cache, plan)
        ring.fill()
        warm = min(settings.rounds // 10 + 1, 100)
        ring.rounds(plan.slots, warm)
        for samples in ring.samples.values():
            samples.clear()
        ring.rounds(plan.slots + warm, settings.rounds)
        ring.check_last(plan.slots + warm + settings.rounds - 1)
        ring.close_lanes()
    us = {name: samples.summary() for name, samples in ring.samples.items()}
    return {
        "heap": heap,
        "alloc": alloc,
        "size": size,
        "ring_slots": plan.slots,
        "ring_stride_bytes": plan.stride,
        "bytes_verified": True,
        "us": us,
        "ratio_p50": {f"{name}/{copy}": us[name]["p50"] / us[copy]["p50"] for name, copy in COPY_OF.items()},
    }


def run(settings: Settings, worlds: Worlds, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every size, heap and allocator."""
    rows = []
    with torch_threads(settings.threads):
        for heap in settings.heaps:
            for size in settings.sizes:
                for alloc in settings.allocs:  # one right after the other, because they are compared
                    say(f"objects: {heap}, alloc={alloc}, {size} bytes")
                    rows.append(measure(worlds, heap, alloc, size, settings))
    return {"torch_threads": settings.threads, "ring_bytes": settings.ring_bytes, "rows": rows}
