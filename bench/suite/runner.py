"""Asks questions, one after the other. What one has found stays, also if it fails or the user ends the run."""

import traceback
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol

from nanokv.bench.suite import catalogue
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Run
from nanokv.bench.suite.record import Outcome, State, check_cases
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.worlds import Worlds


class Display(Protocol):
    """Shows the user what happens."""

    def begin(self, name: str, asks: str) -> None:
        """A question is asked."""

    def say(self, text: str) -> None:
        """What it does now."""

    def end(self, outcome: Outcome, figures: list[Figure]) -> None:
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
        self.outcomes: list[Outcome] = []
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
        self.outcomes += [Outcome(name, "", "", None, "not begun") for name in left]
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
            self.outcomes.append(Outcome(name, *about, state, why, monotonic() - began))
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
