"""Every outcome of a litmus shape under the simulated memory, as plain Python and compiled: the same ones."""

from functools import partial
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
from nanokv.check.protocol.compiled.tasks import CompiledTasks
from nanokv.check.report import Row
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import LINE
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, Memory, WeakMemory
from nanokv.device.sim.simulation import InTasks, Simulation

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
