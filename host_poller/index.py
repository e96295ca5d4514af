"""The index of the objects in this rank's segment: one row per header slot, in arrays; a batch costs no Python loop.

The index is a copy for the host's own use (iteration, events, statistics). Readers look keys up in the directory.
An object enters the index once per life of its slot: the row carries the header's epoch, and a row that has this epoch
already is left alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import NO_ROW as NO_ROW_WORD
from nanokv.device.segment.layout import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    EVICTED,
    OBJ_HEADER,
    READY,
    STORED,
    WORD,
    key_checks,
)
from nanokv.host_poller.events import Event, EventKind
from nanokv.types import KeyDigest, ObjMeta, known_digest


# --- a lock whose holder lets go of it soon after somebody else asks ---------------------------
class Turn:
    """Taken by `with turn` from any thread, shortly: the poller's native rounds end then.

    Attributes:
        asked: int64 [1]: how many threads wait for it, or have it; native code reads it.
    """

    def __init__(self) -> None:
        self.asked: Words = np.zeros(1, np.int64)
        self._lock = threading.Lock()
        self._counting = threading.Lock()

    @contextmanager
    def for_long(self) -> Iterator[None]:
        """Take it without asking. The holder looks at `asked`, and lets go of it when that is not 0."""
        with self._lock:
            yield

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let the holder let go of it, during the block, without taking it."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def __enter__(self) -> None:
        self._count(1)
        try:
            self._lock.acquire()
        except BaseException:  # a signal's
            self._count(-1)
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self.asked[0] += change


# --- the index --------------------------------------------------------------------------------
Records = npt.NDArray[Any]  #: OBJ_HEADER records
Slots = npt.NDArray[np.int64]
NO_ROW: int = NO_ROW_WORD.value
_WORDS = OBJ_HEADER.size // WORD
_OF_META = ("payload_base", "bytes_total", "page_size", "n_pages", "epoch")  # fields of a header, as ObjMeta has them


def as_words(records: Records) -> npt.NDArray[np.int64]:
    """Records as rows of words, in the same memory: numpy copies words at once, but records field by field."""
    return records.view(np.int64).reshape(-1, _WORDS)


def as_records(words: npt.NDArray[np.int64]) -> Records:
    """The other way round, in the same memory."""
    return words.view(OBJ_HEADER.dtype).reshape(-1)


def life_words(epochs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The STATE words of objects that are READY in these epochs, without the bits that readers change."""
    words: npt.NDArray[np.int64] = epochs.astype(np.int64) << EPOCH_SHIFT.value | READY.value
    return words


class IndexChange(NamedTuple):
    """Rows that left the index and rows that came, with their headers as they were."""

    gone: Slots
    gone_records: Records
    came: Slots
    came_records: Records
    how: EventKind = EventKind.REMOVED  #: the rows went


def changes_of(noted: npt.NDArray[Any]) -> Iterator[IndexChange]:
    """CHANGE records, in their order, as few changes of many rows."""
    first = 0
    for kind, same in groupby(noted["kind"].tolist()):
        some = noted[first : first + len(list(same))]
        first += len(some)
        slots, headers = some["slot"].copy(), as_records(np.ascontiguousarray(some["header"]))
        none = slots[:0], headers[:0]
        if kind == STORED.value:
            yield IndexChange(*none, slots, headers)
        else:
            yield IndexChange(slots, headers, *none, EventKind.EVICTED if kind == EVICTED.value else EventKind.REMOVED)


class HeaderIndex:
    """The rows of one rank. Written only by the poller's thread; read by any thread.

    Attributes:
        turn: whose holder may read and write the rows.
    """

    def __init__(self, geometry: Geometry, rank: int) -> None:
        self._geometry = geometry
        self._rank = rank
        self.turn = Turn()
        self._lives = np.full(geometry.hdr_count, NO_ROW)  # the STATE word of each row, as `life_words`, or NO_ROW
        self._records = np.zeros(geometry.hdr_count, OBJ_HEADER.dtype)
        self._words = as_words(self._records)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._lives != NO_ROW))

    @property
    def bytes_stored(self) -> int:
        """Payload bytes of all indexed objects."""
        with self.turn:
            return int(self._records["bytes_total"][self._lives != NO_ROW].sum())

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The index itself, for native code: per slot `lives`, and the words of its header."""
        return self._lives, self._words

    def epochs(self) -> npt.NDArray[np.int64]:
        """The epoch of each slot's row; -1 where there is none."""
        lives = self._lives.copy()
        return np.where(lives == NO_ROW, -1, lives >> EPOCH_SHIFT.value & EPOCH_MASK.value)

    def lives(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The STATE word of the row of each of `count` slots from `first` on, as `life_words` has it, or NO_ROW."""
        return self._lives[first : first + count].copy()

    def stored(self, slots: Slots, records: Records) -> IndexChange:
        """Take in headers that were READY. A row of another epoch leaves; a row of the same epoch stays as it is."""
        slots, last = np.unique(slots[::-1], return_index=True)
        last = len(records) - 1 - last
        lives = life_words(records["epoch"][last])
        with self.turn:
            new = self._lives[slots] != lives
            slots, lives, words = slots[new], lives[new], as_words(records)[last[new]]
            old = slots[self._lives[slots] != NO_ROW]
            old_records = as_records(self._words[old])
            self._words[slots] = words
            self._lives[slots] = lives
        return IndexChange(old, old_records, slots, as_records(words))

    def removed(self, slots: Slots, epochs: npt.NDArray[np.int64], how: EventKind = EventKind.REMOVED) -> IndexChange:
        """Remove the rows of these slots that have the epoch given; rows of other epochs stay."""
        with self.turn:
            hit = self._lives[slots] == life_words(epochs)
            gone = np.unique(slots[hit])
            gone_records = as_records(self._words[gone])
            self._lives[gone] = NO_ROW
        return IndexChange(gone, gone_records, gone[:0], gone_records[:0], how)

    def rows(self) -> tuple[Slots, Records]:
        """A copy of all rows: slots and header records."""
        with self.turn:
            slots = np.flatnonzero(self._lives != NO_ROW)
            return slots, as_records(self._words[slots])

    def digests(self) -> Iterator[KeyDigest]:
        """The digests of all keys, as they were at the call."""
        _, records = self.rows()
        hashes, checks = (halves.view(np.int64).tolist() for halves in (records["key_hash"], key_checks(records)))
        return map(KeyDigest, hashes, checks)

    def events(self, change: IndexChange) -> list[Event]:
        """A change as events for listeners, the rows that left first."""
        gone = self._events(change.how, change.gone, change.gone_records)
        return gone + self._events(EventKind.STORED, change.came, change.came_records)

    def _events(self, kind: EventKind, slots: Slots, records: Records) -> list[Event]:
        if not len(slots):
            return []
        rank = self._rank
        headers = (self._geometry.offsets["hdr_base"] + slots * OBJ_HEADER.size).tolist()
        hashes, checks = records["key_hash"].view(np.int64).tolist(), key_checks(records).view(np.int64).tolist()
        columns = (hashes, [rank] * len(slots), headers, *(records[name].tolist() for name in _OF_META), checks)
        return [Event(kind, known_digest(meta.key_hash, meta.key_check), meta, rank) for meta in map(ObjMeta, *columns)]


def key_of(record: Any) -> KeyDigest:
    """The digest of the key in a header record."""
    return KeyDigest(int(record["key_hash"].view(np.int64)), int(key_checks(record).view(np.int64)))
