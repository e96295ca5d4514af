"""The report: one HTML file that opens from disk without a network, and has no scripts; needs jinja2 and matplotlib."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nanokv.bench.suite import plots
from nanokv.bench.suite.cells import alike, grid, value_names
from nanokv.bench.suite.command import heading, limit_of, measured_of
from nanokv.bench.suite.record import QuestionResult, Record, replace_text
from nanokv.bench.suite.targets import Target

TEMPLATE = "report.html"


def write_report(path: Path, record: Record, found: list[Target]) -> None:
    """Write the report of a run. The file is the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written.
    """
    replace_text(path, report(record, found))


def report(record: Record, found: list[Target]) -> str:
    """The report as text."""
    environment = Environment(
        loader=PackageLoader("nanokv.bench.suite", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    reached = {True: "yes", False: "no", None: "not measured"}
    return environment.get_template(TEMPLATE).render(
        about=record.about,
        heading=heading(record.about),
        targets=[
            {"what": one.what, "limit": limit_of(one), "measured": measured_of(one), "reached": reached[one.reached]}
            for one in found
        ],
        questions=[_question(record, outcome) for outcome in record.outcomes],
    )


def _question(record: Record, outcome: QuestionResult) -> dict[str, Any]:
    """What the template shows of one question."""
    figures = record.of(outcome.name)
    return {
        "outcome": outcome,
        "grids": [grid(group, value_names(group), outcome.beside) for group in alike(figures)],
        "plots": list(plots.plots(figures)),
        "notes": list(dict.fromkeys(figure.note for figure in figures if figure.note)),
    }
