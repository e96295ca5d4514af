"""The CPU machine: each host call is one call of compiled code, without the interpreter's lock."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Begun, Descriptor, Drained, Found, Words, free_chains
from nanokv.device.machines.native_code import compiled
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import OBJ_HEADER, SIZE_CLASSES, unpack
from nanokv.device.segment.views import SegmentView


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


class NativeMachine:
    """Runs the protocol on segments in host memory.

    Args:
        geometry: of every segment.
        table: the private world table of this rank (`Geometry.world_table`); kept alive here.
        views: every rank's segment.
        wake: called with a rank whose poller sleeps and has been left a hint.
    """

    kind = "native"

    def __init__(self, geometry: Geometry, table: Words, views: list[SegmentView], wake: Callable[[int], None]) -> None:
        self.geometry = geometry
        self._table = table
        self.table_address = _address(table)
        self._views = views
        self._bases = [_address(view.raw) for view in views]
        self._code = compiled()
        self._wake = wake
        self._put, self._get, self._find, self._asleep = (
            self._code.put,
            self._code.get,
            self._code.find,
            self._code.asleep,
        )

    def _hinted(self, owner: int) -> None:
        if self._asleep(self._bases[owner]):
            self._wake(owner)

    # objects
    def begin(self, owner: int, key: tuple[int, int], nbytes: int, flags: int, what: Descriptor, now: int) -> Begun:
        begun = Begun(*self._code.begin(self.table_address, owner, *key, nbytes, flags, now))
        if begun.status == 0:
            self._code.describe(self.table_address, self._bases[owner], begun.slot, *what)
        return begun

    def seal(
        self, owner: int, key: tuple[int, int], slot: int, epoch: int, payload: int, nbytes: int, what: Descriptor
    ) -> None:
        self._code.seal_payload(self.table_address, owner, *key, slot, epoch, payload, nbytes, *what)

    def finish(self, owner: int, slot: int, epoch: int, phase: int) -> int:
        status: int = self._code.finish(self.table_address, owner, slot, epoch, phase)
        self._hinted(owner)
        return status

    def commit(self, owner: int, slot: int, epoch: int) -> int:
        status: int = self._code.commit(self.table_address, owner, slot, epoch)
        self._hinted(owner)
        return status

    def abort(self, owner: int, slot: int, epoch: int) -> int:
        status: int = self._code.abort(self.table_address, owner, slot, epoch)
        self._hinted(owner)
        return status

    def enter(self, owner: int) -> int:
        return self._code.enter(self.table_address, self._bases[owner])

    def leave(self, owner: int, phase: int) -> None:
        self._code.leave(self.table_address, self._bases[owner], phase)

    def put(self, owner: int, key: tuple[int, int], src: int, nbytes: int, what: Descriptor, now: int) -> int:
        status, asleep = self._put(self.table_address, owner, *key, src, nbytes, now, *what)
        if asleep:
            self._wake(owner)
        return status

    def lookup(self, key: tuple[int, int]) -> Found:
        status, owner, slot, epoch, payload, nbytes, *what = self._code.lookup_described(self.table_address, *key)
        return Found(status, owner, slot, epoch, payload, nbytes, tuple(what))

    def find(self, key: tuple[int, int]) -> int:
        return self._find(self.table_address, *key)[0]

    def read(self, key: tuple[int, int], found: Found, dst: int, now: int) -> int:
        return self._code.read(
            self.table_address, found.owner, found.slot, found.epoch, *key, found.payload, found.nbytes, dst, now
        )

    def verify(self, key: tuple[int, int], found: Found, copy: int) -> int:
        return self._code.verify(self.table_address, found.owner, found.slot, found.epoch, *key, copy, found.nbytes)

    def get(self, key: tuple[int, int], dst: int, nbytes: int, now: int) -> int:
        return self._get(self.table_address, *key, dst, nbytes, now)

    def validate(self, owner: int, slot: int, epoch: int) -> int:
        return self._code.validate(self.table_address, owner, slot, epoch)

    def touch(self, owner: int, slot: int, now: int) -> None:
        self._code.touch(self.table_address, owner, slot, now)

    def remove(self, key: tuple[int, int]) -> int:
        status, owner = self._code.remove(self.table_address, *key)
        self._hinted(owner)
        return status

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        status: int = self._code.remove_slot(self.table_address, owner, slot, epoch)
        self._hinted(owner)
        return status

    def pin(self, owner: int, slot: int, epoch: int) -> tuple[int, int]:
        return self._code.pin(self.table_address, self._bases[owner], slot, epoch)

    def unpin(self, owner: int, slot: int, epoch: int, line: int) -> int:
        return self._code.unpin(self.table_address, self._bases[owner], slot, epoch, line)

    # v1
    def install(
        self,
        owner: int,
        slot: int,
        key: tuple[int, int],
        payload: int,
        nbytes: int,
        flags: int,
        what: Descriptor,
        now: int,
    ) -> int:
        self._code.describe(self.table_address, self._bases[owner], slot, *what)
        return self._code.install(self.table_address, owner, slot, *key, payload, nbytes, flags, now)

    def state(self, owner: int, slot: int) -> int:
        return self._code.state_of(self.table_address, owner, slot)

    def kill(self, owner: int, slot: int, state: int, epoch: int) -> int:
        return self._code.kill_slot(self.table_address, owner, slot, state, epoch)

    def announce(self, owner: int, kind: int, slot: int, epoch: int) -> None:
        self._code.announce_slot(self.table_address, owner, kind, slot, epoch)
        self._hinted(owner)

    # the owner's host
    def drain(self, owner: int, tail: int, room: int) -> Drained:
        out = np.empty(room, np.int64)
        taken, head, hole = self._code.drain(self.table_address, self._bases[owner], tail, _address(out), room)
        hints = out[:taken]
        return Drained(hints, head, hole, *self.snapshots(owner, hints))

    def snapshots(self, owner: int, hints: Words) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        hints = np.ascontiguousarray(hints, np.int64)
        records = np.zeros(len(hints), OBJ_HEADER.dtype)
        good = np.zeros(len(hints), np.int64)
        self._code.snapshots(self.table_address, owner, _address(hints), len(hints), _address(records), _address(good))
        return records, good != 0

    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        return self._views[owner].headers[start : start + count].copy()

    def control(self, owner: int) -> npt.NDArray[Any]:
        return self._views[owner].ctl.copy()

    def activity(self, owner: int) -> npt.NDArray[Any]:
        return self._views[owner].activity.copy()

    def set_control(self, owner: int, field: str, value: int) -> None:
        self._views[owner].ctl[field] = value

    def in_flight(self, owner: int, rank: int, phase: int) -> int:
        return self._code.in_flight(self._bases[owner], rank, phase)

    def give_up(self, owner: int, slot: int, epoch: int, producer: int) -> bool:
        return bool(self._code.give_up(self.table_address, owner, slot, epoch, producer))

    def release(self, owner: int, slot: int, epoch: int) -> bool:
        return bool(self._code.release(self.table_address, owner, slot, epoch))

    def adopt_slot(self, owner: int, slot: int) -> None:
        self._code.adopt_slot(self.table_address, owner, slot)

    def joining(self, owner: int, change: int) -> int:
        return self._code.joining(self.table_address, self._bases[owner], change)

    def detach(self, owner: int, size_class: int) -> Words:
        firsts = np.zeros(self.geometry.shards, np.int64)
        self._code.detach_class(self.table_address, owner, size_class, _address(firsts))
        return free_chains(self.geometry, self._page_links(owner), firsts, size_class)

    def detach_rest(self, owner: int) -> Words:
        first = self._code.detach_rest(self.table_address, owner)
        return np.arange(first if first >= 0 else self.geometry.n_pages, self.geometry.n_pages, dtype=np.int64)

    def push_extents(self, owner: int, pages: Words, classes: Words) -> None:
        pages, classes = np.ascontiguousarray(pages, np.int64), np.ascontiguousarray(classes, np.int64)
        self._code.push_extents(self.table_address, owner, _address(pages), _address(classes), len(pages))

    def page_marks(self, owner: int) -> Words:
        marks = np.zeros(self.geometry.n_pages, np.int64)
        for size_class in range(SIZE_CLASSES):
            self._code.walk_pages(self.table_address, owner, size_class, len(marks), _address(marks))
        return marks

    def slot_marks(self, owner: int) -> Words:
        marks = np.zeros(self.geometry.hdr_count, np.int64)
        self._code.walk_slots(self.table_address, owner, len(marks), _address(marks))
        return marks

    def page_stamps(self, owner: int) -> Words:
        stamps: Words = unpack("LINK", "stamp", self._page_links(owner)).astype(np.int64)
        return stamps

    def _page_links(self, owner: int) -> npt.NDArray[Any]:
        return self._views[owner].page_links

    def pin_ledger(self, owner: int) -> Words:
        return self._views[owner].pins.astype(np.int64)

    def drop_pin(self, owner: int, line: int, said: int, epoch: int) -> bool:
        return bool(self._code.drop_pin(self.table_address, owner, line, said, epoch))

    def clear_intent(self, owner: int, line: int, said: int) -> None:
        self._code.clear_intent(self.table_address, owner, line, said)

    def recount(self, owner: int, slot: int, dead: int) -> bool:
        return bool(self._code.recount(self.table_address, self._bases[owner], slot, dead))
