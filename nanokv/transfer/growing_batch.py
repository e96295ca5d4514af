"""The requests of one call in one launch: a batch that is replaced by a larger one when a call has more of them."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nanokv.allocation.base import Allocation
from nanokv.device.machines.records import Found, Request

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.engine_cache import Pages


class GrowingBatch:
    """A batch for calls from any thread.

    Args:
        pages: as for `Allocation.batch`.

    Attributes:
        launches: False if each key takes a call of its own; then `run` and `lookup` cannot be called.
    """

    def __init__(self, allocation: Allocation, pages: "Pages | None" = None) -> None:
        self._allocation = allocation
        self._pages = pages
        self._lock = threading.Lock()
        self._batch = allocation.batch(1, pages)
        self.launches = self._batch is not None

    def run(self, operation: Callable[["Batch"], None], requests: Sequence[Request]) -> list[int]:
        """Run `operation`, which puts, gets, finds or removes; returns a status per request."""
        if not requests:
            return []
        with self._lock:
            batch = self._filled(requests)
            operation(batch)
            return batch.answers()

    def lookup(self, requests: Sequence[Request]) -> list[Found]:
        """Where the objects of the requests' keys lie."""
        with self._lock:
            return self._filled(requests).lookup()

    def _filled(self, requests: Sequence[Request]) -> "Batch":
        if self._batch is None or self._batch.capacity < len(requests):
            self._batch = self._allocation.batch(1 << (len(requests) - 1).bit_length(), self._pages)
        assert self._batch is not None
        self._batch.fill(requests)
        return self._batch
