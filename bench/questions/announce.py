"""From the return of put to the owner's listener: how fast the owner's host learns of a new object."""

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
ASLEEP_AFTER = 0.03  #: seconds; the poller goes to sleep after about 10 ms without hints


def latencies(world: MeasuredWorld, puts: int, pause: float) -> list[int]:
    """Nanoseconds from put's return to the listener's call, for each of `puts` objects; 0 if the listener was first.

    All processes of a host share one clock.
    """
    tensor = torch.zeros(256)
    returned: dict[int, int] = {}
    world.owner.listen()
    for i in range(puts):
        time.sleep(pause)
        key = world.cache.digest(f"{puts} {pause} {i}")
        world.cache.put(key, tensor, preferred_segment=OWNER)
        returned[key.key_hash] = perf_counter_ns()
    seen = dict(world.owner.stored(puts))
    return [max(seen[key_hash] - when, 0) for key_hash, when in returned.items()]


def run(settings: Settings, worlds: Worlds, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure with a poller that sleeps before each put, and with puts as fast as they come."""
    rows = []
    busy_puts = min(settings.rounds, HEAP_BYTES // PAGE_BYTES // 2)
    for heap in settings.heaps:
        for alloc in settings.allocs:
            say(f"announce: {heap}, alloc={alloc}")
            with worlds.open(heap, alloc, HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
                for poller, puts, pause in (
                    ("asleep", settings.idle_puts, ASLEEP_AFTER),
                    ("busy", busy_puts, 0.0),
                ):
                    us = summarise(latencies(world, puts, pause))
                    rows.append({"heap": heap, "alloc": alloc, "poller": poller, "us": us})
    return {"rows": rows}
