"""The CPU machine: each host call is one call of compiled code, which releases the GIL."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.machines.native_code import compiled
from nanokv.device.machines.records import Begun, Descriptor, Place, What, Words
from nanokv.device.machines.ring_rounds import RingRounds
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import SLEEPS
from nanokv.device.segment.views import SegmentView

_SLEEPS: int = SLEEPS.value


class CodeMachine(Machine):
    """Each host call is a call of a function of `_code`, which takes the world table first."""

    _code: Mapping[str, Callable[..., Any]]

    def call(self, entry: str, *words: int) -> Any:
        return self._code[entry](self.table_address, *words)

    def exchange(self, entry: str, *words: Any) -> Any:
        addresses = (word.ctypes.data if isinstance(word, np.ndarray) else word for word in words)
        return self._code[entry](self.table_address, *addresses)


class NativeMachine(CodeMachine):
    """Runs the protocol on segments in host memory.

    Args:
        geometry: of every segment.
        table: the private world table of this rank (`Geometry.world_table`); kept alive here.
        views: every rank's segment; kept alive here.
        wake: called with a rank whose poller sleeps and has been left a hint.
    """

    #: Up to 1 MiB torch's threads gain nothing over one memcpy, and each torch call after a copy that has emptied the
    #: processor's caches costs 10 to 20 µs. Above it, memcpy beats torch's copy by 5 to 30 % where torch has one
    #: thread, as torchrun and inference engines set it (measured, 2 cores).
    at_once = 1024 * 1024

    def __init__(self, geometry: Geometry, table: Words, views: list[SegmentView], wake: Callable[[int], None]) -> None:
        super().__init__(geometry, int(table.ctypes.data), wake)
        self._table = table
        self._segments = [view.raw for view in views]
        self._code = compiled()
        self._find = self._code["find"]
        self._plan_now = self._code["plan_now"]
        self._put_now, self._get_now = self._code["put_now"], self._code["get_now"]

    # what every caller waits for goes to the code at once
    def put_now(self, owner: int, key: tuple[int, int], src: int, what: What) -> int:
        status: int = self._put_now(self.table_address, owner, key[0], key[1], src, what.address)
        if status >= _SLEEPS:
            status -= _SLEEPS
            self._wake(owner)
        return status

    def get_now(self, key: tuple[int, int], dst: int, what: What) -> int:
        return self._get_now(self.table_address, key[0], key[1], dst, what.address)

    def plan_now(self, owner: int, key: tuple[int, int], nbytes: int, descriptor: Descriptor) -> Begun:
        if any(descriptor):
            return super().plan_now(owner, key, nbytes, descriptor)
        status, slot, epoch, payload = self._plan_now(self.table_address, owner, key[0], key[1], nbytes)
        return Begun(status, Place(owner, slot, epoch, payload, nbytes), -1)

    def find(self, key: tuple[int, int]) -> int:
        status: int = self._find(self.table_address, key[0], key[1])[0]
        return status

    def find_each(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        words = np.fromiter(chain.from_iterable(keys), np.int64, 2 * len(keys))
        found = np.empty(len(keys), np.int64)
        self._code["find_each"](self.table_address, words.ctypes.data, len(keys), found.ctypes.data)
        return found.tolist()

    def ring_rounds(self, owner: int, lives: Words, rows: Words, asked: Words, hole_patience: float) -> RingRounds:
        return RingRounds(self.table_address, owner, lives, rows, asked, hole_patience)

    def look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        raw = self._segments[owner][offset : offset + count * dtype.itemsize]
        return raw.copy().view(dtype)  # bytes at once; a copy of records goes field by field
