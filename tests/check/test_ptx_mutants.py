"""PTX that is broken on purpose: the execution that is known for a mutant notices it, and not the original."""

import pytest

from nanokv.check.protocol.compiled.calls import TARGETS, compile_calls
from nanokv.check.protocol.compiled.known import FOUND_BY, KEPT, find, is_noticed
from nanokv.check.protocol.compiled.mutants import _places, mutants
from nanokv.check.protocol.model.explore import replay
from nanokv.check.protocol.model.orderings import orderings
from nanokv.check.protocol.model.small_world import SMALL
from nanokv.device.machines.entries import ENTRIES

pytestmark = pytest.mark.proved

#: mutants of PTX that `make test` tries, one of each kind; all others are tried with the long tests
SOME = ("commit_state#0:release>relaxed", "judge#0:acquire>relaxed", "add:unguarded", "copies:unmasked")


def test_every_mutant_of_ptx_is_noticed_or_says_why_not() -> None:
    assert mutants().keys() == {*KEPT, *FOUND_BY}
    assert not KEPT.keys() & FOUND_BY.keys()


@pytest.mark.parametrize("name", SOME)
def test_a_mutant_of_ptx_is_noticed_and_the_original_is_not(name: str) -> None:
    assert is_noticed(name, 3)
    assert replay(FOUND_BY[name]) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted({*FOUND_BY} - {*SOME}))
def test_every_mutant_of_ptx_is_noticed(name: str) -> None:
    assert is_noticed(name, 3)
    assert replay(FOUND_BY[name]) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["judge#0:acquire>relaxed", "commit_state#0:barrier", "still_ready#0:release>relaxed"])
@pytest.mark.parametrize("target", [target for target in TARGETS if target != "sm_90"])
def test_a_mutant_of_ptx_is_noticed_on_other_targets(name: str, target: str) -> None:
    assert is_noticed(name, 3, target)


def test_an_execution_of_the_source_leads_to_one_of_ptx() -> None:
    found = find(mutants()["push_marked#2:release>relaxed"]._replace(name="push_marked#2"), 1.0)
    assert found is not None and found.replay.startswith("list/weak/sm_90: ")


def test_each_ordering_has_a_line_of_its_own() -> None:
    calls = {(weaker.function.fn.__name__, weaker.call) for weaker in orderings()}
    assert len({_places()[call] for call in calls}) == len(calls)


def test_a_mutant_changes_only_what_it_names() -> None:
    ptx = compile_calls({}, SMALL, "sm_90")(ENTRIES["leave"].function).ptx
    lines = ptx.split("\n")

    def changes(name: str) -> list[tuple[str, str]]:
        return [
            pair for pair in zip(lines, mutants()[name].rewrite(ptx).split("\n"), strict=True) if pair[0] != pair[1]
        ]

    ((before, after),) = changes("leave#0:release>relaxed")
    assert "release" in before and after == before.replace("release", "relaxed")
    ((before, after),) = changes("leave#0:barrier")
    assert "bar.sync" in before and not after
    assert changes("judge#0:acquire>relaxed") == []
