"""Replicas: what a store tells of where they lie, and tasks that copy or move them.

A task is done when the call that creates it returns. Its end is told afterwards, by the client that created it.
"""

import random
import threading
from dataclasses import dataclass
from enum import IntEnum

from nanokv.integrations.mooncake.codes import ErrorCode, name_of
from nanokv.integrations.mooncake.objects import Objects, tail_bytes

Task = tuple[int, int]
NO_TASK: Task = (0, 0)


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
        """False: none lies in a file."""
        return False

    def is_local_disk_replica(self) -> bool:
        """False: none lies in a file of its client."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """The memory in which it lies."""
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raise RuntimeError: it lies in memory."""
        raise RuntimeError("Expected DiskDescriptor")


def replicas_of(objects: Objects, key: bytes) -> list[ReplicaDescriptor]:
    """The replicas of a value; none if there is no value. It counts as a read."""
    segments = objects.segments.names()
    found = []
    for place in objects.places(key):
        nbytes, segment = place.nbytes - tail_bytes(key), segments.get(place.owner, "a client that left")
        found.append(ReplicaDescriptor(MemoryDescriptor(Descriptor(nbytes, objects.address(place), segment))))
    return found


# --- tasks ---
class TaskType(IntEnum):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(IntEnum):
    """How far a task is."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


@dataclass(frozen=True, slots=True)
class QueryTaskResponse:
    """What is known of a task."""

    id: tuple[int, int]
    type: TaskType
    status: TaskStatus
    message: str = ""


class Tasks:
    """The tasks of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[Task, QueryTaskResponse] = {}

    def copy(self, objects: Objects, key: bytes, targets: list[str]) -> tuple[Task, int]:
        """Copy a value into segments, which are named: the task, and 0 or a code."""
        if not key or not objects.exists(key):
            return NO_TASK, ErrorCode.OBJECT_NOT_FOUND
        ranks = [objects.segments.rank_of(target) for target in targets]
        known = [rank for rank in ranks if rank is not None]
        if not targets or len(known) != len(targets):
            return NO_TASK, ErrorCode.INVALID_PARAMS
        codes = [objects.copy_to(key, rank) for rank in known]
        return self._note(TaskType.REPLICA_COPY, max(codes, key=abs))

    def move(self, objects: Objects, key: bytes, source: str, target: str) -> tuple[Task, int]:
        """Move a replica from one segment to another: the task, and 0 or a code."""
        if not key or not objects.exists(key):
            return NO_TASK, ErrorCode.OBJECT_NOT_FOUND
        before, after = objects.segments.rank_of(source), objects.segments.rank_of(target)
        if before is None or after is None or before == after:
            return NO_TASK, ErrorCode.INVALID_PARAMS
        if any(place.owner == before for place in objects.places(key)):
            code = objects.copy_to(key, after) or objects.remove_at(key, before)
        else:
            code = ErrorCode.REPLICA_NOT_FOUND
        return self._note(TaskType.REPLICA_MOVE, code)

    def _note(self, what: TaskType, code: int) -> tuple[Task, int]:
        task = (random.getrandbits(64), random.getrandbits(64))
        ended = TaskStatus.FAILED if code else TaskStatus.SUCCESS
        with self._lock:
            self._ended[task] = QueryTaskResponse(task, what, ended, name_of(code))
        return task, ErrorCode.OK

    def query(self, task: Task) -> QueryTaskResponse | None:
        """How a task has ended; None for one that is not of this client."""
        with self._lock:
            return self._ended.get(task)
