"""Random work of many threads on one world: every answer is checked as it comes, then fsck checks the segments."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.virtual_world import local_world
from nanokv.check.machine.random_calls import RandomCalls
from nanokv.check.report import CheckFailure, Row
from nanokv.config import Alloc
from nanokv.fsck import check_cache

THREADS = 4
RANKS = 2
PAGES = 16
PAGE_BYTES = 256
KEYS = 6
MAX_PAGES = 5


def run_concurrency(seconds: float, seed: int, *, alloc: Alloc, device: str = "cpu") -> list[Row]:
    """Threads put, get, pin, plan and remove a few keys in a few pages; with and without eviction.

    Args:
        seconds: altogether.
        seed: of the work; the timing of the threads is the machine's.
        alloc: "device" or "host".
        device: of the segments.
    """
    return [_run(seconds / 2, seed, alloc, device, evict) for evict in (False, True)]


def _run(seconds: float, seed: int, alloc: Alloc, device: str, evict: bool) -> Row:
    row = Row("threads", f"random work, {alloc}, {'evicting' if evict else 'full'}", unit="operations")
    world = local_world(RANKS, PAGES * PAGE_BYTES, page_bytes=PAGE_BYTES, alloc=alloc, evict=evict, device=device)
    try:
        with row.timed():
            workers = [
                RandomCalls(world[thread % RANKS], thread, keys=KEYS, max_pages=MAX_PAGES, seed=seed + thread)
                for thread in range(THREADS)
            ]
            end = time.monotonic() + seconds
            with ThreadPoolExecutor(THREADS) as pool:
                for counts in pool.map(partial(_run_until, end), workers):
                    row.tried += sum(counts.values())
            check_at_rest(world)
            for cache in world:
                cache.clear()
            check_room(world)
    finally:
        for cache in world:
            cache.close()
    row.note = f"{THREADS} threads, {RANKS} ranks, {KEYS} keys, {PAGES} pages; then fsck, and all space usable again"
    return row


def _run_until(end: float, calls: RandomCalls) -> dict[str, int]:
    while time.monotonic() < end:
        calls.run(20)
    return calls.counts


def check_at_rest(world: list[NanoKVCache]) -> None:
    """No operation is under way: fsck must find nothing.

    Raises:
        CheckFailure: with its findings.
    """
    for cache in world:
        cache.flush()
    report = check_cache(world)
    if not report.clean:
        raise CheckFailure(str(report))


def check_room(world: list[NanoKVCache]) -> None:
    """Check that every segment of a world without objects has room for its largest one.

    Raises:
        CheckFailure: one has not.
    """
    first, last = world[0], world[-1]
    nbytes = first.engine.geometry.n_pages * first.engine.geometry.page_bytes
    largest = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8).to(first.engine.single.device)
    for rank in range(first.world_size):
        first.put("largest", largest, preferred_segment=rank)
        if not torch.equal(last.get("largest"), largest):
            raise CheckFailure(f"the largest object of rank {rank} came back with other bytes")
        first.remove("largest")
    check_at_rest(world)
