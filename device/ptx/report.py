"""What a machine says after its launches: findings and counts."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from nanokv.device.ptx.counting import WarpCounts

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp


class Finding(NamedTuple):
    """Something that should not be, and that no error ended."""

    what: str
    kernel: str
    where: str  #: the instruction, the line of the PTX, and that of the source
    times: int


class LaunchCounts(NamedTuple):
    """What a launch cost.

    Attributes:
        most: of each count the most that one warp has.
        total: of all warps; its chain is the longest one.
    """

    operation: str
    kernel: str
    warps: int
    most: WarpCounts
    total: WarpCounts

    @classmethod
    def of(cls, operation: str, kernel: str, warps: "Sequence[Warp]") -> "LaunchCounts":
        """The counts of the warps of a launch, all of which were counted."""
        counts = [warp.counter.counts for warp in warps if warp.counter is not None]
        most = WarpCounts()
        for each in counts:
            most = most.most(each)
        total = WarpCounts(
            **{field.name: sum(getattr(each, field.name) for each in counts) for field in fields(WarpCounts)}
        )
        total.chain = most.chain
        return cls(operation, kernel, len(counts), most, total)


class Report(NamedTuple):
    """What a machine found and counted.

    Attributes:
        launches: kernel -> launches.
        steps: blocks that were done.
        divergences: how often lanes parted.
        counts: one entry per launch, if the machine counts.
    """

    seed: int
    findings: tuple[Finding, ...]
    launches: dict[str, int]
    steps: int
    divergences: int
    counts: tuple[LaunchCounts, ...]

    def __str__(self) -> str:
        found = [f"  {each.times} times {each.what}: {each.where}" for each in self.findings] or ["  no findings"]
        lines = [f"{sum(self.launches.values())} launches, {self.steps} steps, seed {self.seed}", *found]
        return "\n".join([*lines, *([self.table()] if self.counts else [])])

    def table(self) -> str:
        """The counts: a row per launch, of each count the most that one warp has."""
        names = [field.name for field in fields(WarpCounts)]
        rows = [["operation", "warps", *(name.replace("_", " ") for name in names)]]
        rows += [
            [each.operation, str(each.warps), *(str(getattr(each.most, n)) for n in names)] for each in self.counts
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
        )
