"""Threads of a node that call the cluster, and note every call.

Two threads call for a few keys that all nodes share (`MIXED`), and put objects of their own that nobody removes. The
third one moves large objects, so that a node that dies was probably in the middle of a transfer.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nanokv.check.machine.histories.key_model import DUPLICATE, FULL, MISS, NOT_READY, OK
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.nodes import keys
from nanokv.check.nodes.calls import LOST, NO_HOME, NOTHING, WRONG, CallLog
from nanokv.check.report import CheckFailure
from nanokv.cluster import NanoKVCluster
from nanokv.errors import (
    CacheClosed,
    DuplicateKey,
    KeyNotFound,
    NanoKVError,
    NotReady,
    OutOfMemory,
    PeerLost,
    WriteLost,
)

BULK = keys.CALLERS - 1  #: the thread that moves large objects
PAUSE, BULK_PAUSE, LOST_PAUSE = 0.004, 0.04, 0.05  #: seconds between two calls, at most; and after a PeerLost
MOST_UNSURE = 2  #: puts and removals of a key by a thread of which the effect is not known
SMALL_WORDS, MIDDLE_WORDS, LARGE_WORDS = 512, 30_000, 64_000
BATCH = 4
_MIDDLE_SHARE = 0.1  #: of the objects: they are pulled, and do not come in the question
_ERRORS: dict[type[NanoKVError], str] = {
    KeyNotFound: MISS,
    DuplicateKey: DUPLICATE,
    NotReady: NOT_READY,
    OutOfMemory: FULL,
    PeerLost: LOST,
    WriteLost: NOTHING,
}


class Job(NamedTuple):
    """The work of a node in a round.

    Attributes:
        folder: for the notes.
        nodes: the names of all nodes, ascending.
        run: how often the node's process was started again.
    """

    folder: Path
    nodes: list[str]
    round: int
    node: int
    run: int
    seed: int


def answer_of(error: NanoKVError) -> str:
    """What an error answers."""
    return next((answer for kind, answer in _ERRORS.items() if isinstance(error, kind)), WRONG)


def noted_get(cluster: NanoKVCluster, log: CallLog, key: int, *, audit: bool = False) -> tuple[str, str]:
    """Get an object, and note the call. Returns the answer, and what is wrong with it.

    Raises:
        CacheClosed: the node has left.
    """
    row, value, wrong = log.begin(time.monotonic_ns(), "get", key, 0, audit=audit), 0, ""
    try:
        got = cluster.get(name(key))
    except CacheClosed:
        raise
    except NanoKVError as error:
        answer = answer_of(error)
        wrong = f"{type(error).__name__}: {error}" if answer == WRONG else ""
        log.end(row, time.monotonic_ns(), answer, 0)
        return answer, wrong
    returned = time.monotonic_ns()
    try:
        answer, value = OK, check_payload(key, got)
    except CheckFailure as failure:
        answer, wrong = WRONG, str(failure)
    log.end(row, returned, answer, value)
    return answer, wrong


class Caller:
    """One thread.

    Attributes:
        wrong: what must not have happened: wrong bytes, errors that no document names.
    """

    def __init__(self, cluster: NanoKVCluster, job: Job, thread: int) -> None:
        self._cluster, self._job, self._thread = cluster, job, thread
        self._log = CallLog(job.folder, job.round, job.node, job.run, thread)
        self._random = random.Random(f"{job.seed}/{job.round}/{job.node}/{job.run}/{thread}")
        self._version = keys.first_version(job.node, job.run, thread)
        self._mixed = keys.mixed(job.round)
        own = keys.own(job.round, job.node, thread)
        self._fresh = iter(own[job.run % 2 * (len(own) // 2) :])  # a node that comes back puts others
        self._kept: list[int] = []
        self._unsure: Counter[int] = Counter()
        self._numbers = {node: number for number, node in enumerate(job.nodes)}
        self.wrong: list[str] = []
        self._stop = threading.Event()
        run = self._move_large if thread == BULK else self._mix
        self._worker = threading.Thread(target=self._run, args=(run,), name=f"caller-{thread}", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Let the call that is under way end, and make no other one."""
        self._stop.set()
        self._worker.join()

    def _run(self, once: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set() and self._log.has_room(4 * BATCH):
                once()
        except (CacheClosed, StopIteration):
            pass
        except Exception as error:  # told to the check, which fails
            self.wrong.append(f"{type(error).__name__}: {error}")

    # --- what is called ---
    def _mix(self) -> None:
        chance = self._random.random()
        key = self._random.choice(self._mixed)
        some = self._random.sample(self._mixed, BATCH)
        if chance < 0.3:
            self.get(key)
        elif chance < 0.4:
            self.exists(key)
        elif chance < 0.6:
            self.put(key)
        elif chance < 0.7:
            self.remove(key)
        elif chance < 0.78:
            self.get_many(some)
        elif chance < 0.84:
            self.put_many(some, self._words())
        elif chance < 0.88:
            self.remove_many(some[:2])
        elif chance < 0.96 or not self._kept:
            self._kept.append(next(self._fresh))
            self.put(self._kept[-1])
        else:
            self.get(self._random.choice(self._kept))
        self._stop.wait(self._random.random() * PAUSE)

    def _move_large(self) -> None:
        some = [next(self._fresh) for _ in range(BATCH)]
        self.put_many(some, LARGE_WORDS)
        self.get_many(some)
        self.remove_many(some)
        self._stop.wait(self._random.random() * BULK_PAUSE)

    def _words(self) -> int:
        most = MIDDLE_WORDS if self._random.random() < _MIDDLE_SHARE else SMALL_WORDS
        return self._random.randint(1, most)

    # --- one key ---
    def put(self, key: int) -> None:
        """Put the next version, of a random size."""
        if self._unsure[key] >= MOST_UNSURE:
            return
        self._version += 1
        before, value = self._home(key), payload(key, self._version, self._words())
        row = self._log.begin(time.monotonic_ns(), "put", key, self._version)
        answer, _ = self._answer(lambda: self._cluster.put(name(key), value))
        returned = time.monotonic_ns()
        self._log.end(row, returned, answer, home=before if before == self._home(key) else NO_HOME)
        self._note([key], [answer])

    def get(self, key: int) -> None:
        """Read, and check the bytes."""
        answer, wrong = noted_get(self._cluster, self._log, key)
        self.wrong += [wrong] if wrong else []
        self._rest([answer])

    def exists(self, key: int) -> None:
        """Ask for it."""
        row = self._log.begin(time.monotonic_ns(), "exists", key, 0)
        answer, found = self._answer(lambda: self._cluster.exists(name(key)))
        self._log.end(row, time.monotonic_ns(), MISS if found is False else answer)
        self._rest([answer])

    def remove(self, key: int) -> None:
        """Remove it."""
        if self._unsure[key] >= MOST_UNSURE:
            return
        row = self._log.begin(time.monotonic_ns(), "remove", key, 0)
        answer, _ = self._answer(lambda: self._cluster.remove(name(key)))
        self._log.end(row, time.monotonic_ns(), answer)
        self._note([key], [answer])

    # --- many keys ---
    def put_many(self, some: Sequence[int], words: int) -> None:
        """Put the next versions, all of one size."""
        some = [key for key in some if self._unsure[key] < MOST_UNSURE]
        versions = range(self._version + 1, self._version + 1 + len(some))
        self._version += len(some)
        homes = [self._home(key) for key in some]
        values = [payload(key, version, words) for key, version in zip(some, versions, strict=True)]
        now = time.monotonic_ns()
        rows = [
            self._log.begin(now, "put", key, version, many=True) for key, version in zip(some, versions, strict=True)
        ]
        outcome, errors = self._answer(lambda: self._cluster.put_many([name(key) for key in some], values))
        now = time.monotonic_ns()
        answers = [outcome] * len(some)
        if errors is not None:
            answers = [OK if error is None else self._answer_of(error) for error in errors]
        for row, key, home, answer in zip(rows, some, homes, answers, strict=True):
            self._log.end(row, now, answer, home=home if home == self._home(key) else NO_HOME)
        self._note(some, answers)

    def get_many(self, some: Sequence[int]) -> None:
        """Read, and check the bytes."""
        now = time.monotonic_ns()
        rows = [self._log.begin(now, "get", key, 0, many=True) for key in some]
        outcome, found = self._answer(lambda: self._cluster.get_many([name(key) for key in some]))
        now = time.monotonic_ns()
        for row, key, got in zip(rows, some, found or [None] * len(some), strict=True):
            answer, value = (MISS if outcome == OK else outcome, 0) if got is None else self._checked(key, got)
            self._log.end(row, now, answer, value)
        self._rest([outcome])

    def remove_many(self, some: Sequence[int]) -> None:
        """Remove them."""
        some = [key for key in some if self._unsure[key] < MOST_UNSURE]
        now = time.monotonic_ns()
        rows = [self._log.begin(now, "remove", key, 0, many=True) for key in some]
        outcome, removed = self._answer(lambda: self._cluster.remove_many([name(key) for key in some]))
        now = time.monotonic_ns()
        answers = [outcome] * len(some) if removed is None else [OK if each else MISS for each in removed]
        for row, answer in zip(rows, answers, strict=True):
            self._log.end(row, now, answer)
        self._note(some, answers)

    # --- answers ---
    def _home(self, key: int) -> int:
        return self._numbers.get(self._cluster.home(name(key)), NO_HOME)

    def _answer(self, call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return OK, call()
        except CacheClosed:
            raise
        except NanoKVError as error:
            return self._answer_of(error), None

    def _answer_of(self, error: NanoKVError) -> str:
        answer = answer_of(error)
        if answer == WRONG:
            self.wrong.append(f"{type(error).__name__}: {error}")
        return answer

    def _checked(self, key: int, got: torch.Tensor) -> tuple[str, int]:
        """The answer of a get, and the version that it read."""
        try:
            return OK, check_payload(key, got)
        except CheckFailure as failure:
            self.wrong.append(str(failure))
            return WRONG, 0

    def _note(self, some: Sequence[int], answers: Sequence[str]) -> None:
        """Note which effects are not known."""
        self._unsure.update(key for key, answer in zip(some, answers, strict=True) if answer == LOST)
        self._rest(answers)

    def _rest(self, answers: Sequence[str]) -> None:
        if LOST in answers:
            self._stop.wait(LOST_PAUSE)
