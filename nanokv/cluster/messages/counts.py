"""How often something was refused or dropped, by reason."""

import threading
from collections import Counter
from enum import StrEnum


class Dropped(StrEnum):
    """Why an authentic message went no further."""

    FULL = "its addressee did not take it at once, or is not there"
    GONE = "who asked is gone, or does not read its answers"
    NO_HANDLER = "no handler for its kind"
    FAILED = "its handler raised"


class Counts:
    """Counts by reason: a `Reason` or a `Dropped`. From any thread."""

    def __init__(self) -> None:
        self._counter: Counter[StrEnum] = Counter()
        self._lock = threading.RLock()  # a finalizer may tell, and so count, while its thread counts

    def add(self, reason: StrEnum) -> None:
        """Count one."""
        with self._lock:
            self._counter[reason] += 1

    def snapshot(self) -> dict[StrEnum, int]:
        """All that is not 0."""
        with self._lock:
            return dict(self._counter)
