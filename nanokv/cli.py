"""The command line: `nanokv demo | doctor | check | ls | stats | fsck | rm`.

Only the commands that need them import heavy modules (torch, triton, numba), so that `nanokv --help` is quick.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from nanokv import __version__
from nanokv.check.command import check
from nanokv.errors import NanoKVError

BAD = 2  #: exit code: the command could not be carried out
_BREACH, _LEFTOVERS = 1, 3


class _Group(TyperGroup):
    """Prints an error as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NanoKVError as error:
            typer.echo(f"nanokv: {error}", err=True)
            raise typer.Exit(BAD) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A distributed cache for the KV tensors of LLM inference.",
)

Name = Annotated[str, typer.Argument(help="The name of a world on this host; `nanokv ls` lists them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Alloc(StrEnum):
    """The allocator of the demo."""

    DEVICE = "device"
    HOST = "host"
    BOTH = "both"


def _console() -> Console:
    """A console that is wide in a file or a pipe, so that no table is cut there."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=400)


def _table(console: Console, columns: list[str], rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False) if not console.is_terminal else Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    return table


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data))


def size(nbytes: int) -> str:
    """Bytes as text: "1.5 MiB"."""
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nanokv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    alloc: Annotated[Alloc, typer.Option(help="Who allocates.")] = Alloc.BOTH,
    prompts: Annotated[int, typer.Option(help="How many prompts; the first two share a prefix.")] = 6,
    tokens: Annotated[int, typer.Option(help="Tokens to generate after each.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the prompts and the model's weights.")] = 0,
) -> None:
    """Prefill in one process, decode in another, and compare with one process that does both. Needs no GPU."""
    from nanokv.demo.run import run_demo

    raise typer.Exit(run_demo(alloc.value, prompts, tokens, seed, Console()))


@app.command()
def doctor(
    as_json: Json = False,
    smoke: Annotated[bool, typer.Option(help="Put and get 1 KiB; the first time this compiles the protocol.")] = True,
) -> None:
    """Look at this machine: versions, GPUs, shared memory, which heaps work, and how long a small put and get take.

    Exit code: 0; 1 if something that every use needs does not work.
    """
    from nanokv.doctor import examine

    rows = examine(smoke=smoke)
    if as_json:
        _print_json([row._asdict() for row in rows])
    else:
        console = _console()
        colours = {"ok": "green", "warn": "yellow", "missing": "red"}
        table = _table(console, ["what", "state", "detail"], [])
        for row in rows:
            table.add_row(Text(row.name), Text(row.state, style=colours[row.state]), Text(row.detail))
        console.print(table)
    raise typer.Exit(int(any(row.state == "missing" and row.required for row in rows)))


@app.command()
def ls(as_json: Json = False) -> None:
    """List the worlds on this host, living and dead."""
    from nanokv.heap.shm import list_worlds

    worlds = [_summary(name) for name in list_worlds()]
    if as_json:
        _print_json(worlds)
        return
    console = _console()
    rows = []
    for w in worlds:
        known = [f"{w['living']} of {w['world_size']}", w["alloc"], size(w["bytes"])] if w["world_size"] else [""] * 3
        rows.append([w["name"], w["state"], *known])
    console.print(_table(console, ["name", "state", "ranks alive", "alloc", "memory"], rows) if rows else "no worlds")


def _summary(name: str) -> dict[str, Any]:
    from nanokv.heap.shm import inspect

    try:
        info = inspect(name)
    except NanoKVError as error:
        return {"name": name, "state": f"unusable: {error}", "world_size": 0, "living": 0, "alloc": None, "bytes": 0}
    ranks, living = info.world_size, sum(info.alive)
    state = "dead" if not living else "alive" if living == ranks else "partly dead"
    total = ranks * info.geometry.segment_bytes
    return {"name": name, "state": state, "world_size": ranks, "living": living, "alloc": info.mode, "bytes": total}


@app.command()
def stats(
    name: Name,
    as_json: Json = False,
    watch: Annotated[float, typer.Option(min=0.0, help="Look again every so many seconds, until Ctrl-C.")] = 0.0,
    count: Annotated[int, typer.Option(min=1, help="With --watch: stop after so many looks.")] = 2**31,
) -> None:
    """Show what each rank's segment holds: pages, objects, ring, and counters of rare events."""
    looks = _looks(name, watch, count)
    console = _console()
    with suppress(KeyboardInterrupt):
        if as_json:
            for look in looks:
                _print_json(look)
        elif watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for look in looks:
                    live.update(_stats_table(console, look), refresh=True)
        else:
            for look in looks:
                console.print(_stats_table(console, look))


def _looks(name: str, watch: float, count: int) -> Iterator[dict[str, Any]]:
    from nanokv.fsck.inspect_world import Inspected

    yield Inspected(name).stats()
    for _ in range(count - 1 if watch else 0):
        time.sleep(watch)
        yield Inspected(name).stats()


_HOLDS = ("ready", "unfinished", "quarantined", "pinned")
_COUNTS = (*_HOLDS, "ring_depth", "ring_missed", "evicted", "refused", "lost", "corrupt")


def _stats_table(console: Console, world: dict[str, Any]) -> Table:
    columns = ["rank", "process", "used", "of", "%", "stored", *(name.replace("_", " ") for name in _COUNTS)]
    rows = [
        [
            str(rank["rank"]),
            "alive" if rank["alive"] else "dead",
            size(rank["heap_used"]),
            size(rank["heap_total"]),
            f"{100 * rank['usage']:.0f}",
            size(rank["bytes_stored"]),
            *(str(rank[name]) for name in _COUNTS),
        ]
        for rank in world["ranks"]
    ]
    table = _table(console, columns, rows)
    table.title = f"{world['name']}, alloc={world['alloc']}"
    return table


@app.command()
def fsck(name: Name, as_json: Json = False) -> None:
    """Check the invariants I1 to I10 in a world, living or dead. Changes nothing.

    A world at work is checked for what must hold at any moment; a world at rest, for everything.

    Exit code: 0 clean; 1 a breach: an invariant does not hold; 2 it could not look; 3 no breach, but the dead left
    things that can be taken back: attach again with on_stale='recover'.
    """
    from nanokv.fsck.inspect_world import Inspected

    world = Inspected(name)
    report = world.check()
    if as_json:
        _print_json({"name": name, "alive": world.living} | report.as_dict())
    else:
        console = _console()
        looked = "all was checked" if report.quiescent else "at work: only what must always hold was checked"
        living = f"{sum(world.living)} of {len(world.living)} ranks alive"
        console.print(f"{name}: alloc={report.mode}, {living}, {report.objects} objects, {looked}")
        for finding in report.findings:
            console.print(Text(str(finding), style="red" if finding.breach else "yellow"), soft_wrap=True)
        if report.clean:
            console.print(Text("clean", style="green"))
    raise typer.Exit(_BREACH if report.breaches else _LEFTOVERS if report.leftovers else 0)


@app.command()
def rm(
    name: Name, force: Annotated[bool, typer.Option(help="Also if ranks of it live; they go on by themselves.")] = False
) -> None:
    """Remove a world's memory."""
    from nanokv.heap.shm import remove_world

    remove_world(name, force=force)


app.command()(check)


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
