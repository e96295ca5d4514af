"""The checker of histories: it must reject what cannot be, and agree with trying every order."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanokv.check.machine.histories.key_model import (
    ABSENT,
    DUPLICATE,
    FULL,
    MISS,
    NOT_READY,
    OK,
    PINNED,
    PLAIN,
    TORN,
    WorldKind,
    step,
    with_excuses,
)
from nanokv.check.machine.histories.linearizability import NEVER, Operation, check, shortest_prefix
from nanokv.check.machine.histories.recordings import record_killed, record_threads
from nanokv.check.machine.histories.run import check_key, run_histories
from nanokv.check.machine.histories.timeline import draw
from nanokv.check.report import CheckFailure

Spec = tuple[int, int, str, int, str]


def history(*operations: Spec) -> list[Operation]:
    return [Operation(*operation) for operation in operations]


def holds(operations: list[Operation], world: WorldKind = PLAIN) -> bool | None:
    return check(with_excuses(operations, world), world.step(), ABSENT).holds


GOOD = {
    "one after the other": history((0, 1, "put", 7, OK), (2, 3, "get", 7, OK), (4, 5, "remove", 0, OK)),
    "a read that overlaps the put": history((0, 9, "put", 7, OK), (1, 2, "get", 7, OK), (3, 4, "get", 7, OK)),
    "a miss that overlaps the put": history((0, 9, "put", 7, OK), (1, 2, "get", 0, MISS), (3, 4, "get", 7, OK)),
    "two puts that meet": history((0, 5, "put", 7, OK), (1, 4, "put", 8, DUPLICATE), (6, 7, "get", 7, OK)),
    "a duplicate of a put that fails": history((0, 5, "put", 7, DUPLICATE), (1, 4, "put", 8, DUPLICATE)),
    "replaced meanwhile": history(
        (0, 1, "put", 7, OK), (2, 9, "get", 0, MISS), (3, 4, "remove", 0, OK), (5, 6, "put", 8, OK)
    ),
    "a put whose process was killed, and had an effect": history((0, NEVER, "put", 7, ""), (5, 6, "get", 7, OK)),
    "a put whose process was killed, and had none": history((0, NEVER, "put", 7, ""), (5, 6, "get", 0, MISS)),
    "a removal whose process was killed, and had an effect": history(
        (0, 1, "put", 7, OK), (2, NEVER, "remove", 0, ""), (3, 4, "get", 7, OK), (5, 6, "get", 0, MISS)
    ),
    "torn by a removal": history((0, 1, "put", 7, OK), (2, 5, "get", 0, TORN), (3, 4, "remove", 0, OK)),
    "not ready while it is put": history((0, 5, "put", 7, OK), (1, 2, "get", 0, NOT_READY), (6, 7, "exists", 0, OK)),
}
BAD = {
    "a stale read": history((0, 1, "put", 7, OK), (2, 3, "remove", 0, OK), (4, 5, "put", 8, OK), (6, 7, "get", 7, OK)),
    "a lost put": history((0, 1, "put", 7, OK), (2, 3, "get", 0, MISS)),
    "two puts that both won": history((0, 5, "put", 7, OK), (1, 4, "put", 8, OK), (6, 7, "get", 7, OK)),
    "a read of what was removed": history((0, 1, "put", 7, OK), (2, 3, "remove", 0, OK), (4, 5, "get", 7, OK)),
    "a value from nowhere": history((0, 1, "put", 7, OK), (2, 3, "get", 9, OK)),
    "removed twice": history((0, 1, "put", 7, OK), (2, 5, "remove", 0, OK), (3, 4, "remove", 0, OK)),
    "a duplicate of nothing": history((0, 1, "put", 7, DUPLICATE)),
    "it is there, and then it was not": history((0, 1, "put", 7, OK), (2, 3, "exists", 0, MISS)),
    "new, then old": history((0, 9, "put", 7, OK), (1, 2, "get", 7, OK), (3, 4, "get", 0, MISS), (5, 6, "get", 7, OK)),
    "not ready, and nobody puts": history((0, 1, "put", 7, OK), (2, 3, "get", 0, NOT_READY)),
    "not ready, and it is there": history(
        (0, 1, "put", 7, OK), (2, 3, "get", 0, NOT_READY), (2, 3, "put", 8, DUPLICATE)
    ),
    "torn, and nobody removes": history((0, 1, "put", 7, OK), (2, 3, "get", 0, TORN)),
    "full, and there is room": history((0, 1, "put", 7, FULL)),
    "pinned, and nobody pins": history((0, 1, "put", 7, OK), (2, 3, "remove", 0, PINNED)),
    "a killed put that took effect twice": history(
        (0, NEVER, "put", 7, ""), (1, 2, "get", 7, OK), (3, 4, "remove", 0, OK), (5, 6, "get", 7, OK)
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be(name: str) -> None:
    assert holds(GOOD[name]) is True


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be(name: str) -> None:
    assert holds(BAD[name]) is False
    with pytest.raises(CheckFailure, match="not linearizable"):
        check_key(1, BAD[name])


def test_eviction_may_take_an_object_at_any_moment() -> None:
    evicting = WorldKind(may_evict=True)
    assert holds(BAD["a lost put"], evicting) is True
    assert holds(BAD["a stale read"], evicting) is False
    assert holds(BAD["full, and there is room"], evicting) is False
    assert holds(BAD["full, and there is room"], WorldKind(may_be_full=True)) is True


def test_a_search_that_is_too_long_is_not_decided() -> None:
    many = [Operation(0, 100, "get", 0, MISS) for _ in range(14)] + [Operation(0, 100, "get", 5, OK)]
    verdict = check(many, step, ABSENT, 50)
    assert verdict.holds is None and verdict.explored > 50


def test_a_failure_shows_the_shortest_prefix_and_the_answer_that_fits_no_order() -> None:
    bad = [*BAD["a stale read"], *history((8, 9, "exists", 0, OK), (10, 11, "remove", 0, OK))]
    prefix = shortest_prefix(bad, step, ABSENT)
    assert prefix == BAD["a stale read"]
    with pytest.raises(CheckFailure) as failure:
        check_key(1, bad)
    lines = str(failure.value).splitlines()
    assert "3 of 4 operations fit an order" in lines[0] and len(lines) == 5
    assert [line for line in lines if "fits no order" in line] == [lines[-1]] and "get()" in lines[-1]


def test_a_history_that_holds_has_no_bad_prefix() -> None:
    with pytest.raises(ValueError, match="no prefix"):
        shortest_prefix(GOOD["one after the other"], step, ABSENT)


def test_a_timeline() -> None:
    drawn = draw([Operation(1, 4, "put", 7, OK, "one"), Operation(2, NEVER, "remove", 0, "", "two")])
    assert drawn.splitlines() == [
        "    one  put(7)    |---|     OK",
        "    two  remove()    |---\N{HORIZONTAL ELLIPSIS}   killed, or not over",
    ]


# --- compared with every order ----------------------------------------------------------------
def by_every_order(operations: list[Operation]) -> bool:
    """Whether some order of all that returned, and of any that did not, fits."""
    returned = [operation for operation in operations if operation.returned != NEVER]
    for order in permutations(operations):
        chosen = [list(order)]
        if len(returned) < len(operations):
            chosen = [
                [op for at, op in enumerate(order) if op.returned != NEVER or keep >> at & 1]
                for keep in range(1 << len(order))
            ]
        if any(_fits(each) for each in chosen):
            return True
    return False


def _fits(order: list[Operation]) -> bool:
    if any(later.returned < earlier.called for at, earlier in enumerate(order) for later in order[at + 1 :]):
        return False
    states = {ABSENT}
    for operation in order:
        states = {after for state in states for after in step(state, operation)}
    return bool(states)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    called = draw(st.integers(0, 12))
    what = draw(st.sampled_from(["put", "get", "remove", "exists"]))
    returned = draw(
        st.one_of(st.integers(called + 1, called + 8), st.just(NEVER))
        if what == "put"
        else st.integers(called + 1, called + 8)
    )
    value = draw(st.integers(1, 2)) if what in ("put", "get") else 0
    answers = {"put": [OK, DUPLICATE], "get": [OK, MISS], "remove": [OK, MISS], "exists": [OK, MISS]}
    return Operation(called, returned, what, value, "" if returned == NEVER else draw(st.sampled_from(answers[what])))


@settings(max_examples=400, deadline=None)
@given(st.lists(operations(), max_size=5))
def test_the_search_agrees_with_every_order(drawn: list[Operation]) -> None:
    assert check(drawn, step, ABSENT).holds == by_every_order(drawn)


# --- real histories ---------------------------------------------------------------------------
@pytest.mark.parametrize("least", [300, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_histories_of_this_machine(least: int) -> None:
    rows = run_histories(least, 5, heaps=("local",))
    assert len(rows) == 4
    for row in rows:
        assert row.held and row.tried >= least, (row.name, row.failures)


@pytest.mark.exhaustive
def test_histories_of_killed_processes() -> None:
    """Not `run_histories`: here the kills must have hit operations."""
    found = list(record_killed(1000, 5))
    operations = [operation for history in found for each in history.values() for operation in each]
    assert len(operations) > 300
    assert sum(operation.returned == NEVER for operation in operations) >= 3  # of five kills
    for one in found:
        for key, noted in one.items():
            check_key(key, noted)


def test_a_broken_cache_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that now and then says what it read before."""
    from nanokv.check.machine.histories.recordings import Caller

    honest = Caller._get
    last: dict[int, int] = {}

    def stale(self: Caller, key: int, mine: int) -> int:
        if key in last and self._random.random() < 0.05:
            return last[key]
        last[key] = honest(self, key, mine)
        return last[key]

    stale.__name__ = "_get"
    monkeypatch.setattr(Caller, "_get", stale)
    with pytest.raises(CheckFailure, match="not linearizable"):
        for found in record_threads(3000, 3, "device"):
            for key, noted in found.items():
                check_key(key, noted)
