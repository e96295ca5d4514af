"""Plots of figures as SVG, chosen by the axes of their cases; needs matplotlib.

Buckets become the distribution of a latency, an axis `size` a sweep over sizes, and one of CURVES a curve over it. The
last axis in which figures differ tells lines apart, the one before it panels, and the others plots; a curve of
latencies has a line for each percentile instead.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from nanokv.bench.suite.cells import UNITS, alike, number, show_axis, split, varying
from nanokv.bench.suite.distribution import width
from nanokv.bench.suite.figure import Bucket, Figure
from nanokv.bench.suite.settings import show_size

SIZES = ("size", "page size")  #: axes that are swept, logarithmically
CURVES = ("load", "producers", "owners", "threads", "pairs", "ranks")  #: axes that are drawn from left to right
TAILS = ("p50", "p99", "p99.9")  #: of a latency, as lines of a curve
LINEAR = ("%", "x", "bytes")  #: units of what is drawn on a linear axis
INK = "#123456"  #: stands for the colour of text, which the page knows
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#ca8a04", "#0891b2", "#db2777")
PANEL = (3.3, 2.5)  #: inches
COLUMNS = 3
CLOSE = 1.03  #: points of a curve that are closer than this ratio look like one
SHARES = (0.0, 0.9, 0.99, 0.999, 0.9999, 0.99999)
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
_numbers = count()


class Plot(NamedTuple):
    """One image with its title."""

    title: str
    svg: str


class Line(NamedTuple):
    """Figures that one line is drawn from, and what tells it from the others."""

    label: str
    figures: list[Figure]


Draw = Callable[[Axes, Sequence[Line]], None]


def plots(figures: Sequence[Figure]) -> Iterator[Plot]:
    """All plots of one question's figures."""
    for group in alike(figures):
        axes = varying(group)
        for axis in axes:
            if axis in (*SIZES, *CURVES) and all(isinstance(one.case[axis], int) for one in group):
                told = 0 if axis in CURVES and group[0].buckets else 1
                draw = _draw_sweep(axis) if axis in SIZES else _draw_curve(axis)
                yield from _plots(f"by {axis}", group, axis, draw, told)
        if any(one.buckets for one in group):
            yield from _plots("distribution", group, None, _draw_distribution)


def _plots(kind: str, figures: list[Figure], along: str | None, draw: Draw, told: int = 1) -> Iterator[Plot]:
    """Plots, of panels, of lines: `told` axes tell lines apart, the one before them panels, and all others plots."""
    axes = [axis for axis in varying(figures) if axis != along]
    lines_by, others = axes[len(axes) - told :], axes[: len(axes) - told]
    for part in split(figures, others[:-1]):
        panels = split(part, others[-1:])
        titles = [_values(panel[0], others[-1:]) for panel in panels]
        lines = [[Line(_values(one[0], lines_by), one) for one in split(panel, lines_by)] for panel in panels]
        title = ", ".join(filter(None, (kind, _values(part[0], others[:-1]))))
        if along is None or any(len(line.figures) > 1 for panel in lines for line in panel):
            yield Plot(title, _svg(draw, titles, lines))


def _values(figure: Figure, axes: Sequence[str]) -> str:
    shown = [(axis, show_axis(axis, figure.case[axis])) for axis in axes]
    return ", ".join(f"{value} {axis}" if value[0].isdigit() and axis != SIZES[0] else value for axis, value in shown)


def _svg(draw: Draw, titles: Sequence[str], panels: Sequence[Sequence[Line]]) -> str:
    columns = min(len(panels), COLUMNS)
    rows = -(-len(panels) // columns)
    with mpl.rc_context({**STYLE, "svg.hashsalt": str(next(_numbers))}):
        canvas = Canvas(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        for place, (title, lines) in enumerate(zip(titles, panels, strict=True)):
            axes = canvas.add_subplot(rows, columns, place + 1)
            axes.set_prop_cycle(color=COLOURS)
            draw(axes, lines)
            axes.set_title(title, fontsize=8)
            if place == 0 or len(panels) <= COLUMNS:
                _legend(axes)
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue())


def _legend(axes: Axes) -> None:
    if any(axes.get_legend_handles_labels()[1]):
        axes.legend(fontsize=7)


def _inlined(svg: str) -> str:
    """The drawing without what a page has already, in the page's colour of text; unused ids would clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)
    return svg.replace(INK, "currentColor")


def _draw_distribution(axes: Axes, lines: Sequence[Line]) -> None:
    """How long the slowest part of the calls took: the axis has the shares 0, 90, 99, ... %, each ten times rarer."""
    rarest = 10.0
    for label, figures in lines:
        if figures[0].buckets:
            rarities, took = zip(*percentile_curve(figures[0].buckets), strict=True)
            axes.plot(rarities, took, label=label, linewidth=1.2)
            rarest = max(rarest, rarities[-1])
    axes.set_xscale("log")
    axes.set_yscale("symlog" if _has_zero(lines) else "log")
    ticks = [1 / (1 - share) for share in SHARES if 1 / (1 - share) <= rarest]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * (1 - 1 / x):.6g}"))
    axes.set_xlim(1, rarest)
    axes.set_xlabel("percentile")
    _value_axis(axes, lines)


def percentile_curve(buckets: Sequence[Bucket]) -> list[tuple[float, float]]:
    """Points of the distribution: one of how many calls (1, 10 for p90, 100 for p99, ...), and how long it took in µs.

    A bucket stands in its middle, and the slowest sample at one of all. Points that nobody could tell apart are left
    out.
    """
    total, below = sum(samples for _, samples in buckets), 0.0
    found: list[tuple[float, float]] = []
    for lower, samples in buckets:
        below += samples
        rarity = total if below == total else total / (total - below + samples / 2)
        took = (lower + (width(lower) - 1) / 2) / 1e3
        if not found or rarity > CLOSE * found[-1][0] or took > CLOSE * found[-1][1] or below == total:
            found.append((rarity, took))
    return found


def _draw_sweep(axis: str) -> Draw:
    def draw(axes: Axes, lines: Sequence[Line]) -> None:
        """The headline by size, with its spread; both axes are logarithmic, but for shares."""
        for label, figures in lines:
            _line(axes, [int(one.case[axis]) for one in figures], figures, figures[0].headline, label)
        sizes = sorted({int(one.case[axis]) for line in lines for one in line.figures})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: show_size(round(x)).replace("iB", "")))
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_xlabel(axis)
        if lines[0].figures[0].unit not in LINEAR and not _has_zero(lines):
            axes.set_yscale("log")
        _value_axis(axes, lines)

    return draw


def _draw_curve(axis: str) -> Draw:
    def draw(axes: Axes, lines: Sequence[Line]) -> None:
        """The values over the axis, with their spread; of a latency a line for each percentile."""
        for label, figures in lines:
            places = [int(one.case[axis]) for one in figures]
            names = [name for name in TAILS if all(name in one.names for one in figures)]
            for name in names or [figures[0].headline]:
                _line(axes, places, figures, name, name if names else label)
        places = sorted({int(one.case[axis]) for line in lines for one in line.figures})
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.set_xlabel(f"{axis}, %" if axis == "load" else axis)
        if "p50" in lines[0].figures[0].names:
            axes.set_yscale("symlog" if _has_zero(lines) else "log")
        _value_axis(axes, lines)

    return draw


def _line(axes: Axes, places: Sequence[int], figures: Sequence[Figure], name: str, label: str) -> None:
    (drawn,) = axes.plot(places, [one.median(name) for one in figures], marker="o", markersize=3, label=label)
    low, high = zip(*(one.spread(name) for one in figures), strict=True)
    axes.fill_between(places, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def _has_zero(lines: Sequence[Line]) -> bool:
    """Whether something cannot stand on a logarithmic axis."""
    figures = [one for line in lines for one in line.figures]
    return any(one.spread()[0] <= 0 or (one.buckets and one.buckets[0][0] <= 0) for one in figures)


def _value_axis(axes: Axes, lines: Sequence[Line]) -> None:
    unit = lines[0].figures[0].unit
    axes.set_ylabel(UNITS.get(unit, unit))
    if axes.get_yscale() != "log" and all(one.spread()[0] >= 0 for line in lines for one in line.figures):
        axes.set_ylim(bottom=0)
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if _decades(axes) > 2 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: number(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _decades(axes: Axes) -> float:
    low, high = axes.get_ylim()
    return float(np.log10(high / low)) if low > 0 else 0.0
