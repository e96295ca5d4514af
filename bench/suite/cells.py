"""Figures as text: numbers with their spread, and grids of them, for the terminal and for the report."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.settings import show_size

UNITS = {"us": "µs", "x": "times"}
SHORT = 8  #: characters of a column's name
Beside = tuple[str, str | int] | None


class Grid(NamedTuple):
    """A table: its title, the names of its axes, those of its other columns, and rows of text, in groups."""

    title: str
    axes: list[str]
    columns: list[str]
    groups: list[list[list[str]]]

    @property
    def row_count(self) -> int:
        """The rows of all groups."""
        return sum(map(len, self.groups))


def number(value: float) -> str:
    """Two digits at least: 0.41, 4.1, 41.0, 410, 4,100."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 or not value else f"{value:#.2g}"


def ratio(value: float) -> str:
    """1.05, 12.3, 410."""
    return f"{value:.2f}" if value < 9.995 else number(value)


def spread(middle: str, low: str, high: str) -> str:
    """4.1 (4.0-4.6), or -1.0 (-2.0 to 0.50)."""
    return f"{middle} ({low}{' to ' if low[0] == '-' else '-'}{high})"


def cell(figure: Figure, name: str) -> str:
    """A value with its spread; empty if the figure does not have it."""
    if name not in figure.names:
        return ""
    low, high = figure.spread(name)
    return number(low) if low == high else spread(*map(number, (figure.median(name), low, high)))


def ratios(figure: Figure, base: Figure) -> list[float]:
    """The headline as a multiple of another figure's, per repetition; without those in which the other one is 0."""
    pairs = zip(figure.repetitions, base.repetitions, strict=False)
    return [mine[figure.headline] / other[base.headline] for mine, other in pairs if other[base.headline]]


def show_axis(axis: str, value: str | int) -> str:
    """The value of an axis, for people."""
    if isinstance(value, str):
        return value
    if "size" in axis:
        return show_size(value)
    return f"{value} %" if axis == "load" else f"{value:,}"


def alike(figures: Sequence[Figure]) -> list[list[Figure]]:
    """Figures that can stand in one grid: with the same axes and the same kind of values."""
    found: dict[tuple[object, ...], list[Figure]] = {}
    for figure in figures:
        found.setdefault((*figure.case, figure.headline), []).append(figure)
    return list(found.values())


def value_names(figures: Sequence[Figure]) -> list[str]:
    """The names of the values that any of the figures has, in order."""
    longest = max(figures, key=lambda figure: len(figure.names))
    return [name for name in longest.names if any(name in figure.names for figure in figures)]


def varying(figures: Sequence[Figure]) -> list[str]:
    """The axes in which the figures differ."""
    return [axis for axis in figures[0].case if len({figure.case[axis] for figure in figures}) > 1]


def split(figures: Sequence[Figure], axes: Sequence[str]) -> list[list[Figure]]:
    """Apart by the values of some axes."""
    found: dict[tuple[object, ...], list[Figure]] = {}
    for figure in figures:
        found.setdefault(tuple(figure.case[axis] for axis in axes), []).append(figure)
    return list(found.values())


def grid(figures: Sequence[Figure], names: Sequence[str], beside: Beside) -> Grid:
    """Figures that are alike as a grid; an axis on which all agree goes into the title."""
    first = figures[0]
    axes = varying(figures) or list(first.case)[-1:]
    fixed = [f"{axis} {show_axis(axis, value)}" for axis, value in first.case.items() if axis not in axes]
    units = {figure.unit for figure in figures}
    unit = UNITS.get(first.unit, first.unit) if len(units) == 1 else ""
    bases = _bases(figures, beside)
    ratio_to = _ratio_name(beside) if bases else ""
    fixed += [ratio_to] if ratio_to.startswith("ratio to") else []
    title = ", ".join([first.question, *fixed, *([unit] if unit else [])])
    columns = [unit if name == "value" and unit else name for name in names]
    columns += [] if unit else ["unit"]
    columns += [ratio_to.split(" to ")[0]] if ratio_to else []
    rows = []
    for figure, shown in zip(figures, _axes_cells(figures, axes), strict=True):
        cells = [cell(figure, name) for name in names] + ([] if unit else [UNITS.get(figure.unit, figure.unit)])
        rows.append([*shown, *cells, *([_ratio_cell(figure, bases)] if bases else [])])
    return Grid(title, axes, columns, list(_grouped(rows)))


def _axes_cells(figures: Sequence[Figure], axes: Sequence[str]) -> Iterator[list[str]]:
    """Cells of the axes; one that repeats what stands above it is empty, but not the last."""
    above: list[str] = []
    for figure in figures:
        shown = [show_axis(axis, figure.case[axis]) for axis in axes]
        same = 0
        while same < len(axes) - 1 and above[: same + 1] == shown[: same + 1]:
            same += 1
        above = shown
        yield [""] * same + shown[same:]


def _grouped(rows: list[list[str]]) -> Iterator[list[list[str]]]:
    """A new group begins where the first axis has a new value, unless each row would be a group."""
    starts = [at for at, row in enumerate(rows) if row[0]]
    if len(starts) == len(rows):
        yield rows
        return
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield rows[start:end]


def _ratio_name(beside: Beside) -> str:
    """The name of the column: "/ copy_", or "ratio to 1,000 objects", whose second half goes into the title."""
    if beside is None:
        return ""
    short = f"/ {show_axis(*beside)}"
    return short if len(short) <= SHORT else f"ratio to {show_axis(*beside)}"


def _bases(figures: Sequence[Figure], beside: Beside) -> dict[tuple[object, ...], Figure]:
    """The figures that others are compared with, by the rest of their case; empty if no other figure has one."""
    if beside is None or beside[0] not in figures[0].case:
        return {}
    found = {_rest(figure, beside[0]): figure for figure in figures if figure.case[beside[0]] == beside[1]}
    others = [figure for figure in figures if figure.case[beside[0]] != beside[1]]
    return found if any(_rest(figure, beside[0]) in found for figure in others) else {}


def _rest(figure: Figure, axis: str) -> tuple[object, ...]:
    return (axis, *(value for name, value in figure.case.items() if name != axis))


def _ratio_cell(figure: Figure, bases: dict[tuple[object, ...], Figure]) -> str:
    axis = next(iter(bases))[0]
    base = bases.get(_rest(figure, str(axis)))
    values = [] if base is None or base is figure else ratios(figure, base)
    if not values:
        return ""
    return ratio(statistics.median(values))
