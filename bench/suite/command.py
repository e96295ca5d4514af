"""What `python -m bench` does once its arguments are known."""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanokv.bench.suite import catalogue, environment, timing
from nanokv.bench.suite.cells import UNITS, number, ratio, spread
from nanokv.bench.suite.display import Screen
from nanokv.bench.suite.distribution import percentiles
from nanokv.bench.suite.record import Record, write
from nanokv.bench.suite.runner import Runner
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.tables import plain_table
from nanokv.bench.suite.targets import Target, targets

OK, FAILED, STOPPED = 0, 1, 130
REPORT_NEEDS = ("jinja2", "matplotlib")


def show_list() -> int:
    """Print the name of each question, and what it asks."""
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name in catalogue.names():
        table.add_row(name, catalogue.question(name).asks)
    console.print(table)
    return OK


def why_not(given: argparse.Namespace, settings: Settings) -> str | None:
    """Why this run cannot be, or None."""
    missing = [name for name in REPORT_NEEDS if given.html and find_spec(name) is None]
    if missing:
        return f"--html needs {' and '.join(missing)}: pip install 'nanokv[bench]'"
    if settings.heaps == ("shm",):
        from nanokv.heap import shm

        why = shm.why_not()
        return None if why is None else f"heap shm does not work here: {why}"
    return None


def about(settings: Settings) -> dict[str, Any]:
    """All that is known about a run before it begins, ready for JSON."""
    return {
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "settings": json.loads(json.dumps(asdict(settings))),
        "timing_us": {name: percentiles(samples.ns) for name, samples in timing.overhead().items()},
    }


def heading(known: dict[str, Any]) -> list[str]:
    """What a reader must know, line by line."""
    machine, versions, settings = known["machine"], known["versions"], known["settings"]
    cost = ", ".join(f"{name} {number(one['p50'])} µs" for name, one in known["timing_us"].items())
    return [
        f"{machine['cpu']}, {machine['usable_cores']} cores, load {machine['load_average']:.1f}, {machine['system']}",
        ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        f"commit {known['commit'] or 'unknown'}, {known['began']}",
        f"Medians of {settings['repeats']} repetitions, and their spread: median (least-most).",
        f"A percentile stands only where ten samples lie above it. {settings['threads']} of torch's threads copy.",
        f"Timing an empty call takes {cost}; it is in every figure.",
    ]


def run(given: argparse.Namespace, settings: Settings) -> int:
    """Ask all questions, print, write. Returns the exit code."""
    known = about(settings)
    with Screen(len(given.names)) as screen:
        for line in heading(known):
            screen.line(line)
        runner = Runner(settings, screen)
        stopped = runner.run(given.names)
    record = Record(known, runner.outcomes, runner.figures)
    found = targets(record.figures)
    _print_targets(found, screen.out)
    _write(given, record, found)
    return _ending(runner, stopped)


def _print_targets(found: list[Target], console: Console) -> None:
    judged = [target for target in found if target.values]
    if not judged:
        return
    rows = [
        [target.what, limit_of(target), measured_of(target), "yes" if target.reached else "NO"] for target in judged
    ]
    console.print()
    console.print(plain_table("targets", ["", "to be", "measured", "reached"], rows))
    if len(judged) < len(found):
        console.print(Text(f"{len(found) - len(judged)} targets were not measured.", style="dim"))


def limit_of(target: Target) -> str:
    """The limit as text: "≤ 2.5 µs"."""
    return f"{target.sign} {target.limit:g} {UNITS.get(target.unit, target.unit)}"


def measured_of(target: Target) -> str:
    """What was measured, with its spread."""
    show = ratio if target.unit == "x" else number
    if target.median is None:
        return "not measured"
    return spread(*map(show, (target.median, min(target.values), max(target.values))))


def _write(given: argparse.Namespace, record: Record, found: list[Target]) -> None:
    if given.json:
        write(given.json, record, [target.as_dict() for target in found])
    if given.html:
        from nanokv.bench.suite.report import write_report

        write_report(given.html, record, found)


def _ending(runner: Runner, stopped: bool) -> int:
    """Say on stderr what is missing. Returns the exit code."""
    by_state = {
        state: [outcome.name for outcome in runner.outcomes if outcome.state == state]
        for state in ("failed", "stopped", "not begun")
    }
    for text in runner.errors.values():
        print(text, file=sys.stderr)
    if by_state["failed"]:
        print(f"failed: {', '.join(by_state['failed'])}", file=sys.stderr)
    if stopped:
        count = sum(figure.question in by_state["stopped"] for figure in runner.figures)
        missing = f"; not begun: {', '.join(by_state['not begun'])}" if by_state["not begun"] else ""
        last = "".join(f"; {name} has {count} figures, and may lack some" for name in by_state["stopped"])
        print(f"stopped{last}{missing}", file=sys.stderr)
        return STOPPED
    return FAILED if by_state["failed"] else OK
