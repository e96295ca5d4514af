"""This rank as an owner: the index of its segment, eviction, files, counters; and the layouts in any segment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from nanokv.allocation.host_eviction import evict_until_below
from nanokv.api.world import World
from nanokv.arguments import integer, number
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument
from nanokv.generations import Generations
from nanokv.host_poller.events import Listener
from nanokv.saved.load import Target, load
from nanokv.saved.own_segment import OwnSegment
from nanokv.saved.reading import open_saved
from nanokv.saved.save import Progress, no_progress, save
from nanokv.statistics import Stats, snapshot
from nanokv.stored_layouts import StoredLayout, stored_in
from nanokv.types import KeyDigest, Loaded, Saved
from nanokv.wiring import world_spec


class Owner(World):
    """Calls about the rank's own segment, but for `layouts`."""

    # --- its index ---
    def segment_keys(self) -> Iterator[KeyDigest]:
        """The digests of the objects in this rank's segment, as its index knows them. Keys are not stored."""
        self._check_open()
        return self._poller.index.digests()

    def segment_count(self) -> int:
        """The number of objects in this rank's segment, as its index knows them."""
        self._check_open()
        return len(self._poller.index)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of objects that come to this rank's segment or go, and of ranks that come or go (`Event`).

        The function returned ends that. A listener that refers to this cache keeps it from being dropped. Listeners are
        called by the poller's thread, which frees and sweeps for everybody: a slow one delays that. `flush`, `clear`,
        `evict_until_below`, `leave`, and waits for room or for objects are refused there: InvalidArgument.
        """
        self._check_open()
        if not callable(listener):
            raise InvalidArgument(f"listener must be a function of a sequence of events, not {listener!r}")
        return self._poller.subscribe(listener)

    def layouts(self, rank: int | None = None) -> list[StoredLayout]:
        """The layouts of the identities that have put objects into the segment of a rank, or (None) into any.

        Raises:
            InvalidArgument: there is no such rank.
        """
        self._check_open()
        asked = range(self.world_size) if rank is None else [integer("rank", rank, 0, self.world_size - 1)]
        mine = self.options.identity, self.options.namespace
        return [row for each in asked for row in stored_in(each, self._machine.layouts(each), *mine)]

    # --- generations ---
    def generation(self) -> int:
        """How many times what this cache's identity had stored was declared void (`advance_generation`).

        It is for those who mix it into their keys, as the connectors of engines do: keys do not have it by themselves.
        It costs a look at this rank's segment.
        """
        self._check_open()
        return self._generations_of_mine().now()

    def advance_generation(self) -> int:
        """Begin a new generation of this cache's identity, in whatever layout, and return it.

        When it returns, all ranks of the world have it, also those that sleep, have ended, or come later: what was
        stored under an older one is found no more by those who mix it into their keys, and is evicted in its time.
        """
        self._check_open()
        return self._generations_of_mine().advance()

    def _generations_of_mine(self) -> Generations:
        if self._generations is None:
            self._generations = Generations(self._machine, self.rank, self.options.identity, self.options.namespace)
        return self._generations

    def stats(self) -> Stats:
        """Counters of this rank: heap use, objects, ring, traffic, errors. Bytes and counts; ratios from 0 to 1."""
        self._check_open()
        now = snapshot(self._machine, self.rank, self.alloc)
        mine = {"rank": self.rank, "alloc": self.alloc, "evictions": self._allocation.evicted()}
        return cast(
            Stats, now.as_dict() | self._traffic.as_dict() | self._replicas.as_dict() | self._poller.as_dict() | mine
        )

    # --- what goes ---
    def clear(self) -> int:
        """Remove every object in this rank's segment that is READY and not pinned; returns their number.

        Raises:
            InvalidArgument: a listener calls it (`subscribe`).
        """
        self._check_open()
        self._poller.refuse_own_thread("clear")
        self.flush()
        slots, records = self._poller.index.rows()
        pairs = zip(slots.tolist(), records["epoch"].tolist(), strict=True)
        removed = sum(self._allocation.remove_slot(self.rank, *pair) == Status.OK for pair in pairs)
        self.flush()
        return removed

    def evict_until_below(self, usage_ratio: float) -> None:
        """Evict from this rank's segment, by its policy, until at most this part of its pages is in use.

        Raises:
            InvalidArgument: `usage_ratio` is not from 0 to 1; or a listener calls it (`subscribe`).
        """
        self._check_open()
        self._poller.refuse_own_thread("evict_until_below")
        if not 0 <= number("usage_ratio", usage_ratio) <= 1:
            raise InvalidArgument(f"usage_ratio must be 0 to 1, not {usage_ratio!r}")
        evict_until_below(self._machine, self._allocation, self.rank, usage_ratio)
        self.flush()

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save the objects in this rank's segment to a file (docs/save_load.md), while the world is at work.

        The file is whole, or what had the name is as it was. Objects that go away meanwhile are left out.

        Raises:
            InvalidArgument: `path` is no path, or something else than a file has it.
            FileUnusable: the file cannot be written: no space, no permission.
        """
        self._check_open()
        return self._save(_path(path))

    def _save(self, path: Path, progress: Progress = no_progress) -> Saved:
        options = world_spec(self._geometry, self.options, master_rank=self._master_rank).options()
        return save(path, [OwnSegment(self._heap, self._machine, self.rank)], self._geometry, options, progress)

    def load(self, path: str | os.PathLike[str], *, preferred_segment: int | None = None) -> Loaded:
        """Put the objects of a file that `save` has made, in any world, under the keys and identities they had.

        Nothing is evicted for them: objects without room are counted, those that were used last come first. All of the
        file but its payloads is checked before, and each payload before its object can be read.

        Args:
            preferred_segment: the rank in whose segment they are stored. Default: that of the rank that had them, or
                where there is none (any more) another one that the key chooses.

        Raises:
            InvalidArgument, FileUnusable, PeerLost: the file or the segment cannot be used. Nothing was put.
            SegmentCorrupt: it is no file of saved objects of this version, or it was cut or changed: nothing was put;
                or objects in it are damaged: the others were put, and the message says how many.
            OutOfMemory, ReuseViolation: a segment cannot take the layout of an identity. Nothing was put.
            WriteLost: objects are given up while they are loaded: raise `write_timeout`.
        """
        preferred_segment = self._checked_segment(preferred_segment)
        return self._load(_path(path), preferred_segment)

    def _load(self, path: Path, preferred: int | None = None, progress: Progress = no_progress) -> Loaded:
        with open_saved(path) as file:
            return load(file, Target(self._heap, self._machine, self._allocation, self._single), preferred, progress)


def _path(given: object) -> Path:
    if not isinstance(given, str | os.PathLike) or not given:
        raise InvalidArgument(f"path must be the path of a file, not {given!r}")
    try:
        found = os.fspath(given)
        if isinstance(found, str) and "\0" not in found:
            return Path(found)
    except TypeError:
        pass
    raise InvalidArgument(f"path must be the path of a file, not {given!r}")
