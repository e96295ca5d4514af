"""What `nanokv check` prints: its progress to stderr, its rows to stdout as a table or as JSON."""

import json
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nanokv.check.report import Row
from nanokv.check.supervised import Began, Doing, Event

PLAIN_SECONDS = 30.0  #: between two lines about one part, where there is no terminal


def show_progress(events: Iterable[Event], names: list[str], seconds: float) -> Iterator[Row]:
    """Show the part that runs, and let the rows through. `seconds`: about how long each part takes."""
    console = Console(stderr=True, markup=False, highlight=False)
    if console.is_terminal:
        yield from _show_bar(console, events, names, seconds)
        return
    said = 0.0
    for event in events:
        if isinstance(event, Row):
            yield event
        elif isinstance(event, Began):
            console.print(_doing(event.part, names, seconds))
            said = monotonic()
        elif monotonic() - said >= PLAIN_SECONDS:
            console.print(event.doing)
            said = monotonic()


def _show_bar(console: Console, events: Iterable[Event], names: list[str], seconds: float) -> Iterator[Row]:
    """The same on a terminal, in one line that changes."""
    shown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as bar:
        task = bar.add_task("starting")
        for event in events:
            if isinstance(event, Row):
                yield event
            elif isinstance(event, Doing):
                bar.update(task, description=event.doing)
            else:
                bar.reset(task, description=_doing(event.part, names, seconds))


def _doing(part: str, names: list[str], seconds: float) -> str:
    at = names.index(part) + 1
    return f"{part}, part {at} of {len(names)}; this and the rest take {seconds * (len(names) - at + 1):.0f} s or more"


def print_json_rows(rows: Iterable[Row]) -> bool:
    """One line per row, as it comes. Returns whether all held."""
    held = True
    for row in rows:
        held &= row.held
        line: dict[str, Any] = {name: getattr(row, name) for name in ("part", "name", "tried", "unit", "held")}
        typer.echo(json.dumps(line | {"seconds": round(row.seconds, 2), "note": row.note, "failures": row.failures}))
    return held


def print_table(rows: Iterable[Row]) -> bool:
    """All rows as a table, and below it what failed. Returns whether all held."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=220)
    table = Table("part", "check", "tried", "", "held", "s", "note", box=None, pad_edge=False)
    failures: list[str] = []
    count = 0
    for row in rows:
        count += 1
        held = Text("yes", style="green") if row.held else Text("NO", style="bold red")
        table.add_row(row.part, row.name, f"{row.tried:,}", row.unit, held, f"{row.seconds:.1f}", row.note)
        failures += [f"{row.part}: {row.name}: {failure}" for failure in row.failures]
        failures += [] if row.tried else [f"{row.part}: {row.name}: nothing was tried"]
    console.print(table)
    for failure in failures:
        console.print(Text(failure, style="red"), soft_wrap=True)
    console.print(Text(f"{count} checks, {'all held' if not failures else f'{len(failures)} failures'}", style="bold"))
    return count > 0 and not failures
