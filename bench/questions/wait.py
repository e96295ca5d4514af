"""From the return of put to the return of another rank's wait."""

import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.timing import summarise
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld, Worlds

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
APART = 0.005  #: seconds between two puts: the waiting rank sleeps


def latencies(world: MeasuredWorld, puts: int, segment: int) -> list[int]:
    """Nanoseconds from put's return to the return of the wait of the owner's rank; 0 if the wait was first.

    All processes of a host share one clock.
    """
    tensor = torch.zeros(256)
    keys = [f"wait {segment} {i}" for i in range(puts)]
    returned: list[int] = []
    world.owner.await_each(keys)
    for key in keys:
        time.sleep(APART)
        world.cache.put(key, tensor, preferred_segment=segment)
        returned.append(perf_counter_ns())
    woken = world.owner.woken(puts)
    return [max(seen - when, 0) for when, seen in zip(returned, woken, strict=True)]


def run(settings: Settings, worlds: Worlds, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure waits for objects in the waiting rank's own segment, and in the producer's."""
    rows = []
    for heap in settings.heaps:
        for alloc in settings.allocs:
            say(f"wait: {heap}, alloc={alloc}")
            with worlds.open(heap, alloc, HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
                for name, segment in (("the waiting rank's", OWNER), ("the producer's", 1 - OWNER)):
                    us = summarise(latencies(world, 2 * settings.idle_puts, segment))
                    rows.append({"heap": heap, "alloc": alloc, "segment": name, "us": us})
    return {"rows": rows}
