"""The plots of docs/scale.md: p99 against load, a file per question, a panel per number of ranks."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanokv.bench.simulate.questions import HOPELESS, Question, RowAnswer

GRAY = "#7d7d7d"  #: of text and axes: as far from white as from a dark page
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")  #: Okabe and Ito: for all kinds of eyes
STYLE: Any = {
    "svg.hashsalt": "nanokv",  # the same file from the same figures
    "svg.fonttype": "none",  # text stays text: a quarter of the size
    "text.color": GRAY,
    "axes.edgecolor": GRAY,
    "axes.labelcolor": GRAY,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "font.size": 9,
}


def draw(folder: Path, question: Question, found: Mapping[int, Sequence[RowAnswer]], limit: float) -> Path:
    """Draw one question into `folder`: the file. It is the same for the same answers.

    Raises:
        ImportError: matplotlib is not installed (extra `bench`).
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter

    folder.mkdir(parents=True, exist_ok=True)
    labels = list(dict.fromkeys(each.row.label for answers in found.values() for each in answers))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(found) + 0.6, 3.4), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        lines = {}
        for panel, (ranks, answers) in zip(panels, found.items(), strict=True):
            for each in answers:
                colour = COLOURS[labels.index(each.row.label) % len(COLOURS)]
                (lines[each.row.label],) = panel.plot(*_points(each, limit), ".-", color=colour, linewidth=1.2)
            panel.set(xscale="log", yscale="log", title=f"{ranks:,} ranks", xlabel="operations a second, all ranks")
            panel.grid(color=GRAY, alpha=0.25, linewidth=0.5)
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(EngFormatter(sep=""))
                axis.set_minor_formatter(NullFormatter())
        panels[0].set_ylabel("p99, µs")
        figure.legend([lines[label] for label in labels], labels, loc="outside lower center", ncols=3, frameon=False)
        file = folder / f"scale-{question.name}.svg"
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
    return file


def _points(each: RowAnswer, limit: float) -> tuple[list[float], list[float]]:
    highest = HOPELESS * limit * each.idle.p50
    low = each.saturates / 30
    shown = [one for one in each.curve if math.isfinite(one.p99) and one.p99 <= highest and one.load >= low]
    return [one.load for one in shown], [one.p99 for one in shown]
