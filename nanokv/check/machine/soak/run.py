"""The rounds of a soak, and its verdicts.

A round, in a world of four rank processes whose heap stays full:
1. All work: random calls, while some ranks are killed with SIGKILL at random moments, and come back.
2. All keep still. What the dead left is taken back; then fsck finds nothing, and no page or slot is lost (`ledger`).
3. What the long-lived processes and the world's files hold is sampled (`memory`).
4. Each rank in turn puts objects, and each put is judged: did it evict though joined free pages would do (`probes`)?

Every object that is read in 1 and 4 is compared byte by byte (`objects`). The first failure ends the soak. The seed
decides calls, victims and waits; the machine decides how they meet. So a failure names seed and round, and a second run
comes close to it.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from nanokv.check.machine.rank_process import warm
from nanokv.check.machine.soak.memory import LEAST, Sample, Trend
from nanokv.check.machine.soak.probes import NO_PROBES, ProbeReport
from nanokv.check.machine.soak.work import Done, SoakWorker
from nanokv.check.machine.soak.world import LONG_LIVED, SoakWorld, Worker, pause
from nanokv.check.report import CheckFailure, Row, tell
from nanokv.errors import NanoKVError

BUSY_SECONDS = 3.0  #: of a round, at most
ROUNDS = 12  #: that a short soak is cut into, about
LEAST_ROUNDS = 4  #: even if they take longer: fewer say nothing of memory
PROBES = 40  #: of each rank, in each round
KILLED = (0, 1, 1, 2)  #: how many ranks are killed in a round: one of these
PATIENCE = 30.0  #: seconds until what the dead left must be back


class Soak:
    """One soak. `run` fills the rows."""

    def __init__(self, seconds: float, seed: int, worker: Worker, kills: bool, patience: float) -> None:
        self.seconds, self.seed, self.worker = seconds, seed, worker
        self.kills, self.patience = kills, patience
        self.calls = Row("soak", "four ranks work, die and come back", unit="calls")
        self.memory = Row("soak", "memory, files and threads stay flat", unit="samples")
        self.pages = Row("soak", "fsck is clean, no page or slot is lost", unit="times")
        self.bytes = Row("soak", "every byte is as it was put", unit="bytes")
        self.room = Row("soak", "nothing goes while joined free pages would do", unit="puts")
        self.rounds = self.killed = self.evicted = self.excused = 0
        self.counts: Counter[str] = Counter()
        self.samples: dict[str, list[Sample]] = {}
        self.probes: ProbeReport = NO_PROBES

    @property
    def rows(self) -> list[Row]:
        """What was done, and the four verdicts."""
        return [self.calls, self.memory, self.pages, self.bytes, self.room]

    @property
    def failed(self) -> bool:
        """Whether there is a failure already."""
        return any(row.failures for row in self.rows)

    def run(self) -> list[Row]:
        """Begin a world, do rounds until the time is over, end it, and judge."""
        with self._noting(self.calls):
            world = SoakWorld(self.seed, self.worker)
            start = time.monotonic()
            try:
                while not self.failed and (self.rounds < LEAST_ROUNDS or time.monotonic() - start < self.seconds):
                    self._round(world)
                    self._tell(time.monotonic() - start)
                if not self.failed:
                    self.evicted = sum(world.ask_all("evicted").values())
            finally:
                world.end()
        self._judge_memory()
        self._write_notes()
        return self.rows

    @contextmanager
    def _noting(self, row: Row) -> Iterator[None]:
        """Time a block, and note what fails in it, with the way to see it again."""
        failures = len(row.failures)
        with row.timed():
            try:
                yield
            except NanoKVError as error:
                raise CheckFailure(f"{type(error).__name__}: {error}") from error
        row.failures[failures:] = [f"{failure} ({self._again()})" for failure in row.failures[failures:]]

    def _again(self) -> str:
        return f"see it again: nanokv check soak --seconds {self.seconds:g} --seed {self.seed}, round {self.rounds}"

    # --- a round ---
    def _round(self, world: SoakWorld) -> None:
        self.rounds += 1
        dice = random.Random(f"{self.seed}/{self.rounds}")
        self._busy(world, dice)
        with self._noting(self.pages):
            world.settle()
            world.check_at_rest(self.patience)
            self.pages.tried += 1
        if not self.failed:
            self._sample(world)
            self._probe(world)

    def _busy(self, world: SoakWorld, dice: random.Random) -> None:
        """All work; some are killed, and come back after a moment."""
        busy = min(BUSY_SECONDS, self.seconds / ROUNDS)
        victims = [rank for rank in world.ranks if rank not in LONG_LIVED]
        victims = dice.sample(victims, dice.choice(KILLED)) if self.kills else []
        deadline = time.monotonic() + busy
        world.begin_work()
        for victim in victims:
            pause(dice, busy / 2)
            self._count_calls(world.kill(victim))
            self.killed += 1
        pause(dice, busy / 4)
        world.bring_back(victims)
        time.sleep(max(deadline - time.monotonic(), 0))
        for done in world.end_work():
            self._note(done)
            self._count_calls(sum(done.counts.values()))

    def _count_calls(self, calls: int) -> None:
        self.calls.tried += calls

    def _note(self, done: Done) -> None:
        self.counts += done.counts
        self.bytes.tried += done.nbytes
        self.bytes.failures += [f"{wrong} ({self._again()})" for wrong in done.wrong]

    def _sample(self, world: SoakWorld) -> None:
        with self._noting(self.memory):
            for who, sample in world.samples().items():
                self.samples.setdefault(who, []).append(sample)
                self.memory.tried += 1

    def _probe(self, world: SoakWorld) -> None:
        with self._noting(self.room):
            for rank in world.ranks:
                report, excused = world.probe(rank, PROBES)
                self.probes = self.probes.plus(report)
                self.excused += len(excused)
                guilty = [suspect.text for suspect in report.suspects if suspect not in excused]
                if guilty:
                    raise CheckFailure("; ".join(guilty))
        self.room.tried = self.probes.with_room
        if not self.failed:
            for done in world.ask_all("report").values():
                self._note(done)

    # --- the verdicts ---
    def _judge_memory(self) -> None:
        trends = [trend for who, samples in self.samples.items() if (trend := Trend.of(who, samples))]
        if not trends:  # a soak that is too short, or has failed, says nothing of memory
            self.memory.tried = 0
            self.memory.note = f"fewer than {LEAST} samples after the warm-up"
            return
        self.memory.failures += [f"{grown} ({self._again()})" for trend in trends for grown in trend.growth()]
        notes = "; ".join(trend.note for trend in trends)
        self.memory.note = f"medians of the first and the last third: {notes}"

    def _write_notes(self) -> None:
        self.calls.note = f"seed {self.seed}; {self.rounds} rounds, {self.killed} kills, {self.evicted:,} evictions"
        calls = ", ".join(f"{name} {count:,}" for name, count in self.counts.most_common())
        self.bytes.note = calls
        probes = self.probes
        self.room.note = (
            f"with room, {probes.in_pieces:,} of them in pieces; of {probes.puts:,} puts {probes.evicting:,} evicted; "
            f"{self.excused} excused by a slow joiner"
        )

    def _tell(self, seconds: float) -> None:
        tell(
            f"{seconds:.0f} of {self.seconds:.0f} s: round {self.rounds}, {self.calls.tried:,} calls, "
            f"{self.killed} kills, {self.bytes.tried / 2**20:,.0f} MiB compared"
        )


def run_soak(
    seconds: float, seed: int, *, worker: Worker = SoakWorker, kills: bool = True, patience: float = PATIENCE
) -> list[Row]:
    """Soak for about so many seconds: a row for what was done, and one for each verdict.

    Args:
        worker: makes the rank in its process; for tests that plant faults.
        kills: whether ranks are killed.
        patience: seconds until what the dead left must be back.
    """
    warm()
    return Soak(seconds, seed, worker, kills, patience).run()
