"""What a drop-in refused or dropped: counted by cause, and logged once per cause and minute.

An engine computes what it does not find, so none of these is an error of a request. But one who wonders why nothing is
reused must find them.
"""

import logging
import threading
from collections import Counter

from nanokv.seldom import Seldom


class Refusals:
    """The refusals and drops of one drop-in. Any thread may call.

    Args:
        logger: where their lines go, at WARNING.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._seldom = Seldom(logger)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, what: str, why: BaseException | str, line: str = "", count: int = 1) -> None:
        """Count a refusal, and tell of it.

        Args:
            what: was refused, in few words: "put", "get".
            why: an error, of which the kind counts; or its name.
            line: for the log, before what the error says. Default: `what`, and the name of the error.
            count: of objects.
        """
        name = why if isinstance(why, str) else type(why).__name__
        cause = f"{what}: {name}"
        with self._lock:
            self._counts[cause] += count
        said = "" if isinstance(why, str) else f": {why}"
        self._seldom.warn(cause, f"NanoKV: {line or cause}{said}")

    def counts(self) -> dict[str, int]:
        """How often each has come, as "what: error"."""
        with self._lock:
            return dict(self._counts)
