"""A machine runs protocol functions on the segments of a world for a host.

Three machines exist: `native` calls compiled CPU code, `launch` launches kernels (on a GPU, or in Triton's
interpreter), `sim.world` simulates memory. Each has two primitives: `call` runs one protocol function (`exchange`
also passes arrays), `look` copies words. The host calls below are written once, over these; a machine overrides only
those that it runs with more than one CTA.

The host changes shared words in no other way.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Begun, Bell, Descriptor, Found, Hints, Place, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import COPY
from nanokv.device.segment.layout import (
    ACTIVITY,
    CANDIDATES,
    ENTRY_EPOCH_MASK,
    FLAG_PLAN,
    FREE,
    HEAP_CTL,
    JOINER_MASK,
    LABEL,
    LAYOUT,
    OBJ_HEADER,
    QUOTA_TAG_SHIFT,
    RANK_LAYOUTS,
    RANK_QUOTAS,
    WORD,
    unpack,
)

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.engine_cache import Pages
    from nanokv.device.machines.ring_rounds import RingRounds


# --- follows the links of free lists that a host has detached ---------------------------------
def free_chains(geometry: Geometry, links: npt.NDArray[Any], firsts: Mapping[int, Words]) -> tuple[Words, Words]:
    """All extents of detached free lists: (first pages, classes), int64 [extents] each.

    A list that leads out of the arena, to a page that was seen before or to one that is not marked free in its class is
    corrupt: it ends there.

    Args:
        links: the LINK words of all pages, u64 or i64 [n_pages].
        firsts: size class -> the first page of each of its lists, or -1 for an empty one, int64.
    """
    words = links.tolist()
    pages: dict[int, int] = {}
    for size_class, heads in firsts.items():
        size = geometry.class_pages[size_class]
        last = geometry.n_pages - size if size else -1
        for first in heads.tolist():
            page = first
            while 0 <= page <= last and page not in pages:
                if unpack("LINK", "mark", words[page]) != FREE.value + size_class:
                    break
                pages[page] = size_class
                page = unpack("LINK", "next", words[page]) - 1
    return np.array(list(pages), np.int64), np.array(list(pages.values()), np.int64)


# --- the machine -------------------------------------------------------------------------------
_COPY_RANK, _COPY_STATUS, _COPY_SLEEPS = (COPY.offsets[name] // WORD for name in ("rank", "status", "sleeps"))
_PLAN: int = FLAG_PLAN.value
_OK, _MISS = int(Status.OK), int(Status.MISS)


class Machine(ABC):
    """Protocol functions as host calls. Addresses are of this process, statuses are `Status` numbers, `now` is in ns.

    Args:
        geometry: of every segment.
        table_address: of the private world table, as the code that runs the protocol sees it: the `world` of its
            functions.
        wake: called with a rank whose poller sleeps and has been left a hint.
    """

    wakes = True  #: whether `wake` reaches a poller; if not, pollers look by themselves
    at_once = 0  #: up to that many bytes the machine copies at least as fast as torch

    def __init__(self, geometry: Geometry, table_address: int, wake: Callable[[int], None]) -> None:
        self.geometry = geometry
        self.table_address = table_address
        self._wake = wake

    def enter_owner(self) -> None:  # noqa: B027 - only a machine that launches has something to do
        """This thread is a poller from now on: its calls wait for nobody's kernels."""

    def ready(self, *entries: str) -> None:  # noqa: B027 - only a machine that compiles has something to do
        """Compile and load these of `entries.ENTRIES` now, not at their first calls."""

    def watch(self, owner: int, seen: int, seconds: float, asked: Words, pause: float) -> bool | None:
        """Wait until the head of a ring is not `seen`, without the interpreter's lock.

        Args:
            asked: int64 [1], which any thread writes; not 0: the call ends soon.
            pause: seconds before the first look.

        Returns:
            True once it is another one; False after `seconds`, or if asked; None at once if this machine cannot.

        Raises:
            RuntimeError: the GPU's driver has failed.
        """
        return None

    # --- the primitives ---
    @abstractmethod
    def call(self, entry: str, *words: int) -> Any:
        """Run one of `entries.ENTRIES`; `words` follow the world table.

        Returns:
            the answer as an integer; a sequence of them if there are several.
        """

    @abstractmethod
    def exchange(self, entry: str, *words: Any) -> Any:
        """`call`, where some words are arrays (int64, contiguous) that the function reads and writes by address."""

    @abstractmethod
    def look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """Copy `count` records from an offset of a segment, by relaxed loads: only single words are consistent."""

    # --- objects ---
    def begin(
        self, owner: int, key: tuple[int, int], nbytes: int, flags: int, descriptor: Descriptor, now: int
    ) -> Begun:
        """Claim the key, allocate and publish WRITING: OK, DUPLICATE, FULL, NO_HEADER, NO_ENTRY, TOO_LARGE or LOST."""
        status, slot, epoch, payload, phase = self.call("begin", owner, *key, nbytes, flags, now, *descriptor)
        return Begun(status, Place(owner, slot, epoch, payload, nbytes), phase)

    def plan_now(self, owner: int, key: tuple[int, int], nbytes: int, descriptor: Descriptor) -> Begun:
        """`begin` at this time, and `leave`: no activity word counts the kernel that will write the bytes."""
        begun = self.begin(owner, key, nbytes, _PLAN, descriptor, now_ns())
        if begun.status == _OK:
            self.leave(owner, begun.phase)
        return begun._replace(phase=-1)

    def seal(self, key: tuple[int, int], place: Place, descriptor: Descriptor) -> None:
        """Give an object that is WRITING the checksum of the bytes in its pages, before it is committed."""
        owner, slot, epoch, payload, nbytes = place
        self.call("seal", owner, *key, slot, epoch, payload, nbytes, *descriptor)

    def finish(self, place: Place, phase: int) -> int:
        """WRITING -> READY, leave a hint, count the operation out: OK or LOST."""
        return self._hinting("finish", place.owner, place.slot, place.epoch, phase)

    def commit(self, place: Place) -> int:
        """WRITING -> READY, leave a hint: OK or LOST. No operation is counted."""
        return self._hinting("commit", place.owner, place.slot, place.epoch)

    def abort(self, place: Place) -> int:
        """Free an object that is WRITING: OK, or LOST if it was given up before. `leave` afterwards."""
        return self._hinting("abort", place.owner, place.slot, place.epoch)

    def enter(self, owner: int) -> int:
        """Count an operation in; returns the grace phase that `leave` takes."""
        return self.call("enter", owner)

    def leave(self, owner: int, phase: int) -> None:
        """Count an operation out."""
        self.call("leave", owner, phase)

    def put(self, owner: int, key: tuple[int, int], src: int, nbytes: int, descriptor: Descriptor, now: int) -> int:
        """The whole put of `nbytes` contiguous bytes at the address `src`. Answers as `begin`."""
        status, sleeps = self.call("put", owner, *key, src, nbytes, now, *descriptor)
        if sleeps:
            self._wake(owner)
        return status

    def put_now(self, owner: int, key: tuple[int, int], src: int, what: What) -> int:
        """`put` at this time."""
        return self.put(owner, key, src, what.nbytes, what.descriptor, now_ns())

    def lookup(self, key: tuple[int, int]) -> Found:
        """Where the object of a key lies: OK, MISS, NOT_READY or CORRUPT."""
        answer = self.call("lookup", *key)
        return Found(answer[0], Place._make(answer[1:6]), tuple(answer[6:]))

    def find(self, key: tuple[int, int]) -> int:
        """Whether a key has an object: OK, MISS or NOT_READY."""
        return self.call("find", *key)[0]

    # many keys, int64 [n, 2], in one call where the machine has such: a status each, int64 [n]
    def find_each(self, keys: Words) -> Words:
        """`find` for each key."""
        return _statuses(self.find(key) for key in _pairs(keys))

    def use_each(self, keys: Words, now: int) -> Words:
        """`lookup` for each key, and `touch` of what is found."""
        found = [self.lookup(key) for key in _pairs(keys)]
        for each in found:
            if not each.status:
                self.touch(each.place, now)
        return _statuses(each.status for each in found)

    def put_each(self, owners: Words, keys: Words, sources: Words, what: What) -> Words:
        """`put_now` for each owner (int64 [n]), key and address (int64 [n])."""
        triples = zip(owners.tolist(), _pairs(keys), sources.tolist(), strict=True)
        return _statuses(self.put_now(owner, key, source, what) for owner, key, source in triples)

    def get_each(self, keys: Words, targets: Words, what: What) -> Words:
        """`get_now` for each key and address (int64 [n])."""
        pairs = zip(_pairs(keys), targets.tolist(), strict=True)
        return _statuses(self.get_now(key, target, what) for key, target in pairs)

    def remove_each(self, keys: Words) -> Words:
        """`remove` for each key."""
        return _statuses(self.remove(key) for key in _pairs(keys))

    def read(self, key: tuple[int, int], place: Place, dst: int, now: int) -> int:
        """Copy an object that was looked up to the address `dst`, and verify: OK, TORN or CORRUPT."""
        owner, slot, epoch, payload, nbytes = place
        return self.call("read", owner, slot, epoch, *key, payload, nbytes, dst, now)

    def verify(self, key: tuple[int, int], place: Place, copy: int) -> int:
        """After a copy of an object to the address `copy` (or in place, if pinned): OK, TORN or CORRUPT."""
        return self.call("verify", place.owner, place.slot, place.epoch, *key, copy, place.nbytes)

    def get(self, key: tuple[int, int], dst: int, nbytes: int, what: Descriptor, now: int) -> int:
        """Look up and read an object of `nbytes` to the address `dst`.

        OK, MISS, NOT_READY, TORN, CORRUPT, or SIZE if it has another number of bytes, or is not of the dtype and shape
        in `what`: zeros ask for none, and raw bytes have any.
        """
        return self.call("get", *key, dst, nbytes, now, *what)

    def get_now(self, key: tuple[int, int], dst: int, what: What) -> int:
        """`get` at this time."""
        return self.get(key, dst, what.nbytes, what.descriptor, now_ns())

    def validate(self, place: Place) -> int:
        """OK if an object is still READY in the same epoch, else TORN."""
        return self.call("validate", place.owner, place.slot, place.epoch)

    def touch(self, place: Place, now: int) -> None:
        """Note that an object was read, for eviction; its lease ends."""
        self.call("touch", place.owner, place.slot, place.epoch, now)

    def set_terms(self, place: Place, terms: Terms) -> None:
        """Give an object that is WRITING its terms."""
        if terms.access:
            self.call("lease", place.owner, place.slot, terms.access)
        if terms.group or terms.until:
            self.label(place, terms.group, terms.until)

    def label(self, place: Place, group: int, until: int) -> None:
        """Give a label to an object that is WRITING, or that the caller has pinned."""
        self.call("label", place.owner, place.slot, group, until)

    def renew(self, place: Place, without: int, terms: int) -> bool:
        """Change bits of a READY object's ACCESS word. False if it is gone, or is being read at this moment."""
        return bool(self.call("renew", place.owner, place.slot, place.epoch, without, terms))

    def remove(self, key: tuple[int, int]) -> int:
        """Remove the object of a key, and all its copies: OK, MISS, NOT_READY, PINNED or CORRUPT."""
        status, owner, sleeps, copies = self.call("remove", *key)
        self._wake_removed(owner, sleeps, copies)
        return status

    def _wake_removed(self, owner: int, sleeps: int, copies: int) -> None:
        """After `host_calls.host_remove`: wake the pollers of the segments in which something was removed."""
        if copies:
            for rank in range(self.geometry.world_size):
                self._wake(rank)
        elif sleeps:
            self._wake(owner)

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Remove the READY object in a header slot: OK, MISS or PINNED."""
        return self._hinting("remove_slot", owner, slot, epoch)

    def evict_slot(self, owner: int, slot: int, epoch: int, now: int) -> int:
        """Evict the READY object in a header slot: OK, MISS, or PINNED if a pin or a lease holds it."""
        return self._hinting("evict_slot", owner, slot, epoch, now)

    def evict_pages(self, owner: int, pages: int, most: int, now: int) -> tuple[int, int]:
        """Evict objects, chosen by the segment's policy, until `pages` are free, or `most` are gone, or none may go.

        Returns:
            how many objects went, and the pages of their extents.
        """
        gone, freed, sleeps = self.call("evict_pages", owner, pages, most, now)
        if sleeps:
            self._wake(owner)
        return gone, freed

    def pin(self, place: Place) -> tuple[int, int]:
        """Hold a READY object in place: (OK, MISS or NO_PIN; line of the pin ledger)."""
        status, line = self.call("pin", place.owner, place.slot, place.epoch)
        return status, line

    def unpin(self, place: Place, line: int) -> int:
        """Give a pin back: OK, or MISS if the ledger line does not hold it."""
        return self.call("unpin", place.owner, place.slot, place.epoch, line)

    # --- labels and quotas ---
    def labels(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        """The labels of `count` slots from `start` on: LABEL [count]. One counts only with FLAG_LABEL in its header."""
        return self.look(owner, self.geometry.offsets["labels_base"] + start * LABEL.size, LABEL.dtype, count)

    def set_quota(self, owner: int, tag: int, pages: int) -> int:
        """How many pages the objects of an identity may hold in a segment: OK, or FULL if no row is left."""
        word = np.array(tag << QUOTA_TAG_SHIFT.value | pages, np.uint64)
        return self.call("set_quota", owner, int(word.view(np.int64)))

    def quotas(self, owner: int) -> npt.NDArray[np.uint64]:
        """The quotas of a segment, QUOTA bits: uint64 [rows]; 0: no quota."""
        rows = self.geometry.world_size * RANK_QUOTAS
        return self.look(owner, self.geometry.offsets["quotas_base"], np.dtype(np.uint64), rows)

    # --- generations of identities ---
    def generation(self, owner: int, place: int) -> int:
        """The word of generations number `place` of a segment."""
        at = HEAP_CTL.offsets["generations"] + place * WORD
        return int(self.look(owner, at, np.dtype(np.int64), 1)[0])

    def raise_generation(self, owner: int, place: int, at_least: int, more: int) -> int:
        """Raise that word to at least `at_least`, and then by `more`; returns it."""
        return self.call("raise_generation", owner, place, at_least, more)

    # --- copies of objects in other segments (`protocol.replicate`) ---
    def replicate(self, target: int, key: tuple[int, int], now: int) -> int:
        """Copy the object of a key into the segment of `target`: OK, DUPLICATE if that has it, or why there is none.

        MISS, NOT_READY, FULL, NO_HEADER, NO_ENTRY, TORN, CORRUPT, LOST; INVALID for an object without bytes.
        """
        status, sleeps = self.call("replicate", target, *key, now)
        if sleeps:
            self._wake(target)
        return status

    def put_copied(
        self,
        owner: int,
        key: tuple[int, int],
        src: int,
        nbytes: int,
        descriptor: Descriptor,
        now: int,
        targets: Sequence[int],
    ) -> tuple[int, list[int]]:
        """`put`, and a copy in the segment of each of `targets`: (status, ranks that have a copy).

        Another number of copies than asked for is no error.
        """
        copies = np.zeros((len(targets), COPY.size // WORD), np.int64)
        copies[:, _COPY_RANK] = targets
        copies[:, _COPY_STATUS] = _MISS
        status, sleeps = self.exchange("put_copied", owner, *key, src, nbytes, now, *descriptor, copies, len(targets))
        if sleeps:
            self._wake(owner)
        made = [
            row for row in copies.tolist() if row[_COPY_STATUS] == _OK
        ]  # as records it would take three times as long
        for row in made:
            if row[_COPY_SLEEPS]:
                self._wake(row[_COPY_RANK])
        return status, [row[_COPY_RANK] for row in made]

    def find_copies(self, key: tuple[int, int]) -> list[Place]:
        """Where the READY objects of a key lie (without payload), in no order."""
        entries = np.zeros(CANDIDATES.value, np.int64)
        places = []
        for entry in entries[: self.exchange("find_copies", *key, entries)].tolist():
            owner, slot = unpack("ENTRY", "rank", entry), unpack("ENTRY", "header", entry)
            epoch = int(self.headers(owner, slot, 1)["epoch"][0])
            if unpack("ENTRY", "epoch", entry) == epoch & ENTRY_EPOCH_MASK.value:
                places.append(Place(owner, slot, epoch))
        return places

    # --- the table of layouts ---
    def write_layout(self, owner: int, row: npt.NDArray[Any]) -> int:
        """Write a row (LAYOUT [1]) into a segment's table, unless it is there: OK, FULL, or DUPLICATE if its tag is."""
        return self.exchange("write_layout", owner, row.view(np.int64))

    def layouts(self, owner: int) -> npt.NDArray[Any]:
        """The table of layouts: LAYOUT [rows]. A row may be half written."""
        at, rows = self.geometry.offsets["layouts_base"], self.geometry.world_size * RANK_LAYOUTS
        return self.look(owner, at, LAYOUT.dtype, rows)

    # --- v1: the master's host allocates ---
    def install(self, key: tuple[int, int], place: Place, flags: int, descriptor: Descriptor, now: int) -> int:
        """Write a header and descriptor for a slot and pages that the master chose, WRITING; returns the epoch.

        `place.epoch` is not read. `flags`: see `host_alloc.install`.
        """
        owner, slot, _, payload, nbytes = place
        return self.call("install", owner, slot, *key, payload, nbytes, flags, now, *descriptor)

    def store_payload(self, place: Place, src: int) -> None:
        """Copy the bytes of an object from the address `src` to its pages."""
        self.call("store_payload", place.owner, place.payload, src, place.nbytes)

    def state(self, owner: int, slot: int) -> int:
        """The newest STATE word of a header slot."""
        return self.call("state", owner, slot)

    def kill(self, owner: int, slot: int, state: int, epoch: int) -> int:
        """(state, 0, epoch) -> (DEAD, 0, epoch). Returns the old STATE word."""
        return self.call("kill", owner, slot, state, epoch)

    def announce(self, owner: int, kind: int, slot: int, epoch: int) -> None:
        """Leave a hint (STORED, REMOVED or EVICTED); the last two also take the pages out of the header."""
        if self.call("announce", owner, kind, slot, epoch):
            self._wake(owner)

    # --- the owner's host: the poller and the sweeper ---
    def drain(self, owner: int, tail: int, room: int) -> Hints:
        """Take at most `room` hints from the ring, from the ticket `tail` on, with the headers that they are about."""
        out = np.empty(room, np.int64)
        taken, head, hole = self.exchange("drain", owner, tail, out, room)
        return Hints(out[:taken], head, hole, *self.snapshots(owner, out[:taken]))

    def ring_rounds(
        self, owner: int, lives: Words, rows: Words, asked: Words, hole_patience: float
    ) -> "RingRounds | None":
        """The native rounds of an owner's poller, or None if this machine has none: see `RingRounds`."""
        return None

    def waits_on(self, bell: Bell) -> Callable[[tuple[int, int], float, float], int] | None:
        """A function that waits until an object is READY, or None if this machine has none.

        It takes the key, seconds of looking without a pause, and seconds in all, less than one. It returns the status.
        """
        return None

    def snapshots(self, owner: int, hints: Words) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Per hint the header that a STORED one is about (OBJ_HEADER [n]), and whether that is whole (bool [n])."""
        records, good = np.zeros(len(hints) * OBJ_HEADER.size // WORD, np.int64), np.zeros(len(hints), np.int64)
        self.exchange("snapshots", owner, np.ascontiguousarray(hints, np.int64), len(hints), records, good)
        return records.view(OBJ_HEADER.dtype), good != 0

    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        """At most `count` headers from the slot `start` on: OBJ_HEADER [count]."""
        at = self.geometry.offsets["hdr_base"] + start * OBJ_HEADER.size
        return self.look(owner, at, OBJ_HEADER.dtype, min(count, self.geometry.hdr_count - start))

    def control(self, owner: int) -> Any:
        """The HeapCtl: HEAP_CTL [1]."""
        return self.look(owner, 0, HEAP_CTL.dtype, 1)

    def activity(self, owner: int) -> npt.NDArray[Any]:
        """The ACTIVITY record of each rank, then of each guest: [producers]."""
        return self.look(owner, self.geometry.offsets["activity_base"], ACTIVITY.dtype, self.geometry.producers)

    def set_control(self, owner: int, field: str, value: int) -> None:
        """Store a word of HeapCtl that only the owner's host writes."""
        assert HEAP_CTL.dtype[field].itemsize == WORD, field
        self.call("store_control", owner, HEAP_CTL.offsets[field], value)

    def in_flight(self, owner: int, rank: int, phase: int) -> int:
        """How many operations of a rank are in flight in a segment, in one grace phase."""
        return self.call("in_flight", owner, rank, phase)

    def give_up(self, owner: int, slot: int, epoch: int) -> bool:
        """Make an unfinished object DEAD; False if it moved on."""
        return bool(self.call("give_up", owner, slot, epoch))

    def release(self, owner: int, slot: int, epoch: int) -> bool:
        """Free a DEAD header and what it holds, after a grace period; False if it moved on."""
        return bool(self.call("release", owner, slot, epoch))

    def adopt_slot(self, owner: int, slot: int) -> None:
        """Give a leaked header slot back."""
        self.call("adopt_slot", owner, slot)

    def begin_join(self, owner: int, over: int = 0) -> int:
        """Mark that this rank joins free extents: the mark, or 0 if another host joins. `over`: a mark to replace."""
        self.ready("detach_class", "detach_rest", "push_extents", "end_join")  # puts find no pages from here on
        return self.call("begin_join", owner, over)

    def end_join(self, owner: int, mark: int) -> None:
        """Remove the mark, unless another host has replaced it."""
        self.call("end_join", owner, mark)

    def joining(self, owner: int) -> int:
        """The mark of the host that joins free extents now, or died while it did; 0 if there is none."""
        mark = self.call("joiner", owner)
        return mark if mark & JOINER_MASK.value else 0

    def forget_splits(self, owner: int, seen: int) -> bool:
        """Count the splits under way as ended; False if the SPLITTING word is no longer `seen` (`splitting`)."""
        return bool(self.call("forget_splits", owner, seen))

    def outlook(self, owner: int, size_class: int) -> int:
        """What there is for an extent of a size class: NOTHING, NEIGHBOURS to join, or an EXTENT (`joinable`)."""
        return self.call("outlook", owner, size_class)

    def detach(self, owner: int, size_class: int) -> Words:
        """Take all free extents of a size class out of their lists: their first pages, int64."""
        return self._detached(owner, [size_class])[0]

    def detach_all(self, owner: int) -> tuple[Words, Words]:
        """Take all free extents out of their lists: (first pages, classes), int64 each."""
        return self._detached(owner, range(self.geometry.n_classes))

    def _detached(self, owner: int, classes: Iterable[int]) -> tuple[Words, Words]:
        firsts = {k: np.zeros(self.geometry.shards, np.int64) for k in classes}
        for k, words in firsts.items():
            self.exchange("detach_class", owner, k, words)
        return free_chains(self.geometry, self.page_links(owner), firsts)

    def detach_rest(self, owner: int) -> Words:
        """Take all pages that were never used: their numbers, int64."""
        first = self.call("detach_rest", owner)
        return np.arange(first if first >= 0 else self.geometry.n_pages, self.geometry.n_pages, dtype=np.int64)

    def push_extents(self, owner: int, pages: Words, classes: Words) -> None:
        """Give extents back, by their first pages and size classes: int64 [n] each."""
        pages, classes = np.ascontiguousarray(pages, np.int64), np.ascontiguousarray(classes, np.int64)
        self.exchange("push_extents", owner, pages, classes, len(pages))

    def page_marks(self, owner: int) -> Words:
        """Per page 1 + the size class of the free extent that begins there, else 0: int64 [n_pages]."""
        marks = np.zeros(self.geometry.n_pages, np.int64)
        self.exchange("walk_pages", owner, len(marks), marks)
        return marks

    def slot_marks(self, owner: int) -> Words:
        """Per header slot 1 if it is in a free list, else 0: int64 [hdr_count]."""
        marks = np.zeros(self.geometry.hdr_count, np.int64)
        self.exchange("walk_slots", owner, len(marks), marks)
        return marks

    def page_links(self, owner: int) -> npt.NDArray[Any]:
        """The link of each page, LINK bits: uint64 [n_pages]."""
        return self.look(owner, self.geometry.offsets["links_base"], np.dtype(np.uint64), self.geometry.n_pages)

    def page_stamps(self, owner: int) -> Words:
        """Per page how often it was handed over: int64 [n_pages]."""
        stamps: Words = unpack("LINK", "stamp", self.page_links(owner)).astype(np.int64)
        return stamps

    def pin_ledger(self, owner: int, first: int = 0, count: int | None = None) -> Words:
        """At most `count` words of the pin ledger from the line `first` on, by default all: int64."""
        left = self.geometry.pin_slots - first
        at = self.geometry.offsets["pin_base"] + first * WORD
        return self.look(owner, at, np.dtype(np.int64), left if count is None else min(count, left))

    def drop_pin(self, owner: int, line: int, word: int, epoch: int) -> bool:
        """Remove the pin of a dead reader; False if its ledger line is no longer `word`."""
        return bool(self.call("drop_pin", owner, line, word, epoch))

    def clear_intent(self, owner: int, line: int, word: int) -> None:
        """Free the ledger line of a reader that died with an INTENT; only after `recount`."""
        self.call("clear_intent", owner, line, word)

    def recount(self, owner: int, slot: int, dead: int) -> bool:
        """Lower the pins of an object to its HELD lines; False if living readers were just pinning or unpinning."""
        return bool(self.call("recount", owner, slot, dead))

    # --- many objects ---
    def batch(self, capacity: int, pages: "Pages | None" = None) -> "Batch | None":
        """A table of requests that one launch puts, gets, finds or removes; None if it launches no kernels."""
        return None

    def _hinting(self, entry: str, owner: int, *words: int) -> int:
        status, sleeps = self.call(entry, owner, *words)
        if sleeps:
            self._wake(owner)
        return status


def _pairs(keys: Words) -> Iterable[tuple[int, int]]:
    """The keys, int64 [n, 2], one by one."""
    return map(tuple, keys.tolist())


def _statuses(statuses: Iterable[int]) -> Words:
    return np.fromiter(statuses, np.int64)
