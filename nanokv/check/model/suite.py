"""All scenarios, and the run over them that fills the table."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from typing import Any

from nanokv.check.model.explore import MEMORIES, SCHEDULERS, Explored, Explorer
from nanokv.check.model.scenario import Scenario
from nanokv.check.model.scenarios import cooperative, dying, extents, freelist, hints, host, objects, single_steps
from nanokv.check.model.small_world import PROGRESS_BOUND
from nanokv.check.report import Row
from nanokv.device.sim.schedule import Schedule, parse

MODULES = (
    single_steps,
    freelist,
    extents,
    objects,
    cooperative,
    hints,
    dying,
    host,
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for module in MODULES for scenario in module.SCENARIOS}
HOSTED_SHARE = 8  #: executions with host code cost about so many times more: that much fewer of them
MOST_EXHAUSTIVE = 50_000


def replay(text: str) -> str | None:
    """Run the execution that a replay string names: None, or what goes wrong.

    Raises:
        ValueError: the string is none.
    """
    explorer, schedule = named(text)
    return explorer.replay(schedule)


def named(text: str, replaced: dict[Any, Any] | None = None) -> tuple[Explorer, Schedule]:
    """The execution that a replay string names, of the protocol or of a mutant.

    Raises:
        ValueError: the string is none.
    """
    where, colon, schedule = text.partition(": ")
    name, _, memory = where.partition("/")
    if not colon or name not in SCENARIOS or memory not in MEMORIES:
        raise ValueError(f"a replay string is SCENARIO/MEMORY: SCHEDULE, with one of {', '.join(SCENARIOS)}: {text!r}")
    return Explorer(SCENARIOS[name], memory, replaced), parse(schedule)


def run_model(schedules: int, seed: int, names: list[str] | None = None) -> list[Row]:
    """Run every scenario: with each memory `schedules` random executions of each scheduler, all kills, all executions.

    Args:
        schedules: executions a scenario, memory and scheduler; fewer where the production host code runs too.
        seed: of all that is random.
        names: some scenarios; default all.

    Raises:
        ValueError: a name is none.
    """
    unknown = [name for name in names or [] if name not in SCENARIOS]
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    chosen = names or list(SCENARIOS)
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(run_scenario, schedules=schedules, seed=seed), chosen))


def run_scenario(name: str, *, schedules: int, seed: int) -> Row:
    """One scenario, in this process."""
    scenario = SCENARIOS[name]
    row = Row("model", name, unit="schedules")
    said = [scenario.about]
    longest = 0
    with row.timed():
        for memory in MEMORIES:
            explorer = Explorer(scenario, memory)
            counts = []
            for what, found in _explorations(explorer, schedules, seed):
                row.tried += found.executions
                longest = max(longest, found.longest)
                counts.append(f"{what} {found.executions}")
                if found.failure is not None:
                    row.failures.append(str(explorer.smallest(found.failure)))
            said.append(f"{memory}: {', '.join(counts)}")
    said.append(f"some operation ended within {longest} steps (bound {PROGRESS_BOUND})")
    row.note = "; ".join(said)
    row.numbers |= {"longest": longest, "bound": PROGRESS_BOUND}
    return row


def _explorations(explorer: Explorer, schedules: int, seed: int) -> Iterator[tuple[str, Explored]]:
    scenario = explorer.scenario
    count = max(schedules // HOSTED_SHARE, 1) if scenario.hosted else schedules
    for scheduler in SCHEDULERS:
        yield scheduler, explorer.draw(scheduler, count, seed)
    if scenario.mortal:
        yield "killed at every step", explorer.kill_everywhere(seed, max(count // 300, 1))
    if scenario.exhaustive:
        found = explorer.exhaust(MOST_EXHAUSTIVE)
        yield "all" if found.complete else "the first", found
