"""What `python -m bench` does once its arguments are known."""

import argparse
import json
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nanokv.bench.suite import catalogue, environment, timing
from nanokv.bench.suite.cells import UNITS, number, ratio, spread
from nanokv.bench.suite.distribution import percentiles
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Run
from nanokv.bench.suite.record import QuestionResult, Record, State, check_cases, write
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.tables import plain_table, tables
from nanokv.bench.suite.targets import Target, targets
from nanokv.bench.suite.worlds import Worlds


# --- asks questions, one after the other ------------------------------------------------------
# What one has found stays, also if it fails or the user ends the run.
class Display(Protocol):
    """Shows the user what happens."""

    def begin(self, name: str, asks: str) -> None:
        """A question is asked."""

    def say(self, text: str) -> None:
        """What it does now."""

    def end(self, outcome: QuestionResult, figures: list[Figure]) -> None:
        """What became of it, and all its figures."""


class _QuestionFailed(Exception):
    """A question raised; its error was recorded."""


class Runner:
    """One run. After `run`, or an exception, `figures` and `outcomes` are what there is.

    Attributes:
        figures: all that were found, in order.
        outcomes: of all questions, also of those that were not begun.
        errors: tracebacks by question.
    """

    def __init__(self, settings: Settings, display: Display) -> None:
        self.figures: list[Figure] = []
        self.outcomes: list[QuestionResult] = []
        self.errors: dict[str, str] = {}
        self._settings = settings
        self._display = display

    def run(self, names: Sequence[str]) -> bool:
        """Ask all questions. Returns whether the user has ended the run before the last one was done."""
        left, stopped = list(names), False
        try:
            while left:
                self._ask_until_one_fails(left)
        except KeyboardInterrupt:
            stopped = True
        self.outcomes += [QuestionResult(name, "", "", None, "not begun") for name in left]
        return stopped

    def _ask_until_one_fails(self, left: list[str]) -> None:
        """Ask the questions that are left, in the same worlds.

        After a failure the other process may be in the middle of something: it is ended with its worlds.
        """
        try:
            with Worlds() as worlds:
                while left:
                    self._ask(left.pop(0), worlds)
        except _QuestionFailed:
            return

    def _ask(self, name: str, worlds: Worlds) -> None:
        """Ask one question, and show and record what became of it.

        Raises:
            _QuestionFailed, KeyboardInterrupt: it has no more figures.
        """
        before, began = len(self.figures), monotonic()
        state: State = "failed"
        question, why = None, ""
        try:
            question = catalogue.question(name)
            self._display.begin(name, question.asks)
            why = question.why_not(self._settings) or ""
            if not why:
                self._take(question.measure(Run(self._settings, worlds, self._display.say)), name)
            state = "left out" if why else "done"
        except KeyboardInterrupt:
            state = "stopped"
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.errors[name] = traceback.format_exc()
            raise _QuestionFailed from error
        finally:
            about = (question.asks, question.how, question.beside) if question else ("", "", None)
            self.outcomes.append(QuestionResult(name, *about, state, why, monotonic() - began))
            self._display.end(self.outcomes[-1], self.figures[before:])

    def _take(self, found: Iterable[Figure], name: str) -> None:
        """Keep each figure as it comes.

        Raises:
            ValueError: a figure is of another question, has no repetition, or has the case of another.
        """
        for figure in found:
            if figure.question != name or not figure.repetitions:
                raise ValueError(
                    f"{name} gave a figure of {figure.question} with {len(figure.repetitions)} repetitions"
                )
            check_cases([*self.figures, figure])
            self.figures.append(figure)


# --- what the user sees while questions are asked: a line that moves in a terminal, plain lines elsewhere, and
# tables
PAUSE = 5.0  #: seconds between two plain lines about one question


class Screen:
    """A Display: progress on stderr (or above it, where stdout is the same terminal), tables on stdout."""

    def __init__(self, count: int) -> None:
        self.out = Console(highlight=False)
        self._err = self.out if self.out.is_terminal else Console(stderr=True, highlight=False)
        what = TextColumn("{task.description}", markup=False)
        bars = (SpinnerColumn(), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), what)
        self._progress = Progress(*bars, console=self._err, transient=True) if self._err.is_terminal else None
        self._task = self._progress.add_task("", total=count) if self._progress else None
        self._count = count
        self._done = 0
        self._name = ""
        self._said = 0.0

    def __enter__(self) -> "Screen":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def line(self, text: str) -> None:
        """Print a line on stdout."""
        self.out.print(Text(text))

    def note(self, text: str) -> None:
        """Print a line for the user on stderr."""
        if self._progress:
            self._err.print(Text(text, style="dim"))
        else:
            print(text, file=sys.stderr, flush=True)

    def begin(self, name: str, asks: str) -> None:
        """Show which question is asked."""
        self._name, self._said = name, monotonic()
        if self._progress is None:
            self.note(f"[{self._done + 1}/{self._count}] {name}: {asks}")
        self.say("begins")

    def say(self, text: str) -> None:
        """Show what is done now; outside a terminal not more often than each few seconds."""
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=f"{self._name}: {text}")
        elif monotonic() - self._said > PAUSE:
            self._said = monotonic()
            self.note(f"  {self._name}: {text}")

    def end(self, outcome: QuestionResult, figures: list[Figure]) -> None:
        """Print the tables of a question."""
        self._done += 1
        if self._progress and self._task is not None:
            self._progress.update(self._task, completed=self._done)
        self.out.print()
        self.out.print(Text(f"{outcome.name}: {outcome.asks}", style="bold cyan"))
        if outcome.state != "done":
            style = "red" if outcome.state == "failed" else "yellow"
            self.out.print(Text(": ".join(part for part in (outcome.state, outcome.why) if part), style=style))
        for table in tables(figures, outcome.beside, self.out):
            self.out.print(table)
        for note in dict.fromkeys(figure.note for figure in figures if figure.note):
            self.out.print(Text(note, style="dim"))


# --- the command ------------------------------------------------------------------------------
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
