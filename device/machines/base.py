"""What a machine is: something that runs the protocol functions on a world's segments when the host asks for it.

Two exist: `native_machine` calls compiled CPU code; `launch` launches one-CTA kernels (a GPU, or Triton's interpreter).
The host never changes a shared word in another way, except the few words of HeapCtl that nobody else writes.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nanokv.device.protocol.extent import FREE
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import unpack

Descriptor = tuple[int, ...]  #: eight words: dtype code and number of dimensions, then seven dimensions
Words = npt.NDArray[np.int64]


class Begun(NamedTuple):
    """What `begin` answers. After OK: fill `payload` (an offset), then `finish` or `abort` and `leave`."""

    status: int
    slot: int
    epoch: int
    payload: int
    phase: int


class Found(NamedTuple):
    """What `lookup` answers. Beside OK, true only if `validate` says so afterwards."""

    status: int
    owner: int
    slot: int
    epoch: int
    payload: int
    nbytes: int
    descriptor: Descriptor


class Request(NamedTuple):
    """One object to put or get."""

    key: tuple[int, int]
    address: int  #: of the source or the destination, as the launching device sees it
    nbytes: int
    owner: int = 0  #: put: whose segment gets the object
    what: Descriptor = (0,) * 8  #: the descriptor; get: an object that has another is not read, zeros: any is
    flags: int = 0
    block: int = 0  #: of the batch's pages, instead of an address
    plane: int = 0  #: the first plane of the object


class Drained(NamedTuple):
    """What was taken from a ring."""

    hints: Words
    head: int  #: the ticket up to which was looked
    hole: int  #: the first ticket whose slot was empty, or `head`
    records: npt.NDArray[Any]  #: for each hint the header that a STORED one is about (OBJ_HEADER)
    good: npt.NDArray[np.bool_]  #: for each hint whether that is whole; False if it is not about a READY header


def free_chains(geometry: Geometry, links: npt.NDArray[Any], firsts: Words, size_class: int) -> Words:
    """The first pages of all extents of detached free lists.

    A list ends where it leads out of the arena, to a page that was seen, or to one that does not say that it is free:
    it is corrupt from there on.

    Args:
        links: of all pages, u64 or i64 [n_pages].
        firsts: the first page of each list, or -1 for an empty one.
    """
    following = unpack("LINK", "next", links).tolist()
    marks = unpack("LINK", "mark", links).tolist()
    size = geometry.class_pages[size_class]
    last = geometry.n_pages - size if size else -1
    pages: dict[int, None] = {}
    for first in firsts.tolist():
        page = first
        while 0 <= page <= last and page not in pages and marks[page] == FREE.value + size_class:
            pages[page] = None
            page = following[page] - 1
    return np.array(list(pages), np.int64)


class Machine(Protocol):
    """Protocol functions as host calls. Addresses are in this process; statuses are `Status` numbers; `now` is ns."""

    kind: str  #: "native" or "launch"
    geometry: Geometry
    table_address: int  #: of the private world table, for whatever runs the protocol: the `world` of its functions

    # objects
    def begin(self, owner: int, key: tuple[int, int], nbytes: int, flags: int, what: Descriptor, now: int) -> Begun: ...
    def seal(
        self, owner: int, key: tuple[int, int], slot: int, epoch: int, payload: int, nbytes: int, what: Descriptor
    ) -> None: ...
    def finish(self, owner: int, slot: int, epoch: int, phase: int) -> int: ...
    def commit(self, owner: int, slot: int, epoch: int) -> int: ...
    def abort(self, owner: int, slot: int, epoch: int) -> int: ...
    def enter(self, owner: int) -> int: ...
    def leave(self, owner: int, phase: int) -> None: ...
    def put(self, owner: int, key: tuple[int, int], src: int, nbytes: int, what: Descriptor, now: int) -> int: ...
    def lookup(self, key: tuple[int, int]) -> Found: ...
    def find(self, key: tuple[int, int]) -> int: ...
    def read(self, key: tuple[int, int], found: Found, dst: int, now: int) -> int:
        """OK, TORN or CORRUPT. One that launches reads what has the key now, if of the same descriptor: v2 alone."""
        ...

    def get(self, key: tuple[int, int], dst: int, nbytes: int, now: int) -> int: ...
    def verify(self, key: tuple[int, int], found: Found, copy: int) -> int: ...
    def validate(self, owner: int, slot: int, epoch: int) -> int: ...
    def touch(self, owner: int, slot: int, now: int) -> None: ...
    def remove(self, key: tuple[int, int]) -> int: ...
    def remove_slot(self, owner: int, slot: int, epoch: int) -> int: ...
    def pin(self, owner: int, slot: int, epoch: int) -> tuple[int, int]: ...
    def unpin(self, owner: int, slot: int, epoch: int, line: int) -> int: ...

    # v1: the host allocates, the segment holds headers and payload alone
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
    ) -> int: ...
    def state(self, owner: int, slot: int) -> int: ...
    def kill(self, owner: int, slot: int, state: int, epoch: int) -> int: ...
    def announce(self, owner: int, kind: int, slot: int, epoch: int) -> None: ...

    # the owner's host: the poller and the sweeper
    def drain(self, owner: int, tail: int, room: int) -> Drained: ...
    def snapshots(self, owner: int, hints: Words) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]: ...
    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]: ...
    def control(self, owner: int) -> npt.NDArray[Any]: ...
    def activity(self, owner: int) -> npt.NDArray[Any]: ...
    def set_control(self, owner: int, field: str, value: int) -> None: ...
    def in_flight(self, owner: int, rank: int, phase: int) -> int: ...
    def give_up(self, owner: int, slot: int, epoch: int, producer: int) -> bool: ...
    def release(self, owner: int, slot: int, epoch: int) -> bool: ...
    def adopt_slot(self, owner: int, slot: int) -> None: ...
    def joining(self, owner: int, change: int) -> int: ...
    def detach(self, owner: int, size_class: int) -> Words: ...
    def detach_rest(self, owner: int) -> Words: ...
    def push_extents(self, owner: int, pages: Words, classes: Words) -> None: ...
    def page_marks(self, owner: int) -> Words: ...
    def slot_marks(self, owner: int) -> Words: ...
    def page_stamps(self, owner: int) -> Words: ...
    def pin_ledger(self, owner: int) -> Words: ...
    def drop_pin(self, owner: int, line: int, said: int, epoch: int) -> bool: ...
    def clear_intent(self, owner: int, line: int, said: int) -> None: ...
    def recount(self, owner: int, slot: int, dead: int) -> bool: ...
