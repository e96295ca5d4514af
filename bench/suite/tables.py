"""Figures as tables for a terminal; what does not fit beside each other goes into several tables, or is left out."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nanokv.bench.suite.cells import Beside, Grid, alike, grid, split, value_names, varying
from nanokv.bench.suite.figure import Figure

WANTED = ("p50", "p99", "p99.9", "p99.99", "max", "p90")  #: the first of these that fit are shown
ENOUGH = 2  #: of them must fit, or the table is split


def tables(figures: Sequence[Figure], beside: Beside, console: Console) -> Iterator[RenderableType]:
    """All figures of a question, at most as wide as the console."""
    for group in alike(figures):
        axes, wanted = varying(group), _wanted(group)
        enough = wanted[: min(ENOUGH, len(wanted))]
        for apart in range(max(len(axes), 1)):
            parts = split(group, axes[:apart])
            if all(_fits(_grid(part, enough, beside), console) for part in parts):
                break
        for part in parts:
            yield _fitting(part, beside, console)


def plain_table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """Rows of text under their title, folded where they are too long."""
    table = _empty()
    for name in names:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*map(Text, row))
    return Group(Text(title, style="bold"), table)


def _fitting(figures: list[Figure], beside: Beside, console: Console) -> RenderableType:
    """One table, with as many values as fit, and a line about the others."""
    wanted = _wanted(figures)
    count = len(wanted)
    while count > 1 and not _fits(_grid(figures, wanted[:count], beside), console):
        count -= 1
    made = _grid(figures, wanted[:count], beside)
    left_out = ", ".join(name for name in value_names(figures) if name not in wanted[:count])
    note = [Text(f"Also measured: {left_out} (a wider terminal, --json, --html).", style="dim")] if left_out else []
    return Padding(Group(Text(made.title, style="bold"), _table(made), *note), (0, 0, 1, 0))


def _wanted(figures: Sequence[Figure]) -> list[str]:
    names = value_names(figures)
    return [name for name in WANTED if name in names] or names


def _grid(figures: list[Figure], wanted: Sequence[str], beside: Beside) -> Grid:
    names = [name for name in value_names(figures) if name in wanted]
    return grid(figures, names, beside)


def _fits(made: Grid, console: Console) -> bool:
    options = console.options.update(max_width=10_000)
    return Measurement.get(console, options, _table(made)).maximum <= console.width


def _empty() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def _table(made: Grid) -> Table:
    table = _empty()
    for axis in made.axes:
        table.add_column(Text(axis), no_wrap=True)
    for name in made.columns:
        table.add_column(Text(name), no_wrap=True, justify="left" if name == "unit" else "right")
    for group in made.groups:
        for row in group:
            table.add_row(*map(Text, row), end_section=row is group[-1] and len(made.groups) > 1)
    return table
