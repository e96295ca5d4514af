"""Schedulers, replay, killing and shrinking of the simulated machine."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanokv.device.protocol import freelist
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, Memory, WeakMemory
from nanokv.device.sim.schedule import Schedule, parse
from nanokv.device.sim.schedulers import Priorities, RandomWalk, Replay
from nanokv.device.sim.shrink import shrink
from nanokv.device.sim.simulation import NoProgress, Simulation

pytestmark = pytest.mark.proved

WORDS = 4


def lost_update(simulation: Simulation, rounds: int = 1, tasks: int = 2) -> None:
    """Tasks that add to one word by a load and a store: an update can be lost."""
    load, store = (simulation.vocabulary[name] for name in ("load64", "store64"))

    def body() -> None:
        for _ in range(rounds):
            store(SHARED, load(SHARED, "relaxed") + 1, "relaxed")
            simulation.completed()

    simulation.reset([0] * WORDS)
    for number in range(tasks):
        simulation.spawn(f"task{number}", body)


def total(simulation: Simulation) -> int:
    return simulation.memory.newest(SHARED)


# --- all executions ---------------------------------------------------------------------------
class Script:
    """Lets tasks go in a given order, one step each."""

    def __init__(self, order: tuple[int, ...]) -> None:
        self.kills: dict[str, int] = {}
        self.order = list(order)

    def start(self, simulation: Simulation) -> None: ...

    def task(self, simulation: Simulation, current: Any, runnable: list[Any]) -> Any:
        while self.order:
            task = simulation.tasks[self.order[0]]
            self.order.pop(0)
            if task in runnable:
                return task
        return runnable[0]

    def data(self, simulation: Simulation, count: int) -> int:
        return 0


Steps = list[tuple[str, int]]
STEP = st.tuples(st.sampled_from(["load", "store", "add"]), st.integers(0, 2))
PROGRAMS = st.lists(st.lists(STEP, min_size=1, max_size=3), min_size=2, max_size=2) | st.lists(
    st.lists(STEP, min_size=1, max_size=2), min_size=3, max_size=3
)


def interleavings(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every order in which tasks that have so many steps left can go."""
    if not any(left):
        yield ()
    for who, steps in enumerate(left):
        if steps:
            for rest in interleavings((*left[:who], steps - 1, *left[who + 1 :])):
                yield (who, *rest)


def run_program(simulation: Simulation, program: list[Steps], decider: Any) -> tuple[Any, ...]:
    """The words that every task read, and the last words of memory."""
    load, store, add = (simulation.vocabulary[name] for name in ("load64", "store64", "add64"))

    def body(who: int, steps: Steps) -> Callable[[], tuple[int, ...]]:
        def run() -> tuple[int, ...]:
            seen = []
            for number, (kind, at) in enumerate(steps):
                address = SHARED + 8 * at
                if kind == "load":
                    seen.append(load(address, "acquire"))
                elif kind == "store":
                    store(address, 10 * who + number + 1, "release")
                else:
                    seen.append(add(address, 100, "acq_rel"))
            return tuple(seen)

        return run

    simulation.reset([0] * WORDS)
    for who, steps in enumerate(program):
        simulation.spawn(f"task{who}", body(who, steps))
    simulation.run(decider)
    return (*(task.result for task in simulation.tasks), *(simulation.memory.newest(SHARED + 8 * i) for i in range(3)))


@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_the_reduction_loses_no_outcome(program: list[Steps]) -> None:
    """All interleavings, one by one, and the reduced ones come to the same outcomes."""
    simulation = Simulation(Memory)
    # a task has one step more than accesses: the one that begins it
    orders = list(interleavings(tuple(len(steps) + 1 for steps in program)))
    every = {run_program(simulation, program, Script(order)) for order in orders}
    scheduler, reduced = Exhaustive(), set()
    while (execution := scheduler.new_execution()) is not None:
        try:
            reduced.add(run_program(simulation, program, execution))
        except Redundant:
            continue
    assert reduced == every
    assert scheduler.executions <= len(orders)


def test_independent_tasks_need_one_execution() -> None:
    simulation = Simulation(Memory)
    scheduler = Exhaustive()
    while (execution := scheduler.new_execution()) is not None:
        run_program(simulation, [[("store", 0)] * 3, [("store", 1)] * 3, [("store", 2)] * 3], execution)
    assert scheduler.executions == 1


# --- drawn, named, replayed -------------------------------------------------------------------
@pytest.mark.parametrize("memory", [Memory, WeakMemory])
@pytest.mark.parametrize("kind", [RandomWalk, Priorities])
def test_a_bug_is_found_and_its_string_replays_it(memory: type[Memory], kind: type[RandomWalk]) -> None:
    simulation = Simulation(memory)
    scheduler = kind((seed, {}) for seed in range(200))
    while (execution := scheduler.new_execution()) is not None:
        lost_update(simulation, rounds=3)
        simulation.run(execution)
        if total(simulation) < 6:
            break
    else:
        pytest.fail("the lost update was never found")
    lost, steps = total(simulation), simulation.steps
    schedule = parse(str(Schedule(tuple(simulation.taken))))
    lost_update(simulation, rounds=3)
    simulation.run(schedule)
    assert (total(simulation), simulation.steps) == (lost, steps)


def test_a_replay_tries_the_given_schedules_in_turn() -> None:
    schedules = [Schedule(), Schedule(((1, 1),))]
    scheduler = Replay(schedules)
    assert [scheduler.new_execution() for _ in range(3)] == [*schedules, None]


def test_the_plain_schedule_runs_task_after_task() -> None:
    simulation = Simulation(WeakMemory)
    lost_update(simulation, rounds=3)
    simulation.run(parse("plain"))
    assert total(simulation) == 6 and simulation.taken == []


def test_shrinking_keeps_what_matters() -> None:
    simulation = Simulation(Memory)

    def fails(schedule: Schedule) -> bool:
        lost_update(simulation, rounds=5)
        simulation.run(schedule)
        return total(simulation) < 10

    noise = Schedule(tuple((at, 1) for at in range(1, 19)), {})
    assert fails(noise)
    small = shrink(noise, fails)
    assert fails(small) and len(small.taken) <= 2


@given(
    st.dictionaries(st.integers(0, 999), st.integers(1, 9)),
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True), st.integers(0, 99)),
)
def test_schedules_are_their_text(taken: dict[int, int], kills: dict[str, int]) -> None:
    schedule = Schedule(tuple(sorted(taken.items())), kills)
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["x", "3", "a@b", "@3", "1.x", "1.2.3"])
def test_text_that_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 2)), max_size=8, unique_by=lambda part: part[0]))
def test_hypothesis_can_draw_schedules(taken: list[tuple[int, int]]) -> None:
    """A correct program under schedules that hypothesis draws, and would shrink."""
    simulation = Simulation(WeakMemory)
    pop, push = simulation.function(freelist.pop), simulation.function(freelist.push)
    simulation.reset([1, 2, 0, 0])
    head, links = SHARED, SHARED + 8

    def swap() -> int:
        node: int = pop(head, links, 2, head + 24)
        if node >= 0:
            push(head, links, node, head + 24)
        return node

    for name in ("one", "two"):
        simulation.spawn(name, swap)
    simulation.run(Schedule(tuple(sorted(taken))))
    first = simulation.memory.newest(head) & 0xFFFFFFFF
    second = simulation.memory.newest(links + 8 * (first - 1)) & 0xFFFFFFFF
    assert sorted([first, second]) == [1, 2]


# --- killing ----------------------------------------------------------------------------------
@pytest.mark.parametrize("step", range(8))
def test_a_killed_task_stops_before_that_step(step: int) -> None:
    simulation = Simulation(Memory)
    store = simulation.vocabulary["store64"]
    simulation.reset([0] * 8)

    def body() -> None:
        for at in range(6):
            store(SHARED + 8 * at, 1, "relaxed")

    task = simulation.spawn("mortal", body)
    simulation.run(Schedule(kills={"mortal": step}))
    assert sum(simulation.memory.words) == min(step, 6)
    assert task.killed == (step < 6)


def test_who_never_ends_an_operation_is_found() -> None:
    simulation = Simulation(Memory, bound=100)
    load = simulation.vocabulary["load64"]

    def wait() -> None:
        while load(SHARED, "acquire") == 0:
            pass

    simulation.reset([0])
    simulation.spawn("waiter", wait)
    simulation.spawn("other", lambda: load(SHARED, "relaxed"))
    with pytest.raises(NoProgress, match="101 steps"):
        simulation.run(Schedule())


def test_an_error_of_a_task_comes_out_and_the_others_end() -> None:
    simulation = Simulation(Memory)
    load = simulation.vocabulary["load64"]
    ended = []

    def other() -> None:
        try:
            for _ in range(100):
                load(SHARED, "relaxed")
        finally:
            ended.append(True)

    def fail() -> None:
        load(SHARED, "relaxed")
        raise KeyError("mine")

    simulation.reset([0])
    simulation.spawn("other", other)
    simulation.spawn("fail", fail)
    with pytest.raises(KeyError, match="mine"):
        simulation.run(parse("1.1 2.1 3.1"))
    assert ended == [True]
    assert simulation.current is None


def test_lost_compare_and_swaps_are_counted() -> None:
    """Two tasks pop: in some executions one loses the first time, in others none does."""
    simulation = Simulation(Memory)
    pop = simulation.function(freelist.pop)
    head, links, lost = SHARED, SHARED + 8, SHARED + 24
    counts = set()
    scheduler = Exhaustive()
    while (execution := scheduler.new_execution()) is not None:
        simulation.reset([1, 2, 0, 0])
        tasks = [simulation.spawn(name, partial(pop, head, links, 2, lost)) for name in ("one", "two")]
        try:
            simulation.run(execution)
        except Redundant:
            continue
        assert sorted(task.result for task in tasks) == [0, 1]
        counts.add(simulation.memory.newest(lost))
    assert counts == {0, 1}
