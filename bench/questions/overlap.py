"""Overlap of compute and I/O on a CPU: a prefill whose KV is stored while it computes.

A layer is matrix products of one thread; then its keys and values are in the engine's paged cache, and are stored. The
ways to store them: after the whole pass; layer by layer in the thread that computes (`PagedKV.begin_put`, `write`,
`commit`); layer by layer in a thread beside it, as NanoKV's vLLM connector does on a CPU; or `PagedKV.put_async` of
each layer under keys of its own. `write` itself starts no thread: it copies in the one that calls it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

import torch

from nanokv.bench.suite.checked import check_same
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld
from nanokv.errors import NanoKVError
from nanokv.transfer.paged import PagedKV

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 16, 32, 16, 8, 128
WIDTH = 512  #: of a token
PRODUCTS = 1  #: of a layer: compute is some times the I/O, enough to hide it, and its noise is not more than the I/O
PASSES = 30  #: of each way in a repetition, at most
HIDDEN = "share of I/O that was hidden"
COMPUTE, IO = "compute alone", "I/O alone"
AFTER, SAME, BESIDE, ASYNC = (
    "stored after the pass",
    "layer by layer, same thread",
    "layer by layer, a thread beside it",
    "put_async of each layer",
)
TOGETHER = (AFTER, SAME, BESIDE, ASYNC)
Errors = list[NanoKVError | None]
Times = list[dict[str, int]]  #: per turn the nanoseconds of each way


class Prefill(NamedTuple):
    """A pass: its weights and input, and the engine's paged cache that it fills, a tensor per layer."""

    weights: list[torch.Tensor]
    tokens: torch.Tensor
    kv: list[torch.Tensor]

    @staticmethod
    def make() -> "Prefill":
        made = torch.Generator().manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH, generator=made) / WIDTH**0.5 for _ in range(PRODUCTS)]
        tokens = torch.randn(BLOCKS * TOKENS, WIDTH, generator=made)
        kv = [torch.zeros(BLOCKS, 2, TOKENS, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS)]
        return Prefill(weights, tokens, kv)

    def run(self, done: Callable[[int], object]) -> None:
        """Compute all layers, and call `done` with each as soon as its K and V are in the cache."""
        state = self.tokens
        for layer in range(LAYERS):
            for weight in self.weights:
                state = torch.tanh(state @ weight)
            plane = self.kv[layer]
            plane[:, 0] = state.repeat(1, HEADS * DIM // WIDTH).view(BLOCKS, TOKENS, HEADS, DIM)
            plane[:, 1] = plane[:, 0].neg()
            done(layer)


class Stores:
    """The ways to store what a prefill has computed."""

    def __init__(self, world: MeasuredWorld, prefill: Prefill, beside: ThreadPoolExecutor) -> None:
        self.cache, self.prefill, self._beside = world.cache, prefill, beside
        self.paged: PagedKV = world.cache.paged_kv(prefill.kv, kv_dim=1)
        self.blocks = list(range(BLOCKS))
        self.ways: dict[str, Callable[[list[str]], None]] = {
            COMPUTE: lambda keys: prefill.run(_nothing),
            IO: self.store,
            AFTER: self._after,
            SAME: self._same,
            BESIDE: self._in_a_thread,
            ASYNC: self._async,
        }

    def store(self, keys: list[str]) -> None:
        """Store all layers, one after the other."""
        put = self.paged.begin_put(keys, self.blocks, preferred_segment=OWNER)
        for layer in range(LAYERS):
            put.write(range(layer, layer + 1))
        check(put.commit())

    def _after(self, keys: list[str]) -> None:
        self.prefill.run(_nothing)
        self.store(keys)

    def _same(self, keys: list[str]) -> None:
        put = self.paged.begin_put(keys, self.blocks, preferred_segment=OWNER)
        self.prefill.run(lambda layer: put.write(range(layer, layer + 1)))
        check(put.commit())

    def _in_a_thread(self, keys: list[str]) -> None:
        put = self.paged.begin_put(keys, self.blocks, preferred_segment=OWNER)
        writes = []
        self.prefill.run(lambda layer: writes.append(self._beside.submit(put.write, range(layer, layer + 1))))
        for write in writes:
            write.result()
        check(put.commit())

    def _async(self, keys: list[str]) -> None:
        puts = []

        def put(layer: int) -> None:
            of_layer = layer_keys(keys, layer)
            some = range(layer, layer + 1)
            puts.append(self.paged.put_async(of_layer, self.blocks, layers=some, preferred_segment=OWNER))

        self.prefill.run(put)
        for handle in puts:
            check(handle.result())

    def verify(self, way: str, keys: list[str]) -> None:
        """Read all blocks into a cache of zeros. Raises Mismatch if a layer differs from what was computed."""
        kv = [torch.zeros_like(plane) for plane in self.prefill.kv]
        reader = self.cache.paged_kv(kv, kv_dim=1)
        if way == ASYNC:
            for layer in range(LAYERS):
                check(reader.get(layer_keys(keys, layer), self.blocks, layers=range(layer, layer + 1)))
        else:
            check(reader.get(keys, self.blocks))
        for layer, (got, wanted) in enumerate(zip(kv, self.prefill.kv, strict=True)):
            check_same(f"{way}: layer {layer}", got, wanted)

    def forget(self, way: str, keys: list[str]) -> None:
        """Remove what was stored."""
        gone = keys if way != ASYNC else [key for layer in range(LAYERS) for key in layer_keys(keys, layer)]
        self.cache.remove_many(gone)


def layer_keys(keys: list[str], layer: int) -> list[str]:
    """The keys of one layer's part of each block."""
    return [f"{key}, layer {layer}" for key in keys]


def check(errors: Errors) -> None:
    """Raises the first error."""
    for error in errors:
        if error is not None:
            raise error


def _nothing(_: int) -> None:
    pass


def repetition(world: MeasuredWorld, passes: int) -> Times:
    """`passes` passes of each way, which take turns. Raises Mismatch if what was stored is not what was computed."""
    prefill = Prefill.make()
    found: Times = []
    with ThreadPoolExecutor(1, "bench-store") as beside, torch_threads(1):
        stores = Stores(world, prefill, beside)
        for number in range(-1, passes):
            took: dict[str, int] = {}
            for way, run in stores.ways.items():
                keys = [f"{way}, pass {number}, block {block}" for block in stores.blocks]
                if way != IO:
                    for plane in prefill.kv:
                        plane.zero_()
                start = perf_counter_ns()
                run(keys)
                took[way] = perf_counter_ns() - start
                if way != COMPUTE:
                    if number == passes - 1:
                        stores.verify(way, keys)
                    stores.forget(way, keys)
            found += [took] if number >= 0 else []
    return found


def measure(run: Run) -> Iterator[Figure]:
    """All ways; a repetition is a world of its own."""
    whole = LAYERS * BLOCKS * 2 * TOKENS * HEADS * DIM * 2
    passes = max(min(run.settings.rounds // 100, PASSES), 1)

    def once() -> Times:
        with run.worlds.open("shm", "device", 4 * whole, page_bytes=whole // BLOCKS // LAYERS) as world:
            return repetition(world, passes)

    repetitions = run.in_turns({"all": once})["all"]
    for way in (COMPUTE, IO, *TOGETHER):
        yield quantity(
            "overlap", {"what": "time of a pass", "how": way}, "us", "lower", [usual(one, way) for one in repetitions]
        )
    for way in TOGETHER:
        case: Case = {"what": HIDDEN, "how": way}
        yield quantity("overlap", case, "%", "higher", [hidden(one, way) for one in repetitions])


def usual(times: Times, way: str) -> float:
    """The median pass of a way, in microseconds."""
    return median(took[way] for took in times) / 1e3


def hidden(times: Times, way: str) -> float:
    """Percent of the I/O that cost no time: 0 if both take as long as one after the other, below 0 if longer.

    The median of the turns, each compared within itself: a slow moment meets all ways of a turn.
    """
    return median(100 * (took[COMPUTE] + took[IO] - took[way]) / took[IO] for took in times)


QUESTION = Question(
    "overlap",
    "How much of the time to store KV does a prefill on a CPU hide behind its compute?",
    measure,
    f"{LAYERS} layers, each a matrix product of one thread, fill {BLOCKS} blocks of {TOKENS} tokens of K and V, which "
    "are stored into the segment of another process. Compute alone, I/O alone and each way of doing both take "
    "turns, pass by pass. Hidden: what compute and I/O take one after the other, less what both take together, as a "
    "share of the I/O, turn by turn. What is hidden in a thread beside it needs a processor of its own.",
    beside=("how", COMPUTE),
    why_not=needs_processes,
)
