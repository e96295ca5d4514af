"""`python -m bench.simulate.cluster`: print the assumptions, and answer the questions."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from nanokv.bench.simulate.assumptions import changed
from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions
from nanokv.bench.simulate.cluster.networks import NETWORKS, network
from nanokv.bench.simulate.cluster.questions import QUESTIONS, Cell, Effort, Question, Row
from nanokv.bench.simulate.tables import assumptions, number

NAMES = [each.name for each in QUESTIONS]
WIDTH = 100  #: of the output where there is no terminal
HEAD = (
    "A model, not a measurement: no cluster of so many nodes was run. Idle: next to nothing else happens. "
    "Loaded: the busiest part of all nodes works {use:.0%} of its time. * NanoKV does not do that."
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate.cluster", description="A model of clusters of many nodes."
    )
    parser.add_argument("names", nargs="*", metavar="QUESTION", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--nodes", default="8,64,256,1024", help="of the clusters (default: 8,64,256,1024)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change an assumption")
    parser.add_argument("--operations", type=int, default=Effort().operations, help="of a run, at least")
    parser.add_argument("--seed", type=int, default=Effort().seed, help="where chance begins")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    return parser


def _checked(given: argparse.Namespace) -> tuple[ClusterAssumptions, list[int], list[Question], Effort]:
    """Raises ValueError: an argument that cannot be."""
    wrong = [name for name in given.names if name not in NAMES]
    if wrong:
        raise ValueError(f"there is no question {', '.join(wrong)}; there are {', '.join(NAMES)}")
    try:
        nodes = [int(text) for text in given.nodes.split(",")]
    except ValueError:
        raise ValueError(f"--nodes are numbers with commas between them, not {given.nodes!r}") from None
    if min(nodes) < 2 or given.operations < 100 or given.seed < 0:
        raise ValueError("--nodes must be at least 2, --operations at least 100, --seed not negative")
    assumed = changed(ClusterAssumptions(), given.set)
    for net in NETWORKS:
        network(assumed, net)
    if assumed.spread > 1 or assumed.use > 1:
        raise ValueError("spread and use are shares, at most 1")
    asked = [each for each in QUESTIONS if each.name in given.names or not given.names]
    return assumed, nodes, asked, Effort(given.operations, given.seed)


def table(title: str, rows: Sequence[Row]) -> Table:
    """What was found for one number of nodes."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name, cell in rows[0].items():
        made.add_column(name, justify="left" if isinstance(cell, str) else "right", max_width=21)
    for row in rows:
        made.add_row(*map(shown, row.values()))
    return made


def shown(cell: Cell) -> str:
    """A value as a table has it."""
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else number(cell)


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows for JSON; what has no end becomes None."""
    return [
        {name: None if isinstance(cell, float) and not math.isfinite(cell) else cell for name, cell in row.items()}
        for row in rows
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. Exit code 2 if the arguments are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        assumed, nodes, asked, effort = _checked(given)
    except ValueError as error:
        parser.error(str(error))
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    progress = Console(stderr=True)
    console.print(HEAD.format(use=assumed.use), highlight=False)
    console.print(assumptions(assumed))
    done: list[dict[str, Any]] = []
    for question in asked:
        console.print(f"\n{question.name}: {question.asks}", style="bold", highlight=False)
        for count in nodes:
            with progress.status(f"{question.name}, {count} nodes"):
                rows = list(question.rows(assumed, count, effort))
            console.print(table(f"{count:,} nodes", rows))
            done.append({"question": question.name, "nodes": count, "rows": plain(rows)})
    if given.json:
        what = {"assumptions": asdict(assumed), "operations": effort.operations, "seed": effort.seed, "answers": done}
        given.json.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
