"""Transfers between hosts in simulated memory: litmus tests, and what the scenarios of other hosts come to see."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nanokv.check.protocol.model.explore import Explorer
from nanokv.check.protocol.model.run import run_scenario
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.device.fabric.judging import DOUBTFUL, GONE
from nanokv.device.protocol.status import Status
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, Memory, WeakMemory
from nanokv.device.sim.simulation import Simulation
from nanokv.device.sim.transfers import ORDERS, TransferInMemory

pytestmark = pytest.mark.proved

X, FLAG = SHARED, SHARED + 8
BOTH = [(X, 0), (FLAG, 8)]
Outcome = tuple[int, int]  #: (flag, x)
MEMORIES = [Memory, WeakMemory]


def outcomes(
    memory: type[Memory], write: Callable[[Simulation], None], *transfers: list[tuple[int, int]]
) -> set[Outcome]:
    """What a reader finds over all executions, whose transfers bring words (address, offset of its place), in turn."""
    simulation, scheduler, found = Simulation(memory), Exhaustive(), set()
    here = np.zeros(2, np.int64)
    base = int(here.ctypes.data)

    def read() -> None:
        for words in transfers:
            transfer = TransferInMemory(simulation, [(base + at, address, 8) for address, at in words])
            while not transfer.ended:
                transfer.move(1)

    while (execution := scheduler.new_execution()) is not None:
        assert scheduler.executions < 20_000
        simulation.reset([0] * 4)
        simulation.spawn("writer", lambda: write(simulation))
        simulation.spawn("reader", read)
        try:
            simulation.run(execution)
        except Redundant:
            continue
        found.add((int(here[1]), int(here[0])))
    return found


def published(ordering: str) -> Callable[[Simulation], None]:
    def write(simulation: Simulation) -> None:
        store = simulation.vocabulary["store64"]
        store(X, 1, "relaxed")
        store(FLAG, 1, ordering)

    return write


EVERY = {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("memory", MEMORIES)
def test_nothing_is_ordered_within_a_transfer(memory: type[Memory]) -> None:
    assert outcomes(memory, published("release"), BOTH) == EVERY


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_transfer_comes_after_one_that_has_ended(memory: type[Memory]) -> None:
    assert outcomes(memory, published("release"), BOTH[1:], BOTH[:1]) == EVERY - {(1, 0)}


def test_stores_without_order_are_seen_in_any() -> None:
    assert outcomes(WeakMemory, published("relaxed"), BOTH[1:], BOTH[:1]) == EVERY
    assert outcomes(Memory, published("relaxed"), BOTH[1:], BOTH[:1]) == EVERY - {(1, 0)}


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_store_is_not_seen_before_a_read_modify_write_that_precedes_it(memory: type[Memory]) -> None:
    def write(simulation: Simulation) -> None:
        simulation.vocabulary["cas64"](X, 0, 1, "acquire")
        simulation.vocabulary["store64"](FLAG, 1, "relaxed")

    assert outcomes(memory, write, BOTH[1:], BOTH[:1]) == EVERY - {(1, 0)}


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_a_writer_has_acquired_comes_before_its_stores(memory: type[Memory]) -> None:
    """A message in X, passed on by another task, whose own store releases nothing."""
    simulation, scheduler, here = Simulation(memory), Exhaustive(), np.zeros(2, np.int64)
    base, chained = int(here.ctypes.data), SHARED + 16

    def pass_on() -> None:
        if simulation.vocabulary["load64"](chained, "acquire"):
            simulation.vocabulary["store64"](FLAG, 1, "relaxed")

    def write() -> None:
        simulation.vocabulary["store64"](X, 1, "relaxed")
        simulation.vocabulary["store64"](chained, 1, "release")

    def read() -> None:
        for at in (8, 0):
            TransferInMemory(simulation, [(base + at, SHARED + at, 8)]).move(1)

    found = set()
    while (execution := scheduler.new_execution()) is not None:
        simulation.reset([0] * 4)
        for number, body in enumerate((write, pass_on, read)):
            simulation.spawn(f"task{number}", body)
        try:
            simulation.run(execution)
        except Redundant:
            continue
        found.add((int(here[1]), int(here[0])))
    assert found == EVERY - {(1, 0)}


def test_the_words_come_in_many_orders_and_all_of_them() -> None:
    simulation, seen = Simulation(Memory), set()
    for order in range(ORDERS):
        simulation.reset([*range(1, 5)])
        here = np.zeros(4, np.int64)
        with mock.patch.object(simulation, "decide_order", return_value=order):
            transfer = TransferInMemory(simulation, [(int(here.ctypes.data), SHARED, 32)])
        transfer.move(1)
        seen.add(int(here.max()))
        transfer.move(9)
        assert transfer.ended and here.tolist() == [1, 2, 3, 4]
    assert len(seen) > 2


# --- what the scenarios reach -----------------------------------------------------------------
def answers(name: str, task: str, count: int = 300) -> Counter[Any]:
    """What a task is answered in some executions."""
    found: Counter[Any] = Counter()
    explorer = Explorer(SCENARIOS[name], "sc")
    for seed in range(count):
        assert explorer.draw("random", 1, seed).failure is None
        found.update(_flat(explorer.world.results[task]))
    return found


def _flat(result: Any) -> list[Any]:
    if not isinstance(result, list):
        return [result]
    return [each for part in result for each in _flat(part)]


def test_a_reader_on_another_host_is_answered_all_that_it_can_be() -> None:
    found = answers("remote-replace", "reader") + answers("remote-fresh", "reader") + answers("remote-gone", "reader")
    statuses = {status for status, _ in found}
    assert statuses == {Status.OK, Status.MISS, Status.NOT_READY, Status.TORN, DOUBTFUL.value, GONE.value}
    assert {version for status, version in found if status == Status.OK} == {1, 2, 3}


def test_an_owner_that_pulls_answers_all_that_it_can() -> None:
    assert set(answers("pull", "owner")) == {None, Status.OK, Status.LOST, Status.FULL}
    assert Status.DUPLICATE in answers("pull-same-key", "owner")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith(("remote", "pull"))])
def test_a_scenario_of_other_hosts_for_longer(name: str) -> None:
    """Torn transfers have many more orders than the tasks of other scenarios."""
    row = run_scenario(name, schedules=400, seed=11)
    assert row.held, row.failures
