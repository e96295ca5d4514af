"""What is printed: the assumptions, and a table for each question and number of ranks. It fits into 80 columns."""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rich import box
from rich.table import Table

from nanokv.bench.simulate.questions import SHARES, RowAnswer

HEAD = (
    "A model, not a measurement. Loads are operations a second of all ranks together. A world keeps up with a load if "
    "p99 is at most {limit:g} times the p50 when idle, and nothing gets more to do than it has time for."
)


def number(value: float) -> str:
    """Three digits: 1.23k, 45.6M."""
    if not math.isfinite(value):
        return "no end"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:  # rounded to it
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def assumptions(given: Any) -> Table:
    """Every assumption of a dataclass, its value and its source."""
    table = Table(title="assumptions (--set NAME=VALUE)", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what, and where it comes from")
    for each in fields(given):
        value = getattr(given, each.name)
        table.add_row(each.name, f"{value:g} {each.metadata['unit']}".strip(), each.metadata["source"])
    return table


def answers(ranks: int, found: Sequence[RowAnswer]) -> Table:
    """What was found for one number of ranks."""
    at = ", ".join(f"{share:.0%} is {number(one.load)}/s" for share, one in zip(SHARES, found[0].common, strict=True))
    title = f"{ranks:,} ranks; µs; {at}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", min_width=20)
    table.add_column("idle\np50", justify="right")
    table.add_column("satu-\nrates at", justify="right", no_wrap=True)
    table.add_column("busiest\nthen", no_wrap=True)
    table.add_column("lost\nswaps", justify="right")
    for share in SHARES:
        table.add_column(f"p99 at\n{share:.0%}", justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            each.row.label,
            number(each.idle.p50),
            f"{'over ' if each.at_least else ''}{number(each.saturates)}/s",
            f"{each.last.busiest} {min(each.last.use, 1):.0%}",
            f"{each.last.lost:.1f}" if each.last.lost >= 0.05 else "",
            *(number(outcome.p99) for outcome in each.common),
        )
    return table


def plain(value: Any) -> Any:
    """An answer and what is in it, for JSON; what has no end becomes None."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
