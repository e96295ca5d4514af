"""The byte layout of a segment: the only file that spells an offset, a bit field, the magic or the version.

A segment is one rank's part of the symmetric heap. Its regions, in order:

    HeapCtl | activity | links | headers | descriptors | directory | turnstiles | ring | pins | layouts | ghosts |
    labels | quotas | payload

Every word has 64 bits, little-endian and aligned; two fields of 32 bits share a word. A word that many producers change
has a line of 128 bytes to itself, so that one hot word does not slow another down.
Device code uses the constants below, `tl.constexpr` generated from the tables; the host uses the numpy dtypes.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from nanokv.device.segment.record import LINE, Field, Record

MAGIC = 0x314B_564F_4E41_4E00  # "\0NANOKV1"
VERSION = 10
WORD = 8
SIZE_CLASSES = 24  # at most
SHARDS = 64
MAX_DIMS = 7

ACTIVITY = Record(
    "Activity",
    LINE,
    [
        Field("in_flight0", "<u8", "operations of this rank in flight in this segment that began in grace phase 0"),
        Field("in_flight1", "<u8", "the same for phase 1"),
        Field("incarnation", "<u8", "how many times this rank has attached; 0: never"),
        Field("evicted", "<u8", "objects that operations of this rank evicted from this segment"),
        Field("retries", "<u8", "compare-and-swaps of this rank on free lists and bump pointers that lost to another"),
    ],
)

OBJ_HEADER = Record(
    "ObjHeader",
    64,
    [
        Field("key_hash", "<u8", "low half of the key's digest, XXH3-128 of identity, namespace and key"),
        Field("n_pages", "<u4", "pages that hold the payload; 0 if the slot holds none"),
        Field("page_size", "<u4", "bytes per page"),
        Field("payload_base", "<u8", "offset of the first page in the owner's segment"),
        Field("bytes_total", "<u8", "bytes of payload"),
        Field("state", "<u4", "low half of the STATE word: life-cycle state, pins, watched"),
        Field("epoch", "<u4", "high half of the STATE word: how many times the slot was taken; never goes back"),
        Field("last_access", "<u8", "time of the last read or write, best effort, or a lease: ACCESS bits"),
        Field("flags", "<u4", "FLAG_*, and the epoch to which flags and producer belong: FLAGS bits"),
        Field("producer", "<u4", "the rank that took the slot, and its incarnation: PRODUCER bits"),
        Field(
            "key_check",
            "<u8",
            "high half of the key's digest, whose upper 32 bits name the identity, XOR (epoch << 32)",
        ),
    ],
)

OBJ_DESC = Record(
    "ObjDesc",
    64,
    [
        Field("format", "<u8", "dtype, number of dimensions and checksum: FORMAT bits"),
        Field("dims", "<u8", "the shape", repeat=MAX_DIMS),
    ],
)

# What the specification has in an announcement. The ring itself holds one word for each, a hint (RING bits): a listener
# reads all this in the header that the hint names, so that a hint can be lost.
ANNOUNCE = Record(
    "Announce",
    64,
    [
        Field("key_hash", "<u8", "low half of the key's digest"),
        Field("owner_rank", "<u4", "the rank whose segment holds the object"),
        Field("epoch", "<u4", "the header's epoch"),
        Field("header_off", "<u8", "offset of the header"),
        Field("payload_off", "<u8", "offset of the payload"),
        Field("n_pages", "<u4", "pages that hold the payload"),
        Field("page_size", "<u4", "bytes per page"),
        Field("bytes_total", "<u8", "bytes of payload"),
        Field("key_check", "<u8", "high half of the key's digest"),
    ],
)

FORM_WORDS = 4
LAYOUT = Record(
    "Layout",
    LINE,
    [
        Field("identity", "<u8", "upper half of an identity's digest, whose upper 32 bits are its tag; 0: no row"),
        Field("identity_low", "<u8", "lower half of that digest"),
        Field("base", "<u8", "upper half of the digest of the same identity without its layout"),
        Field("base_low", "<u8", "lower half of that digest"),
        Field("layers", "<u4", "layers in an object"),
        Field("first_layer", "<u4", "the number in the model of the first one"),
        Field("kv_heads", "<u4", "KV heads of the whole model"),
        Field("head_size", "<u4", "elements of a head of a token"),
        Field("block_size", "<u4", "tokens in an object"),
        Field("dtype", "<u4", "dtype code, as in FORMAT"),
        Field("tp_rank", "<u4", "the rank of tensor parallelism that stores these objects"),
        Field("tp_size", "<u4", "how many of them there are"),
        Field("order", "<u8", "the dimensions of an object, as `KVLayout.order`: ASCII, then zeros"),
        Field("form", "<u8", "`KVLayout.form`: UTF-8, then zeros", repeat=FORM_WORDS),
        Field("check", "<u8", "XXH3-64 of the words before, written last: a row without it is not finished"),
    ],
)


LABEL = Record(
    "Label",
    16,
    [
        Field("group", "<u8", "a hash of the object's group, within its identity; 0: none"),
        Field("until", "<u8", "ns: when the owner removes the object; 0: never"),
    ],
)


class Region(NamedTuple):
    """An array of records between HeapCtl and the payload."""

    name: str
    base: str  #: the field of HeapCtl and of the world table that holds its offset
    dtype: Any  #: of a record
    counts: tuple[str, ...]  #: fields of a `Geometry` that add up to the number of records
    doc: str
    each: int = 1  #: records per count


U64 = np.dtype("<u8")
BUCKET_ENTRIES = 8
RANK_LAYOUTS = 16  #: rows of the table of layouts per rank of the world
SLOT_GHOSTS = 4  #: GHOST words per header slot
RANK_QUOTAS = 16  #: QUOTA words per rank of the world
PLACES_OF_GENERATIONS = 16  #: words of generations in a segment

# in the order in which they lie. The first begins behind HeapCtl, so its offset is not stored.
REGIONS = (
    Region("activity", "activity_base", ACTIVITY.dtype, ("world_size", "guests"), "the activity words"),
    Region("links", "links_base", U64, ("n_pages", "hdr_count"), "the links"),
    Region("headers", "hdr_base", OBJ_HEADER.dtype, ("hdr_count",), "the header arena"),
    Region("descriptors", "desc_base", OBJ_DESC.dtype, ("hdr_count",), "the descriptors"),
    Region("directory", "dir_base", U64, ("dir_buckets",), "the directory", BUCKET_ENTRIES),
    Region("turnstiles", "turn_base", U64, ("dir_buckets",), "the directory's turnstiles: TURN words, one per bucket"),
    Region("ring", "ann_base", U64, ("ann_capacity",), "the announce ring"),
    Region("pins", "pin_base", U64, ("pin_slots",), "the pin ledger"),
    Region("layouts", "layouts_base", LAYOUT.dtype, ("world_size",), "the table of layouts", RANK_LAYOUTS),
    Region("ghosts", "ghosts_base", U64, ("hdr_count",), "the ghosts of evicted objects", SLOT_GHOSTS),
    Region("labels", "labels_base", LABEL.dtype, ("hdr_count",), "the labels of objects"),
    Region("quotas", "quotas_base", U64, ("world_size",), "the quotas of identities", RANK_QUOTAS),
)

HEAP_CTL = Record(
    "HeapCtl",
    LINE,
    [
        # identity and geometry: the owner writes them once, before `magic`; ranks read them only on attach
        Field("magic", "<u8", "MAGIC, which the owner writes last: a segment without it is not initialised"),
        Field("version", "<u4", "VERSION of this layout"),
        Field("mode", "<u4", "the allocator: 0 the producer's device (v2), 1 the master's host (v1)"),
        Field("layout_hash", "<u8", "digest of these tables: a build with another layout is refused"),
        Field("world_id", "<u8", "random, the same in all segments of one world"),
        Field("rank", "<u4", "the owner's rank"),
        Field("world_size", "<u4", "ranks in the world"),
        Field("page_bytes", "<u8", "bytes per payload page"),
        Field("n_pages", "<u8", "pages in the payload arena"),
        Field("hdr_count", "<u8", "slots in the header arena"),
        Field("dir_buckets", "<u8", "buckets of eight entries, a power of two"),
        Field("ann_capacity", "<u8", "slots in the announce ring, a power of two"),
        Field("pin_slots", "<u8", "slots in the pin ledger"),
        Field("class_pages", "<u4", "pages per extent of each size class, ascending", repeat=SIZE_CLASSES),
        Field("shards", "<u8", "free lists in use of each kind, a power of two"),
        Field("guests", "<u8", "processes that may map it and are no ranks; their numbers follow those of the ranks"),
        *[Field(region.base, "<u8", f"offset of {region.doc}") for region in REGIONS[1:]],
        Field("heap_base", "<u8", "offset of the payload arena"),
        Field("heap_limit", "<u8", "offset of the end of the payload arena"),
        Field("epoch", "<u4", "how many times an owner has attached to this segment"),
        Field("water_hi", "<u4", "the owner's sweeper begins to evict when so many % of the pages are used"),
        Field("water_lo", "<u4", "and stops at so many %"),
        Field(
            "closed",
            "<u4",
            "0: the owner is there; 1: it has closed the segment, or leaves; 2: absent, no rank owns its pages",
        ),
        # hot words, each on a line of its own
        Field(
            "bump_ptr", "<u8", "offset of the first byte never allocated; only grows, also past the end", own_line=True
        ),
        Field("hdr_head", "<u8", "first header slot never used; only grows, also past the end", own_line=True),
        Field("hdr_free", "<u8", "free lists of header slots: LIST words", repeat=SHARDS, own_line=True),
        *[
            Field(f"free_head{k}", "<u8", f"free lists of size class {k}: LIST words", repeat=SHARDS, own_line=True)
            for k in range(SIZE_CLASSES)
        ],
        Field("ann_head", "<u8", "tickets of the ring taken so far; producers add", own_line=True),
        Field("ann_tail", "<u8", "tickets consumed so far; only the owner's host writes", own_line=True),
        Field("ann_asleep", "<u4", "1 while the owner's poller or a waiting rank sleeps (only in host memory)"),
        Field("_pad0", "<u4", "0"),
        Field(
            "grace_phase",
            "<u8",
            "0 or 1: the activity word in which a new operation counts itself; only the owner's host writes",
            own_line=True,
        ),
        Field(
            "clock_hand",
            "<u8",
            "header slots that evictions have looked at: modulo their number, the next",
            own_line=True,
        ),
        # the eviction policy's state: written by evictions, best effort
        Field(
            "life",
            "<u8",
            "ns after which an object that was put once goes, about; 0 before the first eviction",
            own_line=True,
        ),
        Field("gain", "<u8", "log2, times 2^32, of how much longer an object lives that was used again"),
        Field("gone_new", "<u8", "evictions of objects that were put once"),
        Field("gone_used", "<u8", "evictions of objects that were used again"),
        Field("quotas", "<u8", "how many times hosts have set a quota"),
        Field(
            "may_evict", "<u8", "0: a full heap refuses; else by which policy it evicts: LIFETIMES, ...", own_line=True
        ),
        Field(
            "joining",
            "<u8",
            "JOINING word: the last host that detached the free lists, until it has pushed them back",
            own_line=True,
        ),
        Field(
            "splitting",
            "<u8",
            "SPLITTING word: producers that split a free extent, until the pieces are pushed",
            own_line=True,
        ),
        Field(
            "generations",
            "<u8",
            "how many times all objects of an identity were declared void: by the low bits of its tag",
            repeat=PLACES_OF_GENERATIONS,
            own_line=True,
        ),
        # counters of rare events share one line: no operation depends on them
        Field("missed", "<u8", "announcements that found their ring slot taken", own_line=True),
        Field("evicted", "<u8", "objects evicted, by producers and hosts"),
        Field("refused", "<u8", "allocations answered FULL"),
        Field("lost", "<u8", "commits of objects that had been given up"),
        Field("corrupt", "<u8", "control words and checksums that operations found wrong"),
        Field(
            "swept_at", "<u8", "ns: when the owner's host swept last; ahead of its clock: the machine began anew since"
        ),
    ],
)

RECORDS = (HEAP_CTL, ACTIVITY, OBJ_HEADER, OBJ_DESC, ANNOUNCE, LAYOUT, LABEL)


def layout_hash() -> int:
    """A digest of the stored layout: two builds that disagree about one byte refuse each other's segments.

    It covers the offset and type of each field, and the place of each packed one, but no description.
    """
    fields = [(r.name, r.size, [(f.name, f.kind, f.repeat, r.offsets[f.name]) for f in r.fields]) for r in RECORDS]
    packed = [(b.word, b.name, b.shift, b.width) for b in BITS]
    text = repr((fields, packed))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


# --- packed words -----------------------------------------------------------------------------
class Bits(NamedTuple):
    """A field of a packed word: its lowest bit, its width in bits, and its meaning."""

    word: str
    name: str
    shift: int
    width: int
    doc: str


BITS = (
    Bits("STATE", "state", 0, 8, "RESERVED, WRITING, READY or DEAD"),
    Bits("STATE", "pins", 8, 23, "readers that hold the object in place"),
    Bits("STATE", "watched", 31, 1, "set by the host while it recounts the pins; every change of the pins clears it"),
    Bits("STATE", "epoch", 32, 32, "the slot's epoch"),
    Bits("FLAGS", "flags", 0, 8, "FLAG_*"),
    Bits("FLAGS", "epoch", 8, 24, "low bits of the epoch in which the producer wrote this word"),
    Bits("FORMAT", "dtype", 0, 8, "dtype code; 0: raw bytes"),
    Bits("FORMAT", "ndim", 8, 8, "number of dimensions"),
    Bits("FORMAT", "checksum", 32, 32, "of key, descriptor and payload; only with FLAG_CHECKSUM"),
    Bits("PRODUCER", "rank", 0, 10, "rank of the producer"),
    Bits("PRODUCER", "incarnation", 10, 22, "how many times that rank had attached"),
    Bits("LIST", "node", 0, 32, "first node + 1; 0: empty"),
    Bits("LIST", "tag", 32, 32, "changes of the list so far, against ABA"),
    Bits("LINK", "next", 0, 32, "next node + 1; 0: last"),
    Bits("LINK", "stamp", 32, 26, "how often this node changed hands: by it the audit sees which nodes moved"),
    Bits("LINK", "mark", 58, 6, "of a first page: class + 1 while free, class + 25 while a header holds it; else 0"),
    Bits("ENTRY", "phase", 0, 2, "0 empty, 1 TENTATIVE, 2 FINAL, 3 REPLICA: a further copy"),
    Bits("ENTRY", "tag", 2, 12, "low bits of the high half of the key's digest"),
    Bits("ENTRY", "rank", 14, 10, "the rank whose segment holds the header"),
    Bits("ENTRY", "header", 24, 26, "header slot in that segment"),
    Bits("ENTRY", "epoch", 50, 14, "low bits of the header's epoch"),
    Bits("TURN", "passages", 0, 32, "passages of producers and removers so far; what it carries over is harmless"),
    Bits("TURN", "copies", 32, 32, "passages of replicators so far: a remover looks again if they grew"),
    Bits("ACCESS", "priority", 0, 2, "0: normal; LOW or HIGH: goes earlier or later than others; KEPT: never evicted"),
    Bits("ACCESS", "time", 2, 59, "in 4 ns; of a lease: when it ends"),
    Bits("ACCESS", "use", 61, 2, "0: put once; 1, 2: used again, once or more often; 3: leased until it is read"),
    Bits("TERMS", "until", 0, 61, "ns; the end of a lease; 0: no lease"),
    Bits("TERMS", "priority", 61, 2, "as ACCESS"),
    Bits("GHOST", "stamp", 0, 31, "evictions of its kind before its own"),
    Bits("GHOST", "used", 31, 1, "1 if the object had been used again"),
    Bits("GHOST", "tag", 32, 32, "high bits of the low half of the key's digest; 0 in an empty word"),
    Bits("QUOTA", "pages", 0, 32, "pages that the objects of an identity may hold in this segment"),
    Bits("QUOTA", "tag", 32, 32, "of the identity; 0 in an empty word"),
    Bits("JOINING", "producer", 0, 32, "PRODUCER bits of a host; 0: none"),
    Bits("JOINING", "count", 32, 32, "how many times hosts have begun to join"),
    Bits("SPLITTING", "under_way", 0, 32, "splits under way"),
    Bits("SPLITTING", "ended", 32, 32, "how many splits have ended"),
    Bits("RING", "kind", 0, 3, "0 empty, 1 STORED, 2 REMOVED, 3 EVICTED, 4 WANTED"),
    Bits("RING", "header", 3, 29, "header slot; of WANTED: the size class that a producer did not get"),
    Bits("RING", "epoch", 32, 32, "the header's epoch"),
    Bits("PIN", "phase", 0, 2, "0 free, 1 INTENT, 2 HELD"),
    Bits("PIN", "header", 2, 30, "header slot"),
    Bits("PIN", "producer", 32, 32, "the rank that pins: PRODUCER bits"),
)


_SHIFTS_AND_MASKS = {(bits.word, bits.name): (bits.shift, (1 << bits.width) - 1) for bits in BITS}


def _bits(word: str, name: str) -> tuple[Any, Any]:
    shift, mask = _SHIFTS_AND_MASKS[word, name]
    return tl.constexpr(shift), tl.constexpr(mask)


def unpack(word: str, name: str, values: Any) -> Any:
    """One field of a packed word, or of each word in a numpy array (u64 or i64)."""
    shift, mask = _SHIFTS_AND_MASKS[word, name]
    return (values >> shift) & mask


def key_checks(headers: Any) -> Any:
    """The high half of the key's digest (u64) of a header record, or of each in an array."""
    return headers["key_check"] ^ (headers["epoch"].astype(np.uint64) << np.uint64(EPOCH_SHIFT.value))


def names_producer(headers: Any) -> Any:
    """Whether flags and producer of a header record are of its epoch, or of each in an array. Else look again later."""
    return unpack("FLAGS", "epoch", headers["flags"]) == headers["epoch"] & FLAGS_EPOCH_MASK.value


WORD_BYTES = tl.constexpr(WORD)
CLOSED = 1  #: of HeapCtl.closed: no producer on a host chooses this segment; its pages are in their places
ABSENT = 2  #: the same of an elastic world; no page is in any place: none is used, and none can be taken
LOW32 = tl.constexpr(0xFFFFFFFF)
POSITIVE = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # all bits of a word except its sign

# life-cycle states: stored values, never renumber them
RESERVED = tl.constexpr(0)
WRITING = tl.constexpr(1)
READY = tl.constexpr(2)
DEAD = tl.constexpr(3)
STATE_SHIFT, STATE_MASK = _bits("STATE", "state")
PINS_SHIFT, PINS_MASK = _bits("STATE", "pins")
EPOCH_SHIFT, EPOCH_MASK = _bits("STATE", "epoch")
ONE_PIN = tl.constexpr(1 << PINS_SHIFT.value)
PIN_COUNT = tl.constexpr(PINS_MASK.value << PINS_SHIFT.value)
WATCHED_SHIFT, _ = _bits("STATE", "watched")
WATCHED = tl.constexpr(1 << WATCHED_SHIFT.value)
PIN_BITS = tl.constexpr(PIN_COUNT.value | WATCHED.value)  # the bits that readers change, or that their changes clear

FLAG_PLAN = tl.constexpr(1)  # no activity word counts the kernel that writes it: in quarantine until acknowledged
FLAG_ACK = tl.constexpr(2)  # the plan's producer has acknowledged: it will write no more
FLAG_CHECKSUM = tl.constexpr(4)  # the descriptor holds a checksum
FLAG_LABEL = tl.constexpr(8)  # the label of the slot is that of this object
FLAGS_EPOCH_SHIFT, FLAGS_EPOCH_MASK = _bits("FLAGS", "epoch")

DTYPE_SHIFT, DTYPE_MASK = _bits("FORMAT", "dtype")
NDIM_SHIFT, NDIM_MASK = _bits("FORMAT", "ndim")
CHECKSUM_SHIFT, CHECKSUM_MASK = _bits("FORMAT", "checksum")

PRODUCER_RANK_SHIFT, PRODUCER_RANK_MASK = _bits("PRODUCER", "rank")
PRODUCER_INC_SHIFT, PRODUCER_INC_MASK = _bits("PRODUCER", "incarnation")
TAG_SHIFT, TAG_MASK = _bits("LIST", "tag")
STAMP_SHIFT, STAMP_MASK = _bits("LINK", "stamp")
MARK_SHIFT, MARK_MASK = _bits("LINK", "mark")
FREE = tl.constexpr(1)  # plus the class: the mark of a free extent
HELD = tl.constexpr(1 + SIZE_CLASSES)  # plus the class: the mark of an extent that a header slot holds
STAMP_BITS = tl.constexpr(STAMP_MASK.value << STAMP_SHIFT.value)

ENTRY_TENTATIVE = tl.constexpr(1)
ENTRY_FINAL = tl.constexpr(2)  # the bit that REPLICA has too: a reader follows both
ENTRY_REPLICA = tl.constexpr(3)
ENTRY_PHASE_SHIFT, ENTRY_PHASE_MASK = _bits("ENTRY", "phase")
ENTRY_TAG_SHIFT, ENTRY_TAG_MASK = _bits("ENTRY", "tag")
ENTRY_RANK_SHIFT, ENTRY_RANK_MASK = _bits("ENTRY", "rank")
ENTRY_HEADER_SHIFT, ENTRY_HEADER_MASK = _bits("ENTRY", "header")
ENTRY_EPOCH_SHIFT, ENTRY_EPOCH_MASK = _bits("ENTRY", "epoch")
ENTRIES_PER_BUCKET = tl.constexpr(BUCKET_ENTRIES)
CANDIDATES = tl.constexpr(2 * BUCKET_ENTRIES)  # entries that may hold a key
NEAR_BUCKETS = tl.constexpr(64)  # both buckets of a key are in the same so many
MOST_COPIES = 7  #: of one object beside its primary; as many more entries of its key are left to others
BUCKET_BYTES = tl.constexpr(BUCKET_ENTRIES * WORD)

TURN_COPIES_SHIFT, TURN_COPIES_MASK = _bits("TURN", "copies")
ONE_COPY_PASSED = tl.constexpr(1 << TURN_COPIES_SHIFT.value)

# eviction policies: stored values, never renumber them
LIFETIMES = tl.constexpr(1)
CLOCK = tl.constexpr(2)
FIFO = tl.constexpr(3)

STORED = tl.constexpr(1)
REMOVED = tl.constexpr(2)
EVICTED = tl.constexpr(3)
WANTED = tl.constexpr(4)
RING_KIND_SHIFT, RING_KIND_MASK = _bits("RING", "kind")
RING_HEADER_SHIFT, RING_HEADER_MASK = _bits("RING", "header")
RING_EPOCH_SHIFT, RING_EPOCH_MASK = _bits("RING", "epoch")

_TIME_SHIFT, _TIME_MASK = _bits("ACCESS", "time")
ACCESS_TIME = tl.constexpr(_TIME_MASK.value << _TIME_SHIFT.value)  # so much of a time in ns is stored
_, PRIORITY = _bits("ACCESS", "priority")  # the lowest bits of the word: a mask
LOW = tl.constexpr(1)
HIGH = tl.constexpr(2)
KEPT = tl.constexpr(3)
PRIORITY_STEP = tl.constexpr(3)  # log2 of how much longer objects of HIGH priority live, and less long those of LOW
TERMS_PRIORITY_SHIFT, _ = _bits("TERMS", "priority")
USE_SHIFT, USE_MASK = _bits("ACCESS", "use")
MOST_USES = tl.constexpr(USE_MASK.value - 1)
LEASED = tl.constexpr(USE_MASK.value << USE_SHIFT.value)

GHOST_STAMP_SHIFT, GHOST_STAMP_MASK = _bits("GHOST", "stamp")
GHOST_USED_SHIFT, GHOST_USED_MASK = _bits("GHOST", "used")
GHOST_TAG_SHIFT, GHOST_TAG_MASK = _bits("GHOST", "tag")
GHOSTS_A_SLOT = tl.constexpr(SLOT_GHOSTS)

JOINER_SHIFT, JOINER_MASK = _bits("JOINING", "producer")
JOINS_SHIFT, JOINS_MASK = _bits("JOINING", "count")

_, SPLITTING_MASK = _bits("SPLITTING", "under_way")
SPLITS_ENDED_SHIFT, _ = _bits("SPLITTING", "ended")
ONE_SPLIT_ENDED = tl.constexpr(1 << SPLITS_ENDED_SHIFT.value)

PIN_INTENT = tl.constexpr(1)
PIN_HELD = tl.constexpr(2)
PIN_PHASE_SHIFT, PIN_PHASE_MASK = _bits("PIN", "phase")
PIN_HEADER_SHIFT, PIN_HEADER_MASK = _bits("PIN", "header")
PIN_PRODUCER_SHIFT, PIN_PRODUCER_MASK = _bits("PIN", "producer")

MAX_RANKS = ENTRY_RANK_MASK.value + 1
MAX_PRODUCERS = PRODUCER_RANK_MASK.value + 1
MAX_HEADERS = ENTRY_HEADER_MASK.value + 1

# --- offsets for device code ------------------------------------------------------------------
BUMP_PTR = HEAP_CTL.at("bump_ptr")
HDR_HEAD = HEAP_CTL.at("hdr_head")
HDR_FREE = HEAP_CTL.at("hdr_free")
FREE_HEAD = HEAP_CTL.at("free_head0")
FREE_HEAD_STRIDE = tl.constexpr(SHARDS * WORD)  # the lists of one size class stand in one row
MAX_SHARDS = tl.constexpr(SHARDS)
ANN_HEAD = HEAP_CTL.at("ann_head")
ANN_TAIL = HEAP_CTL.at("ann_tail")
ANN_ASLEEP = HEAP_CTL.at("ann_asleep")
GRACE_PHASE = HEAP_CTL.at("grace_phase")
CLOCK_HAND = HEAP_CTL.at("clock_hand")
LIFE = HEAP_CTL.at("life")
GAIN = HEAP_CTL.at("gain")
GONE_NEW = HEAP_CTL.at("gone_new")
GONE_USED = HEAP_CTL.at("gone_used")
QUOTAS_SET = HEAP_CTL.at("quotas")
GENERATIONS = HEAP_CTL.at("generations")
MAY_EVICT = HEAP_CTL.at("may_evict")
JOINING = HEAP_CTL.at("joining")
SPLITTING = HEAP_CTL.at("splitting")
COUNT_MISSED = HEAP_CTL.at("missed")
COUNT_EVICTED = HEAP_CTL.at("evicted")
COUNT_REFUSED = HEAP_CTL.at("refused")
COUNT_LOST = HEAP_CTL.at("lost")
COUNT_CORRUPT = HEAP_CTL.at("corrupt")

ACTIVITY_BASE = tl.constexpr(HEAP_CTL.size)
ACTIVITY_BYTES = tl.constexpr(ACTIVITY.size)
IN_FLIGHT = ACTIVITY.at("in_flight0")
A_EVICTED = ACTIVITY.at("evicted")
A_RETRIES = ACTIVITY.at("retries")

HEADER_BYTES = tl.constexpr(OBJ_HEADER.size)
H_KEY_HASH = OBJ_HEADER.at("key_hash")
H_PAGES = OBJ_HEADER.at("n_pages")  # word: n_pages | page_size << 32
H_PAYLOAD = OBJ_HEADER.at("payload_base")
H_BYTES = OBJ_HEADER.at("bytes_total")
H_STATE = OBJ_HEADER.at("state")  # word: state | pins << 8 | epoch << 32
H_ACCESS = OBJ_HEADER.at("last_access")
H_FLAGS = OBJ_HEADER.at("flags")  # word: flags | producer << 32
H_KEY_CHECK = OBJ_HEADER.at("key_check")

DESC_BYTES = tl.constexpr(OBJ_DESC.size)
D_FORMAT = OBJ_DESC.at("format")
D_DIMS = OBJ_DESC.at("dims")

LABEL_BYTES = tl.constexpr(LABEL.size)
L_GROUP = LABEL.at("group")
L_UNTIL = LABEL.at("until")

QUOTA_TAG_SHIFT, QUOTA_TAG_MASK = _bits("QUOTA", "tag")
QUOTAS_A_RANK = tl.constexpr(RANK_QUOTAS)

LAYOUT_BYTES = LAYOUT.size_constant()
LAYOUTS_A_RANK = tl.constexpr(RANK_LAYOUTS)
LAYOUT_TAG_SHIFT = tl.constexpr(32)  # of the word `identity`, and of a `key_check`
