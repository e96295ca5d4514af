"""`nanokv check`, for systems engineers who try NanoKV on their machine before they trust it."""

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from time import monotonic
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nanokv.check.report import Row
from nanokv.check.run import CLUSTER, COMPILED, MACHINE, PROTOCOL, Options, check_names, need_greenlet, need_triton
from nanokv.check.supervised import Began, Event, PartProgress, run_supervised
from nanokv.errors import InvalidArgument

# --- what `nanokv check` prints: its progress to stderr, its rows to stdout as a table or as JSON ---
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
    """Show the progress on a terminal, in one line that changes."""
    shown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as bar:
        task = bar.add_task("starting")
        for event in events:
            if isinstance(event, Row):
                yield event
            elif isinstance(event, PartProgress):
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


# --- the command ------------------------------------------------------------------------------
T = TypeVar("T", bound=str)

_FAILED = 1
STOPPED = 130  #: exit code after Ctrl-C
PTX = "ptx:"  #: before the names of mutants of PTX
SECONDS_OF_A_MUTANT = 10.0  #: of PTX, per scheduler in the scenario that should notice it
SCHEDULES = 1000  #: per scenario, memory and scheduler, to notice a mutant


class HeapChoice(StrEnum):
    """Where the memory comes from."""

    LOCAL = "local"
    SHM = "shm"
    BOTH = "both"


class TargetChoice(StrEnum):
    """GPUs of NVIDIA; none is needed."""

    SM_80 = "sm_80"
    SM_90 = "sm_90"
    SM_100 = "sm_100"


class LinkChoice(StrEnum):
    """How nodes exchange objects."""

    WIRE = "wire"
    MAPPED = "mapped"
    NIXL = "nixl"


class AllocChoice(StrEnum):
    """Who allocates."""

    DEVICE = "device"
    HOST = "host"
    BOTH = "both"


def check(
    parts: Annotated[list[str] | None, typer.Argument(help="Which; default: this machine's, without soak.")] = None,
    heap: Annotated[HeapChoice, typer.Option(help="Where the memory comes from.")] = HeapChoice.BOTH,
    alloc: Annotated[AllocChoice, typer.Option(help="Who allocates.")] = AllocChoice.BOTH,
    device: Annotated[str, typer.Option(help="Of local segments and litmus kernels: cpu, cuda, ...")] = "cpu",
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long each part may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="The part `compiled`: PTX in every scenario, under weak memory.")
    ] = False,
    target: Annotated[TargetChoice, typer.Option(help="What compiled code is compiled for.")] = TargetChoice.SM_90,
    link: Annotated[LinkChoice, typer.Option(help="How nodes exchange objects.")] = LinkChoice.WIRE,
    everything: Annotated[
        bool, typer.Option("--all", help="Those of the protocol and of a cluster too: model, mutants, nodes.")
    ] = False,
    replay: Annotated[str, typer.Option(help="Run the one simulated execution that a failure named.")] = "",
    mutant: Annotated[
        str, typer.Option(help="Break the protocol in one place, and see which scenario notices; `list`, `ptx:list`.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per check.")] = False,
) -> None:
    """Check NanoKV on this machine: concurrency, histories, kill -9, corruption, litmus; fsck after each.

    Exit code: 0 all held; 1 something did not; 2 it could not be tried.
    """
    if replay or mutant:
        need_greenlet()
        raise typer.Exit(_replay(replay) if replay else _mutant(mutant, seed))
    names = parts or (_everything(link.value) if everything else [] if compiled else list(MACHINE))
    names += [COMPILED] if compiled and COMPILED not in names else []
    check_names(names)
    heaps = _both(heap, "local", "shm")
    options = Options(seconds, heaps, _both(alloc, "device", "host"), device, seed, target.value, link.value)
    with _stopped_by_signals():
        try:
            with closing(run_supervised(names, options)) as events:
                rows = show_progress(events, names, seconds)
                held = print_json_rows(rows) if as_json else print_table(rows)
        except KeyboardInterrupt:
            typer.echo("stopped: no process and no world is left", err=True)
            raise typer.Exit(STOPPED) from None
    raise typer.Exit(0 if held else _FAILED)


def _everything(link: str) -> list[str]:
    """All parts but the long ones; those of a cluster only where it can be run, and else a line says why not."""
    from nanokv.check.nodes.run import lacking

    problem = lacking(link)
    if problem:
        typer.echo(f"{', '.join(CLUSTER)}: left out: {problem}", err=True)
    return list(MACHINE | PROTOCOL | ({} if problem else CLUSTER))


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the checks as Ctrl-C does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _both(choice: StrEnum, *every: T) -> tuple[T, ...]:
    return tuple(each for each in every if choice.value in ("both", each))


def _replay(text: str) -> int:
    from nanokv.check.protocol.model.explore import replay

    try:
        why = replay(text)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    typer.echo(why or "nothing goes wrong in this execution")
    return _FAILED if why else 0


def _mutant(name: str, seed: int) -> int:
    from nanokv.check.protocol.model.mutants import MUTANTS
    from nanokv.check.protocol.model.mutants.run import kill

    if name == "list":
        for each in MUTANTS.values():
            typer.echo(f"{each.name}: {each.about}")
        return 0
    if name.startswith(PTX):
        return _ptx_mutant(name.removeprefix(PTX))
    if name not in MUTANTS:
        raise InvalidArgument(f"no mutant {name!r}; `nanokv check --mutant list` lists them")
    typer.echo(f"{name}: {MUTANTS[name].about}")
    failure = kill(name, SCHEDULES, seed)
    typer.echo(f"noticed: {failure}" if failure else "it survives")
    return 0 if failure else _FAILED


def _ptx_mutant(name: str) -> int:
    need_triton()
    from nanokv.check.protocol.compiled.known import KEPT, find
    from nanokv.check.protocol.compiled.mutants import mutants

    if name == "list":
        for each in mutants().values():
            typer.echo(f"{PTX}{each.name}: {KEPT.get(each.name, each.about)}")
        return 0
    if name not in mutants():
        raise InvalidArgument(f"no PTX mutant {name!r}; `nanokv check --mutant {PTX}list` lists them")
    typer.echo(f"{name}: {mutants()[name].about}")
    failure = find(mutants()[name], SECONDS_OF_A_MUTANT)
    typer.echo(f"noticed: {failure}" if failure else f"it survives: {KEPT.get(name, 'nobody knows why')}")
    return 0 if failure else _FAILED
