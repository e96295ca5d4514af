"""What commands print: tables that fit a terminal, plain columns in a file or a pipe, JSON, sizes for people."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_GAP = "  "


def console() -> Console:
    """A console of stdout. In a file or a pipe no line is wrapped."""
    found = Console(markup=False, highlight=False)
    return found if found.is_terminal else Console(markup=False, highlight=False, width=10_000)


def print_json(data: Any) -> None:
    """One line of JSON."""
    typer.echo(json.dumps(data))


def size(nbytes: int) -> str:
    """Bytes as text: "1.5 MiB"."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"


def blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns in as many blocks as they need to be at most `room` wide; the first column begins each."""
    found: list[list[int]] = []
    used = room + 1
    for column in range(1, len(widths)):
        used += len(_GAP) + widths[column]
        if used > room:
            found.append([0])
            used = widths[0] + len(_GAP) + widths[column]
        found[-1].append(column)
    return found or [[0]]


def columns(on: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    """A table of short cells, line by line. If it is too wide for a terminal, one block of columns below another."""
    widths = [max(map(len, cells)) for cells in zip(names, *rows, strict=True)]
    room = on.width if on.is_terminal else sum(widths) + len(_GAP) * len(widths)
    for number, block in enumerate(blocks(widths, room)):
        if number:
            yield Text()
        for row in (names, *rows):
            line = _GAP.join(row[column].ljust(widths[column]) for column in block).rstrip()
            yield Text(line, style="bold" if row is names and on.is_terminal else "")


def long_cells(
    on: Console, names: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str]
) -> Table | Text:
    """A table whose last column is folded in a terminal. `colours`: of cells with such a text."""
    if not on.is_terminal:
        return Text("\n").join(columns(on, names, rows))
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell, style=colours.get(cell, "")) for cell in row])
    return table
