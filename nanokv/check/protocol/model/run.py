"""Runs all scenarios, and fills the table."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from os import cpu_count

from nanokv.check.protocol.model.explore import MEMORIES, SCHEDULERS, Exploration, Explorer
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.protocol.model.small_world import PROGRESS_BOUND
from nanokv.check.report import Row

HOSTED_SHARE = 8  #: executions with host code cost about so many times more: that much fewer of them


def run_model(schedules: int, seed: int, names: list[str] | None = None) -> list[Row]:
    """Run every scenario: with each memory `schedules` random executions of each scheduler, all kills, all executions.

    Args:
        schedules: executions per scenario, memory and scheduler; fewer where the production host code runs too.
        seed: of all that is random.
        names: of the scenarios to run; default all.

    Raises:
        ValueError: there is no scenario of such a name.
    """
    unknown = [name for name in names or [] if name not in SCENARIOS]
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(run_scenario, schedules=schedules, seed=seed), names or SCENARIOS))


def run_scenario(name: str, *, schedules: int, seed: int) -> Row:
    """One scenario, in this process."""
    scenario = SCENARIOS[name]
    row = Row("model", name, unit="schedules")
    notes = [scenario.about]
    longest = 0
    with row.timed():
        for memory in MEMORIES:
            explorer = Explorer(scenario, memory)
            counts = []
            for kind, found in _explorations(explorer, schedules, seed):
                row.tried += found.executions
                longest = max(longest, found.longest)
                counts.append(f"{kind} {found.executions}")
                if found.failure is not None:
                    row.failures.append(str(explorer.smallest(found.failure)))
                    if found.failure.is_stuck:
                        break
            notes.append(f"{memory}: {', '.join(counts)}")
    notes.append(f"some operation ended within {longest} steps (bound {PROGRESS_BOUND})")
    row.note = "; ".join(notes)
    row.numbers |= {"longest": longest, "bound": PROGRESS_BOUND}
    return row


def _explorations(explorer: Explorer, schedules: int, seed: int) -> Iterator[tuple[str, Exploration]]:
    scenario = explorer.scenario
    count = max(schedules // HOSTED_SHARE, 1) if scenario.hosted else schedules
    for scheduler in SCHEDULERS:
        yield scheduler, explorer.draw(scheduler, count, seed)
    if scenario.mortal:
        yield "killed at every step", explorer.kill_everywhere(seed, max(count // 300, 1))
    if scenario.exhaustive:
        found = explorer.exhaust()
        yield "all" if found.complete else "the first", found
