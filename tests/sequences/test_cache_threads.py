"""Threads on one cache, each with sequences of its own: every token stays, whatever the others do."""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanokv.errors import DuplicateKey, KeyNotFound, ObjectPinned, OutOfMemory
from nanokv.sequences import KVCache
from nanokv.sequences.cache import places_to_keep
from tests.sequences.contents import BLOCK, holds, small_cache, write

NAME = "CortexStream KV cache"
THREADS, TURNS = 6, 250
MEET = 50  #: turns after which all threads wait while the arena is resized; it is at other times too, as it comes


class Client:
    """A thread's sequences, and what their tokens are."""

    def __init__(self, cache: KVCache, thread: int, meeting: threading.Barrier) -> None:
        self.cache, self.dice, self.thread, self.meeting = cache, random.Random(thread), thread, meeting
        self.marks: dict[str, list[int]] = {}
        self.turns = 0

    def marked(self, count: int) -> list[int]:
        self.turns += 1
        return [self.thread << 16 | self.turns + number for number in range(count)]

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            self.meeting.abort()  # or the others would wait
            raise

    def work(self) -> None:
        steps: list[Callable[[str], None]] = [self.append, self.append, self.append, self.check, self.retain, self.move]
        for turn in range(TURNS):
            if turn % MEET == MEET - 1:
                self.meeting.wait(60)
            if len(self.marks) < 3:
                self.allocate()
            elif self.dice.random() < 0.1:
                self.end(self.dice.choice(sorted(self.marks)))
            if self.marks:
                self.dice.choice(steps)(self.dice.choice(sorted(self.marks)))
        for name in sorted(self.marks):
            self.check(name)
            self.end(name)

    def allocate(self) -> None:
        marks = self.marked(self.dice.randint(1, 20))
        name = f"{self.thread}/{self.turns}"
        if self.cache.allocate_for(name, len(marks)):
            self.marks[name] = marks
            self.write(name, len(marks))

    def write(self, name: str, count: int) -> None:
        """Write the last tokens; while there is no room to bring the sequence back, others are asked to go on."""
        while True:
            try:
                with self.cache.pin(name):
                    write(self.cache, name, self.marks[name][-count:])
                return
            except OutOfMemory:
                threading.Event().wait(1e-4)

    def append(self, name: str) -> None:
        for _ in range(self.dice.randint(1, 6)):
            if not self.cache.append_token(name):
                return
            self.marks[name] += self.marked(1)
            self.write(name, 1)

    def check(self, name: str) -> None:
        try:
            with self.cache.pin(name):
                assert holds(self.cache, name, self.marks[name])
        except OutOfMemory:
            return

    def retain(self, name: str) -> None:
        keep = self.dice.randint(1, len(self.marks[name]))
        kept = places_to_keep([0.0] * len(self.marks[name]), keep, 0, 0)
        try:
            assert self.cache.retain(name, keep, protect_first=0, protect_last=0) == kept
        except OutOfMemory:
            return
        self.marks[name] = [self.marks[name][place] for place in kept]

    def move(self, name: str) -> None:
        self.cache.evict_to_host(name)

    def end(self, name: str) -> None:
        self.cache.free_for(name)
        del self.marks[name]


def resizing(cache: KVCache, stop: threading.Event) -> None:
    """Give the arena other sizes until the others have ended, whenever no sequence is pinned."""
    for turn in itertools.count():
        if stop.wait(1e-4):
            break
        with contextlib.suppress(ObjectPinned):
            cache.resize((40 + turn % 3 * 10) * BLOCK)


@pytest.mark.surface(NAME, "KVCache.allocate_for", differs="no lock for all: 64 stripes, and one per order of blocks")
@pytest.mark.surface(NAME, "KVCache.append_token", differs="no lock for all: one per sequence")
@pytest.mark.surface(NAME, "KVCache.free_for", differs="no lock for all: one per sequence, and one per order of blocks")
def test_every_token_stays_while_threads_evict_move_and_resize(switches: None) -> None:
    cache, stop = small_cache(50, evict=True), threading.Event()
    meeting = threading.Barrier(THREADS, lambda: cache.resize(45 * BLOCK))
    with ThreadPoolExecutor(THREADS + 1) as pool:
        resized = pool.submit(resizing, cache, stop)
        try:
            for done in [pool.submit(Client(cache, thread, meeting).run) for thread in range(THREADS)]:
                done.result()
        finally:
            stop.set()
        resized.result()
    assert cache.get_num_allocated_sequences() == 0 and cache.get_total_allocated() == 0
    cache.resize(50 * BLOCK)
    assert cache.allocate_for("all", 50 * BLOCK) and cache.is_full()


def test_an_id_is_added_and_freed_once(switches: None) -> None:
    """Of all threads that add one id one succeeds; and of all that free it."""
    cache = small_cache(64)
    barrier = threading.Barrier(THREADS)

    def won(call: Callable[[], object]) -> bool:
        barrier.wait(60)
        try:
            call()
        except (DuplicateKey, KeyNotFound):
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(60):
            assert sum(pool.map(won, [lambda: cache.allocate_for("a", 9)] * THREADS)) == 1
            assert sum(pool.map(won, [lambda: cache.free_for("a")] * THREADS)) == 1
            assert cache.get_total_allocated() == 0


def test_appends_of_many_threads_to_one_sequence_are_all_there(switches: None) -> None:
    cache = small_cache(256)
    assert cache.allocate_for("a", 0) and cache.allocate_for("b", 1)  # so that a has to move

    def appended(_: int) -> int:
        return sum(cache.append_token("a") for _ in range(100))

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(appended, range(THREADS))) == 100 * THREADS
    assert cache.token_positions("a") == list(range(100 * THREADS))


def test_a_call_on_one_sequence_waits_for_no_other_sequence() -> None:
    """With the locks of one sequence held, everything goes on with another one in another stripe."""
    cache = small_cache(64, evict=True)
    assert cache.allocate_for("held", 4)
    other = next(name for name in map(str, range(1000)) if hash(name) % 64 != hash("held") % 64)
    with ThreadPoolExecutor(1) as pool, cache.table.coming("held"), cache.table.locked("held"):

        def work() -> bool:
            done = cache.allocate_for(other, 4) and cache.append_token(other) and cache.evict_to_host(other)
            cache.get_k_view(other, 0)
            cache.retain(other, 1, protect_first=0, protect_last=0)
            cache.free_for(other)
            return done

        assert pool.submit(work).result(60)
