"""The tables."""

from typing import Any

from rich.table import Table

from nanokv.bench.questions.objects import COPY_OF, OPERATIONS
from nanokv.bench.suite.settings import show_size
from nanokv.bench.suite.timing import Summary
from nanokv.bench.targets import Results, Target

VERSIONS = {"device": "v2", "host": "v1"}
HEAPS = {
    "local": "both ranks in one process; v1's master is in it too, and is sent no message",
    "shm": "two processes; the object goes into the other one's segment, and v1's master is there",
}
TITLES = {"get": "get into", "get_new": "get new"}  #: a tensor of the caller; a new tensor


def tables(results: Results, found: list[Target]) -> list[Table]:
    """A table for each benchmark that ran, and the targets."""
    made: list[Table] = []
    rows = results.get("objects", {}).get("rows", [])
    made += [_objects(heap, [row for row in rows if row["heap"] == heap]) for heap in HEAPS]
    made += [_freelist(results.get("freelist", {})), _imports(results.get("imports", {}))]
    made += [_announce(results.get("announce", {})), _wait(results.get("wait", {})), _targets(found)]
    return [table for table in made if table.row_count]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _three(summary: Summary) -> list[str]:
    return [_number(summary[name]) for name in ("p50", "p99", "p99_9")]


def _objects(heap: str, rows: list[Any]) -> Table:
    table = Table(title=f"objects, heap={heap}, µs ({HEAPS[heap]})", title_justify="left")
    allocs = list(dict.fromkeys(row["alloc"] for row in rows))
    for name in ("size", "operation"):
        table.add_column(name)
    for alloc in allocs:
        version = VERSIONS[alloc]
        for name in (f"{version} p50", "p99", "p99.9", "copy p50", "p99", "p99.9", f"{version}/copy"):
            table.add_column(name, justify="right")
    for size in dict.fromkeys(row["size"] for row in rows):
        here = {row["alloc"]: row for row in rows if row["size"] == size}
        for name in OPERATIONS:
            cells = [cell for alloc in allocs for cell in _object_cells(here[alloc], name)]
            table.add_row(
                show_size(size) if name == OPERATIONS[0] else "",
                TITLES.get(name, name),
                *cells,
                end_section=name == OPERATIONS[-1],
            )
    return table


def _object_cells(row: dict[str, Any], name: str) -> list[str]:
    copy = COPY_OF.get(name)
    mine = _three(row["us"][name])
    if copy is None:
        return [*mine, "", "", "", ""]
    return [*mine, *_three(row["us"][copy]), f"{row['ratio_p50'][f'{name}/{copy}']:.2f}"]


def _freelist(result: dict[str, Any]) -> Table:
    title = "free list: a pop and a push, as each thread sees it, ns"
    table = Table("threads", "median", "least", "most", "runs counted", title=title, title_justify="left")
    for row in result.get("rows", []):
        numbers = [_number(row[name]) for name in ("ns_per_pair", "least", "most")]
        table.add_row(str(row["threads"]), *numbers, f"{row['runs_counted']} of {row['runs']}")
    return table


def _imports(result: dict[str, Any]) -> Table:
    table = Table("fresh process", "s, median", "least", "most", title="imports", title_justify="left")
    for row in result.get("rows", []):
        numbers = (row["seconds"], min(row["runs"]), max(row["runs"]))
        table.add_row(row["program"], *(f"{number:.2f}" for number in numbers))
    return table


def _announce(result: dict[str, Any]) -> Table:
    title = "announce: from put's return to the owner's listener, µs"
    table = Table("heap", "", "poller", "p50", "p99", "p99.9", title=title, title_justify="left")
    for row in result.get("rows", []):
        table.add_row(row["heap"], VERSIONS[row["alloc"]], row["poller"], *_three(row["us"]))
    return table


def _wait(result: dict[str, Any]) -> Table:
    title = "wait: from put's return to the return of another rank's wait, µs"
    table = Table("heap", "", "segment", "p50", "p99", "p99.9", title=title, title_justify="left")
    for row in result.get("rows", []):
        table.add_row(row["heap"], VERSIONS[row["alloc"]], row["segment"], *_three(row["us"]))
    return table


def _targets(found: list[Target]) -> Table:
    table = Table("target", "limit", "measured", "reached", title="targets", title_justify="left")
    for one in found:
        sign = "≥" if one.at_least else "≤"
        reached = {True: "[green]yes[/]", False: "[red]NO[/]", None: "unclear: too busy"}[one.reached]
        table.add_row(one.what, f"{sign} {one.limit:g} {one.unit}", f"{one.measured:.2f} {one.unit}", reached)
    return table
