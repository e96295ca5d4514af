"""Asks questions, one after the other. What one has found stays, also if it fails or the user ends the run."""

import traceback
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol

from nanokv.bench.suite import catalogue
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run
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
        stopped = False
        for name in names:
            question = catalogue.question(name)
            if stopped:
                self.outcomes.append(_outcome(question, "not begun"))
                continue
            before, began = len(self.figures), monotonic()
            self._display.begin(name, question.asks)
            state, why = self._ask(question)
            self.outcomes.append(_outcome(question, state, why, monotonic() - began))
            self._display.end(self.outcomes[-1], self.figures[before:])
            stopped = state == "stopped"
        return stopped

    def _ask(self, question: Question) -> tuple[State, str]:
        try:
            why = question.why_not(self._settings)
            if why is not None:
                return "left out", why
            with Worlds() as worlds:
                self._take(question.measure(Run(self._settings, worlds, self._display.say)), question.name)
        except KeyboardInterrupt:
            return "stopped", ""
        except Exception as error:
            self.errors[question.name] = traceback.format_exc()
            return "failed", f"{type(error).__name__}: {error}"
        return "done", ""

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


def _outcome(question: Question, state: State, why: str = "", seconds: float = 0.0) -> Outcome:
    return Outcome(question.name, question.asks, question.how, question.beside, state, why, seconds)
