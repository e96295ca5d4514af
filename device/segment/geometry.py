"""The size and offset of each region of a segment, and the first bytes of a new segment.

All segments of a world have the same geometry. `Geometry.plan` chooses it once from a few wishes; every HeapCtl stores
it, so that a process with other wishes is refused instead of reading garbage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.layout import (
    ENTRIES_PER_BUCKET,
    HEAP_CTL,
    LIFETIMES,
    MAGIC,
    MAX_HEADERS,
    MAX_PRODUCERS,
    MAX_RANKS,
    OBJ_HEADER,
    POSITIVE,
    PRODUCER_INC_MASK,
    PRODUCER_INC_SHIFT,
    REGIONS,
    SHARDS,
    SIZE_CLASSES,
    VERSION,
    Region,
    layout_hash,
    unpack,
)
from nanokv.device.segment.record import LINE
from nanokv.device.segment.world_table import WORLD

PAYLOAD_ALIGN = 4096
MIN_PAGE_BYTES = 64
HOST_SHARDS = 4  # of a segment in host memory: threads on as many processors need not meet
PAGES_A_SHARD = 16  # at least so many pages per list: a small heap has fewer lists
PAGES_APART = 256  # at least so many pages, if few lists are to lie apart: each of them gets several runs of pages
#: pages per extent: above 8 pages four sizes per doubling, so that rounding up costs a fifth of an extent at most
DEFAULT_CLASSES = (1, 2, 3, 4, 5, 6, 7, 8, *(step * n for step in (2, 4, 8, 16) for n in (5, 6, 7, 8)))
MODES = ("device", "host")
POLICIES = ("lifetimes", "clock", "fifo")  # by which a segment evicts: LIFETIMES and the numbers after it


def _power_of_two(at_least: int) -> int:
    return 1 << max(at_least - 1, 0).bit_length()


def _about(wish: int) -> int:
    """The power of two that is at least 15/16 of a wish.

    A default of `n_pages` + 64 objects would else double the directory, the ring and the pin ledger.
    """
    return _power_of_two(-(-wish * 15 // 16))


def _align(offset: int, to: int = LINE) -> int:
    return -(-offset // to) * to


def default_classes(n_pages: int) -> tuple[int, ...]:
    """DEFAULT_CLASSES, as far as the arena is not smaller."""
    return tuple(pages for pages in DEFAULT_CLASSES if pages <= n_pages)


def default_shards(n_pages: int, *, many: bool) -> int:
    """Free lists of each kind: for hundreds of CTAs if `many`, else for some threads; a small heap has fewer."""
    if many:
        return _power_of_two(min(SHARDS, max(n_pages // PAGES_A_SHARD, 1)))
    return HOST_SHARDS if n_pages >= PAGES_APART else 1


@dataclass(frozen=True)
class Geometry:
    """The geometry of every segment of a world. All offsets are bytes from a segment's base."""

    world_size: int
    page_bytes: int
    n_pages: int
    hdr_count: int
    dir_buckets: int
    ann_capacity: int
    pin_slots: int
    class_pages: tuple[int, ...]
    shards: int = 1
    guests: int = 0

    @staticmethod
    def plan(
        heap_bytes: int,
        page_bytes: int,
        world_size: int,
        *,
        size_classes: tuple[int, ...] | None = None,
        max_objects: int | None = None,
        ring_slots: int | None = None,
        pin_slots: int | None = None,
        shards: int | None = 1,
        many: bool = True,
        guests: int = 0,
    ) -> "Geometry":
        """Choose a geometry.

        Args:
            heap_bytes: payload bytes per segment, rounded down to whole extents of the smallest class; the control
                regions come on top.
            page_bytes: bytes per page, a multiple of 64.
            world_size: ranks in the world.
            size_classes: pages per extent of each class, ascending, at most 24; the smallest divides all others.
                Default: 1 to 8, 10, 12, 14, 16, 20, ... 32, 40, ... 64, 80, ... 128, as far as the heap has the pages.
            max_objects: header slots per segment. Default: one per page, and 64 for objects without bytes.
            ring_slots: slots of the announce ring, rounded up to a power of two. Default: about two an object, 1024.
            pin_slots: pins held at once in a segment, rounded up to a power of two. Default: about one an object, 64.
            shards: free lists of header slots, and of each size class; a power of two, at most 64. None:
                `default_shards`.
            many: whether hundreds of producers allocate at once.
            guests: how many processes that are no ranks may map the segments at a time.

        Raises:
            ValueError: an argument is out of range; the message names it and its value.
        """
        for name, value in (
            ("heap_bytes", heap_bytes),
            ("page_bytes", page_bytes),
            ("world_size", world_size),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} must be a positive integer, not {value!r}")
        if page_bytes % MIN_PAGE_BYTES:
            raise ValueError(f"page_bytes must be a multiple of {MIN_PAGE_BYTES}, not {page_bytes}")
        if world_size > MAX_RANKS:
            raise ValueError(f"world_size is at most {MAX_RANKS}, not {world_size}")
        if not isinstance(guests, int) or not 0 <= guests <= MAX_PRODUCERS - world_size:
            raise ValueError(f"guests must be 0 to {MAX_PRODUCERS - world_size}, not {guests!r}")
        n_pages = heap_bytes // page_bytes
        if n_pages < 1:
            raise ValueError(f"heap_bytes={heap_bytes} holds no page of page_bytes={page_bytes}")
        count = max_objects if max_objects is not None else n_pages + 64
        if not 1 <= count <= MAX_HEADERS:
            raise ValueError(f"max_objects must be 1 to {MAX_HEADERS}, not {count}; larger pages make fewer objects")
        for name, wish in (("ring_slots", ring_slots), ("pin_slots", pin_slots)):
            if wish is not None and wish < 1:
                raise ValueError(f"{name} must be at least 1, not {wish}")
        shards = default_shards(n_pages, many=many) if shards is None else shards
        if shards not in (1 << k for k in range(SHARDS.bit_length())):
            raise ValueError(f"shards must be a power of two, 1 to {SHARDS}, not {shards!r}")
        classes = tuple(size_classes) if size_classes is not None else default_classes(n_pages)
        _check_classes(classes, n_pages)
        return Geometry(
            world_size=world_size,
            page_bytes=page_bytes,
            n_pages=n_pages // classes[0] * classes[0],
            hdr_count=count,
            dir_buckets=max(2, _about(-(-2 * count // ENTRIES_PER_BUCKET.value))),
            ann_capacity=_power_of_two(ring_slots) if ring_slots is not None else _about(max(1024, 2 * count)),
            pin_slots=_power_of_two(pin_slots) if pin_slots is not None else _about(max(64, count)),
            class_pages=classes + (0,) * (SIZE_CLASSES - len(classes)),
            shards=shards,
            guests=guests,
        )

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The offset of each region, of the payload's end (`heap_limit`) and of the segment's (`segment_bytes`)."""
        at = HEAP_CTL.size
        found = {}
        for region in REGIONS:
            found[region.base] = at
            at = _align(at + region.dtype.itemsize * self.records_in(region))
        found["heap_base"] = _align(at, PAYLOAD_ALIGN)
        found["heap_limit"] = found["heap_base"] + self.n_pages * self.page_bytes
        found["segment_bytes"] = _align(found["heap_limit"], PAYLOAD_ALIGN)
        return found

    def records_in(self, region: Region) -> int:
        """How many records a region has."""
        return region.each * sum(getattr(self, count) for count in region.counts)

    @property
    def producers(self) -> int:
        """How many processes may use a segment: the ranks, and after them the guests, by number."""
        return self.world_size + self.guests

    @property
    def n_classes(self) -> int:
        """How many size classes there are."""
        return sum(pages > 0 for pages in self.class_pages)

    @property
    def segment_bytes(self) -> int:
        """Bytes per segment, a multiple of 4096."""
        return self.offsets["segment_bytes"]

    @property
    def max_object_bytes(self) -> int:
        """Bytes of the largest object: one extent of the largest class."""
        return max(self.class_pages) * self.page_bytes

    @property
    def shard_step(self) -> int:
        """Words from one free list of a kind to the next, a power of two; so many neighbours belong to one list.

        Few lists lie apart, in the row that many would fill, and so do the links of their nodes: two processors that
        use different lists then share no cache line. With four lists both are 128 bytes.
        """
        return SHARDS // self.shards if self.n_pages >= PAGES_APART else 1

    @property
    def shard_mask(self) -> int:
        """The bits of a node's number that tell its free list: the list's word in the row of its kind."""
        return (self.shards - 1) * self.shard_step

    def is_shard(self, place: int) -> bool:
        """Whether a word in a row of free lists is one of the lists in use."""
        return place & ~self.shard_mask == 0

    def header_offset(self, slot: int) -> int:
        """The offset of a header slot from its segment's base."""
        return self.offsets["hdr_base"] + slot * OBJ_HEADER.size

    def pages_of(self, nbytes: int) -> int:
        """Pages that hold `nbytes`."""
        return -(-nbytes // self.page_bytes)

    def home_rank(self, key_check: Any) -> Any:
        """The rank whose directory holds a key, and which owns it when no segment is preferred.

        `key_check`: the high half of the key's digest, an integer or a u64 array; see `directory.home_of`.
        """
        return (key_check & POSITIVE.value) % self.world_size

    def extent_pages(self, n_pages: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The pages of the extents that objects of `n_pages` pages hold in v2: of the smallest class that fits."""
        sizes = np.array([0, *filter(None, self.class_pages)], np.int64)
        return sizes[np.minimum(np.searchsorted(sizes, n_pages), len(sizes) - 1)]

    def control_block(
        self,
        rank: int,
        world_id: int,
        mode: str,
        *,
        may_evict: bool,
        water: tuple[int, int],
        policy: str = POLICIES[0],
    ) -> npt.NDArray[Any]:
        """The HeapCtl of a new segment: HEAP_CTL.dtype [1]. The rest of a new segment is zeros.

        Args:
            rank: the owner. world_id: random, one per world. mode: "device" or "host".
            may_evict: whether a producer that finds the heap full may evict.
            water: (low, high) percent of used pages between which the owner's sweeper keeps the heap.
            policy: by which it evicts, of POLICIES.
        """
        ctl = np.zeros(1, HEAP_CTL.dtype)
        row = ctl[0]
        for name, value in self._stored().items():
            row[name] = value
        row["magic"], row["version"], row["layout_hash"] = MAGIC, VERSION, layout_hash()
        row["mode"], row["world_id"], row["rank"] = MODES.index(mode), world_id, rank
        row["water_lo"], row["water_hi"] = water
        row["bump_ptr"] = self.offsets["heap_base"]
        row["may_evict"] = evicts_by(may_evict, policy)
        return ctl

    def _stored(self) -> dict[str, Any]:
        stored = {f.name: getattr(self, f.name) for f in fields(self)}
        return stored | {k: v for k, v in self.offsets.items() if k in HEAP_CTL.offsets}

    def mismatch(self, ctl: npt.NDArray[Any]) -> str | None:
        """The reason why a HeapCtl is not of this geometry, or None."""
        row = ctl[0]
        if row["magic"] != MAGIC:
            return (
                f"magic is {int(row['magic']):#x}, not {MAGIC:#x}: this is no NanoKV segment, or it is not initialised"
            )
        if row["version"] != VERSION or row["layout_hash"] != layout_hash():
            theirs, ours = int(row["layout_hash"]), layout_hash()
            return f"layout version {row['version']} ({theirs:016x}), this build has {VERSION} ({ours:016x})"
        for name, value in self._stored().items():
            if not np.array_equal(np.asarray(row[name]), np.asarray(value)):
                return f"{name} is {row[name]}, not {value}"
        return None

    @staticmethod
    def stored_in(ctl: npt.NDArray[Any]) -> "Geometry":
        """The geometry that a HeapCtl (HEAP_CTL.dtype [1]) states.

        Raises:
            ValueError: another build wrote the control block, or it contradicts itself.
        """
        row = ctl[0]
        values: dict[str, Any] = {f.name: int(row[f.name]) for f in fields(Geometry) if f.name != "class_pages"}
        found = Geometry(**values, class_pages=tuple(int(n) for n in row["class_pages"]))
        why = found.mismatch(ctl)
        if why:
            raise ValueError(why)
        _check_classes(tuple(np.trim_zeros(found.class_pages, "b")), found.n_pages)
        return found

    def world_table(
        self,
        rank: int,
        incarnation: int,
        bases: list[int],
        *,
        checksum: bool = False,
        costs: Sequence[float] | None = None,
    ) -> npt.NDArray[np.int64]:
        """The private table that device functions take as `world` (`world_table`): this geometry, `bases`, read costs.

        int64 [words of WORLD + 2 * world_size].

        Args:
            rank: this rank. incarnation: how many times it has attached.
            bases: the address of every rank's segment as this process sees it.
            checksum: whether this rank gives its objects checksums, and reads none without.
            costs: what a read from each rank costs (`nearest_first`).
        """
        head = np.zeros(1, WORLD.dtype)
        for name in WORLD.offsets:
            if name in self.offsets:
                head[0][name] = self.offsets[name]
            elif hasattr(self, name):
                head[0][name] = getattr(self, name)
        head[0]["rank"], head[0]["producer"] = rank, producer_word(rank, incarnation)
        head[0]["checksum"] = checksum
        order = nearest_first(rank, self.world_size, costs)
        return np.concatenate([head.view(np.int64), np.array(bases, np.int64), np.argsort(order)])


def nearest_first(rank: int, world_size: int, costs: Sequence[float] | None = None) -> list[int]:
    """All ranks in the order in which `rank` prefers to read from them: itself, then by cost.

    Of ranks that cost the same the next after `rank` goes first, around: so the readers of a copied object spread.
    """
    paid = [0.0] * world_size if costs is None else costs
    return sorted(range(world_size), key=lambda other: (other != rank, paid[other], (other - rank) % world_size))


def evicts_by(may_evict: bool, policy: str) -> int:
    """The word `may_evict` of HeapCtl."""
    return POLICIES.index(policy) + LIFETIMES.value if may_evict else 0


def producer_word(rank: int, incarnation: int) -> int:
    """The PRODUCER bits of a rank and its incarnation."""
    return int(rank | (incarnation & PRODUCER_INC_MASK.value) << PRODUCER_INC_SHIFT.value)


def producer_of(bits: int) -> tuple[int, int]:
    """The rank and the incarnation in PRODUCER bits."""
    return unpack("PRODUCER", "rank", bits), unpack("PRODUCER", "incarnation", bits)


def _check_classes(classes: tuple[int, ...], n_pages: int) -> None:
    if not 1 <= len(classes) <= SIZE_CLASSES:
        raise ValueError(f"size_classes must be 1 to {SIZE_CLASSES} numbers of pages, not {classes}")
    if classes[0] < 1 or any(large <= small for small, large in pairwise(classes)):
        raise ValueError(f"size_classes must ascend from at least 1: {classes}")
    if any(pages % classes[0] for pages in classes):
        raise ValueError(f"the smallest of size_classes must divide all others: {classes}")
    if classes[-1] > n_pages:
        raise ValueError(f"the largest size class has {classes[-1]} pages, the heap has {n_pages}")
