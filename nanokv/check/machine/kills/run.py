"""Kill rounds: real processes on shared memory, and one of them killed with SIGKILL at a random moment, many times.

A round in one world of five ranks:
1. The living ranks play roles (`roles`). The victim has left an object behind, and may hold a pin and a plan.
2. The victim is killed at a random moment. For the role "poller" another rank is killed just before, so that the
   victim dies while it takes back the leftovers of the other one.
3. The others make progress, and every anchor (an object that only the checker removes) can be read meanwhile.
4. The others keep still. After a bounded wait fsck finds nothing, except leftovers that wait for a rank that is away,
   and every READY object of every segment can be read whole.
5. A dead rank comes back while the others work, after step 4, or some rounds later.

Every BLOCK rounds all ranks come back and everything except the anchors is removed: then each segment uses exactly as
much as before the first round. In the end every segment has room for its largest object.

The sweepers go at their own pace, so that the seconds in the notes are those of design.md (I6). They are reported, and
bounded only by patience: a machine may be busy. The seed decides roles, victims, waits and returns; the machine decides
at which step a process is killed. So a failure names seed, world and round, and a second run comes close to it.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nanokv.check.machine.kills.roles import ROLES
from nanokv.check.machine.kills.world import ANCHOR, PAGE, WORLD_SIZE, KillWorld, SegmentUse
from nanokv.check.machine.rank_process import wait_until, warm
from nanokv.check.report import CheckFailure, Row
from nanokv.device.segment.layout import WORD
from nanokv.errors import NanoKVError

# --- the rounds of one world ------------------------------------------------------------------
# `run` says what a round is.
BLOCK = 10  #: rounds between two exact counts
LEFT = 2000  #: keys of objects that a victim leaves behind
HELD = 3000  #: keys of plans that a victim holds
LEFT_PAGES = 2
KILL_WITHIN = 0.02  #: seconds after all are at work
SLOW = 0.7  #: share of the victims with compiled work that linger in every step
SURVIVOR_STEPS = 20  #: done by each of the others after the kill
LEAST_LIVING = 3  #: workers at the beginning of a round
AWAY_ROUNDS = 3  #: of its world that a rank stays away, at most
LOUD = ("producer", "large", "plan", "reader", "room")  #: roles of the ranks that are not killed
COUNTS = "counts"


class Options(NamedTuple):
    """The arguments of `run_kills`, and the number of one of its worlds."""

    rounds: int
    seed: int
    pins: bool
    worlds: int
    world: int = 0

    @property
    def evict(self) -> bool:
        """Every other world evicts."""
        return self.world % 2 == 1

    def again(self, number: int) -> str:
        """The call that comes close to a round again."""
        call = f"run_kills({self.rounds}, {self.seed}, pins={self.pins}, worlds={self.worlds})"
        return f"see it again: {call}, world {self.world}, round {number}"


@dataclass
class Tally:
    """The rounds in which the victim had one role."""

    tried: int = 0
    dirty: int = 0  #: kills whose leftovers were still there when the others had come to rest
    back: list[float] = field(default_factory=list)  #: seconds from the kill until nothing was left
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add the rounds of another world."""
        self.tried += other.tried
        self.dirty += other.dirty
        self.back += other.back
        self.seconds += other.seconds
        self.failures += other.failures


class KillRounds:
    """The rounds of one world. `run` fills `tallies`, by role, and `taken_back`; the first failure ends the run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tallies = {role: Tally() for role in (*ROLES, COUNTS)}
        self.taken_back: Counter[str] = Counter()  #: by sweepers that lived until the end of a round
        self._noted: dict[int, Counter[str]] = {}  #: counts that each sweeper gave when it was asked last
        self._failed = False

    def run(self) -> None:
        """Begin a world, do its rounds, end it."""
        options = self.options
        self.world = KillWorld(options.seed, evict=options.evict, pins=options.pins)
        try:
            before = self.world.counts_at_rest()
            numbers = range(options.world, options.rounds, options.worlds)
            for done, number in enumerate(numbers, 1):
                role = ROLES[number % len(ROLES)]
                with self._tried(role, number):
                    self._round(role, number, done)
                if not self._failed and (done % BLOCK == 0 or done == len(numbers)):
                    with self._tried(COUNTS, number):
                        self._count(before, last=done == len(numbers))
                if self._failed:
                    return
        finally:
            self.world.end()

    @contextmanager
    def _tried(self, tally_name: str, number: int) -> Iterator[None]:
        tally = self.tallies[tally_name]
        tally.tried += 1
        start = time.perf_counter()
        try:
            yield
        except (CheckFailure, NanoKVError) as failure:
            self._failed = True
            text = str(failure) if isinstance(failure, CheckFailure) else f"{type(failure).__name__}: {failure}"
            tally.failures.append(f"{text} ({self.options.again(number)})")
        finally:
            tally.seconds += time.perf_counter() - start

    # --- one round ---
    def _round(self, role: str, number: int, done: int) -> None:
        world, tally = self.world, self.tallies[role]
        dice = random.Random(f"{self.options.seed}/{number}")
        victim = dice.choice(sorted(world.workers))
        left = self._burden(victim, number, dice)
        self._all_work(victim, role, dice)
        if role == "poller":  # it dies while it takes back the leftovers of this one
            world.kill(dice.choice([rank for rank in sorted(world.workers) if rank != victim]), done)
            time.sleep(dice.uniform(0, KILL_WITHIN))
        world.kill(victim, done)
        died = time.monotonic()
        self._others_go_on(dice, done)
        tally.dirty += bool(world.findings())
        world.all_is_back()
        tally.back.append(time.monotonic() - died)
        world.check_anchors()
        world.check_objects()
        if left:
            world.let_go(LEFT + number)
        self._note_taken_back()
        self._bring_back([rank for rank, since in world.away.items() if self._is_due(since, done, dice)])

    def _burden(self, victim: int, number: int, dice: random.Random) -> bool:
        """The victim leaves behind an object that must outlive it, and may hold a pin and a plan. False: no room."""
        world, rank = self.world, self.world.workers[victim]
        version = rank.ask("leave", LEFT + number, LEFT_PAGES * PAGE // WORD, dice.randrange(WORLD_SIZE))
        if version is not None:
            world.keep(LEFT + number, version)
        if dice.random() < 0.5:
            rank.ask("hold", ANCHOR + dice.randrange(WORLD_SIZE), HELD + number, dice.randrange(WORLD_SIZE))
        return version is not None

    def _all_work(self, victim: int, role: str, dice: random.Random) -> None:
        """Everyone plays a role; returns at a random moment after all have begun."""
        before = {rank: worker.steps for rank, worker in self.world.workers.items()}
        for rank, worker in self.world.workers.items():
            worker.send("act", *((role, dice.random() < SLOW) if rank == victim else (dice.choice(LOUD), False)))
        self._wait_for_steps(before, 1)
        time.sleep(dice.uniform(0, KILL_WITHIN))

    def _wait_for_steps(self, before: dict[int, int], steps: int) -> None:
        workers = self.world.workers
        wait_until(
            f"{steps} steps of each",
            lambda: all(workers[rank].steps >= begin + steps for rank, begin in before.items()),
            lambda: {rank: workers[rank].steps - begin for rank, begin in before.items()},
        )

    def _others_go_on(self, dice: random.Random, done: int) -> None:
        """The others make progress, perhaps while a dead rank comes back; then they keep still."""
        world = self.world
        survivors = {rank: worker.steps for rank, worker in world.workers.items()}
        if dice.random() < 0.25:
            self._start(list(world.away))
        self._wait_for_steps(survivors, SURVIVOR_STEPS)
        world.check_anchors()
        for rank in survivors:
            world.workers[rank].stop()

    # --- coming back ---
    def _is_due(self, since: int, done: int, dice: random.Random) -> bool:
        few = len(self.world.workers) < LEAST_LIVING
        return few or done - since >= AWAY_ROUNDS or dice.random() < 0.5

    def _start(self, ranks: list[int]) -> None:
        """Ranks come back to the segments that they left, all at the same time."""
        for rank in ranks:
            self._noted.pop(rank, None)
            self.world.start(rank, self.options.seed)
        for rank in ranks:
            self.world.attached(rank)

    def _bring_back(self, ranks: list[int]) -> None:
        """Ranks come back, and their own sweepers take back the leftovers in their segments."""
        if ranks:
            self._start(ranks)
            self.world.all_is_back()
            self.world.check_anchors()

    # --- exact counts ---
    def _count(self, before: list[SegmentUse], *, last: bool) -> None:
        """Check that with all ranks there, and only the anchors left, as much is in use as before the first round."""
        world = self.world
        self._bring_back(list(world.away))
        world.clear()
        wait_until("the same counts", lambda: world.counts() == before, lambda: differences(before, world.counts()))
        for worker in world.workers.values():
            findings = worker.ask("check")
            if findings:
                raise CheckFailure(f"rank {worker.rank} finds: {findings}")
        self._note_taken_back()
        if last:
            world.fill_each()
            world.all_is_back()

    def _note_taken_back(self) -> None:
        """Add the counts of the sweepers since they were asked last."""
        for rank, worker in self.world.workers.items():
            now: Counter[str] = Counter(worker.ask("taken_back"))
            self.taken_back += now - self._noted.get(rank, Counter())
            self._noted[rank] = now


def differences(before: list[SegmentUse], now: list[SegmentUse]) -> str:
    """The counts that changed, by segment and field."""
    changes = [
        f"{name} in the segment of rank {rank} are {have}, not {want}"
        for rank, (was, is_now) in enumerate(zip(before, now, strict=True))
        for name, want, have in zip(SegmentUse._fields, was, is_now, strict=True)
        if want != have
    ]
    return "; ".join(changes)


# --- the run ----------------------------------------------------------------------------------
WORLDS = 4  #: side by side: most of a round is waiting


def run_kills(rounds: int, seed: int, *, pins: bool = True, worlds: int = WORLDS) -> list[Row]:
    """Kill ranks `rounds` times: a row for each role of the victim, and one for the exact counts.

    Args:
        seed: of roles, victims, waits and returns.
        pins: whether readers pin.
        worlds: side by side, at most one per round; the rounds are dealt out to them. Every other one evicts.
    """
    warm()
    options = Options(rounds, seed, pins, min(worlds, rounds))
    runs = [KillRounds(options._replace(world=world)) for world in range(options.worlds)]
    with ThreadPoolExecutor(max(len(runs), 1)) as pool:
        list(pool.map(KillRounds.run, runs))
    tallies = {name: Tally() for name in (*ROLES, COUNTS)}
    for run in runs:
        for name, tally in run.tallies.items():
            tallies[name].add(tally)
    taken = sum((run.taken_back for run in runs), Counter[str]())
    return [*[_victims(role, tallies[role]) for role in ROLES], _counts(tallies[COUNTS], taken)]


def _victims(role: str, tally: Tally) -> Row:
    note = ""
    if tally.back:
        half, most = np.median(tally.back), max(tally.back)
        note = f"{tally.dirty} had left something; all back {half:.2f} s after the kill (p50), {most:.2f} s (max)"
    return Row("kills", f"{role} killed", tally.tried, "rounds", tally.failures, note, tally.seconds)


def _counts(tally: Tally, taken: Counter[str]) -> Row:
    note = "taken back at least: " + ", ".join(f"{kind} {count}" for kind, count in sorted(taken.items()))
    name = "nothing leaks over the rounds"
    return Row("kills", name, tally.tried, "counts", tally.failures, note if taken else "", tally.seconds)
