"""The rank processes of a soak, as the supervisor commands them. Every wait is bounded."""

import os
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

from nanokv.check.machine.rank_process import RankCommands, RankProcess
from nanokv.check.machine.soak.memory import Sample, sample_folder
from nanokv.check.machine.soak.probes import ProbeReport, Suspect
from nanokv.check.machine.soak.work import WORLD_SIZE, Done, SoakOptions
from nanokv.check.report import CheckFailure
from nanokv.heap.shm import list_worlds, remove_world
from nanokv.heap.world_file import directory
from nanokv.space.make_room import _JOIN_PATIENCE as JOIN_PATIENCE

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
