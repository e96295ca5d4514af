"""What the user sees while questions are asked: a line that moves in a terminal, plain lines elsewhere, and tables."""

import sys
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.record import Outcome
from nanokv.bench.suite.tables import tables

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

    def end(self, outcome: Outcome, figures: list[Figure]) -> None:
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
