"""What the concurrency tests share: payloads that tell whose they are, random work on a cache, ranks in processes."""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

import nanokv
from nanokv.errors import DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory, PeerLost
from nanokv.fsck import check_cache
from tests.hammer import hammer
from tests.plain_world import PAGE, PAGE_WORDS, PATIENCE, address, aligned_words, native

HAMMER_WORDS = 5 * PAGE_WORDS
HAMMER_ROUNDS = 2000  #: before a process looks whether it is to stop

#: what any of these calls may answer while others work on the same key
EXPECTED = (DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory, PeerLost)


# --- payloads ---------------------------------------------------------------------------------
def payload(key: int, version: int, words: int) -> torch.Tensor:
    """int64 [words], each of which says the key and the version."""
    return torch.full((words,), key << 32 | version, dtype=torch.int64)


def check_payload(key: int, tensor: torch.Tensor) -> int:
    """The version, if every word of the tensor is of one version of this key. What a plan wrote comes as bytes."""
    if tensor.dtype == torch.uint8:
        tensor = tensor.view(torch.int64)
    assert tensor.dtype == torch.int64 and tensor.dim() == 1, f"key {key} came back as {tensor.dtype}"
    values = np.unique(tensor.numpy()).tolist()
    assert len(values) == 1, f"key {key} is torn: {[hex(v) for v in values]}"
    assert values[0] >> 32 == key, f"key {key} holds the bytes of key {values[0] >> 32}"
    return int(values[0] & 0xFFFFFFFF)


# --- random work on a cache -------------------------------------------------------------------
class Work:
    """A random sequence of calls on one cache, by one thread. Every answer is checked; `done` counts what succeeded.

    Args:
        who: makes versions different from those of other workers; below 256.
        keys: keys 0 to keys - 1 are used, by all workers.
        max_pages: the largest object.
        pins: whether to pin.
    """

    def __init__(
        self, cache: nanokv.NanoKVCache, who: int, *, keys: int, max_pages: int, seed: int, pins: bool = True
    ) -> None:
        self.cache, self.keys, self.max_pages = cache, keys, max_pages
        self.random = random.Random(seed)
        self.versions = who << 24
        self.done: dict[str, int] = {}
        self.steps: list[Callable[[int], None]] = [
            *[self.put] * 6,
            *[self.get] * 6,
            *[self.get_into] * 2,
            *[self.remove] * 4,
            *[self.pin] * (2 if pins else 0),
            self.plan,
            self.abort,
        ]

    def run(self, count: int) -> dict[str, int]:
        """Do `count` steps."""
        for _ in range(count):
            self.step()
        return self.done

    def step(self) -> None:
        """Do one step. What others may cause is no error; everything else is."""
        step = self.random.choice(self.steps)
        try:
            step(self.random.randrange(self.keys))
        except EXPECTED as error:
            name = type(error).__name__
            self.done[name] = self.done.get(name, 0) + 1
        else:
            self.done[step.__name__] = self.done.get(step.__name__, 0) + 1

    def _new(self, key: int) -> torch.Tensor:
        self.versions += 1
        return payload(key, self.versions, self.random.randint(1, self.max_pages * PAGE_WORDS))

    def _owner(self) -> int | None:
        return self.random.choice([None, *range(self.cache.world_size)])

    def put(self, key: int) -> None:
        self.cache.put(name(key), self._new(key), preferred_segment=self._owner())

    def get(self, key: int) -> None:
        check_payload(key, self.cache.get(name(key)))

    def get_into(self, key: int) -> None:
        words = self.cache.get_location(name(key)).bytes_total // 8
        dst = torch.zeros(words, dtype=torch.int64)
        try:
            check_payload(key, self.cache.get(name(key), dst=dst))
        except nanokv.errors.InvalidArgument:  # it was replaced by one of another size
            assert not dst.any(), "nothing is copied when the size is wrong"

    def remove(self, key: int) -> None:
        self.cache.remove(name(key))

    def pin(self, key: int) -> None:
        with self.cache.pin(name(key)) as view:
            version = check_payload(key, view)
            self.get_and_forget()
            assert check_payload(key, view) == version, "a pinned object changed"

    def get_and_forget(self) -> None:
        """Something that takes a moment."""
        key = self.random.randrange(self.keys)
        if self.cache.exists(name(key)):
            self.cache.get_many([name(key)])

    def plan(self, key: int) -> None:
        tensor = self._new(key)
        plan = self.cache.open_for_write(name(key), tensor.nbytes, preferred_segment=self._owner())
        target = self.cache._mover.payload(plan.dst_rank, plan.payload_base, plan.bytes_total)
        target.copy_(tensor.view(torch.uint8))
        self.cache.commit(name(key))

    def abort(self, key: int) -> None:
        self.cache.open_for_write(name(key), PAGE, preferred_segment=self._owner())
        self.cache.abort(name(key))


def name(key: int) -> str:
    """The key as the cache takes it."""
    return f"key-{key}"


# --- ranks in processes of their own ----------------------------------------------------------
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


class RankOptions(NamedTuple):
    """What a process needs to take a rank: the same for all of a world, but `rank` and `seed`."""

    world: str
    rank: int
    world_size: int
    heap_bytes: int
    evict: bool
    keys: int
    seed: int
    pins: bool
    shm_dir: str  #: a fork server keeps the environment of the test that started it


class _Served:
    """One rank: the commands that its process takes."""

    def __init__(self, options: RankOptions, connection: Connection, progress: Any) -> None:
        self.cache = attach(options)
        self.connection, self.progress = connection, progress
        who = (options.rank + 8 * self.cache._heap.incarnation) % 256
        self.work = Work(self.cache, who, keys=options.keys, max_pages=5, seed=options.seed + who, pins=options.pins)

    def run(self, count: int) -> dict[str, int]:
        return self.work.run(count)

    def run_until_told(self) -> dict[str, int]:
        while not self.connection.poll():
            self.work.step()
            self.progress.value += 1
        return self.work.done

    def hammer_until_told(self) -> tuple[int, ...]:
        """Compiled work, without a pause: puts, reads, removals, wrong words."""
        table = self.cache._parts.table
        buffer = aligned_words(HAMMER_WORDS)
        sums = np.zeros(4, np.int64)
        while not self.connection.poll():
            seed = self.work.random.randrange(1 << 7)
            sums += native(hammer, 6)(address(table), seed, HAMMER_ROUNDS, 20, address(buffer), HAMMER_WORDS)
            self.progress.value += HAMMER_ROUNDS
        return tuple(sums.tolist())

    def stop(self) -> None:
        """What the commands wait for that run until told."""

    def hold(self, pinned: str, planned: str, owner: int) -> None:
        """Pin an object, and open another one, for as long as this process lives."""
        self.held = self.cache.pin(pinned)
        self.cache.open_for_write(planned, 3 * PAGE, preferred_segment=owner)

    def check(self) -> str:
        self.cache.flush()
        report = check_cache([self.cache])
        return "" if report.clean else str(report)

    def clear(self) -> None:
        self.cache.clear()

    def close(self) -> None:
        self.cache.close()


def attach(options: RankOptions) -> nanokv.NanoKVCache:
    """Take a rank in this process."""
    return nanokv.NanoKVCache(
        options.heap_bytes,
        page_bytes=PAGE,
        name=options.world,
        rank=options.rank,
        world_size=options.world_size,
        evict=options.evict,
        attach_timeout=PATIENCE,
    )


def _serve(options: RankOptions, connection: Connection, progress: Any) -> None:
    os.environ["NANOKV_SHM_DIR"] = options.shm_dir
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            served = _Served(options, connection, progress)
            connection.send(("attached", (served.cache._heap.incarnation, served.cache._heap.recovered)))
            while True:
                command, arguments = connection.recv()
                connection.send((command, getattr(served, command)(*arguments)))
        except Exception as error:
            connection.send(("failed", f"{type(error).__name__}: {error}"))
            raise


class RankProcess:
    """A rank in a process of its own."""

    def __init__(self, options: RankOptions) -> None:
        self.rank = options.rank
        self._progress = _PROCESSES.Value("q", 0, lock=False)
        self._connection, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(options, theirs, self._progress), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def steps(self) -> int:
        """Steps that commands which run until told have done so far."""
        return int(self._progress.value)

    def send(self, command: str, *arguments: Any) -> None:
        """Begin a command."""
        self._connection.send((command, arguments))

    def answer(self, command: str) -> Any:
        """What a command answers, once it has ended."""
        assert self._connection.poll(PATIENCE), f"rank {self.rank} does not answer {command}"
        what, answer = self._connection.recv()
        assert what == command, f"rank {self.rank}: {answer}"
        return answer

    def ask(self, command: str, *arguments: Any) -> Any:
        """Do a command."""
        self.send(command, *arguments)
        return self.answer(command)

    def stop(self, command: str) -> Any:
        """End a command that runs until told; what it answers."""
        self.send("stop")
        done = self.answer(command)
        self.answer("stop")
        return done

    def kill(self) -> None:
        """SIGKILL, wherever it is; returns when it is gone."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(PATIENCE)
        assert self._process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        """Let it go, in whatever state it is."""
        self._connection.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(PATIENCE)


def wait_until(what: str, condition: Callable[[], bool], say: Callable[[], Any] = lambda: "") -> None:
    """Come back to a condition until it is true. Fails after PATIENCE, with what `say` has to say."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen: {say()}"
        time.sleep(0.0005)
