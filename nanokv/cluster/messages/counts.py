"""How often something was refused or dropped, by reason. The log tells of each reason once a minute."""

import logging
import threading
from collections import Counter
from enum import StrEnum

from nanokv.seldom import Seldom

_log = logging.getLogger("nanokv.cluster.messages")


class DropReason(StrEnum):
    """Why a question, or a connection, went no further."""

    NO_HANDLER = "no handler for its kind"
    FAILED = "its handler raised"
    STRANGER = "a connection by which no right greeting came soon"
    MALFORMED = "a connection of a member by which something came that is none of its frames"
    SILENT = "a connection of a member by which no byte came, or went, in the middle of a question"
    NO_ROOM = "a connection for which the process has no file descriptor"


class ReasonCounts:
    """Counts by reason: a `Reason` or a `DropReason`. From any thread.

    Args:
        who: counts, for the log.
    """

    def __init__(self, who: str) -> None:
        self._who, self._seldom = who, Seldom(_log)
        self._counter: Counter[StrEnum] = Counter()
        self._lock = threading.RLock()  # a finalizer may tell, and so count, while its thread counts
        self._is_telling = False

    def add(self, reason: StrEnum, detail: str = "") -> None:
        """Count one."""
        with self._lock:
            self._counter[reason] += 1
            if self._is_telling:  # that finalizer
                return
            self._is_telling = True
            try:
                more = f" ({detail})" if detail else ""
                self._seldom.warn(reason.name, f"{self._who} has refused or dropped something: {reason.value}{more}")
            finally:
                self._is_telling = False

    def snapshot(self) -> dict[StrEnum, int]:
        """All that is not 0."""
        with self._lock:
            return dict(self._counter)
