"""The world table: where a rank finds all segments and their geometry. Private words, never shared memory.

A corrupt or foreign segment must not lead a rank astray, so the protocol reads no bound, offset or base from a segment:
it reads them here. The table ends with `heap_bases`, the base address of every rank's segment as this process sees it;
that is the table that iris' device functions take.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import select, table64
from nanokv.device.segment.layout import (
    A_EVICTED,
    A_RETRIES,
    ACTIVITY_BASE,
    ACTIVITY_BYTES,
    BUCKET_BYTES,
    DESC_BYTES,
    HEADER_BYTES,
    IN_FLIGHT,
    REGIONS,
    SIZE_CLASSES,
    WORD_BYTES,
)
from nanokv.device.segment.record import Field, Record

WORLD = Record(
    "World",
    8,
    [
        Field("rank", "<i8", "this rank"),
        Field("producer", "<i8", "this rank and its incarnation: PRODUCER bits"),
        Field("world_size", "<i8", "ranks in the world"),
        Field("page_bytes", "<i8", "bytes per page"),
        Field("n_pages", "<i8", "pages per segment"),
        Field("hdr_count", "<i8", "header slots per segment"),
        Field("dir_buckets", "<i8", "directory buckets per segment, a power of two"),
        Field("ann_capacity", "<i8", "ring slots per segment, a power of two"),
        Field("pin_slots", "<i8", "slots of the pin ledger per segment, a power of two"),
        Field("shards", "<i8", "free lists of each kind per segment, a power of two"),
        *[Field(region.base, "<i8", f"offset of {region.doc}") for region in REGIONS[1:]],
        Field("heap_base", "<i8", "offset of the payload arena"),
        Field("heap_limit", "<i8", "offset of the end of the payload arena"),
        Field("checksum", "<i8", "1 if this rank gives its objects checksums, and reads none without"),
        Field(
            "class_pages",
            "<i8",
            "pages per extent of each size class; 0: no such class",
            repeat=SIZE_CLASSES,
        ),
    ],
)

W_RANK = WORLD.at("rank")
W_PRODUCER = WORLD.at("producer")
W_WORLD_SIZE = WORLD.at("world_size")
W_PAGE_BYTES = WORLD.at("page_bytes")
W_N_PAGES = WORLD.at("n_pages")
W_HDR_COUNT = WORLD.at("hdr_count")
W_DIR_BUCKETS = WORLD.at("dir_buckets")
W_ANN_CAPACITY = WORLD.at("ann_capacity")
W_PIN_SLOTS = WORLD.at("pin_slots")
W_SHARDS = WORLD.at("shards")
W_LINKS_BASE = WORLD.at("links_base")
W_HDR_BASE = WORLD.at("hdr_base")
W_DESC_BASE = WORLD.at("desc_base")
W_DIR_BASE = WORLD.at("dir_base")
W_TURN_BASE = WORLD.at("turn_base")
W_ANN_BASE = WORLD.at("ann_base")
W_PIN_BASE = WORLD.at("pin_base")
W_HEAP_BASE = WORLD.at("heap_base")
W_HEAP_LIMIT = WORLD.at("heap_limit")
W_CHECKSUM = WORLD.at("checksum")
W_CLASS_PAGES = WORLD.at("class_pages")
W_BASES = WORLD.size_constant()


@triton.jit
def segment(world: tl.int64, rank: tl.int64) -> Any:
    """The address of a rank's segment. `rank` must be below `world_size`."""
    return table64(world + W_BASES + rank * WORD_BYTES)


@triton.jit
def header_at(world: tl.int64, seg: tl.int64, slot: tl.int64) -> Any:
    """The address of a header slot."""
    return seg + table64(world + W_HDR_BASE) + slot * HEADER_BYTES


@triton.jit
def descriptor_at(world: tl.int64, seg: tl.int64, slot: tl.int64) -> Any:
    """The address of the descriptor of a header slot."""
    return seg + table64(world + W_DESC_BASE) + slot * DESC_BYTES


@triton.jit
def page_links(world: tl.int64, seg: tl.int64) -> Any:
    """The address of the links of pages; the links of header slots follow them."""
    return seg + table64(world + W_LINKS_BASE)


@triton.jit
def header_links(world: tl.int64, seg: tl.int64) -> Any:
    """The address of the links of header slots."""
    return page_links(world, seg) + table64(world + W_N_PAGES) * WORD_BYTES


@triton.jit
def bucket_at(world: tl.int64, seg: tl.int64, bucket: tl.int64) -> Any:
    """The address of a directory bucket."""
    return seg + table64(world + W_DIR_BASE) + bucket * BUCKET_BYTES


@triton.jit
def activity_at(seg: tl.int64, rank: tl.int64, phase: tl.int64) -> Any:
    """The address of the word that counts a rank's operations in flight in a segment, in one grace phase."""
    return seg + ACTIVITY_BASE + rank * ACTIVITY_BYTES + IN_FLIGHT + phase * WORD_BYTES


@triton.jit
def my_activity(world: tl.int64, seg: tl.int64) -> Any:
    """The address of this rank's ACTIVITY record in a segment."""
    return seg + ACTIVITY_BASE + table64(world + W_RANK) * ACTIVITY_BYTES


@triton.jit
def retries_at(world: tl.int64, seg: tl.int64) -> Any:
    """The address of the word that counts this rank's lost compare-and-swaps in a segment."""
    return my_activity(world, seg) + A_RETRIES


@triton.jit
def evicted_at(world: tl.int64, seg: tl.int64) -> Any:
    """The address of the word that counts the objects that this rank evicted from a segment."""
    return my_activity(world, seg) + A_EVICTED


@triton.jit
def class_pages(world: tl.int64, size_class: tl.int64) -> Any:
    """Pages per extent of a size class; 0 if there is no such class."""
    return table64(world + W_CLASS_PAGES + size_class * WORD_BYTES)


@triton.jit
def is_rank(world: tl.int64, rank: tl.int64) -> Any:
    """True if the world has this rank."""
    return (rank >= 0) & (rank < table64(world + W_WORLD_SIZE))


@triton.jit
def is_inside(world: tl.int64, payload: tl.int64, nbytes: tl.int64) -> Any:
    """True if `nbytes` bytes at the offset `payload` lie inside the payload arena."""
    limit = table64(world + W_HEAP_LIMIT)
    placed = (payload >= table64(world + W_HEAP_BASE)) & (payload <= limit)
    return placed & (nbytes >= 0) & (nbytes <= limit - select(placed, payload, limit))
