"""Mutants: every one still applies, and some are searched for here; `nanokv check mutants` kills all."""

import builtins
import dis
import inspect
from typing import Any

import pytest

from nanokv.check.protocol.model.explore import Explorer, replay
from nanokv.check.protocol.model.mutants import MUTANTS, run
from nanokv.check.protocol.model.mutants.found_by import FOUND_BY
from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.check.protocol.model.mutants.run import NOTICED, kill, search
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.device.protocol import freelist
from nanokv.device.sim.mutants import rewrite, weak_orderings

pytestmark = pytest.mark.proved

SOME = [
    "no-tag",
    "bump-unchecked",
    "slots-hoarded",
    "commit-by-exchange",
    "double-free-on-lost",
    "no-turnstile",
    "one-look",
    "no-grace",
    "remote-one-look",
    "pull-unasked",
]
WAITING = ["turnstile-locks", "full-ring-waits", "removal-waits-for-pins"]  #: of `mutants/progress.py`


def test_there_are_enough_and_each_can_be_made() -> None:
    assert len(MUTANTS) >= 80
    for each in MUTANTS.values():
        assert set(each.scenarios) <= set(SCENARIOS), each.name
        assert each.changes or each.patches
        changed = {function.fn for function, _, _ in each.changes if hasattr(function, "fn")}
        assert set(each.replaced()) == changed
        with each.patched():
            assert not {name for made in each.replaced().values() for name in unknown_names(made)}, each.name
            assert not {name for function, _, _ in each.changes for name in unknown_names(function)}, each.name


def unknown_names(function: Any) -> set[str]:
    """The global names that a function uses and nobody has defined."""
    function = getattr(function, "fn", function)
    code, known = function.__code__, function.__globals__.keys() | vars(builtins).keys()
    return {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"} - known


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match="two mutants"):
        mutant("no-tag", "another one", ("list",))


@pytest.mark.parametrize("name", SOME)
def test_a_mutant_is_noticed_and_its_string_replays_it(name: str) -> None:
    failure = search(name, 600, 1)
    assert failure is not None and failure.why.startswith(NOTICED)
    with MUTANTS[name].patched():
        broken = Explorer(SCENARIOS[failure.scenario], failure.memory, MUTANTS[name].replaced())
        assert broken.execute(failure.schedule) is not None
    assert Explorer(SCENARIOS[failure.scenario], failure.memory).execute(failure.schedule) is None


@pytest.mark.parametrize("name", WAITING)
def test_waiting_for_somebody_else_is_no_progress(name: str) -> None:
    failure = search(name, 100, 1)
    assert failure is not None and failure.why.startswith("NoProgress")
    assert Explorer(SCENARIOS[failure.scenario], failure.memory).execute(failure.schedule) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_noticed(name: str) -> None:
    """What `nanokv check mutants` does; that it does so for orderings: `test_model`."""
    failure = kill(name, 1000, 0)
    assert failure is not None and failure.why.startswith(NOTICED), failure


def test_every_mutant_has_an_execution_in_which_the_protocol_itself_holds() -> None:
    assert FOUND_BY.keys() == MUTANTS.keys()
    assert {text: why for text in FOUND_BY.values() if (why := replay(text)) is not None} == {}


def test_a_mutant_is_searched_for_where_its_execution_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND_BY, "no-tag", "bump/sc: plain")
    failure = kill("no-tag", 600, 1)
    assert failure is not None and failure.scenario == "list-aba"
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    assert kill("no-tag", 600, 1) is None


def test_a_text_that_is_not_there_once_is_refused() -> None:
    for old in ("no such text", "old"):
        with pytest.raises(ValueError, match="not once"):
            rewrite(freelist.pop, old, "x")


def test_weaker_orderings_say_where_they_are() -> None:
    names = [weaker.name for weaker in weak_orderings(freelist.pop_nodes)]
    assert names == ["pop_nodes#0:acquire>relaxed", "pop_nodes#3:acquire>relaxed"]
    before = inspect.getsource(freelist.pop_nodes.fn)
    for weaker in weak_orderings(freelist.pop_nodes):
        assert weaker.replaced().keys() == {freelist.pop_nodes.fn}
    assert inspect.getsource(freelist.pop_nodes.fn) == before
