"""What SGLang's storage metrics are told: pages and bandwidth of each batch that was read or written."""

import threading
import time
from collections.abc import Sequence

from sglang.srt.observability.metrics_collector import StorageMetrics

_MOST = 4096  #: batches that are kept until SGLang asks
_GB = 1 << 30


class Metrics:
    """Batches since SGLang has asked last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: list[tuple[int, float]] = []
        self._writes: list[tuple[int, float]] = []

    def read(self, done: Sequence[bool], page_bytes: int, started: float) -> None:
        """A batch was read: per page whether it was, and `time.perf_counter()` of before."""
        self._add(self._reads, done, page_bytes, started)

    def wrote(self, done: Sequence[bool], page_bytes: int, started: float) -> None:
        """A batch was written."""
        self._add(self._writes, done, page_bytes, started)

    def _add(self, batches: list[tuple[int, float]], done: Sequence[bool], page_bytes: int, started: float) -> None:
        seconds = time.perf_counter() - started
        pages = sum(done)
        with self._lock:
            if pages and seconds > 0 and len(batches) < _MOST:
                batches.append((pages, pages * page_bytes / _GB / seconds))

    def take(self) -> StorageMetrics:
        """Pages of each batch, and GiB per second, since the last call."""
        with self._lock:
            reads, self._reads = self._reads, []
            writes, self._writes = self._writes, []
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in reads],
            backup_pgs=[pages for pages, _ in writes],
            prefetch_bandwidth=[rate for _, rate in reads],
            backup_bandwidth=[rate for _, rate in writes],
        )
