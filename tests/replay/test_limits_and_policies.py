"""Simulated caches, against each other, against exhaustive search, and against figures that others have published."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.tools.replay.limits import best_rate, lru_rates
from nanokv.tools.replay.policies import POLICIES, Clock, Fifo, Lru, Policy, S3Fifo, Sieve, hit_rate
from nanokv.tools.replay.trace import Trace, make_trace, read_trace

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "traces" / "conversation.jsonl"


@st.composite
def chains(draw: st.DrawFn, requests: int, branches: int = 3, depth: int = 4) -> Trace:
    """Requests whose blocks are paths from the root of a tree, as hashes of prefixes are."""
    path = st.lists(st.integers(1, branches), min_size=1, max_size=depth)
    paths = draw(st.lists(path, min_size=1, max_size=requests))
    return make_trace("tree", [["/".join(map(str, one[: i + 1])) for i in range(len(one))] for one in paths])


@given(chains(requests=60))
def test_lru_at_every_capacity_is_lru_simulated(trace: Trace) -> None:
    rates = lru_rates(trace)
    assert len(rates) == trace.different + 1
    assert rates.tolist() == pytest.approx([0.0, *(hit_rate(trace, Lru(c)) for c in range(1, trace.different + 1))])


@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=40).filter(any))
def test_also_where_blocks_are_no_chains_or_come_twice(requests: list[list[int]]) -> None:
    trace = make_trace("any", requests)
    assert lru_rates(trace).tolist()[1:] == pytest.approx(
        [hit_rate(trace, Lru(c)) for c in range(1, trace.different + 1)]
    )


@given(chains(requests=40), st.integers(1, 12))
def test_no_policy_has_more_than_the_best(trace: Trace, capacity: int) -> None:
    most = best_rate(trace, capacity)
    for policy in POLICIES.values():
        assert hit_rate(trace, policy(capacity)) <= most + 1e-12
    assert most <= lru_rates(trace)[-1] + 1e-12  # with unlimited room


def searched(trace: Trace, capacity: int) -> float:
    """The best hit rate, by all that a cache could keep after each request."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for blocks in trace.requests():
        after: dict[frozenset[int], int] = {}
        for there, hits in best.items():
            new = hits + next((i for i, block in enumerate(blocks) if block not in there), len(blocks))
            candidates = there | set(blocks)
            for kept in map(frozenset, combinations(sorted(candidates), min(capacity, len(candidates)))):
                after[kept] = max(after.get(kept, 0), new)
        best = after
    return max(best.values()) / len(trace.blocks)


@given(chains(requests=8, branches=2, depth=3), st.integers(1, 4))
def test_the_best_is_what_exhaustive_search_finds(trace: Trace, capacity: int) -> None:
    assert best_rate(trace, capacity) == pytest.approx(searched(trace, capacity))


def kept(cache: Policy, uses: str) -> str:
    for block in map(ord, uses):
        cache.use(block)
    return "".join(sorted(chr(block) for block in range(128) if block in cache))


@pytest.mark.parametrize(
    "policy, uses, there",
    [
        (Fifo, "abcad", "bcd"),
        (Lru, "abcad", "acd"),
        (Clock, "abcad", "acd"),
        (Clock, "abcabcd", "bcd"),  # all were used: all are spared once, and the oldest goes
        (Sieve, "abcad", "acd"),
        (Sieve, "abcadbe", "abe"),  # the hand goes on from where it stopped: b, c and d go, a stays
        (S3Fifo, "abcad", "acd"),
    ],
)
def test_what_each_policy_keeps_of_three(policy: type[Policy], uses: str, there: str) -> None:
    assert kept(policy(3), uses) == there


def test_s3fifo_remembers_what_it_has_dropped() -> None:
    cache = S3Fifo(10)  # the small queue has room for one
    for block in range(12):
        cache.use(block)
    assert 0 not in cache
    cache.use(0)  # known: into the main queue, where it outlives a scan
    for block in range(100, 130):
        cache.use(block)
    assert 0 in cache
    assert 100 not in cache


@given(chains(requests=50), st.integers(1, 8))
def test_a_policy_never_has_more_than_its_room(trace: Trace, capacity: int) -> None:
    for policy in POLICIES.values():
        cache = policy(capacity)
        for block in trace.blocks.tolist():
            cache.use(block)
            assert block in cache
            assert sum(other in cache for other in range(trace.different)) <= capacity


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public trace is not there")
@pytest.mark.parametrize(
    "capacity, lru, best, possible",
    [
        (1_000, 0.0445, 0.0558, 0.1907),
        (3_000, 0.0650, 0.0938, 0.2945),
        pytest.param(10_000, 0.2112, 0.2135, 0.3664, marks=pytest.mark.exhaustive),
        pytest.param(30_000, 0.3257, 0.3290, 0.3664, marks=pytest.mark.exhaustive),
        pytest.param(50_000, 0.3546, 0.3546, 0.3664, marks=pytest.mark.exhaustive),
        pytest.param(100_000, 0.3637, 0.3637, 0.3664, marks=pytest.mark.exhaustive),
    ],
)
def test_figures_that_another_simulator_gave(capacity: int, lru: float, best: float, possible: float) -> None:
    trace = read_trace(PUBLIC)
    rates = lru_rates(trace)
    found = max(hit_rate(trace, policy(capacity)) for policy in POLICIES.values())
    assert [round(float(rate), 4) for rate in (rates[capacity], found, best_rate(trace, capacity), rates[-1])] == [
        lru,
        best,
        possible,
        0.3664,
    ]
