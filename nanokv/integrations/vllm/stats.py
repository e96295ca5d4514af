"""What a worker counts: blocks loaded, of these from other nodes, lost, of these damaged, stored, known and refused.

vLLM logs them, and shows them to Prometheus as `vllm:nanokv_blocks_loaded_total` and so on.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

MEANINGS = {
    "loaded": "Blocks loaded from NanoKV.",
    "remote": "Blocks loaded that lay on other nodes of the cluster only.",
    "lost": "Blocks that were gone or damaged when they were to be loaded, or whose node was lost, and were computed.",
    "damaged": "Blocks of those lost whose bytes or control words were wrong: memory or a writer is at fault.",
    "stored": "Blocks stored in NanoKV.",
    "known": "Blocks that were stored already.",
    "refused": "Blocks that could not be stored: no room, or their reader is gone.",
}


@dataclass(slots=True)
class WorkerCounts:
    """Blocks of one worker since the last report."""

    loaded: int = 0
    remote: int = 0  #: of those loaded: this node did not have them
    lost: int = 0  #: were there when the scheduler asked, and gone or damaged when they were loaded
    damaged: int = 0  #: of those lost
    stored: int = 0
    known: int = 0  #: not stored, because another request had stored them
    refused: int = 0  #: not stored: no room, or the reader is dead

    def take(self) -> "NanoKVStats | None":
        """The counts as vLLM takes them; then they begin at 0. None if nothing happened."""
        taken = asdict(self)
        if not any(taken.values()):
            return None
        for each in fields(self):
            setattr(self, each.name, 0)
        return NanoKVStats(data=taken)


class NanoKVStats(KVConnectorStats):
    """Sums of counts, over steps and workers."""

    data: dict[str, int]

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        names = self.data.keys() | other.data.keys()
        self.data = {name: self.data.get(name, 0) + other.data.get(name, 0) for name in sorted(names)}
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"nanokv_blocks_{name}": count for name, count in self.data.items()}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class NanoKVPromMetrics(KVConnectorPromMetrics):
    """One counter per count and engine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counters = {name: self._counter(name, meaning) for name, meaning in MEANINGS.items()}

    def _counter(self, name: str, meaning: str) -> dict[int, Any]:
        counter = self._counter_cls(
            name=f"vllm:nanokv_blocks_{name}", documentation=meaning, labelnames=self._labelnames
        )
        per_engine: dict[int, Any] = create_metric_per_engine(counter, self.per_engine_labelvalues)
        return per_engine

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counters in self._counters.items():
            counters[engine_idx].inc(transfer_stats_data.get(name, 0))
