"""Is a page of 256 KiB right? What its size does to put and get, to memory lost by rounding, and to control regions.

An object takes an extent: whole pages, of the smallest size class that holds it. Small pages lose less, and have more
links to write per object and more control memory per byte.
"""

from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch

from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, PAGE_BYTES, MeasuredWorld
from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.segment.geometry import Geometry

PAGES = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
SIZES = (MIB // 2, MIB, 2 * MIB, 4 * MIB, 8 * MIB)
ROUNDS = 1000  #: of each size, at most: a p99 needs no more
WARM = 10
LEAST_OBJECTS = 4
SEGMENT_BYTES = 16 << 30  #: for what is computed


class Model(NamedTuple):
    """What a model's config.json says about its KV cache. All store 2 bytes a number."""

    layers: int  #: num_hidden_layers
    kv_heads: int  #: num_key_value_heads
    head_dim: int  #: head_dim, or hidden_size / num_attention_heads

    def block_bytes(self, tokens: int, layers: int) -> int:
        """Bytes of K and V of so many tokens in so many layers."""
        return tokens * layers * 2 * self.kv_heads * self.head_dim * 2


MODELS = {
    "Llama-3-8B": Model(32, 8, 4096 // 32),
    "Llama-3-70B": Model(80, 8, 8192 // 64),
    "Qwen2.5-7B": Model(28, 4, 3584 // 28),
}
TOKENS = 16  #: of a block: the usual block of vLLM
PARTS = ("all layers", "all layers, a rank of 4", "one layer")  #: what an object holds; of 4: tensor parallel, by heads


def part_bytes(model: Model, part: str) -> int:
    """Bytes of an object that holds a part of a block."""
    whole = model.block_bytes(TOKENS, 1 if part == "one layer" else model.layers)
    return whole // 4 if part == "all layers, a rank of 4" else whole


def lost(geometry: Geometry, nbytes: int) -> float:
    """Percent of its extent that an object of so many bytes leaves unused."""
    pages = int(geometry.extent_pages(np.array([geometry.pages_of(nbytes)]))[0])
    return 100 * (1 - nbytes / (pages * geometry.page_bytes))


# --- calls --------------------------------------------------------------------------------------
def calls(world: MeasuredWorld, size: int, objects: int, rounds: int) -> dict[str, Samples]:
    """Puts and gets in a ring of `objects`: each round removes the oldest, puts one, and reads one from the middle.

    Raises:
        Mismatch: a read returned other bytes than were put.
    """
    cache, owner = world
    source, target = random_bytes(size), torch.zeros(size, dtype=torch.uint8)
    samples = {name: Samples(max(rounds, WARM)) for name in ("put", "get")}
    put, get, clock = cache.put, cache.get, perf_counter_ns
    for number in range(objects):
        put(f"{size} {number}", source, preferred_segment=OWNER)
    for number in range(objects, objects + WARM + rounds):
        if number == objects + WARM:
            for each in samples.values():
                each.clear()
        cache.remove(f"{size} {number - objects}")
        new, middle = f"{size} {number}", f"{size} {number - objects // 2}"
        start = clock()
        put(new, source, preferred_segment=OWNER)
        end = clock()
        samples["put"].add(end - start)
        start = clock()
        get(middle, dst=target)
        end = clock()
        samples["get"].add(end - start)
    check_same("what the last get wrote", target, source)
    check_object(cache, owner, new, source)
    cache.remove_many([f"{size} {number}" for number in range(number - objects + 1, number + 1)])
    return samples


def repetition(run: Run, page_bytes: int) -> dict[int, dict[str, Samples]]:
    """All sizes, in a world of this page size: by size and operation."""
    settings = run.settings
    found = {}
    with torch_threads(settings.threads):
        for size in SIZES:
            objects = max(settings.ring_bytes // size, LEAST_OBJECTS)
            heap_bytes = (objects + 2) * max(size, page_bytes)  # both are powers of two
            with run.worlds.open("shm", "device", heap_bytes, page_bytes=page_bytes) as world:
                found[size] = calls(world, size, objects, min(settings.rounds, ROUNDS))
    return found


def measure(run: Run) -> Iterator[Figure]:
    """What is computed first; then the calls, where the page sizes take turns."""
    yield from _computed()
    if needs_processes(run.settings) is not None:
        return
    ways = {page_bytes: partial(repetition, run, page_bytes) for page_bytes in PAGES}
    found = run.in_turns(ways)
    for operation in ("put", "get"):
        for size in SIZES:
            for page_bytes, repetitions in found.items():
                case: Case = {"what": operation, "size": size, "page size": page_bytes}
                yield latency("pages", case, [one[size][operation] for one in repetitions])


def _computed() -> Iterator[Figure]:
    geometries = {page_bytes: plan_geometry(SEGMENT_BYTES, page_bytes, 1 + OWNER, Options()) for page_bytes in PAGES}
    for page_bytes, geometry in geometries.items():
        case: Case = {"what": "control regions, of the segment", "page size": page_bytes}
        yield quantity("pages", case, "%", "lower", [100 * geometry.offsets["heap_base"] / geometry.segment_bytes])
    for name, model in MODELS.items():
        note = f"{name}: {model.layers} layers, {model.kv_heads} KV heads of {model.head_dim}, 2 bytes"
        for part in PARTS:
            size = part_bytes(model, part)
            for page_bytes, geometry in geometries.items():
                what: Case = {"what": "lost to rounding", "model": name, "object": part, "object size": size}
                share = lost(geometry, size)
                yield quantity("pages", what | {"page size": page_bytes}, "%", "lower", [share], note)


QUESTION = Question(
    "pages",
    "Is a page of 256 KiB right?",
    measure,
    f"put and get into a tensor of 0.5 to 8 MiB in the segment of another process, in a ring of objects, with pages of "
    f"64 KiB to 1 MiB; page sizes take turns. Computed, so with one value: what KV blocks of {TOKENS} tokens of known "
    "models leave unused of their extents (the numbers of layers, KV heads and dimensions are those of their "
    f"config.json, 2 bytes each), and the control regions of a segment of {SEGMENT_BYTES >> 30} GiB.",
    beside=("page size", PAGE_BYTES),
)
