"""Asks a question of the benchmarks with tiny counts, and checks that its figures are well-formed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import Settings, quick
from nanokv.bench.suite.worlds import Worlds
from nanokv.heap import shm

TINY = replace(quick(Settings()), rounds=6, repeats=2, pairs=2000, idle_puts=2)


@contextmanager
def opened_worlds() -> Iterator[Worlds]:
    """Worlds of one process and of two; a machine that has none of the latter skips the test."""
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")
    with Worlds() as made:
        yield made


def ask(question: Question, worlds: Worlds, settings: Settings = TINY, signed: str = "") -> list[Figure]:
    """The figures of a question, each of them well-formed. `signed`: "what" of those that may be below 0."""
    figures = list(question.measure(Run(settings, worlds, lambda _: None)))
    found = [tuple(sorted(figure.case.items())) for figure in figures]
    assert len(set(found)) == len(found)
    for figure in figures:
        assert figure.question == question.name and question.asks.endswith("?") and question.how.endswith(".")
        assert figure.repetitions and all(set(one) == set(figure.repetitions[0]) for one in figure.repetitions)
        values = [value for one in figure.repetitions for value in one.values()]
        assert figure.case.get("what") == signed or min(values) >= 0
    return figures


def cases(figures: list[Figure]) -> list[Case]:
    """What was measured, in order."""
    return [figure.case for figure in figures]


def check_latency(figure: Figure, count: int) -> None:
    """A latency of `count` samples in each repetition of TINY, and as many in its buckets."""
    assert (figure.unit, figure.better, figure.headline) == ("us", "lower", "p50")
    assert len(figure.repetitions) == TINY.repeats and {one["n"] for one in figure.repetitions} == {count}
    assert sum(many for _, many in figure.buckets) == count * TINY.repeats
