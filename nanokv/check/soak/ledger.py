"""Where each page and each header slot of a segment is, at rest: used, free or in quarantine. The rest is lost."""

from typing import NamedTuple

import numpy as np

from nanokv.cache import NanoKVCache
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import check_cache
from nanokv.fsck.look import Look, take_looks
from nanokv.host_poller.free_pages import FreePages


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
