"""What a member has done with other nodes, counted. Best effort between threads, as `statistics.Traffic`."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class MemberCounts:
    """Numbers since the member joined."""

    remote_gets: int = 0  #: objects that get, get_many and bring asked of other nodes
    remote_hits: int = 0  #: objects read from other nodes
    remote_bytes_rx: int = 0  #: bytes of them
    remote_puts: int = 0  #: objects put to other nodes
    remote_bytes_tx: int = 0  #: bytes of them
    peer_lost: int = 0  #: calls that raised PeerLost, or answered a miss instead (option `lost`)

    def read(self, count: int, nbytes: int) -> None:
        """Count objects that were read."""
        self.remote_hits += count
        self.remote_bytes_rx += nbytes

    def put(self, count: int, nbytes: int) -> None:
        """Count objects that were put."""
        self.remote_puts += count
        self.remote_bytes_tx += nbytes

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)
