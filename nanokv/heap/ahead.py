"""Memory of a lazy segment, reserved and faulted in by a thread a little before producers need it.

A page that is written for the first time has to be found and zeroed by the kernel, which takes longer than the copy
into it. Producers of any process take new pages in the order of their addresses (`bump_ptr`), and the thread keeps some
beyond it ready. Nothing depends on it: what it has not come to is reserved by the producer that needs it (`backing`),
and faulted in when it is used.
"""

import threading
from collections.abc import Callable
from typing import Any

from nanokv.heap.backing import MOST, SHARE
from nanokv.heap.mapping import populate

_CHUNK = 4 << 20
_BUSY, _IDLE = 0.002, 0.05  #: seconds between two looks


class Ahead:
    """Keeps a part of one payload ready.

    Args:
        mapping: what keeps the memory mapped.
        base: the address of the segment.
        ctl: its HeapCtl.
        begin, end: of the payload, in bytes from the base.
        reserve: reserves it up to an offset; False: there is no memory.
    """

    def __init__(self, mapping: Any, base: int, ctl: Any, begin: int, end: int, reserve: Callable[[int], bool]) -> None:
        self._mapping, self._base, self._ctl = mapping, base, ctl
        self._ready, self._end = begin, end
        self._ahead, self._reserve = min(MOST, (end - begin) // SHARE), reserve
        self._stop = threading.Event()
        self._step()
        self._thread = threading.Thread(target=self._run, name="nanokv-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        busy = False
        while not self._stop.wait(_BUSY if busy else _IDLE):
            busy = self._step()

    def _step(self) -> bool:
        """Fault in what is missing: whether there was something."""
        wanted = min(int(self._ctl["bump_ptr"][0]) + self._ahead, self._end)
        busy = wanted > self._ready
        if busy and not self._reserve(wanted):
            return False
        while wanted > self._ready and not self._stop.is_set():
            size = min(_CHUNK, wanted - self._ready)
            if not populate(self._base + self._ready, size):
                self._ready = self._end  # an old kernel, or no memory
                return False
            self._ready += size
        return busy

    def close(self) -> None:
        """Stop. Idempotent."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
