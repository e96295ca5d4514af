"""The directory: from a key to the header that holds it, at the key's home rank.

Sixteen entries may hold a key: two buckets of eight, chosen by its digest. There is no probe chain, so there are no
tombstones: an empty entry is empty. An entry only points; the header decides what a reader sees.

Both buckets of a key are in the same 64, within 4 KiB: a reader on another host brings both as one row. That costs no
room: of 6.7 million keys in directories filled to 53 %, the most that there can be, none found both buckets full.

An entry is TENTATIVE while its producer settles with others of the same key, then FINAL (`claim`). A further copy of an
object has an entry of its own, REPLICA (`replicate`).

Source: two choices of a bucket, Azar et al. (1994).

Guarantees
- A reader takes the READY object that costs it least (`world_table.read_cost`), if one is READY in all of its looks.
- A reader that finds an object has its key: the header names key and epoch, and an entry only the low bits of both.

Why the orderings suffice: an entry hands nothing over. A reader that follows it acquires the STATE word of the header,
and believes the key only if it names the same epoch. So the look at the entries is relaxed.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, look_lines, select, word
from nanokv.device.protocol.header import epoch_of, is_key, phase_of
from nanokv.device.protocol.status import CORRUPT, MISS, NOT_READY, OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import (
    COUNT_CORRUPT,
    DEAD,
    ENTRIES_PER_BUCKET,
    ENTRY_EPOCH_MASK,
    ENTRY_EPOCH_SHIFT,
    ENTRY_FINAL,
    ENTRY_HEADER_MASK,
    ENTRY_HEADER_SHIFT,
    ENTRY_PHASE_MASK,
    ENTRY_RANK_MASK,
    ENTRY_RANK_SHIFT,
    ENTRY_REPLICA,
    ENTRY_TAG_MASK,
    ENTRY_TAG_SHIFT,
    H_STATE,
    NEAR_BUCKETS,
    POSITIVE,
    READY,
    TURN_COPIES_MASK,
    TURN_COPIES_SHIFT,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import (
    World,
    bucket_at,
    header_at,
    open_world,
    read_cost,
    segment,
)

DE_BRUIJN = tl.constexpr(0x09AF)  # each four neighbouring bits of it differ
DE_BRUIJN_PLACES = tl.constexpr(-0x328157B0496CADF0)  # the number of a bit, at four times what its product begins with


@triton.jit
def home_of(world: World, key_check: tl.int64) -> Any:
    """The rank whose directory holds a key: the remainder of its check by the number of ranks.

    A mask where that is a power of two: a GPU divides words of 64 bits by a call of 78 instructions.
    """
    check = key_check & POSITIVE
    mask = world.world_size - 1
    home = check & mask
    if (world.world_size & mask) != 0:
        home = check % world.world_size
    return home


@triton.jit
def first_bucket(world: World, key_hash: tl.int64) -> Any:
    """The first of a key's two buckets. Its turnstile is the key's."""
    return key_hash & (world.dir_buckets - 1)


@triton.jit
def candidate_at(world: World, seg: tl.int64, key_hash: tl.int64, i: tl.int64) -> Any:
    """The address of the i-th of the sixteen entries that may hold a key."""
    one = first_bucket(world, key_hash)
    two = one ^ (((key_hash >> 32) & (world.dir_buckets - 1) & (NEAR_BUCKETS - 1)) | 1)
    bucket = select(i < ENTRIES_PER_BUCKET, one, two)
    return bucket_at(world, seg, bucket) + (i % ENTRIES_PER_BUCKET) * WORD_BYTES


@triton.jit
def entry_word(phase: tl.int64, key_check: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """(phase, tag, owner, slot, low bits of the epoch)."""
    tag = (key_check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    low = (epoch & ENTRY_EPOCH_MASK) << ENTRY_EPOCH_SHIFT
    return word(phase) | tag | (owner << ENTRY_RANK_SHIFT) | (slot << ENTRY_HEADER_SHIFT) | low


@triton.jit
def entry_owner(entry: tl.int64) -> Any:
    """The rank whose segment an entry points into."""
    return (entry >> ENTRY_RANK_SHIFT) & ENTRY_RANK_MASK


@triton.jit
def entry_header(entry: tl.int64) -> Any:
    """The header slot that an entry points at."""
    return (entry >> ENTRY_HEADER_SHIFT) & ENTRY_HEADER_MASK


@triton.jit
def has_tag(entry: tl.int64, key_check: tl.int64) -> Any:
    """True if an entry is not empty and may be of this key."""
    tag = (entry >> ENTRY_TAG_SHIFT) & ENTRY_TAG_MASK
    return ((entry & ENTRY_PHASE_MASK) != 0) & (tag == (key_check & ENTRY_TAG_MASK))


@triton.jit
def is_sure(entry: tl.int64, key_check: tl.int64) -> Any:
    """True if an entry is FINAL or REPLICA, which has the bit of FINAL too, and may be of this key."""
    tag = (key_check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    return (entry & (ENTRY_FINAL | (ENTRY_TAG_MASK << ENTRY_TAG_SHIFT))) == (tag | ENTRY_FINAL)


@triton.jit
def is_copy(entry: tl.int64) -> Any:
    """True if an entry is REPLICA."""
    return (entry & ENTRY_PHASE_MASK) == ENTRY_REPLICA


@triton.jit
def turn_at(world: World, seg: tl.int64, key_hash: tl.int64) -> Any:
    """The address of a key's turnstile in the segment of its home."""
    return seg + world.turn_base + first_bucket(world, key_hash) * WORD_BYTES


@triton.jit
def copies_passed(turn: tl.int64) -> Any:
    """How many replicators have passed a turnstile, by its word."""
    return (turn >> TURN_COPIES_SHIFT) & TURN_COPIES_MASK


@triton.jit
def in_bounds(world: World, entry: tl.int64) -> Any:
    """True if an entry points at a header slot that can exist."""
    inside = entry_owner(entry) < world.world_size
    return inside & (entry_header(entry) < world.hdr_count)


@triton.jit
def judge(world: World, entry: tl.int64, key: Key) -> Any:
    """Whether the header behind an entry has a key: OK (READY), NOT_READY, MISS (another key, or gone), or CORRUPT.

    Returns (answer, STATE word). The header may change at any time afterwards: a reader validates when it is done.
    """
    answer = word(MISS)
    state = word(0)
    if in_bounds(world, entry):
        header = header_at(world, segment(world, entry_owner(entry)), entry_header(entry))
        state = load64(header + H_STATE, "acquire")  # acquire: all that READY says (scenario put-get)
        low = (entry >> ENTRY_EPOCH_SHIFT) & ENTRY_EPOCH_MASK
        epoch = epoch_of(state)
        same = ((epoch & ENTRY_EPOCH_MASK) == low) & is_key(header, key, epoch)
        alive = same & (phase_of(state) != DEAD)
        answer = select(alive, word(NOT_READY), answer)
        answer = select(alive & (phase_of(state) == READY), word(OK), answer)
    else:
        answer = word(CORRUPT)
    return answer, state


@triton.jit
def look(world: World, seg: tl.int64, key: Key) -> Any:
    """Look at all sixteen entries at once. Returns two sets of places, as bits: may be of the key, and empty."""
    mask = word(ENTRY_TAG_MASK << ENTRY_TAG_SHIFT)
    tag = (key.check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    one = candidate_at(world, seg, key.hash, word(0))
    two = candidate_at(world, seg, key.hash, word(ENTRIES_PER_BUCKET))
    return look_lines(one, two, ENTRIES_PER_BUCKET, mask, tag)


@triton.jit
def ones(bits: tl.int64) -> Any:
    """How many of 16 bits are set: the number of the lower eight, plus 256 times that of the upper eight."""
    pairs = bits - ((bits >> 1) & 0x5555)
    fours = (pairs & 0x3333) + ((pairs >> 2) & 0x3333)
    return (fours + (fours >> 4)) & 0x0F0F


@triton.jit
def first_place(places: tl.int64) -> Any:
    """The first place in a set of them that is not empty.

    Source: Leiserson, Prokop and Randall (1998). Multiplied by a de Bruijn word, a bit has its number in four bits.
    """
    lowest = places & (0 - places)
    return (word(DE_BRUIJN_PLACES) >> (((lowest * DE_BRUIJN) >> 10) & 0x3C)) & 0xF


@triton.jit(noinline=True)
def nearest(table: tl.int64, key: Key) -> Any:
    """`find_state` among several entries: the READY object that costs least; else NOT_READY, CORRUPT or MISS."""
    world = open_world(table)
    seg = segment(world, home_of(world, key.check))
    status = word(MISS)
    found = word(0)
    state = word(0)
    least = word(0)
    tagged, _ = look(world, seg, key)
    while tagged != 0:
        entry = load64(candidate_at(world, seg, key.hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key.check):
            answer, seen = judge(world, entry, key)
            cost = word(0)
            better = (status == MISS) | ((answer == NOT_READY) & (status == CORRUPT))
            if answer == OK:
                cost = read_cost(world, entry_owner(entry))
                better = (status != OK) | (cost < least)
            if better & (answer != MISS):
                status, found, state, least = answer, entry, seen, cost
        tagged = tagged & (tagged - 1)
    return status, found, state


@triton.jit
def find_state(world: World, key: Key) -> Any:
    """`find`, and the STATE word of the header, by which all that READY says is acquired: (status, entry, STATE)."""
    seg = segment(world, home_of(world, key.check))
    status = word(MISS)
    found = word(0)
    state = word(0)
    tagged, _ = look(world, seg, key)
    if tagged != 0:
        # relaxed: `judge` acquires the header
        entry = load64(candidate_at(world, seg, key.hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key.check):
            status, state = judge(world, entry, key)
            found = entry
        # an object that went away meanwhile may have left a copy that the look did not see yet
        if (status == MISS) | ((tagged & (tagged - 1)) != 0):
            status, found, state = nearest(world.table, key)
    if status == CORRUPT:
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status, found, state


@triton.jit
def find(world: World, key: Key) -> Any:
    """Look a key up. Returns (status, entry): OK, NOT_READY, MISS or CORRUPT, and the entry of the first two."""
    status, found, _ = find_state(world, key)
    return status, found
