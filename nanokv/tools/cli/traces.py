"""Commands about traces of requests: replay."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nanokv.errors import InvalidArgument
from nanokv.tools.cli.output import Json, columns, console, print_json

if TYPE_CHECKING:
    from nanokv.tools.replay.run import CapacityRow, OperationTimes
    from nanokv.tools.replay.trace import Trace

_SHARES = (0.01, 0.03, 0.1, 0.3)  #: of the different blocks: the default capacities
_HEADINGS = ("capacity", "hit rate", "LRU", "best of five", "possible", "evicted", "put p50/p99 us", "get p50/p99 us")


class EvictionPolicy(StrEnum):
    """The policies of v2."""

    LIFETIMES = "lifetimes"
    CLOCK = "clock"
    FIFO = "fifo"


def replay(
    trace: Annotated[Path, typer.Argument(help='JSON lines, each with "hash_ids": the prefix blocks of a request.')],
    capacity_blocks: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Blocks of the cache. Default: 1, 3, 10 and 30 % of the trace's.")
    ] = "",
    producers: Annotated[int, typer.Option(min=1, max=64, help="Processes that get and put.")] = 2,
    policy: Annotated[EvictionPolicy, typer.Option(help="By which the cache evicts.")] = EvictionPolicy.LIFETIMES,
    as_json: Json = False,
) -> None:
    """Replay a trace of prefix blocks through a real cache of processes; show which share of its blocks was hit.

    A block is hit if it and all before it in its request are there. Beside it: LRU, the best of five simulated policies
    (FIFO, CLOCK, LRU, SIEVE, S3-FIFO), and the most that any policy can reach.
    """
    from nanokv.tools.replay.trace import read_trace

    requests = read_trace(trace)
    capacities = _capacities(capacity_blocks, requests)
    if not as_json:
        count, blocks, different = len(requests.ends), len(requests.blocks), requests.different
        typer.echo(f"{requests.name}: {count:,} requests, {blocks:,} blocks, {different:,} different ones")
    rows = [_run(requests, capacity, producers, policy, say=not as_json) for capacity in capacities]
    if as_json:
        print_json(
            {
                "trace": requests.name,
                "requests": len(requests.ends),
                "blocks": len(requests.blocks),
                "different": requests.different,
                "producers": producers,
                "policy": policy.value,
                "rows": [row.as_dict() for row in rows],
            }
        )
    else:
        _show(requests, rows)


def _capacities(given: str, trace: "Trace") -> list[int]:
    if not given:
        return sorted({max(round(share * trace.different), 1) for share in _SHARES})
    parts = [part.strip().replace("_", "") for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidArgument(f"--capacity-blocks takes positive numbers such as 1000,3000, not {given!r}")
    return sorted({int(part) for part in parts})


def _run(trace: "Trace", capacity: int, producers: int, policy: EvictionPolicy, *, say: bool) -> "CapacityRow":
    from nanokv.tools.replay.run import run

    about = TextColumn(f"capacity {capacity:,}")
    bar = Progress(about, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    bar.live.transient = True
    bar.disable = not bar.console.is_terminal
    with bar:
        task = bar.add_task("", total=len(trace.ends))
        row = run(trace, capacity, producers, lambda count: bar.update(task, completed=count), policy.value)
    if say:
        typer.echo(f"\ncapacity {capacity:,} blocks\nhit rate {row.rate:.4f}")
        if row.refused:
            typer.echo(f"{row.refused:,} puts found no room")
    return row


def _show(trace: "Trace", rows: "list[CapacityRow]") -> None:
    from nanokv.tools.replay.chart import draw
    from nanokv.tools.replay.limits import lru_rates

    screen = console()
    cells = [
        (
            f"{row.capacity:,}",
            f"{row.rate:.4f}",
            f"{row.policies['LRU']:.4f}",
            f"{row.policies[row.best]:.4f} {row.best}",
            f"{row.possible:.4f}",
            f"{row.evicted:,}",
            _microseconds(row.put_us),
            _microseconds(row.get_us),
        )
        for row in rows
    ]
    screen.print()
    for line in columns(screen, _HEADINGS, cells):
        screen.print(line, soft_wrap=True)
    screen.print()
    for text in draw(rows, lru_rates(trace), screen.width if screen.is_terminal else 80):
        screen.print(text, soft_wrap=True)


def _microseconds(times: "OperationTimes") -> str:
    return "" if times.p50 is None else f"{times.p50:.1f}/{times.p99:.1f}"
