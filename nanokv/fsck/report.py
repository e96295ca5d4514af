"""fsck's report: findings, each with the invariant, the place, and the remedy."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SHOWN = 8  #: places that one finding names; the rest are counted

REMAKE = "stop its ranks, keep the segment for a bug report, remove the world (`nanokv rm`) and make it anew"
RECOVER = "attach again with on_stale='recover': the sweeper of the owner takes it back"
FORGOTTEN = "nothing waits for it: it goes with the next guest of that number, or when its rank is started anew"
WAIT = "the sweeper of the owner takes it back within seconds; if its owner has ended, attach with on_stale='recover'"


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    invariant: str  #: "I1" to "I10"
    rank: int  #: the owner of the segment
    what: str
    where: str  #: which pages, slots, entries or words
    remedy: str  #: what a user can do
    breach: bool = True  #: False: left by a rank that ended, or in quarantine; can be taken back

    def __str__(self) -> str:
        kind = "breach" if self.breach else "leftover"
        return f"{self.invariant} {kind}, rank {self.rank}: {self.what} ({self.where}); {self.remedy}"


class Report(NamedTuple):
    """All findings in the segments of a world."""

    mode: str  #: "device" or "host"
    quiescent: bool  #: True: nothing moved, all was checked. False: only what must hold at any moment
    segments: int
    objects: int  #: READY objects
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()  #: what was not looked at

    @property
    def breaches(self) -> tuple[Finding, ...]:
        """Findings that no history of correct steps, ended anywhere, can explain."""
        return tuple(finding for finding in self.findings if finding.breach)

    @property
    def leftovers(self) -> tuple[Finding, ...]:
        """Findings that can be taken back."""
        return tuple(finding for finding in self.findings if not finding.breach)

    @property
    def clean(self) -> bool:
        """True if there is no finding at all."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "mode": self.mode,
            "quiescent": self.quiescent,
            "segments": self.segments,
            "objects": self.objects,
            "breaches": len(self.breaches),
            "leftovers": len(self.leftovers),
            "findings": [finding._asdict() for finding in self.findings],
            "not_looked_at": list(self.unseen),
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"clean: {self.segments} segments, {self.objects} objects"


def find(
    invariant: str, rank: int, what: str, unit: str, chosen: npt.NDArray[Any], remedy: str = REMAKE, breach: bool = True
) -> Iterator[Finding]:
    """One finding about slots, pages, entries or lines, if there are any.

    Args:
        unit: one of them, for `named`.
        chosen: their numbers, or a mask.
    """
    numbers = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    if len(numbers):
        yield Finding(invariant, rank, what, named(unit, numbers), remedy, breach)


def named(unit: str, numbers: Iterable[Any] | npt.NDArray[Any]) -> str:
    """Name some of many: "slots 3, 5-9, 12 and 40 more". Numbers that follow each other are shown as a run."""
    array = np.unique(np.fromiter(numbers, np.int64))
    runs = runs_of(array)
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:SHOWN]]
    rest = sum(len(run) for run in runs[SHOWN:])
    if len(array) != 1:
        unit = unit.removesuffix("y") + "ies" if unit.endswith("y") else unit + "s"
    return f"{unit} {', '.join(shown)}" + (f" and {rest} more" if rest else "")


def runs_of(numbers: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Split ascending numbers into runs of numbers that follow each other."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
