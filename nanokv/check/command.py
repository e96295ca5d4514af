"""`nanokv check`, for systems engineers who try NanoKV on their machine before they trust it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanokv.check.report import Row
from nanokv.errors import InvalidArgument

T = TypeVar("T", bound=str)

_FAILED = 1
SCHEDULES = 1000  #: per scenario, memory and scheduler, to notice a mutant


class HeapChoice(StrEnum):
    """Where the memory comes from."""

    LOCAL = "local"
    SHM = "shm"
    BOTH = "both"


class AllocChoice(StrEnum):
    """Who allocates."""

    DEVICE = "device"
    HOST = "host"
    BOTH = "both"


def check(
    parts: Annotated[list[str] | None, typer.Argument(help="Which; default: those of this machine.")] = None,
    heap: Annotated[HeapChoice, typer.Option(help="Where the memory comes from.")] = HeapChoice.BOTH,
    alloc: Annotated[AllocChoice, typer.Option(help="Who allocates.")] = AllocChoice.BOTH,
    device: Annotated[str, typer.Option(help="Of local segments and litmus kernels: cpu, cuda, ...")] = "cpu",
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long each part may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="The protocol's own checks too: model, mutants.")] = False,
    replay: Annotated[str, typer.Option(help="Run the one simulated execution that a failure named.")] = "",
    mutant: Annotated[
        str, typer.Option(help="Break the protocol in one place, and see which scenario notices; `list`.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per check.")] = False,
) -> None:
    """Check NanoKV on this machine: concurrency, histories, kill -9, corruption, litmus; fsck after each.

    Exit code: 0 all held; 1 something did not; 2 it could not be tried.
    """
    if replay:
        raise typer.Exit(_replay(replay))
    if mutant:
        raise typer.Exit(_mutant(mutant, seed))
    from nanokv.check.run import MACHINE, PARTS, Options, run_parts

    names = parts or list(PARTS if everything else MACHINE)
    options = Options(seconds, _both(heap, "local", "shm"), _both(alloc, "device", "host"), device, seed)
    rows = run_parts(names, options)
    held = _print_json(rows) if as_json else _print_table(rows)
    raise typer.Exit(0 if held else _FAILED)


def _both(choice: StrEnum, *every: T) -> tuple[T, ...]:
    return tuple(each for each in every if choice.value in ("both", each))


def _replay(text: str) -> int:
    from nanokv.check.model.explore import replay

    try:
        why = replay(text)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    typer.echo(why or "nothing goes wrong in this execution")
    return _FAILED if why else 0


def _mutant(name: str, seed: int) -> int:
    from nanokv.check.model.mutants import MUTANTS
    from nanokv.check.model.mutants.run import kill

    if name == "list":
        for each in MUTANTS.values():
            typer.echo(f"{each.name}: {each.about}")
        return 0
    if name not in MUTANTS:
        raise InvalidArgument(f"no mutant {name!r}; `nanokv check --mutant list` lists them")
    typer.echo(f"{name}: {MUTANTS[name].about}")
    failure = kill(name, SCHEDULES, seed)
    typer.echo(f"noticed: {failure}" if failure else "it survives")
    return 0 if failure else _FAILED


def _print_json(rows: Iterable[Row]) -> bool:
    import json

    held = True
    for row in rows:
        held &= row.held
        line: dict[str, Any] = {name: getattr(row, name) for name in ("part", "name", "tried", "unit", "held")}
        typer.echo(json.dumps(line | {"seconds": round(row.seconds, 2), "note": row.note, "failures": row.failures}))
    return held


def _print_table(rows: Iterable[Row]) -> bool:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=220)
    table = Table("part", "check", "tried", "", "held", "s", "note", box=None, pad_edge=False)
    failures: list[str] = []
    count = 0
    for row in rows:
        count += 1
        console.print(f"{row.part}: {row.name}", style="dim", end="\r" if console.is_terminal else "\n")
        held = Text("yes", style="green") if row.held else Text("NO", style="bold red")
        table.add_row(row.part, row.name, f"{row.tried:,}", row.unit, held, f"{row.seconds:.1f}", row.note)
        failures += [f"{row.part}: {row.name}: {failure}" for failure in row.failures]
        failures += [] if row.tried else [f"{row.part}: {row.name}: nothing was tried"]
    console.print(table)
    for failure in failures:
        console.print(Text(failure, style="red"), soft_wrap=True)
    console.print(Text(f"{count} checks, {'all held' if not failures else f'{len(failures)} failures'}", style="bold"))
    return count > 0 and not failures
