"""What the store tells about an object: where its replicas lie."""

from dataclasses import dataclass
from enum import IntEnum


class ReplicaStatus(IntEnum):
    """How far a replica is. What NanoKV tells of is COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The memory of a replica.

    Attributes:
        size: bytes of the value.
        buffer_address: where it lies, as this process sees it.
        transport_endpoint: the name of the segment.
    """

    size: int
    buffer_address: int
    transport_endpoint: str

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class DiskDescriptor:
    """A replica in a file. NanoKV has none."""

    file_path: str = ""
    object_size: int = 0


class ReplicaDescriptor:
    """A replica of an object, in the memory of a segment."""

    __slots__ = ("_memory", "status")

    def __init__(self, memory: MemoryDescriptor) -> None:
        self._memory = memory
        self.status = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """True: all replicas lie in memory."""
        return True

    def is_disk_replica(self) -> bool:
        """False."""
        return False

    def is_local_disk_replica(self) -> bool:
        """False."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where it lies."""
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raises RuntimeError: it lies in memory."""
        raise RuntimeError("Expected DiskDescriptor")
