"""Runs mutants against the scenarios: every one must be noticed.

The execution that is known for it (`found_by.py`) comes first; where that notices nothing, a search.
`python -m nanokv.check.protocol.model.mutants.run` prints the known executions anew: those that still notice their
mutant, and new ones for the others.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from os import cpu_count

from nanokv.check.protocol.model import audit_search
from nanokv.check.protocol.model.explore import MEMORIES, SCHEDULERS, Explorer, Failure, named
from nanokv.check.protocol.model.mutants import MUTANTS
from nanokv.check.protocol.model.mutants.found_by import FOUND_BY
from nanokv.check.protocol.model.mutants.mutant import Mutant
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.report import CheckFailure, Row
from nanokv.device.sim.schedule import Schedule

LONGER = 10  #: times as many executions of a mutant's own scenarios, before all others are tried
PATIENCE = 300.0  #: seconds after which no further scenario is tried
NOTICED = ("CheckFailure", "MemoryFault", "NoProgress", "Stuck")  #: anything else is an error of the mutant itself


def kill_mutants(schedules: int, seed: int) -> Row:
    """Every mutant must be noticed.

    Args:
        schedules: executions per scenario, memory and scheduler, where the known execution notices nothing.
        seed: of all that is random.
    """
    row = Row("mutants", "broken on purpose", unit="mutants")
    with row.timed(), _processes() as pool:
        kills = pool.map(partial(kill, schedules=schedules, seed=seed), MUTANTS, chunksize=8)
        for mutant, failure in zip(MUTANTS.values(), kills, strict=True):
            row.tried += 1
            if failure is None:
                row.failures.append(f"{mutant.name} survives: {mutant.about}")
            elif not failure.why.startswith(NOTICED):
                row.failures.append(f"{mutant.name} is no mutant, it cannot run: {failure.why}")
    row.note = "all noticed" if not row.failures else ""
    return row


def kill(name: str, schedules: int, seed: int) -> Failure | None:
    """A failure of a mutant: that of the known execution, or one that `search` finds."""
    mutant = MUTANTS[name]
    with mutant.patched():
        known = _replayed(FOUND_BY[name], mutant) if name in FOUND_BY else None
    return known or search(name, schedules, seed)


def search(name: str, schedules: int, seed: int) -> Failure | None:
    """The first failure of a mutant, in the scenarios that should notice it and then in all others, for PATIENCE."""
    mutant = MUTANTS[name]
    end = time.monotonic() + PATIENCE
    rounds = [(schedules, mutant.scenarios), (LONGER * schedules, mutant.scenarios), (schedules, SCENARIOS)]
    with mutant.patched():
        for more, (count, scenarios) in enumerate(rounds):
            for scenario in scenarios:
                for memory in MEMORIES:
                    if time.monotonic() > end:
                        return None
                    failure = _noticed(mutant, scenario, memory, count, seed + more)
                    if failure is not None:
                        return failure
    return None


def _noticed(mutant: Mutant, scenario: str, memory: str, schedules: int, seed: int) -> Failure | None:
    try:
        explorer = Explorer(SCENARIOS[scenario], memory, mutant.replaced())
    except CheckFailure as failure:  # already while the scenario is prepared
        return Failure(scenario, memory, Schedule(()), f"CheckFailure: {failure}")
    if explorer.scenario.audited and memory == "sc":
        known = audit_search.find(explorer.scenario, mutant.replaced())
        if known is not None:
            return _replayed(known, mutant)
    found = explorer.kill_everywhere(seed)
    for scheduler in SCHEDULERS:
        if found.failure is None:
            found = explorer.draw(scheduler, schedules, seed)
    if found.failure is None and explorer.scenario.exhaustive:
        found = explorer.exhaust()
    if found.failure is None and scenario in mutant.scenarios:
        found = explorer.deviate(mutant.deviations)
    return explorer.smallest(found.failure) if found.failure is not None else None


def _replayed(text: str, mutant: Mutant) -> Failure | None:
    try:
        explorer, schedule = named(text, mutant.replaced())
    except CheckFailure as failure:  # already while the scenario is prepared
        scenario, memory = text.partition(":")[0].split("/")
        return Failure(scenario, memory, Schedule(()), f"CheckFailure: {failure}")
    why = explorer.execute(schedule)
    return Failure(explorer.scenario.name, explorer.memory, schedule, why) if why is not None else None


def _processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn"))


def print_all(schedules: int, seed: int) -> None:
    """Print FOUND_BY anew."""
    with _processes() as pool:
        kills = pool.map(partial(kill, schedules=schedules, seed=seed), MUTANTS)
        for name, failure in zip(MUTANTS, kills, strict=True):
            print(f'    "{name}": "{failure.replay}",' if failure else f"    # {name} survives", flush=True)


if __name__ == "__main__":
    print_all(1000, 0)
