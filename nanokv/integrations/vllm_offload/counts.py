"""What a tier or a manager counts, as vLLM's metrics: chunks stored, known already, refused, loaded, lost, and
damaged.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingMetricMetadata

PREFIX = "vllm:kv_offload_nanokv_chunks_"
MEANINGS = {
    "stored": "Chunks stored in NanoKV.",
    "known": "Chunks that were not stored, because NanoKV had them.",
    "refused": "Chunks that could not be stored in NanoKV: no room, or a lost node.",
    "loaded": "Chunks loaded from NanoKV.",
    "lost": "Chunks that were gone or damaged when they were to be loaded, or whose node was lost.",
    "damaged": "Chunks whose checksum or control words were wrong. They were dropped.",
}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """The metrics, for `build_metric_definitions`. Their label is the kind of the tier."""
    return {PREFIX + name: OffloadingCounterMetadata(text, ("tier",)) for name, text in MEANINGS.items()}


class OffloadCounts:
    """Counts since the last report."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._counts = dict.fromkeys(MEANINGS, 0)

    def add(self, **counts: int) -> None:
        """Count chunks, by the names of MEANINGS."""
        for name, count in counts.items():
            self._counts[name] += count

    def take(self) -> OffloadingConnectorStats | None:
        """The counts as vLLM takes them; then they begin at 0. None if nothing happened."""
        if not any(self._counts.values()):
            return None
        taken = OffloadingConnectorStats()
        for name, count in self._counts.items():
            if count:
                taken.increase_counter(PREFIX + name, count, (self._tier,))
                self._counts[name] = 0
        return taken
