"""How long a fault was seen, by whom, and whether it slowed others: measured, and not judged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanokv.check.machine.histories.key_model import OK
from nanokv.check.nodes.calls import LOST, Call

NS = 1_000_000_000
Seen = dict[str, Any]  #: what the watcher of a node saw (`Watcher.as_dict`)


@dataclass
class FaultTimes:
    """Times of one fault, or the longest of several. Seconds; none where nothing of the kind was seen.

    Attributes:
        lost: from its begin until a call to a node that is cut off raised PeerLost: of each observer the first one.
        left: from its begin until an observer saw that the victim is no member any more.
        back: from its end until all nodes read from all others again.
        refused: how long calls took that raised PeerLost, for nodes that could work.
        others: how long calls took meanwhile between nodes that the fault did not cut off from each other.
        calm: the same, before the fault began.
        others_lost: how many of `others` raised PeerLost.
        away: how long the registry did not answer a node.
    """

    lost: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    others_lost: int = 0
    away: list[float] = field(default_factory=list)

    def add(self, more: "FaultTimes") -> None:
        """Take in those of another fault of the kind."""
        for name in ("lost", "left", "back", "refused", "others", "calm", "away"):
            getattr(self, name).extend(getattr(more, name))
        self.others_lost += more.others_lost

    def as_note(self) -> str:
        """The times in words, for people."""
        said = [
            text.format(max(found))
            for text, found in (
                ("PeerLost after {:.2f} s", self.lost),
                ("its lease had ended after {:.2f} s", self.left),
                ("the registry was away for {:.1f} s", self.away),
                ("all well {:.2f} s after the end", self.back),
                ("a call that was PeerLost took {:.2f} s", self.refused),
                ("other calls took {:.3f} s", self.others),
            )
            if found
        ]
        if self.others and self.calm:
            said.append(f"p99 of those {1e3 * p99(self.others):.2f} ms, and {1e3 * p99(self.calm):.2f} ms before it")
        said += [f"{self.others_lost} of those were PeerLost"] if self.others_lost else []
        return "at most: " + ", ".join(said) if said else ""

    def as_numbers(self) -> dict[str, float]:
        """The longest of each, and the 99th percentile of other calls, during the fault and before, for programs."""
        names = ("lost", "left", "back", "refused", "others", "away")
        longest = {name: max(getattr(self, name)) for name in names if getattr(self, name)}
        most = {f"{name}_p99": p99(getattr(self, name)) for name in ("others", "calm") if getattr(self, name)}
        return longest | most | {"others_lost": self.others_lost}


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile."""
    return float(np.quantile(seconds, 0.99, method="higher"))


def first(changes: Iterable[Sequence[Any]], begun: int, is_it: Callable[[str], bool]) -> list[float]:
    """Seconds until the first change of a kind; none: there was none."""
    found = [at for at, what in changes if at >= begun and is_it(what)]
    return [(min(found) - begun) / NS] if found else []


def losses(seen: dict[str, Seen], begun: int, is_cut: Callable[[str, str], bool]) -> list[float]:
    """`FaultTimes.lost`."""
    return [
        after
        for node, saw in seen.items()
        for target, look in saw["looks"].items()
        if is_cut(node, target)
        for after in first(look["changes"], begun, lambda what: what == LOST)
    ]


def departures(seen: dict[str, Seen], begun: int, victim: str) -> list[float]:
    """`FaultTimes.left`, of all nodes but the victim."""
    return [
        after
        for node, saw in seen.items()
        if node != victim
        for after in first(saw["members"], begun, lambda names: victim not in names.split(","))
    ]


def of_calls(
    calls: Iterable[Call],
    homes: Mapping[int, int],
    begun: int,
    ended: int,
    is_cut: Callable[[int, int], bool],
    victim: int,
) -> FaultTimes:
    """`refused`, `others`, `others_lost` and `calm` of calls for one key that were under way during the fault.

    Args:
        homes: of each key the number of its home.
        is_cut: of the numbers of two nodes.
        victim: the number of a node that could not work, whose calls do not count.
    """
    found = FaultTimes()
    for call in calls:
        if call.called > ended or call.audit:
            continue
        took, is_before = (call.returned - call.called) / NS, call.returned < begun
        if not is_before and call.answer == LOST and call.node != victim:
            found.refused.append(took)
        is_put = call.call == "put"
        home = call.home if is_put else homes[call.key]
        if call.many or home < 0 or is_cut(call.node, home) or call.call not in ("put", "get"):
            continue
        if call.answer == OK:
            (found.calm if is_before else found.others).append(took)
        found.others_lost += is_put and not is_before and call.answer == LOST
    return found
