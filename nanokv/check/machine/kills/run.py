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

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nanokv.check.machine.kills.roles import ROLES
from nanokv.check.machine.kills.rounds import COUNTS, Options, Rounds, Tally
from nanokv.check.machine.rank_process import warm
from nanokv.check.report import Row

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
    runs = [Rounds(options._replace(world=world)) for world in range(options.worlds)]
    with ThreadPoolExecutor(max(len(runs), 1)) as pool:
        list(pool.map(Rounds.run, runs))
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
