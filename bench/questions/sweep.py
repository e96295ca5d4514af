"""What the owner's sweep over all headers costs, and an index made from headers alone."""

import time
from collections.abc import Iterator

import torch

import nanokv
from nanokv.bench.suite.figure import Figure, quantity
from nanokv.bench.suite.question import Question, Run
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.poller import SLOT_REST
from nanokv.host_poller.sweeper import Sweeper

PAGE = 4096
LEAST_REST = 0.25  #: seconds between the beginnings of two passes, at the least


def filled(objects: int) -> nanokv.NanoKVCache:
    """A cache of one rank with so many small objects. Its poller has stopped."""
    (cache,) = nanokv.local_world(1, heap_bytes=objects * PAGE * 5 // 4 + (1 << 24), page_bytes=PAGE)
    tensor = torch.zeros(64)
    for number in range(objects):
        cache.put(f"key {number}", tensor)
    cache.flush()
    cache.engine.poller.stop()
    return cache


def pass_seconds(sweeper: Sweeper) -> float:
    """Processor seconds of one whole pass."""
    began = time.thread_time()
    sweeper.step(time.monotonic())
    return time.thread_time() - began


def index_seconds(cache: nanokv.NanoKVCache) -> float:
    """Seconds until a new index has all objects, from the headers alone.

    Raises:
        RuntimeError: the new index lacks objects.
    """
    index = HeaderIndex(cache.engine.machine.geometry, cache.rank)
    began = time.perf_counter()
    Sweeper(cache.engine.machine, cache.engine.heap, index, 1e9, True).step(0.0)
    took = time.perf_counter() - began
    if len(index) != cache.segment_count():
        raise RuntimeError(f"the new index has {len(index)} objects, not {cache.segment_count()}")
    return took


def measure(run: Run) -> Iterator[Figure]:
    """Passes and indexes in turns."""
    objects = run.settings.objects
    run.say(f"{objects:,} objects are put")
    with filled(objects) as cache:
        ways = {"a pass": lambda: pass_seconds(cache.engine.poller.sweeper), "an index": lambda: index_seconds(cache)}
        passes, indexes = run.in_turns(ways, warm_up=1).values()
    rest = max(objects * SLOT_REST, LEAST_REST)
    case = {"objects": objects}
    yield quantity("sweep", case | {"what": "a pass over the headers"}, "ms", "lower", [1e3 * one for one in passes])
    share = [100 * one / rest for one in passes]
    yield quantity("sweep", case | {"what": "a core's time for passes, at most"}, "%", "lower", share)
    rates = [objects / one / 1e6 for one in indexes]
    yield quantity("sweep", case | {"what": "objects into a new index"}, "M/s", "higher", rates)


QUESTION = Question(
    "sweep",
    "What does the owner's sweep over all headers cost, and how soon has a new index all objects?",
    measure,
    "Processor time of one pass of the sweeping thread over all headers, with no other thread at work; a new "
    "index is made from the headers alone, and must have every object.",
)
