"""Where a put and a get of 1 KiB spend their time: the whole calls, and each step of them called alone.

Nothing is derived: every row is a loop of calls, its time divided by their number. The rows of Python code contain the
turn of a Python loop, which has a row of its own. Those of compiled code are one call of a compiled loop.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from nanokv import NanoKVCache
from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld
from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.triton import copy_bytes, table64, word
from nanokv.device.protocol.get import get_described
from nanokv.device.protocol.put import put
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World
from nanokv.transfer.descriptors import described
from nanokv.transfer.host_tensors import in_host_memory
from nanokv.transfer.object_calls import checked_segment

SIZE = KIB
CALLS = 200  #: of a loop: so short that most loops are not interrupted, of which the median is taken
PAGE_BYTES = 4096
HEAP_BYTES = 2 * CALLS * PAGE_BYTES
KEY_BYTES = tl.constexpr(2 * WORD_BYTES.value)
STR, DIGEST = "whole call, key a str", "whole call, key a digest"
USUAL = "the same in Python, step by step"
CODE = "call of the compiled code, of words"
ALONE = "compiled code alone"
COPY = "copy of the bytes alone"
Loop = Callable[[], int]  #: runs CALLS calls and returns the nanoseconds
# mypy: disallow-untyped-decorators=false


@triton.jit
def put_each(
    world: World,
    owner: tl.int64,
    keys: tl.int64,
    count: tl.int64,
    src: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
) -> Any:
    """Put the same bytes under each of `count` keys, two words each. Returns how many were refused."""
    done = word(0)
    bad = word(0)
    no = word(0)
    while done < count:
        key = Key(table64(keys + done * KEY_BYTES), table64(keys + done * KEY_BYTES + WORD_BYTES))
        status, _ = put(world, owner, key, src, nbytes, now, Descriptor(kind, d0, no, no, no, no, no, no))
        bad = bad + 1 if status != OK else bad
        done += 1
    return bad


@triton.jit
def get_each(
    world: World,
    keys: tl.int64,
    count: tl.int64,
    dst: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
) -> Any:
    """Get each of `count` keys to the same place. Returns how many were not read."""
    done = word(0)
    bad = word(0)
    no = word(0)
    while done < count:
        key = Key(table64(keys + done * KEY_BYTES), table64(keys + done * KEY_BYTES + WORD_BYTES))
        status = get_described(world, key, dst, nbytes, now, Descriptor(kind, d0, no, no, no, no, no, no))
        bad = bad + 1 if status != OK else bad
        done += 1
    return bad


@triton.jit
def copy_each(dst: tl.int64, src: tl.int64, nbytes: tl.int64, stride: tl.int64, count: tl.int64) -> Any:
    """Copy the same bytes to `count` places, `stride` bytes apart."""
    done = word(0)
    while done < count:
        copy_bytes(dst + done * stride, src, nbytes)
        done += 1
    return done


class Steps:
    """The loops, over one world. `names`, `digests`: the keys of a loop."""

    def __init__(self, cache: NanoKVCache) -> None:
        self._cache = cache
        self._machine = cache.engine.machine
        self.source, self.target = random_bytes(SIZE), torch.zeros(SIZE, dtype=torch.uint8)
        self.names = [f"step {i}" for i in range(CALLS)]
        self.digests = [cache.digest(name) for name in self.names]
        self._words = np.array(self.digests, np.int64)
        self._what = described(self.source)
        self._aside = torch.zeros(CALLS, PAGE_BYTES, dtype=torch.uint8)
        self._put, self._get = native_function(put_each), native_function(get_each)
        self._copy = native_function(copy_each)

    def put_loops(self) -> dict[str, Loop]:
        """The steps of a put, from the whole call to the copy. Those that put find no object of their keys."""
        cache, machine, source = self._cache, self._machine, self.source
        single, what, address = cache.engine.single, self._what, source.data_ptr()

        def put(key: Any) -> None:
            cache.put(key, source, preferred_segment=OWNER)

        return {
            STR: partial(_loop, put, self.names),
            DIGEST: partial(_loop, put, self.digests),
            USUAL: partial(_loop, lambda key: single.put(key, source, OWNER), self.digests),
            CODE: partial(_loop, lambda key: machine.put_now(OWNER, key, address, what), self.digests),
            ALONE: self._compiled_put,
            COPY: self._compiled_copy,
        }

    def get_loops(self) -> dict[str, Loop]:
        """The steps of a get, from the whole call to the copy. All objects are there."""
        cache, machine, target = self._cache, self._machine, self.target
        single, what, address = cache.engine.single, self._what, target.data_ptr()
        get = partial(cache.get, dst=target)
        return {
            STR: partial(_loop, get, self.names),
            DIGEST: partial(_loop, get, self.digests),
            USUAL: partial(_loop, lambda key: single.get_into(key, target), self.digests),
            CODE: partial(_loop, lambda key: machine.get_now(key, address, what), self.digests),
            ALONE: self._compiled_get,
            COPY: self._compiled_copy,
        }

    def both_loops(self) -> dict[str, Loop]:
        """Steps of both, and a turn of the loop around them."""
        return {
            "hash of a str key": partial(_loop, self._cache.digest, self.names),
            "check of a digest": partial(_loop, self._cache.digest, self.digests),
            "check of the segment": partial(_loop, partial(checked_segment, self._cache.engine.heap), [OWNER] * CALLS),
            "what the tensor is, and where": partial(_loop, in_host_memory, [self.source] * CALLS),
            "look at the clock": partial(_loop, lambda _: now_ns(), self.names),
            "turn of the loop": partial(_loop, _nothing, self.names),
        }

    def forget(self) -> None:
        """Remove what a loop has put. Raises RuntimeError if it is not there."""
        if not all(self._cache.remove_many(self.digests)):
            raise RuntimeError("a loop of puts has not stored all of its objects")

    def _compiled_put(self) -> int:
        table, keys = self._machine.table_address, self._words.ctypes.data
        start = perf_counter_ns()
        bad = self._put(table, OWNER, keys, CALLS, self.source.data_ptr(), SIZE, 0, *self._what.descriptor[:2])
        return _checked(start, bad)

    def _compiled_get(self) -> int:
        table, keys = self._machine.table_address, self._words.ctypes.data
        start = perf_counter_ns()
        bad = self._get(table, keys, CALLS, self.target.data_ptr(), SIZE, 0, *self._what.descriptor[:2])
        return _checked(start, bad)

    def _compiled_copy(self) -> int:
        start = perf_counter_ns()
        done = self._copy(self._aside.data_ptr(), self.source.data_ptr(), SIZE, PAGE_BYTES, CALLS)
        return _checked(start, done - CALLS)


def _checked(start: int, bad: int) -> int:
    took = perf_counter_ns() - start
    if bad:
        raise RuntimeError(f"{bad} of {CALLS} compiled calls failed")
    return took


def _loop(call: Callable[[Any], object], arguments: list[Any]) -> int:
    start = perf_counter_ns()
    for argument in arguments:
        call(argument)
    return perf_counter_ns() - start


def _nothing(_: object) -> None:
    pass


def repetition(world: MeasuredWorld, loops: int) -> dict[tuple[str, str], float]:
    """Microseconds of one call, by operation and step: the median of `loops` loops, which take turns.

    Raises:
        Mismatch: a loop of puts or gets moved other bytes.
    """
    steps = Steps(world.cache)
    found: dict[tuple[str, str], list[int]] = {}
    for lap in range(-1, loops):
        took: dict[tuple[str, str], int] = {}
        for name, loop in steps.put_loops().items():
            took["put", name] = loop()
            if name != COPY:
                check_object(world.cache, world.owner, steps.names[-1], steps.source)
                steps.forget()
        world.cache.put_many(steps.digests, [steps.source] * CALLS, preferred_segment=OWNER)
        for name, loop in steps.get_loops().items():
            took["get", name] = loop()
            if name != COPY:
                check_same(f"{name}: what was read", steps.target, steps.source)
                steps.target.zero_()
        steps.forget()
        for name, loop in steps.both_loops().items():
            took["both", name] = loop()
        for key, ns in took.items():
            found.setdefault(key, []).extend([ns] if lap >= 0 else [])
    return {key: median(all_ns) / CALLS / 1e3 for key, all_ns in found.items()}


def measure(run: Run) -> Iterator[Figure]:
    """All steps; a repetition is a world of its own."""
    loops = -(-run.settings.rounds // CALLS)

    def once() -> dict[tuple[str, str], float]:
        with run.worlds.open("shm", "device", HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
            return repetition(world, loops)

    repetitions = run.in_turns({"all": once})["all"]
    for operation, step in repetitions[0]:
        case: Case = {"operation": operation, "step": step, "size": SIZE}
        yield quantity("steps", case, "us", "lower", [one[operation, step] for one in repetitions])


QUESTION = Question(
    "steps",
    "Where does a put and a get of 1 KiB from Python spend its time?",
    measure,
    f"Loops of {CALLS} calls into the segment of another process, each divided by its calls: the whole call, then "
    "its layers from outside in, each called alone with arguments that are ready; `compiled code alone` is a compiled "
    "loop, without Python. The steps of both operations need not add up to a layer: a processor does some at once, and "
    "caches are warmer in a loop of one thing.",
    why_not=needs_processes,
)
