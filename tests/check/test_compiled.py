"""Compiled code under the simulated memory: calls, lanes, litmus shapes, every scenario.

Compiling needs no GPU. What was compiled is kept in Triton's cache on disk; the first run takes a minute longer.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from nanokv.check.litmus_shapes import store_buffering_weak
from nanokv.check.protocol.compiled.calls import TARGETS, compile_calls
from nanokv.check.protocol.compiled.follow import Follower, Recorder
from nanokv.check.protocol.compiled.lanes import copying_loads
from nanokv.check.protocol.compiled.run import all_outcomes, check_shapes, run_compiled, run_scenario
from nanokv.check.protocol.compiled.tasks import CompiledTasks
from nanokv.check.protocol.model.explore import Explorer, named, replay
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.protocol.model.small_world import SMALL
from nanokv.device.machines.entries import ENTRIES
from nanokv.device.memory.triton import add64, copy_bytes, load64, store64, word
from nanokv.device.protocol import freelist, header
from nanokv.device.ptx import Unsupported
from nanokv.device.sim.memory import SHARED, Memory, MemoryFault, WeakMemory
from nanokv.device.sim.mutants import rewrite
from nanokv.device.sim.schedule import Schedule
from nanokv.device.sim.schedulers import RandomWalk
from nanokv.device.sim.simulation import LOAD, Simulation
from nanokv.errors import InvalidArgument

pytestmark = pytest.mark.proved

SM_90 = "sm_90"
FLAG, DATA = SHARED, SHARED + 64
#: scenarios that `make test` tries compiled; it tries all of them in the source (test_model). All, and for as long as
#: `nanokv check compiled --seconds 10` on two processors: `make test-all`
SOME = ("list", "same-key", "replace", "put-parts", "pin-evict", "heir", "polled")


# --- calls ------------------------------------------------------------------------------------
@triton.jit
def three_words(a: tl.int64, b: tl.int64) -> Any:
    return a + b, word(7), a > b


@triton.jit
def nothing(address: tl.int64) -> None:
    store64(address, word(5), "relaxed")


def within_a_task(function: Any, *words: int, target: str = SM_90) -> Any:
    """What a task gets from a compiled function, on sixteen words of shared memory."""
    simulation = Simulation(WeakMemory, in_tasks=CompiledTasks(target))
    simulation.reset([0] * 16)
    made = simulation.function(function)
    task = simulation.spawn("task", lambda: made(*words))
    simulation.run(Schedule())
    return task.result


@pytest.mark.parametrize("target", TARGETS)
def test_answers_are_those_of_the_source(target: str) -> None:
    assert within_a_task(three_words, 3, -5, target=target) == (-2, 7, 1)
    assert within_a_task(nothing, SHARED, target=target) is None
    assert within_a_task(freelist.push, SHARED, SHARED + 8, 0, SHARED + 64, target=target) is None


def test_outside_of_tasks_the_source_runs() -> None:
    simulation = Simulation(WeakMemory, in_tasks=CompiledTasks(SM_90))
    simulation.reset([0] * 4)
    made = simulation.function(nothing)
    made(SHARED)
    assert simulation.steps == 0 and simulation.memory.newest(SHARED) == 5


def test_a_wild_access_is_found() -> None:
    with pytest.raises(MemoryFault, match="access to 0x80"):
        within_a_task(nothing, SHARED + 16 * 8)


@triton.jit
def narrow(address: tl.int64) -> None:
    tl.store(tl.cast(address, tl.pointer_type(tl.int32)), 1)


@triton.jit
def near(address: tl.int64) -> None:
    tl.atomic_add(tl.cast(address, tl.pointer_type(tl.int64)), 1, sem="relaxed", scope="gpu")


@pytest.mark.parametrize("function, why", [(narrow, "an access to shared words"), (near, "scope gpu")])
def test_what_the_protocol_never_does_is_refused(function: Any, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        within_a_task(function, SHARED)


def test_a_wrong_target_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there are sm_80, sm_90, sm_100"):
        CompiledTasks("sm_75")
    with pytest.raises(InvalidArgument, match="sm_75"):
        replay("list/weak/sm_75: plain")


# --- lanes ------------------------------------------------------------------------------------
@triton.jit
def publish_words(thread: tl.int64, at: tl.int64, private: tl.int64) -> None:
    """Thread 0 publishes eight words, each stored by another lane; thread 1 copies them and what it acquired."""
    if thread == 0:
        copy_bytes(at + 64, private, 64)
        add64(at, 1, "release")
    else:
        store64(private + 64, load64(at, "acquire"), "relaxed")
        copy_bytes(private, at + 64, 64)


def published(change: Any = str) -> set[tuple[int, frozenset[int]]]:
    """(flag, words) that thread 1 saw, in many executions."""
    simulation = Simulation(WeakMemory, in_tasks=CompiledTasks(SM_90, change))
    made = simulation.function(publish_words)
    seen = set()
    walk = RandomWalk((seed, {}) for seed in range(300))
    while (execution := walk.new_execution()) is not None:
        one, other = np.arange(1, 10), np.zeros(9, np.int64)
        simulation.reset([0] * 16)
        simulation.spawn("writer", partial(made, 0, SHARED, one.ctypes.data))
        simulation.spawn("reader", partial(made, 1, SHARED, other.ctypes.data))
        simulation.run(execution)
        seen.add((int(other[8]), frozenset(np.flatnonzero(other[:8] == 0).tolist())))
    return seen


def test_a_release_publishes_what_other_lanes_stored_behind_a_barrier() -> None:
    assert {missing for flag, missing in published() if flag} == {frozenset()}
    assert any(missing for flag, missing in published() if not flag)


def test_without_barriers_it_publishes_only_what_its_own_lane_stored() -> None:
    missing = {frozenset(missing) for flag, missing in published(lambda ptx: ptx.replace("bar.sync", "// ")) if flag}
    assert len(missing) > 1 and not any(0 in lanes for lanes in missing), "lane 0 orders its own accesses"


def test_copies_are_told_from_other_loads() -> None:
    code = compile_calls({}, SMALL, SM_90)
    assert copying_loads(code(ENTRIES["get"].function).ptx), "get copies the payload"
    assert not copying_loads(code(ENTRIES["verify"].function).ptx), "verify computes with each word that it loads"


# --- litmus shapes and scenarios --------------------------------------------------------------
@pytest.mark.parametrize("target", TARGETS)
def test_shapes_have_the_outcomes_of_the_source(target: str) -> None:
    row = check_shapes(target)
    assert row.held and row.tried > 100, row.failures


def test_sequentially_consistent_memory_shows_fewer_outcomes() -> None:
    strong, _ = all_outcomes(store_buffering_weak, Memory, CompiledTasks(SM_90))
    weak, _ = all_outcomes(store_buffering_weak, WeakMemory, CompiledTasks(SM_90))
    assert strong < weak


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.exhaustive) for name in SCENARIOS]
)
def test_scenario(name: str) -> None:
    row = run_scenario(name, seconds=0.14, seed=0, target=SM_90)
    assert row.held, row.failures


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", [target for target in TARGETS if target != SM_90])
@pytest.mark.parametrize("name", ["list", "same-key", "replace", "put-parts", "pin-evict"])
def test_scenario_on_other_targets(name: str, target: str) -> None:
    row = run_scenario(name, seconds=0.1, seed=12, target=target)
    assert row.held, row.failures


@pytest.mark.parametrize("name", ["list", "replace", "heir", "polled"])
def test_compiled_code_makes_the_accesses_of_the_source(name: str) -> None:
    noted = []
    source = Recorder(Schedule())
    assert Explorer(SCENARIOS[name], "weak").execute(source) is None
    compiled = Recorder(Follower(source.steps, {}, late=False))
    assert Explorer(SCENARIOS[name], "weak", in_tasks=CompiledTasks(SM_90)).execute(compiled) is None
    for steps in (source.steps, compiled.steps):  # a store that releases is an exchange when it is compiled
        noted.append([(step.task, step.kind == LOAD, step.address) for step in steps])
    assert noted[0] == noted[1] and len(noted[0]) > 10


def test_there_is_a_row_per_theme() -> None:
    rows = run_compiled(0.1, 1, names=["list", "slots", "replace"])
    assert [row.name for row in rows] == ["litmus shapes, sm_90", "freelist, sm_90", "objects, sm_90"]
    assert all(row.held and row.part == "compiled" for row in rows), rows
    with pytest.raises(ValueError, match="no scenario nothing"):
        run_compiled(0.1, 1, names=["nothing"])


def test_an_execution_is_the_same_every_time() -> None:
    explorer = Explorer(SCENARIOS["replace"], "weak", in_tasks=CompiledTasks(SM_90))
    assert explorer.draw("random", 3, 3).failure is None
    simulation = explorer.world.simulation
    words = list(simulation.memory.words)
    again, schedule = named(f"replace/weak/sm_90: {Schedule(tuple(simulation.taken))}")
    assert again.execute(schedule) is None
    assert again.world.simulation.memory.words == words


# --- mutants of the source --------------------------------------------------------------------
def test_a_mutant_of_the_source_is_noticed_compiled_and_its_string_replays_it() -> None:
    broken = rewrite(freelist.pop_nodes, "cas64(head, old, ", "xchg64(head, ")
    found = Explorer(SCENARIOS["list"], "weak", broken, CompiledTasks(SM_90)).draw("random", 300, 1)
    assert found.failure is not None and found.failure.replay.startswith("list/weak/sm_90: ")
    assert replay(found.failure.replay, broken) is not None
    assert replay(found.failure.replay) is None


def test_the_original_is_compiled_as_before_after_a_mutant() -> None:
    before = compile_calls({}, SMALL, SM_90)(freelist.pop)
    broken = compile_calls(rewrite(header.kill, '"acquire"', '"relaxed"'), SMALL, SM_90)(header.kill)
    assert "acquire" not in broken.ptx.split(".file")[0]
    assert compile_calls({}, SMALL, SM_90)(freelist.pop) == before
