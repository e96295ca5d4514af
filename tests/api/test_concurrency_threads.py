"""Many threads on one world: few keys, few pages, exhaustion and eviction. No object ever has bytes of another.

Bounded by operations. After each run all caches are flushed, fsck checks them, all objects are removed, and the largest
object must fit.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import nanokv
from nanokv.check.machine.concurrency import check_at_rest, check_room
from nanokv.check.machine.hammer import hammer
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.machine.random_calls import RandomCalls
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.errors import KeyNotFound
from nanokv.fsck import check_segments
from tests.support.plain_world import (
    PAGE,
    PAGE_WORDS,
    PATIENCE,
    PlainWorld,
    address,
    aligned_words,
    in_threads,
    native,
    yielding,
)

PAGES = 16
KEYS = 6
THREADS = 4
STEPS = 1500
RANKS = 2
HAMMER_ROUNDS = 300_000
MAX_WORDS = 5 * PAGE_WORDS

MakeWorld = Callable[..., list[nanokv.NanoKVCache]]
ALLOCS = ["device", "host"]


@pytest.mark.parametrize("evict, shards", [(False, 1), (True, 1), (False, 4), (True, 4)])
@pytest.mark.parametrize("keys", [3, 40])
@pytest.mark.parametrize(
    "machine, rounds",
    [(native, HAMMER_ROUNDS), pytest.param(yielding, HAMMER_ROUNDS // 50, marks=pytest.mark.exhaustive)],
)
def test_compiled_threads_without_pause(machine: Any, rounds: int, evict: bool, keys: int, shards: int) -> None:
    geometry = Geometry.plan(PAGES * PAGE, PAGE, RANKS, max_objects=12, ring_slots=16, shards=shards)
    plain = PlainWorld(geometry, may_evict=evict)
    buffers = [aligned_words(MAX_WORDS) for _ in range(THREADS)]
    calls = [
        partial(machine(hammer), plain.worlds[thread % RANKS], thread + 1, rounds, keys, address(buffer), MAX_WORDS)
        for thread, buffer in enumerate(buffers)
    ]
    results = in_threads(*calls)
    assert [wrong for *_, wrong in results] == [0] * THREADS
    for done in list(zip(*results, strict=True))[:3]:
        assert sum(done) > rounds // 50
    report = check_segments(plain.views, mode="device", quiescent=True, alive=lambda rank, incarnation: True)
    assert report.clean, str(report)
    stored = sum(done[0] for done in results) - sum(done[2] for done in results)
    evicted = sum(int(view.ctl["evicted"][0]) for view in plain.views)
    assert stored - evicted == report.objects, f"{results}\n{report}\n{told(plain.views)}"
    assert evict or not evicted
    assert evicted or not evict or keys == 3  # three objects leave free neighbours, which a host would join


def told(views: list[SegmentView]) -> str:
    """What each segment counts, and the states of its headers: for a failure that cannot be had again."""
    lines = []
    for rank, view in enumerate(views):
        counts = {
            name: int(view.ctl[0][name]) for name in ("evicted", "refused", "lost", "corrupt", "missed", "hdr_head")
        }
        by_rank = view.activity["evicted"].tolist()
        states = view.headers[["state", "key_hash", "epoch", "flags"]].tolist()
        lines.append(f"rank {rank}: {counts}, evicted by rank {by_rank}, state, key, epoch, flags: {states}")
    return "\n".join(lines)


def assert_all_comes_back(world: list[nanokv.NanoKVCache]) -> None:
    """All objects left hold the bytes of their keys; once they are removed, every segment has room for the largest."""
    check_at_rest(world)
    for key in range(KEYS):
        if world[0].exists(name(key)):
            check_payload(key, world[0].get(name(key)))
            world[-1].remove(name(key))
    check_room(world)


@pytest.fixture(params=ALLOCS)
def alloc(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("evict", [False, True])
def test_random_work_of_many_threads(new_world: MakeWorld, alloc: str, evict: bool) -> None:
    world = new_world(heap="local", alloc=alloc, heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=evict)
    workers = [
        RandomCalls(world[who % len(world)], who, keys=KEYS, max_pages=5, seed=who + 100 * evict)
        for who in range(THREADS)
    ]
    counts = in_threads(*[partial(worker.run, STEPS) for worker in workers])
    total = {step: sum(count.get(step, 0) for count in counts) for step in {s for count in counts for s in count}}
    assert sum(total.values()) == THREADS * STEPS and "PeerLost" not in total
    for step in ("put", "get", "get_into", "remove", "pin", "plan", "abort", "KeyNotFound", "DuplicateKey"):
        assert total.get(step, 0) > 0, f"{step} never happened: {total}"
    assert_all_comes_back(world)


def test_owners_evict_meanwhile(new_world: MakeWorld, alloc: str) -> None:
    world = new_world(heap="local", alloc=alloc, heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=True)

    def evict(cache: nanokv.NanoKVCache) -> None:
        for ratio in (0.5, 0.0, 0.25) * 4:
            cache.evict_until_below(ratio)
        for _ in range(4):
            cache.clear()

    workers = [RandomCalls(world[who], who, keys=KEYS, max_pages=5, seed=who) for who in range(2)]
    in_threads(*[partial(worker.run, STEPS) for worker in workers], *[partial(evict, cache) for cache in world])
    assert_all_comes_back(world)


def test_one_of_many_puts_of_a_key_wins(new_world: MakeWorld, alloc: str) -> None:
    world = new_world(heap="local", alloc=alloc, heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=False)
    rounds = 60

    def put_all(thread: int) -> list[bool]:
        cache = world[thread % 2]
        tensors = [payload(k, thread, 2 * PAGE_WORDS) for k in range(rounds)]
        won = []
        for key, tensor in enumerate(tensors):
            (error,) = cache.put_many([name(key)], [tensor], preferred_segment=thread % 2)
            won.append(error is None)
            if error is None:
                assert check_payload(key, cache.get(name(key))) == thread
                meeting.wait(PATIENCE)
                cache.remove(name(key))
            else:
                assert isinstance(error, nanokv.errors.DuplicateKey), error
                meeting.wait(PATIENCE)
            meeting.wait(PATIENCE)
        return won

    meeting = threading.Barrier(THREADS)
    wins = in_threads(*[partial(put_all, thread) for thread in range(THREADS)])
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * rounds
    assert_all_comes_back(world)


def test_readers_never_see_half_of_an_update(new_world: MakeWorld, alloc: str) -> None:
    """A writer keeps replacing an object by another one of the same size, in pages that others write next."""
    world = new_world(heap="local", alloc=alloc, heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=False)
    updates = 300
    words = 8 * PAGE_WORDS

    def update(key: int) -> None:
        for version in range(updates):
            world[key].put(name(key), payload(key, version, words), preferred_segment=1)
            world[key].remove(name(key))

    def read(cache: nanokv.NanoKVCache) -> int:
        seen = 0
        last = [-1, -1]
        dst = torch.empty(words, dtype=torch.int64)
        while writers.is_set() or not seen:
            for key in (0, 1):
                try:
                    version = check_payload(key, cache.get(name(key), dst=dst))
                except (KeyNotFound, nanokv.errors.NotReady):
                    if not writers.is_set():
                        return seen
                    continue
                assert version >= last[key], "an older version came after a newer one"
                last[key] = version
                seen += 1
        return seen

    writers = threading.Event()
    writers.set()

    def write_both() -> None:
        try:
            in_threads(partial(update, 0), partial(update, 1))
        finally:
            writers.clear()

    in_threads(write_both, partial(read, world[0]), partial(read, world[1]))
    assert_all_comes_back(world)


def test_one_cache_is_used_by_many_threads(new_world: MakeWorld, alloc: str) -> None:
    (cache,) = new_world(heap="local", alloc=alloc, n=1, heap_bytes=PAGES * PAGE, page_bytes=PAGE, evict=True)
    workers = [RandomCalls(cache, who, keys=KEYS, max_pages=5, seed=who) for who in range(THREADS)]
    in_threads(*[partial(worker.run, STEPS // 2) for worker in workers])
    assert_all_comes_back([cache])
