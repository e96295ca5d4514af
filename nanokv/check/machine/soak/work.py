"""What a rank of a soak does while the world is busy, and what the supervisor asks of it when all keep still."""

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.payloads import name
from nanokv.check.machine.random_calls import EXPECTED, CacheCalls
from nanokv.check.machine.rank_process import PATIENCE, RankCommands
from nanokv.check.machine.soak.memory import Sample, sample_process
from nanokv.check.machine.soak.objects import HALF_PAGES, KEYS, check_object, make_object, new_version
from nanokv.check.machine.soak.probes import ProbeReport, Probes
from nanokv.check.report import CheckFailure
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import check_cache
from nanokv.fsck.look import Look, take_looks
from nanokv.space.free_pages import FreePages
from nanokv.transfer.pinned import Pinned


# --- where each page and each header slot of a segment is, at rest: used, free or in quarantine ---
# The rest is lost.
class Ledger(NamedTuple):
    """The pages and the header slots of one segment. Used: of READY and unfinished objects."""

    rank: int
    pages: int
    used: int
    free: int
    quarantined: int
    slots: int
    used_slots: int
    free_slots: int  #: those that were never used too
    quarantined_slots: int

    @property
    def lost(self) -> str:
        """What is in no place, or in two; "" if nothing is."""
        pages = self.pages - self.used - self.free - self.quarantined
        slots = self.slots - self.used_slots - self.free_slots - self.quarantined_slots
        return f"rank {self.rank}: {pages} pages and {slots} slots are lost: {self}" if pages or slots else ""

    @staticmethod
    def of(look: Look) -> "Ledger":
        """From a look at a segment at rest."""
        live, quarantined = look.ready | look.unfinished, look.quarantined
        held, wild = look.extents(live, whole=True)
        waiting, wild_too = look.extents(quarantined, whole=True)
        free = FreePages.of(look.geometry, look.page_links, int(look.ctl["bump_ptr"][0]))
        slots = look.geometry.hdr_count
        return Ledger(
            rank=look.rank,
            pages=look.geometry.n_pages,
            used=int(held.size.sum()) - len(wild),
            free=free.total,
            quarantined=int(waiting.size.sum()) - len(wild_too),
            slots=slots,
            used_slots=int(np.count_nonzero(live)),
            free_slots=int(np.count_nonzero(look.free_slots)) + slots - look.used_slots,
            quarantined_slots=int(np.count_nonzero(quarantined)),
        )


def ledgers(cache: NanoKVCache) -> list[Ledger]:
    """One per segment of a world at rest."""
    heap = cache.engine.heap
    raw = [heap.host_view(rank) for rank in range(heap.world_size)]
    looks = take_looks([SegmentView(each, heap.geometry) for each in raw if each is not None])
    return [Ledger.of(look) for look in looks]


def what_is_wrong(cache: NanoKVCache) -> str:
    """What fsck finds in a world at rest, leftovers too, and what is lost; "" if nothing is wrong."""
    report = check_cache([cache], patience=0.1)
    lost = [ledger.lost for ledger in ledgers(cache) if ledger.lost]
    return "; ".join([*map(str, report.findings), *lost])


# --- the work ---------------------------------------------------------------------------------
WORLD_SIZE = 4
PAGE = 4096
PAGES = 256  #: per segment
PINS = 3  #: that a rank holds at once
HOLD_SECONDS = 0.05
TOLD = 8  #: wrong objects that a rank describes


class SoakOptions(NamedTuple):
    """What is the same for all ranks of a world."""

    world: str
    seed: int


class Done(NamedTuple):
    """What a rank has done since it was asked last."""

    counts: Counter[str]  #: calls, and their answers where these are errors
    nbytes: int  #: compared
    wrong: list[str]  #: objects that came back with wrong bytes


class SoakWorker(RankCommands, CacheCalls):
    """One rank of a soak."""

    keys, dtype = KEYS, torch.uint8

    def __init__(self, rank: int, options: SoakOptions) -> None:
        self.rank = rank
        self.options = options

    def attach(self) -> int:
        """Open the cache; the incarnation of its heap."""
        self.cache = NanoKVCache(
            PAGES * PAGE,
            page_bytes=PAGE,
            name=self.options.world,
            rank=self.rank,
            world_size=WORLD_SIZE,
            attach_timeout=PATIENCE,
            on_stale="recover",
        )
        incarnation: int = self.cache.engine.heap.incarnation
        self.who = incarnation * WORLD_SIZE + self.rank
        self.random = random.Random(f"{self.options.seed}/{self.rank}/{incarnation}")
        self.pins: deque[tuple[int, int, Pinned]] = deque()
        self.versions = 0
        self._forget()
        self.steps = [
            *[self.put] * 6,
            *[self.get] * 6,
            *[self.remove] * 3,
            *[self.pin] * 2,
            *[self.put_many] * 2,
            *[self.get_many] * 2,
            *[self.get_into, self.put_held, self.hold, self.plan, self.abort],
        ]
        return incarnation

    def _forget(self) -> None:
        self.counts = Counter()
        self.nbytes = 0
        self.wrong: list[str] = []

    # --- commands ---
    def work(self) -> Done:
        """Random calls until told to stop."""
        while not self.told():
            self.step()
            self.progress.value += 1
        return self.report()

    def report(self) -> Done:
        """What was done since the last report."""
        done = Done(self.counts, self.nbytes, self.wrong)
        self._forget()
        return done

    def settle(self) -> int:
        """Give back what is pinned, and let the poller come round. Returns how many of its rounds have failed ever."""
        while self.pins:
            self.do(self.unpin)
        self.cache.flush(timeout=PATIENCE)
        return self.cache.stats()["poller_failures"]

    def sample(self) -> Sample:
        """What this process holds. All keep still."""
        return sample_process(len(self.cache.engine.poller.index) - self.cache.stats()["ready"])

    def audit(self) -> str:
        """What fsck and the ledgers of all segments find; "" if nothing. All keep still."""
        return what_is_wrong(self.cache)

    def evicted(self) -> int:
        """Objects that were evicted from this rank's segment, by anybody."""
        return self.cache.stats()["evicted"]

    def joined(self) -> int:
        """How often this rank's sweeper has joined free extents."""
        self.cache.flush(timeout=PATIENCE)
        return self.cache.stats()["sweeper_joined"]

    def probe(self, count: int) -> ProbeReport:
        """Puts that are looked at one by one. All others keep still."""
        return Probes(self).run(count)

    # --- one call ---
    def do(self, call: Callable[[], None]) -> None:
        """Make a call. A wrong object ends nothing: it is told later."""
        try:
            super().do(call)
        except CheckFailure as failure:
            self.wrong.append(f"rank {self.rank}, {call.__name__}: {failure}")
            del self.wrong[TOLD:]

    def new(self, key: int) -> torch.Tensor:
        return make_object(key, self.new_version(), PAGE)

    def new_version(self, size: int | None = None) -> int:
        """A version that nobody has put. `size`: an index of HALF_PAGES."""
        self.versions += 1
        return new_version(self.who, self.versions, self.random.randrange(len(HALF_PAGES)) if size is None else size)

    def compare(self, key: int, found: torch.Tensor, version: int | None = None) -> None:
        self.nbytes += check_object(key, found, PAGE, version)

    def put_held(self) -> None:
        key = self.key()
        self.cache.put(name(key), self.new(key), preferred_segment=self.owner(), hold=HOLD_SECONDS)

    def put_many(self) -> None:
        keys = self.random.sample(range(KEYS), self.random.randint(2, 6))
        objects = [self.new(key) for key in keys]
        for error in self.cache.put_many([*map(name, keys)], objects, preferred_segment=self.owner()):
            if error is not None and not isinstance(error, EXPECTED):
                raise error

    def get_many(self) -> None:
        keys = self.random.sample(range(KEYS), 6)
        for key, found in zip(keys, self.cache.get_many([*map(name, keys)]), strict=True):
            if found is not None:
                self.compare(key, found)

    def hold(self) -> None:
        self.cache.hold([name(self.key()) for _ in range(3)], HOLD_SECONDS)

    def pin(self) -> None:
        key = self.key()
        if len(self.pins) == PINS:
            self.unpin()
        pinned = self.cache.pin(name(key))
        with_version = int(pinned.tensor[8:16].clone().view(torch.int64)[0])
        self.pins.append((key, with_version, pinned))
        self.compare(key, pinned.tensor, with_version)

    def unpin(self) -> None:
        """The object that was pinned first is still the same one; it may go now."""
        key, version, pinned = self.pins.popleft()
        try:
            self.compare(key, pinned.tensor, version)
        finally:
            pinned.release()
