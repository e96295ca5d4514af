"""What is printed: the assumptions, and a table for each question and number of ranks. It fits into 80 columns."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from nanokv.bench.simulate.assumptions import Assumptions, all_fields
from nanokv.bench.simulate.cases import Outcome
from nanokv.bench.simulate.questions import SHARES, Answer, Question

HEAD = (
    "A model, not a measurement. Loads are operations a second of all ranks together. A world is saturated at the load "
    "above which p99 is more than {limit:g} times the p50 of the idle world. Bandwidths are line rates."
)


def number(value: float) -> str:
    """Three digits: 1.23k, 45.6M."""
    if not math.isfinite(value):
        return "no end"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def assumptions(given: Assumptions) -> Table:
    """Every assumption, its value and its source."""
    table = Table(title="assumptions (--set NAME=VALUE)", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what, and where it comes from")
    for each in all_fields():
        value = getattr(given, each.name)
        table.add_row(each.name, f"{value:g} {each.metadata['unit']}".strip(), each.metadata["source"])
    return table


def answers(question: Question, ranks: int, found: Sequence[Answer]) -> Table:
    """What was found for one number of ranks. µs."""
    table = Table(title=f"{question.name}, {ranks:,} ranks. {question.asks}", title_justify="left")
    table.add_column("", min_width=16)
    table.add_column("idle p50", justify="right")
    table.add_column("saturates at", justify="right")
    table.add_column("busiest then")
    for share, outcome in zip(SHARES, found[0].common, strict=True):
        table.add_column(f"p99 at {number(outcome.load)}/s ({share:.0%})", justify="right")
    for each in found:
        sign = "over " if each.at_least else ""
        table.add_row(
            each.row.label,
            number(each.idle.p50),
            f"{sign}{number(each.saturates)}/s",
            limits(each.last),
            *(number(outcome.p99) for outcome in each.common),
        )
    return table


def limits(last: Outcome) -> str:
    """The busiest station of a run; where swaps were lost, how many per operation."""
    lost = f", {last.lost:.1f} lost swaps" if last.lost >= 0.1 else ""
    return f"{last.busiest} {last.use:.0%}{lost}"


def as_json(question: Question, ranks: int, found: Sequence[Answer]) -> dict[str, Any]:
    """The same, and every run, for JSON; no end: null."""
    return {
        "question": question.name,
        "asks": question.asks,
        "ranks": ranks,
        "rows": [
            {
                "label": each.row.label,
                "case": asdict(each.row.case),
                "settings": list(each.row.settings),
                "idle": _outcome(each.idle),
                "saturates": each.saturates,
                "at_least": each.at_least,
                "last": _outcome(each.last),
                "curve": [_outcome(one) for one in each.curve],
                "common": [_outcome(one) for one in each.common],
            }
            for each in found
        ],
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str) or math.isfinite(value) else None
        for name, value in one._asdict().items()
    }
