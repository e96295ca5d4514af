"""Commands about files of saved objects: save, load."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from nanokv.errors import InvalidArgument
from nanokv.tools.cli.output import Json, print_json, size
from nanokv.tools.cli.worlds import Name

if TYPE_CHECKING:
    from nanokv.saved.save import Progress as Report

_INCOMPLETE = 1


def save(
    name: Name,
    path: Annotated[Path, typer.Argument(help="The file. An older one is replaced when the new one is whole.")],
    rank: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="Only the segment of this rank. Default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Save the objects of a world, living or dead, to one file. Changes nothing in the world.

    Exit code: 0; 1 if damaged objects were left out; 2 nothing was saved, and an older file is as it was.
    """
    from nanokv.fsck.inspect_world import InspectedWorld
    from nanokv.saved.mapped_segment import MappedSegment
    from nanokv.saved.save import save as save_to

    world = InspectedWorld(name)
    if rank is not None and rank >= len(world.views):
        raise InvalidArgument(f"world {name!r} has ranks 0 to {len(world.views) - 1}, not {rank}")
    chosen = range(len(world.views)) if rank is None else [rank]
    sources = [MappedSegment(world.views[each], each) for each in chosen]
    with _bar("saving") as report:
        saved = save_to(path, sources, world.geometry, world.options, report)
    _say(saved, {"name": name, "path": str(path), "ranks": list(chosen)}, as_json)
    raise typer.Exit(_INCOMPLETE if saved.damaged else 0)


def load(
    path: Annotated[Path, typer.Argument(help="A file that `nanokv save` or `cache.save` has made.")],
    name: Name,
    as_json: Json = False,
) -> None:
    """Load a file into a world whose ranks are all dead, or into a new one. Its ranks then attach, on_stale='recover'.

    A new world gets the ranks, the sizes and the allocator of the one that was saved. In a living world, let a rank
    call cache.load(PATH).

    Exit code: 0; 1 if objects found no room, or are too large; 2 it could not load.
    """
    from nanokv.tools.into_world import load_into

    with _bar("loading") as report:
        loaded, is_new = load_into(path, name, report)
    _say(loaded, {"name": name, "path": str(path), "new": is_new}, as_json)
    raise typer.Exit(_INCOMPLETE if loaded.no_room or loaded.too_large else 0)


@contextmanager
def _bar(what: str) -> Iterator["Report"]:
    """A bar in a terminal: a function that moves it. Elsewhere it does nothing."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.live.transient = True
    bar.disable = not bar.console.is_terminal
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(done: NamedTuple, about: dict[str, object], as_json: bool) -> None:
    """Print what was done: one line per count."""
    counts = done._asdict()
    if as_json:
        print_json(about | counts)
        return
    for count, number in counts.items():
        shown = f"{size(number)} ({number} bytes)" if count == "bytes" else f"{number:,}"
        typer.echo(f"{count.replace('_', ' '):<12}{shown}")
