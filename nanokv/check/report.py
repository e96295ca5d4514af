"""The table of `nanokv check` and `make check`: what was tried, how often, and whether it held."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter


class CheckFailure(Exception):
    """Something that must always hold did not."""


@dataclass
class Row:
    """One line of the table: one check of one part."""

    part: str  #: "histories", "kills", ...
    name: str  #: what was checked, in words
    tried: int = 0
    unit: str = ""  #: what `tried` counts: "schedules", "rounds", "operations"
    failures: list[str] = field(default_factory=list)  #: each says how to see it again
    note: str = ""  #: what a reader should know beside the numbers
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)  #: what else was counted, for machines

    @property
    def held(self) -> bool:
        """True if something was tried and nothing failed."""
        return self.tried > 0 and not self.failures

    @contextmanager
    def timed(self) -> Iterator["Row"]:
        """Count the seconds of a block, and take a CheckFailure in as a failure of this row."""
        start = perf_counter()
        try:
            yield self
        except CheckFailure as failure:
            self.failures.append(str(failure))
        finally:
            self.seconds += perf_counter() - start
