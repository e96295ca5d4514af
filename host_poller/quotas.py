"""Keeps the objects of an identity below its quota in one segment (`device/protocol/quotas.py`).

A pass over the headers counts the pages of each identity that has a quota. Of one that holds more, those objects go
that were not used for longest, as their priorities count it, a few a round, so that no hint waits for long. What is
pinned, leased or kept counts, and stays.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import LAYOUT_TAG_SHIFT, READY, STATE_MASK, key_checks, unpack
from nanokv.host_poller.header_pass import Life, Slice
from nanokv.host_poller.removal import Removal

MOST = 64  #: objects evicted a round


class _Held(NamedTuple):
    """The READY objects of one identity in a slice: parallel arrays."""

    slots: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int64]
    access: npt.NDArray[np.uint64]


class Quotas:
    """The quotas of one rank's segment.

    Args:
        by_extents: whether objects hold whole extents (v2), or their pages (v1).
    """

    def __init__(self, machine: Machine, rank: int, removal: Removal, *, by_extents: bool) -> None:
        self._machine = machine
        self._rank = rank
        self._removal = removal
        self._by_extents = by_extents
        self._limits: dict[int, int] = {}  # pages by tag
        self._held: dict[int, list[_Held]] = {}
        self._to_go: list[Life] = []

    def begin_pass(self) -> None:
        """A pass over all headers begins."""
        self._limits, self._held = {}, {}
        if not self._machine.control(self._rank)[0]["quotas"]:
            return
        rows = self._machine.quotas(self._rank)
        rows = rows[rows != 0]
        tags, pages = (unpack("QUOTA", name, rows).tolist() for name in ("tag", "pages"))
        self._limits = dict(zip(tags, pages, strict=True))
        self._held = {tag: [] for tag in self._limits}

    def look(self, part: Slice) -> None:
        """Take in a slice of the headers."""
        if not self._limits:
            return
        tags = key_checks(part.headers) >> np.uint64(LAYOUT_TAG_SHIFT.value)
        ready = (part.headers["state"] & STATE_MASK.value) == READY.value
        for tag, held in self._held.items():
            these = np.flatnonzero(ready & (tags == tag))
            if len(these):
                some = part.headers[these]
                held.append(
                    _Held(
                        part.first + these,
                        some["epoch"].astype(np.int64),
                        self._pages(some["n_pages"]),
                        some["last_access"].astype(np.uint64),
                    )
                )

    def end_pass(self) -> None:
        """The pass has looked at all headers: choose what goes."""
        now = now_ns()
        self._to_go = []
        for tag, held in self._held.items():
            if held:
                self._choose(_Held(*map(np.concatenate, zip(*held, strict=True))), self._limits[tag], now)
        self._held = {}

    @property
    def exceeded(self) -> bool:
        """Whether something that the last pass has chosen is still there."""
        return bool(self._to_go)

    def evict(self) -> int:
        """Evict a few of what the last pass has chosen. Returns their number."""
        some, self._to_go = self._to_go[:MOST], self._to_go[MOST:]
        return sum(self._removal.evict_slot(self._rank, *life) == Status.OK for life in some)

    def _pages(self, n_pages: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return self._machine.geometry.extent_pages(n_pages) if self._by_extents else n_pages.astype(np.int64)

    def _choose(self, held: _Held, limit: int, now: int) -> None:
        surplus = int(held.pages.sum()) - limit
        if surplus <= 0:
            return
        order = np.argsort(-idle(held.access, now), kind="stable")
        order = order[~stays(held.access[order], now) & (held.pages[order] > 0)]
        before = np.cumsum(held.pages[order]) - held.pages[order]
        chosen = order[before < surplus]
        self._to_go += map(Life, held.slots[chosen].tolist(), held.epochs[chosen].tolist())
