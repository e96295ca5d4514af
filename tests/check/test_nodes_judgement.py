"""The judgement of `nanokv check nodes`: what calls prove, and that it finds what may not be. No node runs here."""

from pathlib import Path

import pytest

from nanokv.check.machine.histories.key_model import DUPLICATE, KILLED, MISS, OK
from nanokv.check.machine.histories.linearizability import NEVER
from nanokv.check.nodes import keys
from nanokv.check.nodes.calls import LOST, NO_HOME, NOTHING, WRONG, Call, CallLog, forget_calls, is_putting, read_calls
from nanokv.check.nodes.judge import Facts, Judgement, judge, stored_for_good, to_be_found
from nanokv.check.nodes.times import FaultTimes, Seen, departures, losses, of_calls


# --- notes of calls ---
def test_notes_tell_what_was_called_and_what_was_cut_off(tmp_path: Path) -> None:
    log = CallLog(tmp_path, 2, node=1, run=0, thread=2)
    first = log.begin(10, "put", 7, 77)
    assert is_putting(tmp_path, 2, 1, 0, 2)
    log.end(first, 20, OK, home=2)
    assert not is_putting(tmp_path, 2, 1, 0, 2)
    log.end(log.begin(30, "get", 7, 0, audit=True), 40, OK, 77)
    log.begin(50, "remove", 7, 0, many=True)
    CallLog(tmp_path, 3, node=1, run=0, thread=2).begin(1, "get", 1, 0)
    caller = "node 1 run 0 thread 2"
    assert list(read_calls(tmp_path, 2)) == [
        Call(10, 20, "put", 7, 77, OK, 2, False, False, 1, caller),
        Call(30, 40, "get", 7, 77, OK, NO_HOME, False, True, 1, caller),
        Call(50, NEVER, "remove", 7, 0, KILLED, NO_HOME, True, False, 1, caller),
    ]
    forget_calls(tmp_path, 2)
    assert list(read_calls(tmp_path, 2)) == [] and len(list(read_calls(tmp_path, 3))) == 1


def test_numbers_are_of_one_thread_and_round() -> None:
    some = [key for node in range(3) for thread in range(keys.CALLERS) for key in keys.own(4, node, thread)]
    some += [key for node in range(3) for key in keys.canaries(4, node)] + keys.mixed(4)
    assert len(set(some)) == len(some) and {key // keys.A_ROUND for key in some} == {4}
    assert max(keys.own(keys.MOST_ROUNDS, 7, 2)) < 1 << 31
    versions = [
        keys.first_version(node, run_, thread) for node in range(4) for run_ in range(64) for thread in range(3)
    ]
    assert len(set(versions)) == len(versions) and max(versions) + (1 << 20) <= 1 << 32
    assert all(map(keys.is_canary, keys.canaries(4, 2))) and not any(map(keys.is_canary, keys.mixed(4)))


# --- the judgement ---
HOME, OTHER = 0, 1  #: numbers of nodes; HOME is the home of all keys here
KEY = keys.own(1, 0, 0)[0]


def call(at: int, what: str, answer: str, value: int = 0, **fields: object) -> Call:
    """A call from `at` to `at + 5`; the fault begins at 100, and ends at 200."""
    made = Call(at, at + 5, what, KEY, value, answer, HOME if what == "put" else NO_HOME, False, False, OTHER, "caller")
    return made._replace(**fields)  # type: ignore[arg-type]


def judged(*calls: Call, away: bool = False, killed: bool = False) -> Judgement:
    """The judgement of the calls for one key."""
    dead = (HOME, 101) if killed else (NO_HOME, NEVER)
    return judge(calls, Facts({KEY: HOME}, {HOME} if away or killed else set(), 100, 200, *dead))


PUT, GET = call(10, "put", OK, 5), call(20, "get", OK, 5)
LATE_GET = call(300, "get", OK, 5, audit=True)
LATE_MISS = call(300, "get", MISS, audit=True)


@pytest.mark.parametrize(
    "calls",
    [
        (PUT, GET, LATE_GET),
        (PUT, call(20, "remove", LOST), LATE_MISS),  # it may have taken effect
        (PUT, call(20, "remove", LOST), LATE_GET),
        (call(10, "put", LOST, 5), call(20, "get", MISS), call(30, "get", OK, 5)),  # it took effect late
        (call(10, "put", LOST, 5), call(20, "put", DUPLICATE, 6)),
        (PUT, call(20, "get", LOST), call(30, "exists", LOST), LATE_GET),
        (call(10, "put", NOTHING, 5), LATE_MISS),
        (call(10, "put", KILLED, 5, returned=NEVER), LATE_GET),
    ],
)
def test_what_may_be(calls: tuple[Call, ...]) -> None:
    assert judged(*calls).failures == []


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((PUT, LATE_MISS), "did not find what caller had put to node 0 -0.00 s"),
        ((PUT, call(20, "get", MISS)), "not linearizable"),
        ((PUT, call(20, "put", OK, 6)), "not linearizable"),
        ((PUT, call(20, "remove", OK), GET._replace(called=30, returned=35)), "not linearizable"),
        ((call(20, "put", DUPLICATE, 6),), "not linearizable"),
        ((GET,), "read version 0x5, which nobody had put"),
        ((GET, call(30, "put", OK, 5)), "which nobody had put"),
        ((call(10, "put", DUPLICATE, 5), GET), "whose put was answered DUPLICATE"),
        ((call(10, "put", NOTHING, 5), GET), "whose put was answered NOTHING"),
        ((PUT, call(20, "get", WRONG)), "wrong bytes"),
    ],
)
def test_what_may_not_be(calls: tuple[Call, ...], says: str) -> None:
    assert any(says in failure for failure in judged(*calls).failures)


def test_a_node_that_was_away_is_judged_up_to_the_fault_and_loses_nothing() -> None:
    again = call(150, "put", OK, 6, home=OTHER)  # the key had another home meanwhile
    assert judged(PUT, GET, again, LATE_GET, away=True).failures == []
    assert judged(PUT, call(20, "get", MISS), away=True).failures  # before the fault
    assert judged(PUT, LATE_MISS, away=True).failures
    assert judged(again, call(300, "get", OK, 6, audit=True), away=True).failures == []
    (failure,) = judged(again, LATE_MISS, away=True).failures
    assert (
        "did not find what caller had put to node 1 +0.00 s after the fault began: MISS; its home is node 0" in failure
    )
    assert judged(call(150, "put", OK, 6, home=NO_HOME), LATE_MISS, away=True).failures == []
    late = LATE_GET._replace(called=400, returned=405, value=6)
    assert judged(again, LATE_MISS, late, away=True).failures == []  # events have told meanwhile


def test_a_put_to_another_home_tells_that_the_home_was_away() -> None:
    assert judged(PUT, call(150, "put", OK, 6, home=OTHER)).failures == []


def test_a_node_that_was_killed_takes_its_objects_along() -> None:
    assert judged(PUT, GET, LATE_MISS, killed=True).failures == []
    assert judged(call(250, "put", OK, 5), LATE_MISS, killed=True).failures  # to the one that was started again
    (failure,) = judged(PUT, LATE_GET, killed=True).failures
    assert "from a node that was dead" in failure
    assert judged(call(98, "put", LOST, 5), call(150, "get", OK, 5), killed=True).failures == []  # of another home


def test_which_keys_are_read_afterwards() -> None:
    mixed = keys.mixed(1)[0]
    own = keys.own(1, 0, 0)
    calls = [
        call(1, "put", OK, 1, key=mixed),
        call(2, "put", OK, 2, key=own[1]),
        call(3, "put", LOST, 3, key=own[2]),
        call(4, "put", DUPLICATE, 4, key=own[3]),
        call(5, "put", OK, 5, key=own[4]),
        call(6, "remove", OK, key=own[4]),
        call(7, "put", OK, 7, key=own[5]),
        call(8, "remove", LOST, key=own[5]),
    ]
    assert to_be_found(calls) == [own[1], own[2], own[5]]
    assert stored_for_good(calls, killed=NO_HOME, ended=NEVER) == [own[1]]
    assert stored_for_good(calls, killed=HOME, ended=200) == []


def test_unsure_effects_are_counted() -> None:
    found = judged(call(1, "put", LOST, 1), call(2, "remove", LOST), call(3, "get", LOST), call(9, "exists", MISS))
    assert (found.calls, found.unsure, found.undecided) == (4, 2, 0)


# --- times ---
def test_times_are_the_longest_of_each_kind() -> None:
    second = 10**9
    seen: dict[str, Seen] = {
        "a": {
            "members": [[0, "a,b,c"], [5 * second, "a,b"], [9 * second, "a,b,c"]],
            "looks": {"c": {"changes": [[0, "OK"], [3 * second, LOST], [6 * second, MISS]]}, "b": {"changes": []}},
        },
        "b": {
            "members": [[0, "a,b,c"]],
            "looks": {"c": {"changes": [[1, LOST], [2 * second, OK], [4 * second, LOST]]}},
        },
        "c": {"members": [[4 * second, "a,b"]], "looks": {}},
    }
    assert losses(seen, 2 * second, lambda one, two: two == "c") == [1.0, 2.0]
    assert departures(seen, 2 * second, "c") == [3.0]
    calls = [
        call(0, "put", OK, 1, returned=3 * second, home=1),
        call(0, "put", OK, 1, returned=9 * second, home=2),  # cut off
        call(0, "put", OK, 1, returned=9 * second, many=True),
        call(0, "get", OK, 1, returned=4 * second),
        call(0, "get", LOST, returned=2 * second),
        call(0, "put", LOST, returned=second),
        call(7 * second, "put", OK, 1, returned=20 * second),  # afterwards
    ]
    found = of_calls(calls, {KEY: HOME}, 1, 5 * second, lambda one, two: two == 2, victim=2)
    assert (found.others, found.refused, found.others_lost, found.calm) == ([3.0, 4.0], [2.0, 1.0], 1, [])
    before = of_calls(calls, {KEY: HOME}, 5 * second, 6 * second, lambda one, two: two == 2, victim=2)
    assert (before.others, before.refused, before.others_lost, before.calm) == ([], [], 0, [3.0, 4.0])
    total = FaultTimes(lost=[1.0])
    total.add(found)
    total.add(FaultTimes(lost=[2.5]))
    assert "PeerLost after 2.50 s" in total.as_note() and "other calls took 4.000 s" in total.as_note()
    assert total.as_numbers() == {"lost": 2.5, "refused": 2.0, "others": 4.0, "others_p99": 4.0, "others_lost": 1}
    total.add(before)
    assert total.as_numbers()["calm_p99"] == 4.0
    assert "p99 of those 4000.00 ms, and 4000.00 ms before it" in total.as_note()
    assert FaultTimes().as_note() == ""
