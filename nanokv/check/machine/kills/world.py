"""The world of the kill rounds: rank 0 in this process, which checks and is never killed, and others to be killed."""

import os
import secrets
from typing import NamedTuple

import numpy as np
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.kills.roles import KEYS, KillWorker
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.machine.rank_process import RankProcess, wait_until
from nanokv.check.machine.ranks import RankOptions, attach
from nanokv.check.report import CheckFailure
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.views import SegmentView
from nanokv.errors import KeyNotFound, NotReady, OutOfMemory
from nanokv.fsck import Finding, check_cache
from nanokv.fsck.look import Look, take_looks
from nanokv.heap.shm import list_worlds, remove_world
from nanokv.transfer.pinned import Pinned
from nanokv.types import Key, KeyDigest

WORLD_SIZE = 5
PAGE = 1024
PAGES = 48
ANCHOR = 1000  #: keys of objects that only the checker removes
ANCHOR_PAGES = (1, 3)  #: of the anchors in each segment
LOOK_PAUSE = 0.01  #: seconds between two looks at leftovers
ALONE = "alone"  #: the key of the object that fills a segment at the end

#: keys that the workers put and remove, by Python calls and by compiled ones, and the number that each payload holds
VOLATILE: tuple[tuple[int, Key], ...] = tuple(
    (number, key) for number in range(KEYS) for key in (name(number), KeyDigest(number, number))
)


class SegmentUse(NamedTuple):
    """Use of one segment."""

    objects: int  #: READY
    pages: int  #: held by headers
    slots: int  #: header slots that are not free
    entries: int  #: in its directory
    pins: int  #: lines of its pin ledger
    in_flight: int  #: activity words that are not 0
    ring: int  #: announcements not consumed
    lost_pages: int  #: neither held, nor free, nor beyond the bump pointer


class KillWorld:
    """Ranks 1 to WORLD_SIZE - 1 are `workers`; those that are dead at the moment are `away`.

    Args:
        evict: whether a producer that finds a segment full may evict. Anchors are pinned then.
        pins: whether readers pin.

    Raises (all methods): CheckFailure.
    """

    def __init__(self, seed: int, *, evict: bool, pins: bool) -> None:
        world = f"nanokv-kills-{os.getpid()}-{secrets.token_hex(4)}"
        self.options = RankOptions(world, WORLD_SIZE, PAGES * PAGE, PAGE, evict, seed, KEYS, pins)
        self.workers: dict[int, RankProcess] = {}
        self.away: dict[int, int] = {}  #: rank -> the round in which it was killed
        for rank in range(1, WORLD_SIZE):
            self.start(rank, seed)
        self.cache: NanoKVCache = attach(0, self.options)
        for rank in self.workers:
            self.attached(rank)
        self._pinned: dict[int, Pinned] = {}
        self._anchors: dict[int, int] = {}
        for rank in range(WORLD_SIZE):
            for pages in ANCHOR_PAGES:
                self.add_anchor(rank, pages)

    # --- ranks ---
    def start(self, rank: int, seed: int) -> None:
        """Start a rank's process; `attached` waits for it."""
        self.workers[rank] = RankProcess(KillWorker, rank, self.options._replace(seed=seed))

    def attached(self, rank: int) -> None:
        """Wait until a rank has attached; one that was away comes back to the segment that it left."""
        _, recovered = self.workers[rank].arrive()
        if recovered != (self.away.pop(rank, None) is not None):
            raise CheckFailure(f"rank {rank} attached, and its segment was {'' if recovered else 'not '}there before")

    def kill(self, rank: int, at: int) -> None:
        """Kill a rank, in round `at`."""
        self.workers.pop(rank).kill()
        self.away[rank] = at

    # --- anchors ---
    def add_anchor(self, rank: int, pages: int) -> None:
        """An object of the checker's own in a rank's segment."""
        key = ANCHOR + len(self._anchors)
        self.cache.put(name(key), payload(key, rank, pages * PAGE // WORD), preferred_segment=rank)
        self.keep(key, rank)

    def keep(self, key: int, version: int) -> None:
        """From now on an object must be there, in this version."""
        if self.options.evict:
            self._pinned[key] = self.cache.pin(name(key))
        self._anchors[key] = version

    def let_go(self, key: int) -> None:
        """Remove an object that was kept."""
        del self._anchors[key]
        if key in self._pinned:
            self._pinned.pop(key).release()
        self.cache.remove(name(key))

    def check_anchors(self) -> None:
        """All of them are READY, whole, and in the version that was put."""
        for key, version in self._anchors.items():
            try:
                found = check_payload(key, self.cache.get(name(key)))
            except KeyNotFound:
                raise CheckFailure(f"anchor {key} is gone") from None
            if found != version:
                raise CheckFailure(f"anchor {key} has version {found}, not {version}")
            if key in self._pinned and check_payload(key, self._pinned[key].tensor) != version:
                raise CheckFailure(f"anchor {key}, read in place, is not version {version}")

    # --- checks ---
    def findings(self) -> list[Finding]:
        """The findings of fsck, except leftovers that wait for a rank that is away. The workers keep still."""
        found = check_cache([self.cache], patience=0.0).findings
        return [finding for finding in found if finding.breach or not self._waits(finding)]

    def _waits(self, finding: Finding) -> bool:
        """Whether a leftover waits for a rank that is away: it is in its segment, or belongs to an object there."""
        away = self.away
        return finding.rank in away or any(
            leftover in str(finding) for rank in away for leftover in ("TENTATIVE", f"activity of rank {rank}")
        )

    def all_is_back(self) -> None:
        """Wait until there are no findings. The sweepers go at their own pace."""
        text = "the return of everything that the dead held"
        wait_until(text, lambda: not self.findings(), lambda: "; ".join(map(str, self.findings())), pause=LOOK_PAUSE)

    def check_objects(self) -> int:
        """Every READY object of every segment can be read, with the bytes of its key. At rest. Returns their number."""
        readable = 0
        for number, key in VOLATILE:
            try:
                check_payload(number, self.cache.get(key))
            except (KeyNotFound, NotReady):  # not ready: an object in the segment of a rank that is away
                continue
            readable += 1
        ready = sum(count.objects for count in self.counts())
        if ready != readable + len(self._anchors):
            raise CheckFailure(f"{ready} objects are READY, {readable + len(self._anchors)} can be read")
        return ready

    def clear(self) -> None:
        """Remove everything except the anchors. At rest."""
        self.cache.remove_many([key for _, key in VOLATILE])

    def counts(self) -> list[SegmentUse]:
        """The use of each segment."""
        heap = self.cache.engine.heap
        raw = [heap.host_view(rank) for rank in range(heap.world_size)]
        looks = take_looks([SegmentView(each, heap.geometry) for each in raw if each is not None])
        return [self._count(look) for look in looks]

    def counts_at_rest(self) -> list[SegmentUse]:
        """The use of each segment once every poller has consumed its ring."""
        wait_until("draining of the rings", lambda: not any(count.ring for count in self.counts()))
        return self.counts()

    def _count(self, look: Look) -> SegmentUse:
        extents, wild = look.extents(look.headers["n_pages"] > 0, whole=True)
        marks = self.cache.engine.machine.page_marks(look.rank)
        held, free = int(extents.size.sum()), int(look.class_sizes[marks[marks > 0] - 1].sum())
        row = look.ctl[0]
        return SegmentUse(
            objects=int(np.count_nonzero(look.ready)),
            pages=held,
            slots=look.used_slots - int(np.count_nonzero(look.free_slots)) + len(wild),
            entries=int(np.count_nonzero(look.directory)),
            pins=int(np.count_nonzero(look.pins)),
            in_flight=sum(
                int(np.abs(look.activity[word].astype(np.int64)).sum()) for word in ("in_flight0", "in_flight1")
            ),
            ring=int(row["ann_head"]) - int(row["ann_tail"]),
            lost_pages=look.bumped - held - free,
        )

    # --- the end ---
    def fill_each(self) -> None:
        """Check that without anchors every segment has room for its largest object. All ranks live and keep still."""
        for key in list(self._anchors):
            self.let_go(key)
        size = max(self.cache.engine.geometry.class_pages) * PAGE
        largest = torch.arange(size, dtype=torch.int64).to(torch.uint8)
        for rank in range(WORLD_SIZE):
            try:
                self.cache.put(ALONE, largest, preferred_segment=rank)
            except OutOfMemory as error:
                raise CheckFailure(
                    f"the empty segment of rank {rank} has no room for its largest object: {error}"
                ) from None
            if not torch.equal(self.cache.get(ALONE), largest):
                raise CheckFailure(f"the largest object of rank {rank} came back with other bytes")
            self.cache.remove(ALONE)

    def end(self) -> None:
        """End every process, and remove the world."""
        for worker in self.workers.values():
            worker.end()
        for pinned in self._pinned.values():
            pinned.release()
        self.cache.close()
        if self.options.world in list_worlds():
            remove_world(self.options.world, force=True)
