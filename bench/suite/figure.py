"""A figure: one measured quantity, with its case, its repetitions, and the distribution of its samples.

Tables, JSON, the report and `bench compare` know nothing but figures.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Case = dict[str, str | int]  #: what was measured, by axis: {"operation": "put", "size": 1024, "system": "NanoKV v2"}
AnyCase = Mapping[str, str | int]  #: what becomes a Case
Bucket = tuple[int, int]  #: (its lower bound in nanoseconds, how many samples lie in it)

HEADLINE = "value"  #: the name under which a quantity without a distribution stands in a repetition
Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of one case, measured several times.

    Attributes:
        question: the name of the question that it answers.
        case: the axes. Figures of one question with the same axes are comparable; no two have equal cases.
        unit: of all values: "us", "s", "GB/s", "M/s", "bytes", "%", "x".
        better: the direction in which a change is an improvement; "neither" for what only describes.
        repetitions: per repetition the values by name. A latency has "n", "p50", "p90", "p99", "p99.9", "p99.99" and
            "max", each a sample and never between two (without those that fewer than ten samples lie above:
            `distribution`); other quantities have "value".
        buckets: the samples of all repetitions together, in buckets 1/64 of their lower bound wide at the most.
        note: what a reader of the row must know: the guarantees of a peer, or why there are few samples.
    """

    question: str
    case: Case
    unit: str
    better: Better
    repetitions: list[dict[str, float]]
    buckets: list[Bucket] = field(default_factory=list)
    note: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the values that every repetition has, in order."""
        first, *others = self.repetitions
        return [name for name in first if name != "n" and all(name in one for one in others)]

    @property
    def headline(self) -> str:
        """The name of the value that stands for the figure: p50 of a latency."""
        return "p50" if "p50" in self.repetitions[0] else HEADLINE

    def median(self, name: str | None = None) -> float:
        """The median over the repetitions; of the headline by default."""
        return statistics.median(self._all(name))

    def spread(self, name: str | None = None) -> tuple[float, float]:
        """The least and the largest over the repetitions; of the headline by default."""
        values = self._all(name)
        return min(values), max(values)

    def _all(self, name: str | None) -> list[float]:
        return [one[name or self.headline] for one in self.repetitions]


def quantity(
    question: str, case: AnyCase, unit: str, better: Better, values: Iterable[float], note: str = ""
) -> Figure:
    """The figure of a quantity without a distribution: one of `values` for each repetition."""
    return Figure(question, dict(case), unit, better, [{HEADLINE: float(value)} for value in values], note=note)
