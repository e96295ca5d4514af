"""Runs litmus shapes and all scenarios with compiled code, and fills the table."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from typing import Any

from nanokv.check.litmus_shapes import (
    WORDS,
    message_passing,
    message_passing_weak,
    store_buffering,
    store_buffering_weak,
    validated_read,
    validated_read_weak,
)
from nanokv.check.protocol.compiled.calls import need_compiler
from nanokv.check.protocol.compiled.known import kill_mutants
from nanokv.check.protocol.compiled.tasks import CompiledTasks
from nanokv.check.protocol.model.explore import SCHEDULERS, Explorer
from nanokv.check.protocol.model.scenario import Scenario
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.report import Row
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import LINE
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, Memory, WeakMemory
from nanokv.device.sim.simulation import InTasks, Simulation

# --- every outcome of a litmus shape under the simulated memory, as plain Python and compiled: the same ones ---
SHAPES = (
    message_passing,
    message_passing_weak,
    store_buffering,
    store_buffering_weak,
    validated_read,
    validated_read_weak,
)
_SEEN = SHARED + 3 * LINE  #: the two words that the threads write

Outcomes = set[tuple[int, int]]


def all_outcomes(shape: Any, memory: type[Memory], in_tasks: InTasks | None = None) -> tuple[Outcomes, int]:
    """Every outcome of one instance, and how many executions there are."""
    simulation = Simulation(memory, in_tasks=in_tasks)
    function = simulation.function(shape)
    scheduler, found = Exhaustive(), set()
    while (execution := scheduler.new_execution()) is not None:
        simulation.reset([0] * (WORDS.value * LINE // WORD))
        for thread in range(2):
            simulation.spawn(f"thread{thread}", partial(function, SHARED, thread))
        try:
            simulation.run(execution)
        except Redundant:
            continue
        found.add((simulation.memory.newest(_SEEN), simulation.memory.newest(_SEEN + WORD)))
    return found, scheduler.executions


def check_shapes(target: str) -> Row:
    """Each shape has the same outcomes as plain Python and compiled."""
    row = Row("compiled", f"litmus shapes, {target}", unit="schedules")
    with row.timed():
        for shape in SHAPES:
            for memory in (Memory, WeakMemory):
                compiled, executions = all_outcomes(shape, memory, CompiledTasks(target))
                source, _ = all_outcomes(shape, memory)
                row.tried += executions
                if compiled != source:
                    row.failures.append(
                        f"{shape.fn.__name__}/{memory.name}: {sorted(compiled)} compiled, {sorted(source)} in Python"
                    )
    row.note = f"all executions of {len(SHAPES)} shapes: compiled code has exactly the outcomes of the source"
    return row


# --- the run ----------------------------------------------------------------------------------
MEMORY = "weak"  #: which shows all that sequentially consistent memory shows


def run_compiled(seconds: float, seed: int, target: str = "sm_90", names: list[str] | None = None) -> list[Row]:
    """Litmus shapes, each scenario with compiled code under weak memory, and PTX that is broken on purpose.

    Args:
        seconds: about how long the executions take, on all processors together; compiling comes on top.
        seed: of all that is random.
        target: "sm_80", "sm_90", "sm_100".
        names: of the scenarios to run, without the mutants; default all.

    Raises:
        InvalidArgument: nothing can be compiled for the target here.
        ValueError: there is no scenario of such a name.
    """
    need_compiler(target)
    unknown = [name for name in names or [] if name not in SCENARIOS]
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    chosen = names or [*SCENARIOS]
    processors = cpu_count() or 1
    share = seconds * processors / len(chosen)
    with ProcessPoolExecutor(processors, mp_context=get_context("spawn")) as pool:
        shapes = pool.submit(check_shapes, target)
        rows = pool.map(partial(run_scenario, seconds=share, seed=seed, target=target), chosen)
        themes = _by_theme(chosen, rows, target)
        return [shapes.result(), *themes, *([kill_mutants(pool, seed, target)] if names is None else [])]


def run_scenario(name: str, *, seconds: float, seed: int, target: str) -> Row:
    """One scenario, in this process: at least one execution of each scheduler, besides those that compile."""
    row = Row("compiled", name, unit="schedules")
    with row.timed():
        explorer = Explorer(SCENARIOS[name], MEMORY, in_tasks=CompiledTasks(target))
        for scheduler in SCHEDULERS:
            explorer.draw(scheduler, 1, seed)  # compiles
            found = explorer.draw(scheduler, 1 << 30, seed, seconds=seconds / len(SCHEDULERS))
            row.tried += found.executions
            row.numbers[scheduler] = row.numbers.get(scheduler, 0) + found.executions
            if found.failure is not None:
                row.failures.append(str(explorer.smallest(found.failure)))
    return row


def _by_theme(names: list[str], rows: Iterator[Row], target: str) -> list[Row]:
    """One row per module of scenarios."""
    themes: dict[str, list[Row]] = {}
    for name, row in zip(names, rows, strict=True):
        themes.setdefault(_theme(SCENARIOS[name]), []).append(row)
    return [_joined(theme, found, target) for theme, found in themes.items()]


def _theme(scenario: Scenario) -> str:
    tasks = scenario.tasks.func if isinstance(scenario.tasks, partial) else scenario.tasks
    return tasks.__module__.rpartition(".")[2].replace("_", " ")


def _joined(theme: str, rows: list[Row], target: str) -> Row:
    row = Row("compiled", f"{theme}, {target}", sum(each.tried for each in rows), "schedules")
    row.seconds = sum(each.seconds for each in rows)
    row.failures = [failure for each in rows for failure in each.failures]
    row.failures += [f"{each.name}: nothing was tried" for each in rows if not each.tried]
    counts = ", ".join(f"{name} {sum(int(each.numbers.get(name, 0)) for each in rows)}" for name in SCHEDULERS)
    row.note = f"{len(rows)} scenarios, compiled code under weak memory: {counts}"
    return row
