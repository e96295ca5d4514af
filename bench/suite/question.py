"""What a benchmark asks, and what it is given to find the answer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.turns import Key, Value, in_turns
from nanokv.bench.suite.worlds import Worlds
from nanokv.heap import shm


@dataclass(frozen=True, slots=True)
class Run:
    """What a question may use.

    Attributes:
        settings: how much to measure, and what of it.
        worlds: opens worlds of two ranks, in this process or in two.
        say: shows the user what is going on now, as one short line.
    """

    settings: Settings
    worlds: Worlds
    say: Callable[[str], None]

    def in_turns(self, ways: Mapping[Key, Callable[[], Value]], warm_up: int = 0) -> dict[Key, list[Value]]:
        """Call all ways in turns, once for each repetition of the run (`turns`)."""
        return in_turns(ways, self.settings.repeats, warm_up, self.say)


def needs_processes(settings: Settings) -> str | None:
    """Why nobody can ask a question about several processes; None: one can."""
    return shm.why_not() if "shm" in settings.heaps else "it needs --heap shm"


@dataclass(frozen=True, slots=True)
class Question:
    """One benchmark.

    Attributes:
        name: as on the command line.
        asks: the question, as one sentence for people.
        measure: yields figures as they are found, so that those that exist are kept if the user stops the run.
        how: what is timed and what is not, in some sentences for the report.
        beside: an axis and one of its values: tables show each figure as a multiple of the one with that value, in the
            same repetitions. None: nothing is compared.
        why_not: why this machine cannot answer it, or None. The suite leaves the question out, and says so.
    """

    name: str
    asks: str
    measure: Callable[[Run], Iterable[Figure]]
    how: str
    beside: tuple[str, str | int] | None = None
    why_not: Callable[[Settings], str | None] = lambda _: None
