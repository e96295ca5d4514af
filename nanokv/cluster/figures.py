"""What a member counts of its part in the cluster, as `NanoKVCluster.stats` and `nanokv stats` show it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from nanokv.cluster.counts import Counts
from nanokv.cluster.messages.counts import Dropped
from nanokv.cluster.messages.sealed import Reason
from nanokv.cluster.nodes import Nodes
from nanokv.cluster.pulling import Puller
from nanokv.cluster.putting import Putting
from nanokv.cluster.staging import Staging


class Counting(Protocol):
    """A server, an asker, or a follower of events."""

    @property
    def counts(self) -> Mapping[StrEnum, int]:
        """What it refused or dropped, by `Reason` or `Dropped`."""
        ...


class Figures:
    """Of one member.

    Args:
        counts: what it has done with other nodes.
        staging: its reads; puller: the puts of others; putting: its own.
    """

    def __init__(self, counts: Counts, staging: Staging, puller: Puller, putting: Putting, nodes: Nodes) -> None:
        self._counts, self._staging, self._puller, self._putting, self._nodes = counts, staging, puller, putting, nodes
        self._counting: list[Counting] = []

    def follow(self, *counting: Counting) -> None:
        """Show what these count too."""
        self._counting += counting

    def as_dict(self) -> dict[str, int]:
        """By name. Each reason for which messages are refused or dropped has a name of its own, though it be 0."""
        late = {
            "late_reads": self._staging.late,
            "late_pulls": self._puller.late,
            "late_puts": self._putting.late,
            "late_put_bytes": self._putting.kept.nbytes,
            "members_refused": self._nodes.refused,
        }
        found = {"messages_refused": 0, "messages_dropped": 0}
        found |= {f"messages_refused_{reason.name.lower()}": 0 for reason in Reason}
        found |= {f"messages_dropped_{reason.name.lower()}": 0 for reason in Dropped}
        for each in self._counting:
            for reason, count in each.counts.items():
                total = "messages_refused" if isinstance(reason, Reason) else "messages_dropped"
                found[total] += count
                found[f"{total}_{reason.name.lower()}"] += count
        return self._counts.as_dict() | late | found
