"""Replicas: where they lie, and tasks that copy or move them.

A task is done when the call that creates it returns. `query_task` tells its end, in the client that created it.
"""

import random
import threading
from dataclasses import dataclass
from enum import IntEnum

from nanokv.integrations.mooncake.codes import Code, name_of
from nanokv.integrations.mooncake.descriptors import Descriptor, MemoryDescriptor, ReplicaDescriptor
from nanokv.integrations.mooncake.objects import Objects
from nanokv.integrations.mooncake.removal import Removal
from nanokv.integrations.mooncake.stored import tail_bytes
from nanokv.integrations.mooncake.values import key_bytes, listed

_NO_TASK = (0, 0)


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


class Replicas(Removal):
    """Where replicas lie, and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._task_lock = threading.Lock()
        self._tasks: dict[tuple[int, int], QueryTaskResponse] = {}

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The replicas of a value; none if there is no value. It counts as a read."""
        name, objects = key_bytes(key), self._objects
        if objects is None or not name:
            return []
        names = objects.segments.names()
        return [
            ReplicaDescriptor(
                MemoryDescriptor(
                    Descriptor(
                        place.nbytes - tail_bytes(name),
                        objects.address(place),
                        names.get(place.owner, "a client that left"),
                    )
                )
            )
            for place in objects.places(name)
        ]

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """`get_replica_desc` for each key that has a value."""
        found = {key: self.get_replica_desc(key) for key in listed("keys", keys)}
        return {key: replicas for key, replicas in found.items() if replicas}

    def create_copy_task(self, key: str, targets: list[str]) -> tuple[tuple[int, int], int]:
        """Copy a value into the segments of other clients: the task, and 0 or a code."""
        name, targets, objects = key_bytes(key), listed("targets", targets), self._objects
        if objects is None:
            return _NO_TASK, Code.INVALID_PARAMS
        if not name or not objects.exists(name):
            return _NO_TASK, Code.OBJECT_NOT_FOUND
        ranks = [objects.segments.rank_of(target) for target in targets]
        known = [rank for rank in ranks if rank is not None]
        if not targets or len(known) != len(targets):
            return _NO_TASK, Code.INVALID_PARAMS
        codes = [objects.copy_to(name, rank) for rank in known]
        return self._done(TaskType.REPLICA_COPY, max(codes, key=abs))

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """Move a replica from the segment of one client to that of another: the task, and 0 or a code."""
        name, objects = key_bytes(key), self._objects
        if objects is None:
            return _NO_TASK, Code.INVALID_PARAMS
        if not name or not objects.exists(name):
            return _NO_TASK, Code.OBJECT_NOT_FOUND
        before, after = objects.segments.rank_of(source), objects.segments.rank_of(target)
        if before is None or after is None or before == after:
            return _NO_TASK, Code.INVALID_PARAMS
        return self._done(TaskType.REPLICA_MOVE, self._move(objects, name, before, after))

    def _move(self, objects: Objects, key: bytes, source: int, target: int) -> int:
        if all(place.owner != source for place in objects.places(key)):
            return Code.REPLICA_NOT_FOUND
        return objects.copy_to(key, target) or objects.remove_at(key, source)

    def _done(self, what: TaskType, code: int) -> tuple[tuple[int, int], int]:
        task = (random.getrandbits(64), random.getrandbits(64))
        ended = TaskStatus.FAILED if code else TaskStatus.SUCCESS
        with self._task_lock:
            self._tasks[task] = QueryTaskResponse(task, what, ended, name_of(code))
        return task, Code.OK

    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        """How a task that this client created has ended, and 0; or None and a code."""
        if not isinstance(task_id, tuple | list) or len(task_id) != 2:
            raise TypeError(f"incompatible function arguments: a task is a pair of integers, not {task_id!r}")
        high, low = task_id
        with self._task_lock:
            known = self._tasks.get((high, low))
        return (known, Code.OK) if known else (None, Code.TASK_NOT_FOUND)
