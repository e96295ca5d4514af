"""`python -m bench.simulate`: print the assumptions, and answer the questions."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nanokv.bench.simulate import plots, tables
from nanokv.bench.simulate.assumptions import Assumptions, changed
from nanokv.bench.simulate.questions import QUESTIONS, Effort, Question, RowAnswer, SimulatedWorld, answer

NAMES = [each.name for each in QUESTIONS]
WIDTH = 80  #: of the output where there is no terminal


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate", description="A model of worlds of many ranks: where they saturate."
    )
    parser.add_argument("names", nargs="*", metavar="QUESTION", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--ranks", default="8,64,1024", help="of the worlds (default: 8,64,1024)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change an assumption")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME=VALUE", help="change all cases: nbytes=4096"
    )
    parser.add_argument("--operations", type=int, default=Effort().operations, help="of a run, at least")
    parser.add_argument("--seed", type=int, default=Effort().seed, help="where chance begins")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs there")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw a plot of each question (needs matplotlib)")
    return parser


def _checked(given: argparse.Namespace) -> tuple[Assumptions, list[int], list[Question], Effort]:
    """Raises ValueError: an argument that cannot be."""
    wrong = [name for name in given.names if name not in NAMES]
    if wrong:
        raise ValueError(f"there is no question {', '.join(wrong)}; there are {', '.join(NAMES)}")
    try:
        ranks = [int(text) for text in given.ranks.split(",")]
    except ValueError:
        raise ValueError(f"--ranks are numbers with commas between them, not {given.ranks!r}") from None
    if min(ranks) < 1 or given.operations < 100 or given.seed < 0:
        raise ValueError("--ranks must be positive, --operations at least 100, --seed not negative")
    asked = [each for each in QUESTIONS if each.name in given.names or not given.names]
    for question in asked:
        for count in ranks:
            for row in _rows(question, count, given.case):
                row.case.check()
    return changed(Assumptions(), given.set), ranks, asked, Effort(given.operations, given.seed)


def _rows(question: Question, ranks: int, changes: Sequence[str]) -> list[SimulatedWorld]:
    return [replace(row, case=changed(row.case, changes)) for row in question.rows(ranks)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. Exit code 2 if the arguments are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        assumed, ranks, asked, effort = _checked(given)
    except ValueError as error:
        parser.error(str(error))
    if given.plots and not _can_plot():
        parser.error("--plots needs matplotlib: pip install 'nanokv[bench]'")
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    progress = Console(stderr=True)
    console.print(tables.HEAD.format(limit=assumed.limit), highlight=False)
    console.print(tables.assumptions(assumed))
    done: list[dict[str, Any]] = []
    for question in asked:
        console.print(f"\n{question.name}: {question.asks}", style="bold", highlight=False)
        found: dict[int, list[RowAnswer]] = {}
        for count in ranks:
            rows = _rows(question, count, given.case)
            with progress.status(question.name) as status:
                found[count] = list(answer(rows, assumed, effort, status.update))
            console.print(tables.answers(count, found[count]))
            done.append({"question": question.name, "ranks": count, "rows": tables.plain(found[count])})
        if given.plots:
            console.print(f"drawn: {plots.draw(given.plots, question, found, assumed.limit)}", highlight=False)
    if given.json:
        what = {"assumptions": asdict(assumed), "operations": effort.operations, "seed": effort.seed, "answers": done}
        given.json.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
    return 0


def _can_plot() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
