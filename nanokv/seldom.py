"""What happens often is told seldom: a line in the log per cause and minute, with how often it happened since."""

import logging
import threading
import time

SECONDS = 60.0
_MOST = 256  #: causes that are remembered


class Seldom:
    """A logger for refusals and drops, which counters count one by one."""

    def __init__(self, logger: logging.Logger, seconds: float = SECONDS) -> None:
        self._logger, self._seconds = logger, seconds
        self._lock = threading.Lock()
        self._causes: dict[str, tuple[float, int]] = {}  # when it was told last, and how often it happened since

    def warn(self, cause: str, line: str) -> None:
        """Log a line at WARNING, unless one of this cause was logged within the last minute."""
        now = time.monotonic()
        with self._lock:
            told, untold = self._causes.get(cause, (-self._seconds, 0))
            if now - told < self._seconds:
                self._causes[cause] = told, untold + 1
                return
            if len(self._causes) >= _MOST:
                self._causes.clear()
            self._causes[cause] = now, 0
        self._logger.warning("%s%s", line, f" ({untold} more since it was told last)" if untold else "")
