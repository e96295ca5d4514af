"""The table of `nanokv check` and `make check`: what was tried, how often, and whether it held."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter

_teller: ContextVar[Callable[[str], None]] = ContextVar("teller", default=lambda text: None)


def tell(text: str) -> None:
    """Say how far a long check has come, to whoever listens."""
    _teller.get()(text)


@contextmanager
def telling(teller: Callable[[str], None]) -> Iterator[None]:
    """Listen to `tell` during a block."""
    before = _teller.set(teller)
    try:
        yield
    finally:
        _teller.reset(before)


class CheckFailure(Exception):
    """Something that must always hold did not hold."""


@dataclass
class Row:
    """One line of the table: one check of one part."""

    part: str  #: "histories", "kills", ...
    name: str  #: of the check, in words
    tried: int = 0
    unit: str = ""  #: what `tried` counts: "schedules", "rounds", "operations"
    failures: list[str] = field(default_factory=list)  #: each with the way to see it again
    note: str = ""  #: for people, beside the numbers
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)  #: other counts, for programs

    @property
    def held(self) -> bool:
        """True if something was tried and nothing failed."""
        return self.tried > 0 and not self.failures

    @contextmanager
    def timed(self) -> Iterator["Row"]:
        """Count the seconds of a block, and take in its CheckFailure as a failure of this row."""
        start = perf_counter()
        try:
            yield self
        except CheckFailure as failure:
            self.failures.append(str(failure))
        finally:
            self.seconds += perf_counter() - start
