"""The question about a cluster: real nodes in processes of their own, tiny counts. No test looks at a duration."""

from collections import Counter

import pytest

from nanokv.bench.nodes.transports import TRANSPORTS
from nanokv.bench.questions import cluster, connections, seal
from nanokv.bench.suite.settings import KIB, MIB, Settings
from nanokv.bench.suite.worlds import Worlds
from nanokv.check.report import CheckFailure
from tests.support.bench_questions import TINY, ask, check_latency
from tests.support.faults import Limits
from tests.support.needed import leave_out

#: every call is asked, with bytes in the question and with bytes that are read
SIZES = (4 * KIB, 64 * KIB, 8 * MIB)


@pytest.fixture(autouse=True)
def links() -> None:
    why = cluster.why_not(Settings()) or cluster.lacks_nixl()
    if why:
        leave_out("nixl", why)


@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_every_call_stands_beside_the_bytes_alone(limits: Limits) -> None:
    asked = {size: cluster.ASKED[size] for size in SIZES}
    most = max(most for calls in asked.values() for _, most in calls)
    calls = [{call for each in sizes.values() for call, _ in each} for sizes in (asked, cluster.ASKED)]
    assert calls[0] == calls[1]
    limits(cluster, ASKED=asked)
    with Worlds() as worlds:
        figures = ask(cluster.QUESTION, worlds)
    for figure in figures:
        check_latency(figure, min(TINY.rounds, most))
    systems = Counter(figure.case["system"] for figure in figures)
    assert len(systems) == 2 and len(set(systems.values())) == 1
    assert {figure.case["transport"] for figure in figures} == set(TRANSPORTS)


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", ["wire, TCP", "NIXL, shared memory"])
def test_one_size_and_a_reader_that_ends(transport: str) -> None:
    from nanokv.bench.nodes.pair import Pair

    with Pair(transport, 4 * KIB) as pair:
        for what, calls in (("get", 2), ("put", 1), ("get_many", 3), ("put_many", 1)):
            for systems in pair.lap(what, 4 * KIB, 3).values():
                assert len(systems) == 2 and all(len(found) == 3 and min(found) > 0 for found in systems.values())
            assert len(pair.lap(what, 4 * KIB, 1)) == calls
        with pytest.raises(CheckFailure, match=r"the reader, asked for lap: (?s:.)*no_such_call"):
            pair.lap("no_such_call", 1, 1)


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
def test_connections_are_counted(limits: Limits) -> None:
    limits(connections, CONNECTIONS=8)
    with Worlds() as worlds:
        figures = ask(connections.QUESTION, worlds)
    assert len(figures) == 7 and all(figure.median() >= 0 for figure in figures)
    assert {figure.case["connections"] for figure in figures} == {8}


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
def test_both_seals_take_turns(limits: Limits) -> None:
    limits(seal, SIZES={KIB: 2, MIB: 2})
    with Worlds() as worlds:
        figures = ask(seal.QUESTION, worlds)
    assert Counter(figure.case["system"] for figure in figures if figure.case["way"] != "none") == {
        "heads": 8,
        "all": 8,
    }
    assert len(figures) == 16 + 2 * 3 and all(figure.median() > 0 for figure in figures)
