"""Commands about the worlds of this host: ls, stats, key, fsck, rm."""

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, repeat
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from nanokv.errors import NanoKVError
from nanokv.tools.cli import clusters
from nanokv.tools.cli.output import Json, columns, console, print_json, size

_BREACH, _LEFTOVERS = 1, 3


def _names(incomplete: str) -> list[str]:
    """The names of worlds, for the shell to complete."""
    from nanokv.heap.shm_tools import list_worlds

    with suppress(NanoKVError):
        return [name for name in list_worlds() if name.startswith(incomplete)]
    return []


Name = Annotated[
    str, typer.Argument(help="The name of a world on this host; `nanokv ls` lists them.", autocompletion=_names)
]
WorldOrCluster = Annotated[
    str,
    typer.Argument(
        help="The name of a world on this host, or the registry of a cluster: etcd://host:port/name, file:///folder.",
        autocompletion=_names,
        metavar="NAME",
    ),
]


def ls(
    cluster: Annotated[
        str, typer.Argument(help="The registry of a cluster, as etcd://host:port/name.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """List the worlds on this host, living and dead; or the members of a cluster."""
    from nanokv.heap.shm_tools import list_worlds

    if cluster:
        clusters.list_members(cluster, as_json)
        return
    worlds = [_summary(name) for name in list_worlds()]
    if as_json:
        print_json(worlds)
        return
    rows = []
    for w in worlds:
        ranks = f"{w['living']} of {w['world_size']}" + (f", {w['absent']} absent" if w["absent"] else "")
        known = [ranks, w["alloc"], size(w["bytes"])] if w["world_size"] else [""] * 3
        rows.append([w["name"], *known, size(w["taken"]), w["state"]])
    screen = console()
    heads = ("name", "ranks alive", "alloc", "memory", "taken", "state")
    for line in columns(screen, heads, rows) if rows else ["no worlds"]:
        screen.print(line, soft_wrap=True)
    dead = [w for w in worlds if w["state"] == "dead"]
    if dead:
        screen.print(
            f"{size(sum(w['taken'] for w in dead))} are taken by {len(dead)} that nobody uses: nanokv rm "
            f"{' '.join(w['name'] for w in dead[:3])}{' ...' if len(dead) > 3 else ''}",
            soft_wrap=True,
        )


def _summary(name: str) -> dict[str, Any]:
    from nanokv.heap.shm_tools import inspect

    try:
        info = inspect(name)
    except NanoKVError as error:
        nothing = {"world_size": 0, "living": 0, "absent": 0, "alloc": None, "bytes": 0, "taken": _taken(name)}
        return {"name": name, "state": f"unusable: {error}"} | nothing
    living, absent = sum(info.alive), sum(info.absent)
    there = info.world_size - absent
    state = "dead" if not living else "alive" if living == there else "partly dead"
    total = there * info.geometry.segment_bytes + absent * info.geometry.offsets["heap_base"]
    known = {"world_size": info.world_size, "living": living, "absent": absent, "alloc": info.mode, "bytes": total}
    return {"name": name, "state": state} | known | {"taken": _taken(name)}


def _taken(name: str) -> int:
    """Bytes of the host's memory that a world's file takes: its pages that were touched, and those reserved."""
    from nanokv.heap.shm_tools import taken_by

    with suppress(NanoKVError):
        return taken_by(name)
    return 0


def stats(
    name: WorldOrCluster,
    as_json: Json = False,
    watch: Annotated[
        float, typer.Option(min=0.0, show_default=False, help="Look again every so many seconds, until ^C.")
    ] = 0.0,
    count: Annotated[int, typer.Option(min=1, show_default=False, help="With --watch: stop after so many looks.")] = 2
    ** 31,
) -> None:
    """Show what each rank's segment holds: pages, objects, ring, and counters of rare events.

    "largest" is the largest free extent; "internal %" and "external %" are fragmentation, inside objects and between.
    """
    if clusters.is_cluster(name):
        clusters.show_stats(name, as_json)
        return
    looks = _looks(name, watch, count)
    screen = console()
    with suppress(KeyboardInterrupt):
        if as_json:
            for look in looks:
                print_json(look)
        elif watch and screen.is_terminal:
            with Live(console=screen, auto_refresh=False) as live:
                for look in looks:
                    live.update(_stats_text(screen, look), refresh=True)
        else:
            for look in looks:
                screen.print(_stats_text(screen, look))


def _looks(name: str, watch: float, count: int | None) -> Iterator[dict[str, Any]]:
    from nanokv.fsck.inspect_world import InspectedWorld

    yield InspectedWorld(name).stats()
    for _ in islice(repeat(None), (count and count - 1) if watch else 0):
        time.sleep(watch)
        yield InspectedWorld(name).stats()


_HOLDS = ("ready", "pinned", "unfinished", "quarantined")
_COUNTS = (*_HOLDS, "ring_depth", "ring_missed", "evicted", "refused", "lost", "corrupt", "cas_failures")

_LABELS = {"ring_depth": "ring", "ring_missed": "missed", "cas_failures": "cas fails"}  # few blocks in 80 columns


def _stats_text(screen: Console, world: dict[str, Any]) -> Text:
    names = [
        "rank",
        "process",
        "used",
        "of",
        "%",
        "stored",
        "free",
        "largest",
        "internal %",
        "external %",
        *(_LABELS.get(name, name.replace("_", " ")) for name in _COUNTS),
    ]
    rows = [
        [
            str(rank["rank"]),
            "alive" if rank["alive"] else "absent" if rank["absent"] else "dead",
            size(rank["heap_used"]),
            size(rank["heap_total"]),
            f"{100 * rank['usage']:.0f}",
            size(rank["bytes_stored"]),
            size(rank["free_pages"] * world["page_bytes"]),
            size(rank["largest_free_extent"]),
            f"{100 * rank['internal_fragmentation']:.0f}",
            f"{100 * rank['external_fragmentation']:.0f}",
            *(str(rank[name]) for name in _COUNTS),
        ]
        for rank in world["ranks"]
    ]
    title = f"{world['name']}: alloc={world['alloc']}, pages of {size(world['page_bytes'])}"
    return Text("\n").join([Text(title), *columns(screen, names, rows), *map(Text, _layouts(world))])


def _layouts(world: dict[str, Any]) -> Iterator[str]:
    """A line for each layout, with the ranks in whose segments it is."""
    from nanokv.keys.kv_layout import KVLayout

    found: dict[tuple[str, str], list[str]] = {}
    for rank in world["ranks"]:
        for row in rank["layouts"]:
            shown = str(KVLayout(**{name: value for name, value in row.items() if name != "identity"}))
            found.setdefault((row["identity"], shown), []).append(str(rank["rank"]))
    for (identity, shown), ranks in found.items():
        yield f"identity {identity} in segment {', '.join(ranks)}: {shown}"


def key(
    name: Name,
    key: Annotated[str, typer.Argument(help="The key, as given to put.")],
    namespace: Annotated[str, typer.Option(help="The namespace of the caches.")] = "",
    identity: Annotated[
        str, typer.Option(help='The identity of the caches, as JSON: {"model": ..., "layout": {...}}.')
    ] = "",
    as_json: Json = False,
) -> None:
    """Show where an object lies: identity, rank, state, pins, epoch, size, dtype, shape, and when it was last used.

    Exit code: 0; 1 if no segment holds this key; 2 it could not look.
    """
    from nanokv.fsck.find_key import find_key
    from nanokv.fsck.inspect_world import InspectedWorld
    from nanokv.keys.identity import identity_from_json

    whose = identity_from_json(identity) if identity else None
    found = find_key(InspectedWorld(name), key, namespace, whose)
    if as_json:
        print_json([each.as_dict() for each in found])
    elif not found:
        within = (f" in namespace {namespace!r}" if namespace else "") + (f" of {whose}" if whose else "")
        typer.echo(f"{name} holds no object {key!r}{within}")
    else:
        for each in found:
            for label, text in each.lines(size):
                typer.echo(f"{label:<12}{text}")
    raise typer.Exit(0 if found else 1)


def fsck(
    name: WorldOrCluster,
    as_json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare no checksums: the bytes of objects are not read.")
    ] = False,
) -> None:
    """Check the invariants I1 to I10 in a world, living or dead, and the checksums of its objects. Changes nothing.

    A world at work is checked for what must hold at any moment; a world at rest, for everything.

    Exit code: 0 clean; 1 a breach: an invariant does not hold; 2 it could not look; 3 no breach, but the dead left
    things that can be taken back: attach again with on_stale='recover'.
    """
    from nanokv.fsck.inspect_world import InspectedWorld

    if clusters.is_cluster(name):
        clusters.check(name, as_json, quick)
        return
    world = InspectedWorld(name)
    report = world.check(quick=quick)
    if as_json:
        print_json({"name": name, "alive": world.living, "absent": world.absent} | report.as_dict())
    else:
        screen = console()
        state = "rest" if report.quiescent else "work"
        living = f"{sum(world.living)} of {len(world.living)} ranks alive"
        living += f" ({sum(world.absent)} absent)" if any(world.absent) else ""
        screen.print(f"{name}: alloc={report.mode}, {living}, {report.objects} objects, at {state}")
        for finding in report.findings:
            screen.print(Text(str(finding), style="red" if finding.breach else "yellow"), soft_wrap=True)
        for what in report.unseen:
            screen.print(f"not looked at: {what}", soft_wrap=True)
        if report.clean:
            screen.print(Text("clean", style="green"))
    raise typer.Exit(_BREACH if report.breaches else _LEFTOVERS if report.leftovers else 0)


def rm(
    name: Name,
    force: Annotated[bool, typer.Option(help="Also if ranks of it live; they go on by themselves.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a world's memory."""
    from nanokv.heap.shm_tools import remove_world

    remove_world(name, force=force)
    if as_json:
        print_json({"name": name, "removed": True})
