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

import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nanokv.check.machine.rank_process import RankCommands, RankProcess, warm
from nanokv.check.machine.soak.memory import LEAST, Sample, Trend, sample_folder
from nanokv.check.machine.soak.probes import NO_PROBES, ProbeReport, Suspect
from nanokv.check.machine.soak.work import WORLD_SIZE, Done, SoakOptions, SoakWorker
from nanokv.check.report import CheckFailure, Row, tell
from nanokv.errors import NanoKVError
from nanokv.heap.shm import list_worlds, remove_world
from nanokv.heap.world_file import directory
from nanokv.space.make_room import _JOIN_PATIENCE as JOIN_PATIENCE

# --- the rank processes of a soak, as the supervisor commands them ----------------------------
# Every wait is bounded.
Worker = Callable[..., RankCommands]

LONG_LIVED = (0, 1)  #: ranks that are never killed
LOOK_PAUSE = 0.02  #: seconds between two looks at leftovers
FOLDER = "/dev/shm"


class SoakWorld:
    """Four ranks in processes of their own; all commands go to those that live.

    Raises (all methods): CheckFailure.
    """

    def __init__(self, seed: int, worker: Worker) -> None:
        world = f"nanokv-soak-{os.getpid()}-{secrets.token_hex(4)}"
        self.options = SoakOptions(world, seed)
        self._worker = worker
        self.ranks: dict[int, RankProcess] = {}
        for rank in range(WORLD_SIZE):
            self.ranks[rank] = RankProcess(worker, rank, self.options)
        for process in self.ranks.values():
            process.arrive()

    def ask_all(self, command: str) -> dict[int, Any]:
        """Give all a command at one time; the answer of each."""
        for process in self.ranks.values():
            process.send(command)
        return {rank: process.answer() for rank, process in self.ranks.items()}

    # --- busy ---
    def begin_work(self) -> None:
        """All work from now on."""
        for process in self.ranks.values():
            process.send("work")

    def kill(self, rank: int) -> int:
        """Kill a rank that works. Returns how many calls it had done."""
        process = self.ranks.pop(rank)
        process.kill()
        return process.steps

    def bring_back(self, ranks: list[int]) -> None:
        """Ranks attach again, to the segments that they left, and work. One that attaches waits for all others."""
        back = {rank: RankProcess(self._worker, rank, self.options) for rank in ranks}
        self.ranks |= back
        for process in back.values():
            process.arrive()
            process.send("work")

    def end_work(self) -> list[Done]:
        """All stop, and say what they have done."""
        for process in self.ranks.values():
            process.send("stop")
        done = [process.answer() for process in self.ranks.values()]
        for process in self.ranks.values():
            process.answer()
        return done

    # --- quiet ---
    def settle(self) -> None:
        """Nobody holds a pin, and every poller has come round without an error."""
        failed = {rank: count for rank, count in self.ask_all("settle").items() if count}
        if failed:
            raise CheckFailure(f"rounds of pollers that failed, by rank: {failed}")

    def check_at_rest(self, patience: float) -> None:
        """Fsck finds nothing, and nothing is lost, as soon as the sweepers have taken back what the dead left."""
        deadline = time.monotonic() + patience
        while wrong := self.ranks[0].ask("audit"):
            if time.monotonic() > deadline:
                raise CheckFailure(f"{patience:.0f} s after all came to rest: {wrong}")
            time.sleep(LOOK_PAUSE)

    def samples(self) -> dict[str, Sample]:
        """What each long-lived process holds, and the files of the world."""
        for rank in LONG_LIVED:
            self.ranks[rank].send("sample")
        found: dict[str, Sample] = {f"rank {rank}": self.ranks[rank].answer() for rank in LONG_LIVED}
        return found | {FOLDER: sample_folder(directory())}

    def probe(self, rank: int, count: int) -> tuple[ProbeReport, list[Suspect]]:
        """One rank puts, the others keep still: what it saw, and the suspects that the documented exception excuses."""
        before = self.ask_all("joined")
        report: ProbeReport = self.ranks[rank].ask("probe", count)
        slow = [suspect for suspect in report.suspects if suspect.seconds >= JOIN_PATIENCE]
        now = self.ask_all("joined") if slow else before
        excused = [suspect for suspect in slow if now[suspect.owner] > before[suspect.owner]]
        return report, excused

    def end(self) -> None:
        """End every process, and remove the world."""
        for process in self.ranks.values():
            process.end()
        if self.options.world in list_worlds():
            remove_world(self.options.world, force=True)


def pause(dice: random.Random, most: float) -> None:
    """Sleep for a random time."""
    time.sleep(dice.uniform(0, most))


# --- the run ----------------------------------------------------------------------------------
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
