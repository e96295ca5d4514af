"""What a worker counts, and what vLLM logs of it: blocks loaded, lost, stored, known already and refused."""

from dataclasses import asdict, dataclass, fields

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats


@dataclass(slots=True)
class Counts:
    """Blocks of one worker since the last report."""

    loaded: int = 0
    lost: int = 0  #: were there when the scheduler asked, and gone or damaged when they were loaded
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
