"""Commands about this machine: doctor, warmup, demo."""

import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from nanokv.tools.cli.output import Json, console, long_cells, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "missing": "red"}


class Alloc(StrEnum):
    """The allocator of the demo."""

    DEVICE = "device"
    HOST = "host"
    BOTH = "both"


def demo(
    alloc: Annotated[Alloc, typer.Option(help="Who allocates.")] = Alloc.BOTH,
    prompts: Annotated[int, typer.Option(help="How many prompts; the first two share a prefix.")] = 6,
    tokens: Annotated[int, typer.Option(help="Tokens to generate after each.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the prompts and the model's weights.")] = 0,
    as_json: Json = False,
) -> None:
    """Prefill in one process, decode in another, and compare with one process that does both. Needs no GPU."""
    from nanokv.tools.demo.run import run_demo

    def report(outcomes: list[Any]) -> None:
        print_json([outcome.as_dict() for outcome in outcomes])

    screen = Console(stderr=as_json)
    raise typer.Exit(run_demo(alloc.value, prompts, tokens, seed, screen, report=report if as_json else None))


def doctor(
    as_json: Json = False,
    smoke: Annotated[bool, typer.Option(help="Put and get 1 KiB; the first time this compiles the protocol.")] = True,
) -> None:
    """Look at this machine: versions, GPUs, shared memory, which heaps work, and how long a small put and get take.

    Exit code: 0; 1 if something that every use needs does not work.
    """
    from nanokv.tools.doctor import examine

    rows = examine(smoke=smoke)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        screen = console()
        cells = [(row.name, row.state, row.detail) for row in rows]
        screen.print(long_cells(screen, ("what", "state", "detail"), cells, _COLOURS))
    raise typer.Exit(int(any(row.state == "missing" and row.required for row in rows)))


def warmup(as_json: Json = False) -> None:
    """Compile the protocol for this CPU, so that no process waits for it later. Needed once per version and user.

    Useful when an image is built: with NANOKV_CACHE_DIR the compiled code is kept in a folder of the image. What only
    members of clusters, or owners of a segment on a GPU, run is compiled too.
    """
    from nanokv.device.machines.code_cache import cache_directory
    from nanokv.device.machines.native_code import code, fabric_code, gpu_code, wire_code
    from nanokv.device.machines.native_entries import FABRIC_ENTRIES, GPU_ENTRIES, NATIVE_ENTRIES, WIRE_ENTRIES

    folder, start = cache_directory(), time.monotonic()
    kinds = (
        (code(), NATIVE_ENTRIES),
        (fabric_code(), FABRIC_ENTRIES),
        (wire_code(), WIRE_ENTRIES),
        (gpu_code(), GPU_ENTRIES),
    )
    count, loaded = 0, 0
    for functions, entries in kinds:
        count += len(entries)
        loaded += sum(functions.load(name) for name in entries)
        functions.require_all()
    seconds, made = time.monotonic() - start, count - loaded
    if as_json:
        print_json({"folder": str(folder), "functions": count, "compiled": made, "seconds": seconds})
    else:
        typer.echo(f"{made} functions compiled, {loaded} were there, in {seconds:.1f} s: {folder}")
