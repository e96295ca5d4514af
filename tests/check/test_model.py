"""The protocol under the simulated machine: every scenario for a moment, and the bugs that were found once."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanokv.check.protocol.model import audit_search, small_world
from nanokv.check.protocol.model.explore import MEMORIES, Explorer, replay
from nanokv.check.protocol.model.orderings import FOUND_BY, KEPT, functions, is_noticed, orderings
from nanokv.check.protocol.model.run import run_scenario
from nanokv.check.protocol.model.scenario import A, Scenario, small, stored
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.report import CheckFailure
from nanokv.device.protocol import freelist, header, remove
from nanokv.device.segment.layout import DEAD, READY, RESERVED, WATCHED, WRITING, unpack
from nanokv.device.sim import limits
from nanokv.device.sim.mutants import rewrite
from nanokv.device.sim.schedule import Schedule
from tests.support.known_bugs import BUGS

pytestmark = pytest.mark.proved

SLOW = [name for name, scenario in SCENARIOS.items() if scenario.mortal]  #: a task is killed before every step


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in SLOW])
def test_scenario(name: str) -> None:
    row = run_scenario(name, schedules=4, seed=7)
    assert row.held, row.failures


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_for_longer(name: str) -> None:
    """What `nanokv check model --seconds 10` does."""
    row = run_scenario(name, schedules=200, seed=0)
    assert row.held, row.failures


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match="two scenarios"):
        Scenario("list", "another one", small())(lambda world: None)


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 120), st.integers(1, 2)), max_size=6, unique_by=lambda part: part[0]))
def test_hypothesis_draws_schedules(memory: str, taken: list[tuple[int, int]]) -> None:
    explorer = Explorer(SCENARIOS["put-remove-get"], memory)
    assert explorer.execute(Schedule(tuple(sorted(taken)))) is None


# --- the checks -------------------------------------------------------------------------------
def word(state: int, pins: int, epoch: int) -> int:
    return state | pins << 8 | epoch << 32


LEGAL = [
    (word(RESERVED.value, 0, 0), word(RESERVED.value, 0, 1)),
    (word(DEAD.value, 0, 4), word(RESERVED.value, 0, 5)),
    (word(RESERVED.value, 0, 5), word(WRITING.value, 0, 5)),
    (word(WRITING.value, 0, 5), word(READY.value, 0, 5)),
    (word(READY.value, 0, 5), word(READY.value, 1, 5)),
    (word(READY.value, 2, 5) | WATCHED.value, word(READY.value, 1, 5)),
    (word(READY.value, 0, 5), word(DEAD.value, 0, 5)),
    (word(WRITING.value, 0, 5), word(DEAD.value, 0, 5)),
    (word(RESERVED.value, 0, 5), word(DEAD.value, 0, 5)),
]


@pytest.mark.parametrize("old, new", LEGAL)
def test_legal_steps_of_a_state_word(old: int, new: int) -> None:
    assert small_world.is_legal(old, new)


def test_all_other_steps_are_not() -> None:
    dice = random.Random(1)
    words = [word(state, pins, epoch) for state in range(4) for pins in (0, 1) for epoch in (0, 4, 5, 6)]
    for old in words:
        for new in dice.sample(words, len(words)):
            was, now = unpack("STATE", "state", old), unpack("STATE", "state", new)
            epochs = unpack("STATE", "epoch", old), unpack("STATE", "epoch", new)
            if epochs[1] < epochs[0] or (now == DEAD.value and unpack("STATE", "pins", old)):
                assert not small_world.is_legal(old, new), (hex(old), hex(new))
            if was == DEAD.value and now in (WRITING.value, READY.value):
                assert not small_world.is_legal(old, new), (hex(old), hex(new))


def test_a_leak_and_an_overlap_are_found() -> None:
    explorer = Explorer(SCENARIOS["put-remove-get"], "sc")
    kept = "push(slot_list(world, seg, slot), header_links(world, seg), slot, retries_at(world, seg))"
    forget = rewrite(header.give_slot, kept, "word(slot)")
    assert "in no place" in str(Explorer(explorer.scenario, "sc", forget).draw("random", 50, 1).failure)
    with pytest.raises(CheckFailure, match="I4"):
        explorer.world.check(1, np.array([1 << 32 | 99, 1 << 32 | 99]))
    with pytest.raises(CheckFailure, match="torn"):
        explorer.world.check(1, np.array([1 << 32 | 1, 1 << 32 | 2]))


@pytest.mark.parametrize("at", ["in a task", "while it is prepared"])
def test_a_loop_without_an_access_ends_and_names_its_scenario(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    monkeypatch.setattr(limits, "PATIENCE", 0.3)
    old = "    header = header_at(world, seg, slot)\n    seen = kill(header, READY, epoch)\n"
    endless = rewrite(remove.remove_slot, old, old + "    while seen != 0:\n        seen = seen + 0\n")
    if at == "in a task":
        explorer = Explorer(SCENARIOS["put-remove-get"], "sc", endless)
        failure = explorer.draw("random", 5, 1).failure
        assert failure is not None and failure.why.startswith("Stuck: no access to memory in 0.3 s")
        assert str(explorer.smallest(failure)).count("put-remove-get/sc: ") == 1
        assert "Stuck" in (explorer.execute(failure.schedule) or "")
    else:
        scenario = Scenario("removed-before", "", small(), prepare=lambda world: (stored(A)(world), world.remove(A)))
        monkeypatch.delitem(SCENARIOS, scenario.name, raising=False)
        with pytest.raises(CheckFailure, match="removed-before/sc, while it is prepared: no access"):
            Explorer(scenario, "sc", endless)


# --- orderings --------------------------------------------------------------------------------
def test_every_ordering_is_needed_or_says_why_it_stays() -> None:
    names = {weaker.name for weaker in orderings()}
    assert names == {*KEPT, *FOUND_BY}, "an ordering was added or went: find an execution that needs it, or say why"
    assert len(functions()) > 60


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_weaker_ordering_is_noticed_and_the_protocol_is_not(name: str) -> None:
    weaker = next(one for one in orderings() if one.name == name)
    assert is_noticed(weaker, 2000, 3)
    assert replay(FOUND_BY[name]) is None


# --- bugs that were found, and are mended -----------------------------------------------------
@pytest.mark.parametrize("about", BUGS)
def test_a_bug_stays_mended(about: str) -> None:
    """If the first line fails after a protocol change: python -m tests.support.known_bugs finds a new execution."""
    assert BUGS[about].shown_by(BUGS[about].replay) is not None
    assert replay(BUGS[about].replay) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.audited])
def test_no_audit_gives_away_what_is_on_its_way(name: str) -> None:
    assert audit_search.find(SCENARIOS[name]) is None


def test_deviations_find_what_needs_one() -> None:
    """One task after the other, a list whose head is exchanged holds; one switch breaks it."""
    explorer = Explorer(SCENARIOS["list"], "sc", rewrite(freelist.pop_nodes, "cas64(head, old, ", "xchg64(head, "))
    assert explorer.deviate(0).failure is None
    found = explorer.deviate(1)
    assert found.failure is not None and len(found.failure.schedule.taken) == 1


def test_bad_replay_strings_are_refused() -> None:
    for text in ("", "same-key", "same-key/weak", "nothing/sc: plain", "same-key/strong: plain", "same-key/sc: x"):
        with pytest.raises(ValueError, match=r"replay string|neither"):
            replay(text)


def test_an_execution_is_the_same_every_time() -> None:
    explorer = Explorer(SCENARIOS["swept"], "weak")
    found = explorer.draw("random", 5, 3)
    assert found.failure is None
    simulation = explorer.world.simulation
    kills = {task.name: task.steps for task in simulation.tasks if task.killed}
    words = list(simulation.memory.words)
    assert explorer.execute(Schedule(tuple(simulation.taken), kills)) is None
    assert simulation.memory.words == words
