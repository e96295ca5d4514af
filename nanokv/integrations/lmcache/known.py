"""The names of objects that this process has stored. NanoKV keeps hashes of keys, so names are kept here.

What has gone from the store goes from here when names are listed, and whenever their number has doubled; so there are
never many more names than objects.
"""

import threading
from collections.abc import Callable, Sequence

_FEW = 4096


class Known:
    """Names, in the order in which they came.

    Args:
        exist: per name, whether its object is there.
    """

    def __init__(self, exist: Callable[[Sequence[str]], list[bool]]) -> None:
        self._exist = exist
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}
        self._limit = _FEW

    def add(self, names: Sequence[str]) -> None:
        """Note names."""
        with self._lock:
            self._names.update(dict.fromkeys(names))
            many = len(self._names) > self._limit
        if many:
            self._limit = max(2 * len(self.those_there()), _FEW)

    def those_there(self) -> list[str]:
        """The names whose objects are there; the others are forgotten."""
        with self._lock:
            names = list(self._names)
        found = self._exist(names)
        with self._lock:
            for name, there in zip(names, found, strict=True):
                if not there:
                    self._names.pop(name, None)
        return [name for name, there in zip(names, found, strict=True) if there]
