"""One case: a small world, wrong words in it, and every operation afterwards. It runs in a process that may crash."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache as remembered
from typing import Any, NamedTuple

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.virtual_world import local_world
from nanokv.check.machine.corruption.words import Corruptor
from nanokv.check.machine.random_calls import write_plan
from nanokv.check.report import CheckFailure
from nanokv.device.segment.views import SegmentView
from nanokv.errors import NanoKVError, WaitTimeout
from nanokv.fsck import check_cache
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap.shm import ShmHeap, inspect, remove_world
from nanokv.space.coalesce import join_free_extents

PAGES, PAGE_BYTES = 16, 256
RANKS = 2
KEYS = 12
STEPS = 30
SWEEP = 0.3  #: seconds between two rounds of a poller, as it is told
PLAN_SHARE = 4  #: keys that are multiples of this are written by plans
FLUSH_SECONDS = 5.0
_DTYPES = (torch.uint8, torch.float16, torch.int32, torch.bool)

Say = Callable[[str], None]


class Kind(NamedTuple):
    """One row of the table."""

    alloc: str
    checksum: bool
    one_word: bool  #: only one word is wrong, and such that wrong bytes are impossible without a checksum
    recover: bool = False  #: the segment is corrupted while it has no owner

    @property
    def exact(self) -> bool:
        """Whether no get may return wrong bytes."""
        return self.one_word or self.checksum


class CaseResult(NamedTuple):
    """The counts of one case."""

    operations: int
    refused: int  #: operations that ended with a NanoKVError
    corrupt: int  #: with SegmentCorrupt, among those
    wrong: int  #: gets that returned wrong bytes, where only a checksum could find it


@remembered
def content(key: int) -> torch.Tensor:
    """The tensor that is stored under a key, always."""
    dice = random.Random(key)
    dtype = torch.uint8 if key % PLAN_SHARE == 0 else dice.choice(_DTYPES)
    count = dice.choice((0, 1, 100, PAGE_BYTES, 3 * PAGE_BYTES + 5)) // dtype.itemsize
    raw = [dice.randrange(2 if dtype is torch.bool else 256) for _ in range(count * dtype.itemsize)]
    return torch.tensor(raw, dtype=torch.uint8).view(dtype)


class Case:
    """A world with some objects, and the operations. `say` is called with the name of each before it runs."""

    def __init__(self, kind: Kind, rng: random.Random, say: Say, world: list[NanoKVCache]) -> None:
        self.kind, self.rng, self.say, self.world = kind, rng, say, world
        self.by_hand = (
            rng.random() < 0.5
        )  #: the threads of the pollers are stopped, and their rounds are operations here
        self.operations = self.refused = self.corrupt = self.wrong = 0
        self.now = time.monotonic()

    # --- the world before ---
    def fill(self) -> None:
        """Put, plan, pin and remove, so that no region is empty."""
        for key in self.rng.sample(range(KEYS), 9):
            with contextlib.suppress(NanoKVError):
                self.put(key)
        for key in range(2):
            with contextlib.suppress(NanoKVError):
                self.cache().remove(f"k{key}")
        with contextlib.suppress(NanoKVError):
            self._open(PLAN_SHARE)
        if self.by_hand:
            for cache in self.world:
                cache.engine.poller.stop()

    def cache(self) -> NanoKVCache:
        """Any rank."""
        return self.rng.choice(self.world)

    # --- the operations ---
    def run(self, stir: Callable[[], Any]) -> None:
        """Do random operations, calling `stir` between them."""
        names = [name for name in dir(self) if name.startswith("do_")]
        if self.by_hand:
            names = [name for name in names if name not in ("do_flush", "do_clear", "do_evict")]
        else:
            names = [name for name in names if name != "do_step"]
        chosen = [self.rng.choice(names) for _ in range(STEPS)]
        for name in (*chosen, *["do_get"] * KEYS, "do_fsck", "do_join"):
            self.one(name, getattr(self, name))
            stir()

    def one(self, name: str, operation: Callable[[], Any]) -> None:
        """Do one operation: it ends, with a result or a NanoKVError."""
        self.operations += 1
        self.say(name)
        try:
            operation()
        except NanoKVError as error:
            self.refused += 1
            self.corrupt += type(error).__name__ == "SegmentCorrupt"
        except CheckFailure:
            raise
        except Exception as error:
            raise CheckFailure(f"{name}: {type(error).__name__}: {error}") from error

    def _key(self) -> int:
        return self.rng.randrange(KEYS)

    def compare(self, key: int, tensor: torch.Tensor) -> None:
        """Compare a tensor that a get returned with the stored one."""
        want = content(key)
        same = tensor.dtype == want.dtype and tensor.shape == want.shape
        if same and torch.equal(tensor.view(torch.uint8), want.view(torch.uint8)):
            return
        self.wrong += 1
        if self.kind.exact:
            raise CheckFailure(f"key k{key} came back as {_text(tensor)}, not {_text(want)}")

    def put(self, key: int) -> None:
        """Store the tensor of a key, by a plan or a put."""
        if key % PLAN_SHARE == 0:
            self._open(key).commit(f"k{key}")
        else:
            self.cache().put(f"k{key}", content(key), preferred_segment=self.rng.choice((None, 0, RANKS - 1)))

    def _open(self, key: int) -> NanoKVCache:
        """Open a plan and write its bytes at once."""
        cache = self.cache()
        write_plan(cache, f"k{key}", content(key))
        return cache

    def do_put(self) -> None:
        self.put(self._key())

    def do_open(self) -> None:
        self._open(self._key() // PLAN_SHARE * PLAN_SHARE)

    def do_commit(self) -> None:
        self.cache().commit(f"k{self._key() // PLAN_SHARE * PLAN_SHARE}")

    def do_abort(self) -> None:
        self.cache().abort(f"k{self._key() // PLAN_SHARE * PLAN_SHARE}")

    def do_get(self) -> None:
        key = self._key()
        self.compare(key, self.cache().get(f"k{key}"))

    def do_get_into(self) -> None:
        key = self._key()
        self.compare(key, self.cache().get(f"k{key}", dst=torch.empty_like(content(key))))

    def do_get_many(self) -> None:
        keys = self.rng.sample(range(KEYS), 3)
        for key, tensor in zip(keys, self.cache().get_many([f"k{key}" for key in keys]), strict=True):
            if tensor is not None:
                self.compare(key, tensor)

    def do_pin(self) -> None:
        key = self._key()
        with self.cache().pin(f"k{key}") as tensor:
            self.compare(key, tensor.clone())

    def do_location(self) -> None:
        self.cache().get_location(f"k{self._key()}")

    def do_exists(self) -> None:
        self.cache().exists(f"k{self._key()}")

    def do_remove(self) -> None:
        self.cache().remove(f"k{self._key()}")

    def do_stats(self) -> None:
        self.cache().stats()

    def do_keys(self) -> None:
        list(self.cache().segment_keys())

    def do_fsck(self) -> None:
        for cache in self.world:
            str(check_cache([cache], patience=0.0))

    def do_join(self) -> None:
        cache = self.cache()
        join_free_extents(cache.engine.machine, cache.rank)

    def do_flush(self) -> None:
        try:
            self.cache().flush(timeout=FLUSH_SECONDS)
        except WaitTimeout as error:
            raise CheckFailure(f"do_flush: {error}") from None

    def do_clear(self) -> None:
        self.cache().clear()

    def do_evict(self) -> None:
        self.cache().evict_until_below(self.rng.random())

    def do_step(self) -> None:
        """Rounds of a poller: its ring, its sweep, an audit."""
        cache = self.cache()
        cache.engine.poller.sweeper._audit.start()
        for _ in range(6):
            self.now += SWEEP
            cache.engine.poller.step(self.now)


def _text(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} {tensor.view(torch.uint8)[:8].tolist()}"


class _Failures(logging.Handler):
    """Keeps the errors that a poller or a master logs when a round fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, NanoKVError):
            self.seen.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """No round fails on another thread: it would be logged."""
    failures, log = _Failures(), logging.getLogger("nanokv")
    log.addHandler(failures)
    propagated, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(failures)
        log.propagate = propagated
    if failures.seen:
        raise CheckFailure(failures.seen[0])


def run_case(kind: Kind, seed: str, say: Say) -> CaseResult:
    """Do one case. `seed` decides everything except the timing of threads.

    Raises:
        CheckFailure: something happened that must not happen.
    """
    rng = random.Random(seed)
    case = (_recovered if kind.recover else _local)(kind, rng, say)
    return CaseResult(case.operations, case.refused, case.corrupt, case.wrong)


def _options(kind: Kind, rng: random.Random) -> dict[str, Any]:
    return {
        "page_bytes": PAGE_BYTES,
        "alloc": kind.alloc,
        "checksum": kind.checksum,
        "evict": rng.random() < 0.5,
        "max_objects": 20,
        "ring_slots": 16,
    }


def _local(kind: Kind, rng: random.Random, say: Say) -> Case:
    say("begin")
    with _watched():
        case = Case(kind, rng, say, local_world(RANKS, PAGES * PAGE_BYTES, **_options(kind, rng)))
        views = [SegmentView(_raw(cache), cache.engine.geometry) for cache in case.world]
        case.fill()
        corruptors = [Corruptor(view, rng, spares=kind.one_word) for view in views]
        changes = [rng.choice(corruptors).one()] if kind.one_word else [each.some() for each in corruptors]
        if kind.checksum and rng.random() < 0.3:
            changes += [rng.choice(corruptors).flip() for _ in range(20)]
        say(f"corrupted {'; '.join(changes)}")
        try:
            with _stirring(kind, rng, views) as stir:
                case.run(stir)
        finally:
            say("close")
            for cache in case.world:
                cache.close()
    return case


def _raw(cache: NanoKVCache) -> Any:
    raw = cache.engine.heap.host_view(cache.rank)
    assert raw is not None
    return raw


@contextlib.contextmanager
def _stirring(kind: Kind, rng: random.Random, views: list[SegmentView]) -> Iterator[Callable[[], Any]]:
    """Now and then more words go wrong: between operations, or all the time by a thread."""
    how = "never" if kind.one_word else rng.choice(("never", "between", "thread"))
    dice = random.Random(rng.random())
    corruptors = [Corruptor(view, dice, spares=False) for view in views]
    if how == "between":
        yield lambda: dice.choice(corruptors).one() if dice.random() < 0.5 else None
        return
    if how == "never":
        yield lambda: None
        return
    stop = threading.Event()

    def stir() -> None:
        while not stop.wait(0.0002):
            dice.choice(corruptors).one()

    thread = threading.Thread(target=stir, daemon=True)
    thread.start()
    try:
        yield lambda: None
    finally:
        stop.set()
        thread.join()


# --- a segment that nobody owns ---------------------------------------------------------------
def _recovered(kind: Kind, rng: random.Random, say: Say) -> Case:
    """Leave a world of shared memory as a crash would, corrupt it, inspect it, and attach again."""
    say("begin")
    name = f"corruption-{random.SystemRandom().getrandbits(48):012x}"
    options = _options(kind, rng)

    def attach() -> NanoKVCache:
        return NanoKVCache(PAGES * PAGE_BYTES, name=name, rank=0, world_size=1, on_stale="recover", **options)

    with _watched():
        case = Case(kind, rng, say, [attach()])
        try:
            case.fill()
            _abandon(case.world[0])
            info = inspect(name, writable=True)
            change = Corruptor(SegmentView(info.segments[0], info.geometry), rng, spares=False).some()
            say(f"corrupted {change}")
            case.one("inspect", lambda: (str(InspectedWorld(name).check()), InspectedWorld(name).stats()))
            case.world = []
            case.one("attach", lambda: case.world.append(attach()))
            if case.world:
                if case.by_hand:
                    case.world[0].engine.poller.stop()
                case.run(lambda: None)
        finally:
            say("close")
            for cache in case.world:
                cache.close()
            with contextlib.suppress(NanoKVError):
                remove_world(name, force=True)
    return case


def _abandon(cache: NanoKVCache) -> None:
    """Let go of a rank as a process that ends does, without a word to the others."""
    heap = cache.engine.heap
    assert isinstance(heap, ShmHeap)
    cache.engine.poller.stop()
    cache.engine.allocation.close()
    heap._leave.detach()
    heap._file.locks.close()
