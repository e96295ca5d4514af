"""t_plan: from the number of bytes to the place to write them to, found by the producer (v2), or by v1's master.

The owner, which is v1's master, is another process: each plan of v1 is a message to it and its answer.
"""

import ctypes
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import torch

from nanokv.bench.suite.checked import check_object, random_bytes
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.settings import MIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld

SIZE = 2 * MIB
HEAP_BYTES = 32 * SIZE
WARM = 20


def plans(world: MeasuredWorld, count: int) -> Samples:
    """`count` plans, each aborted before the next one.

    Raises:
        Mismatch: the plan that was written and committed does not read back.
        RuntimeError: an aborted plan left something behind.
    """
    check_plan(world)
    cache, samples = world.cache, Samples(max(count, WARM))
    plan = cache.open_for_write
    for number in range(-WARM, count):
        if number == 0:
            samples.clear()
        key = f"plan {number}"
        start = perf_counter_ns()
        plan(key, SIZE, preferred_segment=OWNER)
        end = perf_counter_ns()
        samples.add(end - start)
        cache.abort(key)
    if any(cache.exists_many([f"plan {number}" for number in range(-WARM, count)])):
        raise RuntimeError("an object that was aborted can be read")
    return samples


def check_plan(world: MeasuredWorld) -> None:
    """Write an object by its plan, and read it in every way. Raises Mismatch if a byte differs."""
    source = random_bytes(SIZE)
    plan = world.cache.open_for_write("checked", SIZE, preferred_segment=OWNER)
    address = world.cache.remote_ptr(OWNER, plan.payload_base)
    torch.frombuffer((ctypes.c_uint8 * SIZE).from_address(address), dtype=torch.uint8).copy_(source)
    world.cache.commit("checked")
    check_object(world.cache, world.owner, "checked", source)
    world.cache.remove("checked")


def measure(run: Run) -> Iterator[Figure]:
    """Both allocators, in turns; each repetition in a world of its own."""

    def once(alloc: str) -> Samples:
        with run.worlds.open("shm", alloc, HEAP_BYTES) as world:
            return plans(world, run.settings.rounds_of(1, alloc))

    ways = {alloc: partial(once, alloc) for alloc in run.settings.allocs}
    for alloc, repetitions in run.in_turns(ways).items():
        yield latency("plan", {"alloc": alloc, "what": "t_plan"}, repetitions)


QUESTION = Question(
    "plan",
    "How long does it take to get the place of a new object: from v1's master, and without one?",
    measure,
    f"`open_for_write` of {SIZE // MIB} MiB in the segment of another process, which is v1's master; each call is "
    "timed by itself. The abort of the plan, which frees the pages again, is not timed. No byte of it is written.",
    beside=("alloc", "device"),
    why_not=needs_processes,
)
