"""The world table: where a rank finds all segments and their geometry. Private words, never shared memory.

A corrupt or foreign segment must not lead a rank astray, so the protocol reads no bound, offset or base from a segment:
it reads them here. Behind the words of WORLD lie `heap_bases`, the base address of every rank's segment as this process
sees it; that is the table that iris' device functions take. Behind those lies what a read from each rank costs.

A kernel loads the table once, by `open_world`, and passes its words to protocol functions as one argument:
`World.page_bytes` is in a register. Loaded at each use it would come from memory after each acquire, which empties the
first-level cache. A function that is seldom needed stands apart (`noinline`): it takes the address, `World.table`, and
opens the world again, so that its callers pass no twenty words. On a CPU a world is the address of its table, and
`World.page_bytes` is a load (`native_world`).
"""

from typing import Any, NamedTuple

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
    LABEL_BYTES,
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
        Field("shard_mask", "<i8", "the bits of a number that tell its list, as a word in a row of lists"),
        Field("n_classes", "<i8", "size classes that there are"),
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


class World(NamedTuple):
    """An open world table: the fields of WORLD, except those that are found by a number, and the table's address."""

    rank: tl.tensor
    producer: tl.tensor
    world_size: tl.tensor
    page_bytes: tl.tensor
    n_pages: tl.tensor
    hdr_count: tl.tensor
    dir_buckets: tl.tensor
    ann_capacity: tl.tensor
    pin_slots: tl.tensor
    shards: tl.tensor
    shard_mask: tl.tensor
    n_classes: tl.tensor
    links_base: tl.tensor
    hdr_base: tl.tensor
    desc_base: tl.tensor
    dir_base: tl.tensor
    turn_base: tl.tensor
    ann_base: tl.tensor
    pin_base: tl.tensor
    layouts_base: tl.tensor
    ghosts_base: tl.tensor
    labels_base: tl.tensor
    quotas_base: tl.tensor
    heap_base: tl.tensor
    heap_limit: tl.tensor
    checksum: tl.tensor
    table: tl.tensor


FIELDS = tuple(field.name for field in WORLD.fields if field.repeat == 1)
assert World._fields == (*FIELDS, "table"), f"World has other fields than WORLD: {FIELDS}"
N_FIELDS = tl.constexpr(len(FIELDS))
CLASS_PAGES = WORLD.at("class_pages")
BASES = WORLD.size_constant()


@triton.jit
def first_words(table: tl.int64, count: tl.constexpr) -> Any:
    """The first `count` words of a private table, as a tuple."""
    if count == 1:
        return (table64(table),)
    else:
        return first_words(table, count - 1) + (table64(table + (count - 1) * WORD_BYTES),)


@triton.jit
def open_world(table: tl.int64) -> Any:
    """The world whose table lies at an address. A kernel opens it once; words that it does not use are not loaded."""
    return World(*(first_words(table, N_FIELDS) + (table,)))


@triton.jit
def segment(world: World, rank: tl.int64) -> Any:
    """The address of a rank's segment. `rank` must be below `world_size`."""
    return table64(world.table + BASES + rank * WORD_BYTES)


@triton.jit
def read_cost(world: World, rank: tl.int64) -> Any:
    """What a read from a rank's segment costs this rank: its place in the order of the ranks, this one's 0."""
    return table64(world.table + BASES + (world.world_size + rank) * WORD_BYTES)


@triton.jit
def header_at(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """The address of a header slot."""
    return seg + world.hdr_base + slot * HEADER_BYTES


@triton.jit
def descriptor_at(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """The address of the descriptor of a header slot."""
    return seg + world.desc_base + slot * DESC_BYTES


@triton.jit
def label_at(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """The address of the label of a header slot."""
    return seg + world.labels_base + slot * LABEL_BYTES


@triton.jit
def page_links(world: World, seg: tl.int64) -> Any:
    """The address of the links of pages; the links of header slots follow them."""
    return seg + world.links_base


@triton.jit
def header_links(world: World, seg: tl.int64) -> Any:
    """The address of the links of header slots."""
    return page_links(world, seg) + world.n_pages * WORD_BYTES


@triton.jit
def bucket_at(world: World, seg: tl.int64, bucket: tl.int64) -> Any:
    """The address of a directory bucket."""
    return seg + world.dir_base + bucket * BUCKET_BYTES


@triton.jit
def activity_at(seg: tl.int64, rank: tl.int64, phase: tl.int64) -> Any:
    """The address of the word that counts a rank's operations in flight in a segment, in one grace phase."""
    return seg + ACTIVITY_BASE + rank * ACTIVITY_BYTES + IN_FLIGHT + phase * WORD_BYTES


@triton.jit
def my_activity(world: World, seg: tl.int64) -> Any:
    """The address of this rank's ACTIVITY record in a segment."""
    return seg + ACTIVITY_BASE + world.rank * ACTIVITY_BYTES


@triton.jit
def retries_at(world: World, seg: tl.int64) -> Any:
    """The address of the word that counts this rank's lost compare-and-swaps in a segment."""
    return my_activity(world, seg) + A_RETRIES


@triton.jit
def evicted_at(world: World, seg: tl.int64) -> Any:
    """The address of the word that counts the objects that this rank evicted from a segment."""
    return my_activity(world, seg) + A_EVICTED


@triton.jit
def class_pages(world: World, size_class: tl.int64) -> Any:
    """Pages per extent of a size class; 0 if there is no such class."""
    return table64(world.table + CLASS_PAGES + size_class * WORD_BYTES)


@triton.jit
def is_rank(world: World, rank: tl.int64) -> Any:
    """True if the world has this rank."""
    return (rank >= 0) & (rank < world.world_size)


@triton.jit
def is_inside(world: World, payload: tl.int64, nbytes: tl.int64) -> Any:
    """True if `nbytes` bytes at the offset `payload` lie inside the payload arena."""
    limit = world.heap_limit
    placed = (payload >= world.heap_base) & (payload <= limit)
    return placed & (nbytes >= 0) & (nbytes <= limit - select(placed, payload, limit))
