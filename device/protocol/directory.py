"""The directory: from a key to the header that holds it, at the key's home rank.

Sixteen entries may hold a key: two buckets of eight, chosen by its digest. There is no probe chain, so there are no
tombstones: an empty entry is empty. An entry only points; the header decides what a reader sees.

Inserting has two phases, because two producers of one key may both find no entry, and take different ones:
1. Write the entry TENTATIVE.
2. Pass the bucket's turnstile: one read-modify-write on one word.
3. Look at the other fifteen entries. At a FINAL entry of the key, withdraw. Of two TENTATIVE ones the producer whose
   entry stands first in the order of the entries removes the other; the producer of the second withdraws.
4. TENTATIVE -> FINAL by CAS. It fails if another producer has removed the entry: then that producer's entry stays.

A further copy of an object has an entry of its own, REPLICA (`replicate`). A producer withdraws where a copy is READY,
as at a FINAL entry. A copy that is being made does not refuse it: the producer gives that copy up.

Source: two choices of a bucket, Azar et al. (1994); the turnstile, Dekker's pattern with one read-modify-write in the
place of its fence.

Guarantees
- At most one entry of a key is FINAL with a live header. Only the rank that made a header DEAD removes its FINAL entry.
- A reader takes the READY object that costs it least (`world_table.read_cost`), if one is READY in all of its looks.
- An insert that withdraws has seen another insert of the same key, at the same time or before. It answers DUPLICATE
  even if that other insert fails afterwards.
- A TENTATIVE entry whose producer died is removed when its header is reclaimed.

Why the orderings suffice: the passages of a turnstile are totally ordered, and each acquires the releases of the
earlier ones. So of two producers of one key at least one finds the other's entry when it looks, and plain loads suffice
for the look at fifteen words. A producer that finds no other came first; one that finds another settles by a CAS on
that very entry, never by an earlier read. An entry hands nothing over: a reader that follows it acquires the STATE word
of the header, and believes the key only if it names the same epoch. So the producer that passes first may miss that the
other one's header has its key; the later one misses nothing, and settles with the entry of the first.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, look_lines, select, store64, word
from nanokv.device.protocol.header import epoch_of, is_key, kill, phase_of, state_word
from nanokv.device.protocol.status import CORRUPT, DUPLICATE, MISS, NO_ENTRY, NOT_READY, OK
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
    ENTRY_TENTATIVE,
    H_STATE,
    PIN_BITS,
    POSITIVE,
    READY,
    WORD_BYTES,
    WRITING,
)
from nanokv.device.segment.world_table import (
    World,
    bucket_at,
    header_at,
    open_world,
    read_cost,
    segment,
)

CANDIDATES = tl.constexpr(2 * ENTRIES_PER_BUCKET.value)
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
    two = one ^ (((key_hash >> 32) & (world.dir_buckets - 1)) | 1)
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
def in_bounds(world: World, entry: tl.int64) -> Any:
    """True if an entry points at a header slot that can exist."""
    inside = entry_owner(entry) < world.world_size
    return inside & (entry_header(entry) < world.hdr_count)


@triton.jit
def judge(world: World, entry: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
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
        same = ((epoch & ENTRY_EPOCH_MASK) == low) & is_key(header, key_hash, key_check, epoch)
        alive = same & (phase_of(state) != DEAD)
        answer = select(alive, word(NOT_READY), answer)
        answer = select(alive & (phase_of(state) == READY), word(OK), answer)
    else:
        answer = word(CORRUPT)
    return answer, state


@triton.jit
def look(world: World, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Look at all sixteen entries at once. Returns two sets of places, as bits: may be of the key, and empty."""
    mask = word(ENTRY_TAG_MASK << ENTRY_TAG_SHIFT)
    tag = (key_check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    one = candidate_at(world, seg, key_hash, word(0))
    two = candidate_at(world, seg, key_hash, word(ENTRIES_PER_BUCKET))
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


@triton.jit
def roomiest(empty: tl.int64) -> Any:
    """The first empty place in the emptier bucket, or -1.

    Because the emptier of two buckets is taken, a directory at half load practically never runs full.
    """
    first = empty & ((word(1) << ENTRIES_PER_BUCKET) - 1)
    second = empty >> ENTRIES_PER_BUCKET
    room = ones(first | (second << 8))
    emptier = select((room >> 8) > (room & 0xFF), second << ENTRIES_PER_BUCKET, first)
    return select(empty != 0, first_place(emptier), word(-1))


@triton.jit(noinline=True)
def nearest(table: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`find_state` among several entries: the READY object that costs least; else NOT_READY, CORRUPT or MISS."""
    world = open_world(table)
    seg = segment(world, home_of(world, key_check))
    status = word(MISS)
    found = word(0)
    state = word(0)
    least = word(0)
    tagged, _ = look(world, seg, key_hash, key_check)
    while tagged != 0:
        entry = load64(candidate_at(world, seg, key_hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key_check):
            answer, seen = judge(world, entry, key_hash, key_check)
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
def find_state(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`find`, and the STATE word of the header, by which all that READY says is acquired: (status, entry, STATE)."""
    seg = segment(world, home_of(world, key_check))
    status = word(MISS)
    found = word(0)
    state = word(0)
    tagged, _ = look(world, seg, key_hash, key_check)
    if tagged != 0:
        # relaxed: `judge` acquires the header
        entry = load64(candidate_at(world, seg, key_hash, first_place(tagged)), "relaxed")
        if is_sure(entry, key_check):
            status, state = judge(world, entry, key_hash, key_check)
            found = entry
        # an object that went away meanwhile may have left a copy that the look did not see yet
        if (status == MISS) | ((tagged & (tagged - 1)) != 0):
            status, found, state = nearest(world.table, key_hash, key_check)
    if status == CORRUPT:
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status, found, state


@triton.jit
def find(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Look a key up. Returns (status, entry): OK, NOT_READY, MISS or CORRUPT, and the entry of the first two."""
    status, found, _ = find_state(world, key_hash, key_check)
    return status, found


@triton.jit(noinline=True)
def is_taken(table: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, tagged: tl.int64) -> Any:
    """True if one of the entries at the places `tagged` leads to an object of this key, or to one that is being put.

    A copy that is being made is neither.
    """
    world = open_world(table)
    taken = tagged != tagged
    while tagged != 0:
        seen = load64(candidate_at(world, seg, key_hash, first_place(tagged)), "relaxed")
        if is_sure(seen, key_check):
            answer, _ = judge(world, seen, key_hash, key_check)
            taken = taken | (answer == OK) | ((answer == NOT_READY) & (not is_copy(seen)))
        tagged = tagged & (tagged - 1)
    return taken


@triton.jit
def survey(
    world: World, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, tagged: tl.int64, empty: tl.int64
) -> Any:
    """Choose a place for a new entry of a key, after a `look`, which may be old: no place is taken by it.

    Returns (status, place): OK, DUPLICATE, or NO_ENTRY and -1.
    """
    at = roomiest(empty)
    status = select(at >= 0, word(OK), word(NO_ENTRY))
    if tagged != 0:
        if is_taken(world.table, seg, key_hash, key_check, tagged):
            status = word(DUPLICATE)
    return status, at


@triton.jit
def place(
    world: World, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, start: tl.int64, entry: tl.int64
) -> Any:
    """Write a TENTATIVE entry, at the place `start` if it is empty still. Returns (status, place): OK or NO_ENTRY."""
    status = word(OK)
    at = word(-1)
    i = word(0)
    while (status == OK) & (at < 0):
        here = (start + i) & (CANDIDATES - 1)
        # relaxed: the turnstile orders the entry before the look
        if cas64(candidate_at(world, seg, key_hash, here), 0, entry, "relaxed") == 0:
            at = here
        i += 1
        status = select((at < 0) & (i == CANDIDATES), word(NO_ENTRY), status)
    return status, at


@triton.jit
def settle(world: World, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, mine: tl.int64, i: tl.int64) -> Any:
    """Settle with the i-th entry; the caller's own is at the place `mine`. True if the caller's own may stay."""
    entry_at = candidate_at(world, seg, key_hash, i)
    stays = i == i
    seen = load64(entry_at, "relaxed")
    look = has_tag(seen, key_check)
    tries = word(0)
    while look & (tries < CANDIDATES):
        answer, _ = judge(world, seen, key_hash, key_check)
        live = (answer == OK) | ((answer == NOT_READY) & (not is_copy(seen)))
        final = is_sure(seen, key_check)
        look = live & (not final) & (mine < i)
        stays = (not live) | look
        if look:
            got = cas64(entry_at, seen, 0, "relaxed")  # relaxed: the word itself decides
            look = (got != seen) & has_tag(got, key_check)
            seen = got
        tries += 1
    return stays & (not look)


@triton.jit(noinline=True)
def prevails(
    table: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, mine: tl.int64, others: tl.int64
) -> Any:
    """Settle with the entries at the places `others`. True if the caller's own may stay."""
    world = open_world(table)
    stays = mine == mine
    left = others
    while (left != 0) & stays:
        stays = settle(world, seg, key_hash, key_check, mine, first_place(left))
        left = left & (left - 1)
    while (others != 0) & stays:
        stays = has_no_copy(world, seg, key_hash, key_check, first_place(others))
        others = others & (others - 1)
    return stays


@triton.jit
def stop_copy(world: World, entry: tl.int64, state: tl.int64) -> Any:
    """Give up a copy that was seen WRITING: False if it is READY by now. Its producer's commit fails: LOST.

    The owner's sweeper frees the pages after a grace period: the producer may still store into them (`quarantine`).
    """
    header = header_at(world, segment(world, entry_owner(entry)), entry_header(entry))
    epoch = epoch_of(state)
    return (kill(header, WRITING, epoch) & ~PIN_BITS) != state_word(READY, epoch)


@triton.jit
def has_no_copy(world: World, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, i: tl.int64) -> Any:
    """For a producer: give up the copy that the i-th entry leads to. False if it is READY."""
    entry = load64(candidate_at(world, seg, key_hash, i), "relaxed")
    gone = i == i
    if is_copy(entry) & has_tag(entry, key_check):
        answer, state = judge(world, entry, key_hash, key_check)
        gone = answer != OK
        if answer == NOT_READY:
            gone = stop_copy(world, entry, state)
    return gone


@triton.jit
def claim(
    world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key_hash: tl.int64, key_check: tl.int64
) -> Any:
    """Insert the key of a RESERVED header: OK, DUPLICATE or NO_ENTRY. After OK the entry is FINAL."""
    seg = segment(world, home_of(world, key_check))
    tagged, empty = look(world, seg, key_hash, key_check)
    status, start = survey(world, seg, key_hash, key_check, tagged, empty)
    if status == OK:
        status = claim_at(world, seg, start, owner, slot, epoch, key_hash, key_check)
    return status


@triton.jit
def claim_at(
    world: World,
    seg: tl.int64,
    start: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
) -> Any:
    """`claim`, after a `survey` of the segment `seg` chose the place `start`."""
    tentative = entry_word(ENTRY_TENTATIVE, key_check, owner, slot, epoch)
    status, mine = place(world, seg, key_hash, key_check, start, tentative)
    if status == OK:
        # acq_rel: the later of two producers sees the entry of the earlier one (scenario same-key-busy)
        add64(turn_at(world, seg, key_hash), 1, "acq_rel")
        tagged, _ = look(world, seg, key_hash, key_check)
        others = tagged & ~(word(1) << mine)
        if others != 0:
            if not prevails(world.table, seg, key_hash, key_check, mine, others):
                status = word(DUPLICATE)
        entry_at = candidate_at(world, seg, key_hash, mine)
        target = select(status == OK, entry_word(ENTRY_FINAL, key_check, owner, slot, epoch), word(0))
        # relaxed: a reader acts on READY only, and a later producer has acquired the turnstile
        if cas64(entry_at, tentative, target, "relaxed") != tentative:
            status = word(DUPLICATE)
    return status


@triton.jit
def erase(
    world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key_hash: tl.int64, key_check: tl.int64
) -> None:
    """Remove the entry of a DEAD header, in whichever phase it is. Does nothing if there is none.

    Other producers of the key may remove one that is TENTATIVE, and then its place may have another entry.
    """
    seg = segment(world, home_of(world, key_check))
    final = entry_word(ENTRY_FINAL, key_check, owner, slot, epoch)
    tentative = entry_word(ENTRY_TENTATIVE, key_check, owner, slot, epoch)
    replica = entry_word(ENTRY_REPLICA, key_check, owner, slot, epoch)
    tagged, _ = look(world, seg, key_hash, key_check)
    while tagged != 0:
        entry_at = candidate_at(world, seg, key_hash, first_place(tagged))
        seen = load64(entry_at, "relaxed")
        if seen == final:
            store64(entry_at, word(0), "relaxed")  # nobody else removes it
        elif (seen == tentative) | (seen == replica):
            cas64(entry_at, seen, 0, "relaxed")
        tagged = tagged & (tagged - 1)
