"""`python -m bench.sweep`: what the owner's sweep over all headers costs, and an index made from headers alone.

Processor time of the sweeping thread, with no other thread at work; the median of seven passes, and of three indexes.
"""

import argparse
import statistics
import time

import torch

import nanokv
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.poller import SLOT_REST
from nanokv.host_poller.sweeper import Sweeper

PAGE = 4096
PASSES, INDEXES = 7, 3


def filled(objects: int) -> nanokv.NanoKVCache:
    """A cache of one rank with so many small objects. Its poller has stopped."""
    (cache,) = nanokv.local_world(1, heap_bytes=objects * PAGE * 5 // 4 + (1 << 24), page_bytes=PAGE)
    tensor = torch.zeros(64)
    for number in range(objects):
        cache.put(f"key {number}", tensor)
    cache.flush()
    cache._poller.stop()
    return cache


def pass_seconds(sweeper: Sweeper) -> float:
    """Processor seconds of one whole pass."""
    began = time.thread_time()
    sweeper.step(time.monotonic())
    return time.thread_time() - began


def index_seconds(cache: nanokv.NanoKVCache) -> float:
    """Seconds until a new index has all objects, from the headers alone."""
    index = HeaderIndex(cache._machine.geometry, cache.rank)
    began = time.perf_counter()
    Sweeper(cache._machine, cache._heap, index, 1e9, True).step(0.0)
    took = time.perf_counter() - began
    if len(index) != cache.segment_count():
        raise RuntimeError(f"the new index has {len(index)} objects, not {cache.segment_count()}")
    return took


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(prog="python -m bench.sweep", description="What a sweep costs.")
    parser.add_argument("--objects", type=int, default=1_000_000)
    objects = parser.parse_args().objects
    if objects < 1:
        parser.error("--objects must be at least 1")
    with filled(objects) as cache:
        one = statistics.median(pass_seconds(cache._poller.sweeper) for _ in range(PASSES))
        index = statistics.median(index_seconds(cache) for _ in range(INDEXES))
    share = one / max(objects * SLOT_REST, 0.25)
    print(f"a pass over {objects:,} objects: {one * 1e3:.1f} ms of a core, {share:.2%} of it at most")
    print(f"an index from their headers: {index:.3f} s, {objects / index / 1e6:.2f} million objects a second")


if __name__ == "__main__":
    main()
