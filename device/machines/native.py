"""The CPU machine: each host call is one call of compiled code, which releases the GIL."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.machines.native_code import compiled
from nanokv.device.machines.records import Begun, Bell, Descriptor, Place, What, Words
from nanokv.device.machines.ring_rounds import RingRounds
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import SECOND, SLEEPS
from nanokv.device.segment.layout import WORD
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

    #: Up to 1 MiB two threads of torch gain nothing at a put, and a quarter at a get if both cores are idle; while
    #: anything else runs they wait milliseconds for each other. Above it more threads may gain more, so torch copies
    #: where it has them; with one thread it is as fast at a get, and takes 1.7 times as long at a put (2 cores).
    at_once = 1024 * 1024

    def __init__(self, geometry: Geometry, table: Words, views: list[SegmentView], wake: Callable[[int], None]) -> None:
        super().__init__(geometry, int(table.ctypes.data), wake)
        self._table = table
        self._segments = [view.raw for view in views]
        self._code = compiled()
        self._find = self._code["find"]
        self._plan_now = self._code["plan_now"]
        self._put_now, self._get_now = self._code["put_now"], self._code["get_now"]

    def ready(self, *entries: str) -> None:
        for entry in entries:
            self._code[entry]

    # what every caller waits for goes to the code at once
    def put_now(self, owner: int, key: tuple[int, int], src: int, what: What) -> int:
        status: int = self._put_now(self.table_address, owner, key[0], key[1], src, what.address)
        if status >= _SLEEPS:
            status -= _SLEEPS
            self._wake(owner)
        return status

    def get_now(self, key: tuple[int, int], dst: int, what: What) -> int:
        return self._get_now(self.table_address, key[0], key[1], dst, what.address)

    def new_kind(self, nbytes: int, descriptor: Descriptor) -> int:
        """The place of a size, dtype and shape among the NEW records of a cache."""
        place: int = self._code["new_kind"](descriptor[0], nbytes, *descriptor[1:4])
        return place

    def bound(self, entry: str, me: object, like: Callable[..., Any]) -> Callable[..., Any]:
        """A call of `native.objects`, with the tuple that it is told as its self; it shows the signature of `like`."""
        from nanokv.device.machines.native_library import (
            bound,  # brings LLVM, which `import nanokv.cache.cache` is spared
        )

        return bound(self._code[entry], me, like)

    def hashes(self, hashing: Any) -> Callable[[list[Any]], Words | None]:
        """What hashes the keys of a list by a HASHING record: int64 [n, 2]; None if one is unusual."""
        hash_each = self._code["hash_each"]

        def digests(keys: list[Any]) -> Words | None:
            words = np.empty((len(keys), 2), np.int64)
            done: int = hash_each(keys, hashing.ctypes.data, words.ctypes.data)
            return words if done == len(keys) else None

        return digests

    def plan_now(self, owner: int, key: tuple[int, int], nbytes: int, descriptor: Descriptor) -> Begun:
        if any(descriptor):
            return super().plan_now(owner, key, nbytes, descriptor)
        status, slot, epoch, payload = self._plan_now(self.table_address, owner, key[0], key[1], nbytes)
        return Begun(status, Place(owner, slot, epoch, payload, nbytes), -1)

    def find(self, key: tuple[int, int]) -> int:
        status: int = self._find(self.table_address, key[0], key[1])[0]
        return status

    def find_each(self, keys: Words) -> Words:
        found = np.empty(len(keys), np.int64)
        self._code["find_each"](self.table_address, keys.ctypes.data, len(keys), found.ctypes.data)
        return found

    def use_each(self, keys: Words, now: int) -> Words:
        found = np.empty(len(keys), np.int64)
        self._code["use_each"](self.table_address, keys.ctypes.data, len(keys), now, found.ctypes.data)
        return found

    def put_each(self, owners: Words, keys: Words, sources: Words, what: What) -> Words:
        statuses, done = np.empty(len(keys), np.int64), 0
        put, table, out = self._code["put_each"], self.table_address, statuses.ctypes.data
        of, key, source = owners.ctypes.data, keys.ctypes.data, sources.ctypes.data
        while done < len(keys):
            skip = done * WORD
            words = (of + skip, key + 2 * skip, source + skip, len(keys) - done, what.address, out + skip)
            done += put(table, *words)
            if statuses[done - 1] >= _SLEEPS:
                statuses[done - 1] -= _SLEEPS
                self._wake(int(owners[done - 1]))
        return statuses

    def get_each(self, keys: Words, targets: Words, what: What) -> Words:
        statuses = np.empty(len(keys), np.int64)
        words = (keys.ctypes.data, targets.ctypes.data, len(keys), what.address, statuses.ctypes.data)
        self._code["get_each"](self.table_address, *words)
        return statuses

    def remove_each(self, keys: Words) -> Words:
        statuses, done = np.empty(len(keys), np.int64), 0
        while done < len(keys):
            skip = done * WORD
            words = (keys.ctypes.data + 2 * skip, len(keys) - done, statuses.ctypes.data + skip)
            count, owner, sleeps, copies = self._code["remove_each"](self.table_address, *words)
            self._wake_removed(owner, sleeps, copies)
            done += count
        return statuses

    def ring_rounds(self, owner: int, lives: Words, rows: Words, asked: Words, hole_patience: float) -> RingRounds:
        return RingRounds(self.table_address, owner, lives, rows, asked, hole_patience)

    def waits_on(self, bell: Bell) -> Callable[[tuple[int, int], float, float], int]:
        code, table = self._code["await_ready"], self.table_address

        def wait(key: tuple[int, int], spin: float, seconds: float) -> int:
            status: int = code(table, *key, *bell, int(spin * SECOND), int(seconds * SECOND))
            return status

        return wait

    def look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        raw = self._segments[owner][offset : offset + count * dtype.itemsize]
        return raw.copy().view(dtype)  # bytes at once; a copy of records goes field by field
