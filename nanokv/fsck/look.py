"""A look at the segments of a world: copies that belong together, also while producers are at work.

The STATE words are copied first and last, all else in between. A header whose STATE word is READY and the same in both
copies (pins aside) was READY during the whole look: its fields, its directory entry and its pages were as copied, for
all such headers at one moment. On a machine that reorders loads this holds only for segments at rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry, producer_of
from nanokv.device.segment.layout import ABSENT, DEAD, PIN_BITS, READY, RESERVED, SIZE_CLASSES, WRITING, unpack
from nanokv.device.segment.views import SegmentView

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Alive = Callable[[int, int], bool]  #: (rank, incarnation): False only if it has certainly ended

_MOVING = ("bump_ptr", "hdr_head", "hdr_free", "ann_head", "joining", *[f"free_head{k}" for k in range(SIZE_CLASSES)])


class Extents(NamedTuple):
    """Runs of pages that header slots hold: parallel int64 arrays."""

    slots: Numbers
    first: Numbers
    size: Numbers


@dataclass(frozen=True)
class Look:
    """A copy of one rank's segment, its arrays in the shapes and dtypes of `SegmentView`."""

    rank: int
    geometry: Geometry
    view: SegmentView  #: the segment itself, which may change
    ctl: npt.NDArray[Any]  #: HEAP_CTL, one record
    activity: npt.NDArray[Any]
    ring: Words
    headers: npt.NDArray[Any]
    descriptors: npt.NDArray[Any]
    directory: Words
    page_links: Words
    header_links: Words
    pins: Words
    layouts: npt.NDArray[Any]  #: LAYOUT records
    states: Words
    stable: Mask  #: the STATE word was the same before and after all else

    @cached_property
    def phase(self) -> Numbers:
        """The life-cycle state of each slot."""
        return field("STATE", "state", self.states)

    @cached_property
    def epoch(self) -> Numbers:
        """The epoch of each slot."""
        return field("STATE", "epoch", self.states)

    def _stayed(self, state: Any) -> Mask:
        """Slots that were in a state during the whole look."""
        found: Mask = self.stable & (self.phase == state.value)
        return found

    @cached_property
    def ready(self) -> Mask:
        """Slots that were READY during the whole look."""
        return self._stayed(READY)

    @cached_property
    def unfinished(self) -> Mask:
        """Slots that are RESERVED or WRITING. A slot that was never taken is neither."""
        return self._stayed(WRITING) | self._stayed(RESERVED) & (self.epoch > 0)

    @cached_property
    def quarantined(self) -> Mask:
        """Slots that are DEAD and hold pages. Means nothing in host mode, where the master keeps the pages."""
        return self._stayed(DEAD) & (self.headers["n_pages"] > 0)

    @cached_property
    def class_sizes(self) -> Numbers:
        """Pages of an extent of each size class that exists, ascending."""
        return np.array([size for size in self.geometry.class_pages if size], np.int64)

    @cached_property
    def slot_lists(self) -> dict[int, tuple[list[int], str | None]]:
        """Each free list of header slots that is not empty, by shard: its slots in order, and why it is broken."""
        links = unpack("LINK", "next", self.header_links).tolist()
        return {shard: walk(head, links) for shard, head in nonempty(self.ctl["hdr_free"][0])}

    @cached_property
    def broken_slot_lists(self) -> list[tuple[int, str]]:
        """The broken free lists of header slots, and why they are."""
        found = [(shard, why) for shard, (_, why) in self.slot_lists.items() if why]
        lists = self.geometry.shards
        none = [shard for shard, (slots, _) in self.slot_lists.items() if slots and not self.geometry.is_shard(shard)]
        return found + [(shard, f"there are {lists} lists, and this is none") for shard in none]

    @cached_property
    def free_slots(self) -> Mask:
        """Slots on a free list."""
        found = np.zeros(self.geometry.hdr_count, np.bool_)
        found[[slot for slots, _ in self.slot_lists.values() for slot in slots]] = True
        return found

    @cached_property
    def bumped(self) -> int:
        """Pages below `bump_ptr`, cut to the arena; none of an absent segment, whose pages nobody can take."""
        if self.ctl["closed"][0] == ABSENT:
            return 0
        used = (int(self.ctl["bump_ptr"][0]) - self.geometry.offsets["heap_base"]) // self.geometry.page_bytes
        return min(max(used, 0), self.geometry.n_pages)

    @cached_property
    def used_slots(self) -> int:
        """Slots below `hdr_head`, cut to the arena."""
        return min(int(self.ctl["hdr_head"][0]), self.geometry.hdr_count)

    def extents(self, chosen: Mask, *, whole: bool) -> tuple[Extents, Numbers]:
        """The extents of chosen slots that hold pages, and the slots among them whose extent cannot be.

        Args:
            whole: an object holds a whole extent of its size class (v2), not just the pages of its bytes (v1).
        """
        slots = np.flatnonzero(chosen & (self.headers["n_pages"] > 0))
        size = self.headers["n_pages"][slots].astype(np.int64)
        offset = self.headers["payload_base"][slots].astype(np.int64) - self.geometry.offsets["heap_base"]
        first, rest = np.divmod(offset, self.geometry.page_bytes)
        sane = (rest == 0) & (first >= 0)
        if whole:
            classes = np.searchsorted(self.class_sizes, size)
            sane &= classes < len(self.class_sizes)
            size = self.class_sizes[np.minimum(classes, len(self.class_sizes) - 1)]
        sane &= first + size <= self.geometry.n_pages
        return Extents(slots[sane], first[sane], size[sane]), slots[~sane]


def field(word: str, name: str, values: Any) -> Numbers:
    """One field of packed words, as int64."""
    return np.asarray(unpack(word, name, values), np.int64)


def nonempty(heads: Words) -> list[tuple[int, int]]:
    """The words of a row of LIST words whose list has a node: (shard, word). Of hundreds, most have none."""
    return [(shard, int(heads[shard])) for shard in np.flatnonzero(unpack("LIST", "node", heads)).tolist()]


def walk(head: int, links: list[int]) -> tuple[list[int], str | None]:
    """The nodes of a free list, and why the walk stopped before its end: a cycle, or a link out of bounds.

    Args:
        head: the LIST word.
        links: for each node the next one plus 1, or 0.
    """
    node = int(unpack("LIST", "node", head))
    seen: dict[int, None] = {}
    while node:
        if node > len(links):
            return list(seen), f"a link leads to node {node - 1} of {len(links)}"
        if node - 1 in seen:
            return list(seen), f"it comes back to node {node - 1}: a cycle"
        seen[node - 1] = None
        node = links[node - 1]
    return list(seen), None


def take_looks(views: list[SegmentView]) -> list[Look]:
    """Look at every segment of a world. `views`: one per rank, in the order of ranks."""
    rings = [view.ring.copy() for view in views]  # before the headers: a hint is never ahead of its header
    before = [view.states.copy() for view in views]
    names = ("ctl", "activity", "headers", "descriptors", "directory", "page_links", "header_links", "pins", "layouts")
    middle = [{name: getattr(view, name).copy() for name in names} for view in views]
    no_pins = np.uint64(~PIN_BITS.value & (2**64 - 1))
    stable = [(states & no_pins) == (view.states & no_pins) for states, view in zip(before, views, strict=True)]
    return [
        Look(rank, view.geometry, view, ring=rings[rank], states=before[rank], stable=stable[rank], **middle[rank])
        for rank, view in enumerate(views)
    ]


def fingerprint(looks: list[Look]) -> tuple[bytes, ...]:
    """The words that operations change. If they are equal in two looks, no operation changed anything in between."""
    return tuple(
        look.states.tobytes() + look.pins.tobytes() + b"".join(look.ctl[name].tobytes() for name in _MOVING)
        for look in looks
    )


@dataclass(frozen=True)
class WorldLook:
    """The looks at all segments of a world, and the liveness of its ranks: the argument of every check."""

    looks: list[Look]
    mode: str  #: "device" or "host"
    quiescent: bool
    alive: Alive | None

    @property
    def allocates(self) -> bool:
        """True if producers allocate: then the segments hold free lists and the directory."""
        return self.mode == "device"

    def holders(self, look: Look) -> dict[str, Mask]:
        """Slots whose pages are theirs: at any moment those of READY objects, at rest all that hold pages."""
        found = {"READY object": look.ready}
        if self.quiescent:
            found["unfinished object"] = look.unfinished
            if self.allocates:
                found["object in quarantine"] = look.quarantined
        return found

    def ended(self, rank: int, incarnation: int) -> bool:
        """True if this incarnation of a rank has certainly ended."""
        return self.alive is not None and incarnation > 0 and not self.alive(rank, incarnation)

    def producer_ended(self, producer: int) -> bool:
        """Whether the rank that PRODUCER bits name has ended."""
        return self.ended(*producer_of(producer))

    def rank_ended(self, rank: int) -> bool:
        """True if the last incarnation of a rank, as its own segment states it, has ended."""
        return self.ended(rank, int(self.looks[rank].activity["incarnation"][rank]))

    @cached_property
    def somebody_ended(self) -> bool:
        """True if a rank ended, also if it attached again since: then something may have leaked without a breach."""
        rows = [(rank, int(row["incarnation"])) for look in self.looks for rank, row in enumerate(look.activity)]
        return any(incarnation > 1 or self.ended(rank, incarnation) for rank, incarnation in rows)
