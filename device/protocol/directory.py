"""The directory: from a key to the header that holds it, at the key's home rank.

Sixteen entries may hold a key: two buckets of eight, chosen by its digest (Azar et al. 1994). There is no probe chain,
so there are no tombstones: an empty entry is empty. An entry only points; the header decides what a reader sees.

Inserting has two phases, because two producers of one key can each find no entry and take different slots:
1. write the entry TENTATIVE;
2. pass the bucket's turnstile, one read-modify-write on one word;
3. look at the other fifteen entries. A FINAL entry of the key: withdraw. A TENTATIVE one: whoever stands first in the
   order of the entries removes the other, the second withdraws;
4. TENTATIVE -> FINAL by CAS. It fails if somebody removed the entry: then the other one stays.

Guarantees
- At most one entry of a key is FINAL with a live header; nobody ever removes a FINAL entry of a live header but whoever
  made that header DEAD.
- An insert that withdraws saw another one of the same key that was under way at the same time or before. It answers
  DUPLICATE also if that other one fails afterwards.
- A TENTATIVE entry whose producer died is removed when its header is reclaimed.

Why the orderings suffice: the passages of a turnstile are totally ordered, and each acquires what the earlier ones
released. So of two producers of one key at least one finds the other's entry when it looks, and plain loads do
for the look: this is Dekker's pattern with one read-modify-write for a look at fifteen words. Who finds nobody came
first; who finds somebody settles with a CAS on the very word, never on what it read earlier. An entry itself hands
over nothing: whoever follows it acquires the STATE word of the header, and with it the key there.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, look_line, select, table64, word
from nanokv.device.protocol.header import epoch_of, is_key, phase_of
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
    ENTRY_TAG_MASK,
    ENTRY_TAG_SHIFT,
    ENTRY_TENTATIVE,
    H_STATE,
    POSITIVE,
    READY,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import (
    W_DIR_BUCKETS,
    W_HDR_COUNT,
    W_TURN_BASE,
    W_WORLD_SIZE,
    bucket_at,
    header_at,
    segment,
)

CANDIDATES = tl.constexpr(2 * ENTRIES_PER_BUCKET.value)


@triton.jit
def home_of(world: tl.int64, key_check: tl.int64) -> Any:
    """The rank whose directory holds a key."""
    return (key_check & POSITIVE) % table64(world + W_WORLD_SIZE)


@triton.jit
def first_bucket(world: tl.int64, key_hash: tl.int64) -> Any:
    """The first of a key's two buckets; its turnstile is the key's."""
    return key_hash & (table64(world + W_DIR_BUCKETS) - 1)


@triton.jit
def candidate_at(world: tl.int64, seg: tl.int64, key_hash: tl.int64, i: tl.int64) -> Any:
    """The address of the i-th of the sixteen entries that may hold a key."""
    one = first_bucket(world, key_hash)
    two = one ^ (((key_hash >> 32) & (table64(world + W_DIR_BUCKETS) - 1)) | 1)
    bucket = select(i < ENTRIES_PER_BUCKET, one, two)
    return bucket_at(world, seg, bucket) + (i % ENTRIES_PER_BUCKET) * WORD_BYTES


@triton.jit
def entry_word(phase: tl.int64, key_check: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """(phase, tag, owner, header, low bits of the epoch)."""
    tag = (key_check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    low = (epoch & ENTRY_EPOCH_MASK) << ENTRY_EPOCH_SHIFT
    return word(phase) | tag | (owner << ENTRY_RANK_SHIFT) | (slot << ENTRY_HEADER_SHIFT) | low


@triton.jit
def entry_owner(entry: tl.int64) -> Any:
    """Whose segment an entry points into."""
    return (entry >> ENTRY_RANK_SHIFT) & ENTRY_RANK_MASK


@triton.jit
def entry_header(entry: tl.int64) -> Any:
    """The header slot that an entry points at."""
    return (entry >> ENTRY_HEADER_SHIFT) & ENTRY_HEADER_MASK


@triton.jit
def has_tag(entry: tl.int64, key_check: tl.int64) -> Any:
    """True if an entry is not empty and may be this key's."""
    tag = (entry >> ENTRY_TAG_SHIFT) & ENTRY_TAG_MASK
    return ((entry & ENTRY_PHASE_MASK) != 0) & (tag == (key_check & ENTRY_TAG_MASK))


@triton.jit
def in_bounds(world: tl.int64, entry: tl.int64) -> Any:
    """True if an entry points at a header slot that can exist."""
    inside = entry_owner(entry) < table64(world + W_WORLD_SIZE)
    return inside & (entry_header(entry) < table64(world + W_HDR_COUNT))


@triton.jit
def judge(world: tl.int64, entry: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """What the header behind an entry says of a key: OK (READY), NOT_READY, MISS (another key, or gone), or CORRUPT.

    The header may change at any time after; a reader validates again when it is done.
    """
    answer = word(MISS)
    if in_bounds(world, entry):
        header = header_at(world, segment(world, entry_owner(entry)), entry_header(entry))
        state = load64(header + H_STATE, "acquire")
        low = (entry >> ENTRY_EPOCH_SHIFT) & ENTRY_EPOCH_MASK
        same = ((epoch_of(state) & ENTRY_EPOCH_MASK) == low) & is_key(header, key_hash, key_check)
        alive = same & (phase_of(state) != DEAD)
        answer = select(alive, word(NOT_READY), answer)
        answer = select(alive & (phase_of(state) == READY), word(OK), answer)
    else:
        answer = word(CORRUPT)
    return answer


@triton.jit
def look(world: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Look at all sixteen entries at once. Returns two sets of places, as bits.

    Those whose entry may be the key's, and those that are empty.
    """
    mask = word(ENTRY_TAG_MASK << ENTRY_TAG_SHIFT)
    tag = (key_check & ENTRY_TAG_MASK) << ENTRY_TAG_SHIFT
    one = candidate_at(world, seg, key_hash, word(0))
    two = candidate_at(world, seg, key_hash, word(ENTRIES_PER_BUCKET))
    tagged, empty = look_line(one, ENTRIES_PER_BUCKET, mask, tag)
    others, free = look_line(two, ENTRIES_PER_BUCKET, mask, tag)
    return tagged | (others << ENTRIES_PER_BUCKET), empty | (free << ENTRIES_PER_BUCKET)


@triton.jit
def find(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Look a key up. Returns (status, entry): OK, NOT_READY, MISS or CORRUPT, and the entry of the first two."""
    seg = segment(world, home_of(world, key_check))
    status = word(MISS)
    found = word(0)
    tagged, _ = look(world, seg, key_hash, key_check)
    i = word(0)
    while (tagged != 0) & (status == MISS):
        if (tagged & 1) == 1:
            entry = load64(candidate_at(world, seg, key_hash, i), "relaxed")
            if has_tag(entry, key_check) & ((entry & ENTRY_PHASE_MASK) == ENTRY_FINAL):
                status = judge(world, entry, key_hash, key_check)
                found = entry
        tagged = tagged >> 1
        i += 1
    if status == CORRUPT:
        add64(seg + COUNT_CORRUPT, 1, "relaxed")
    return status, found


@triton.jit
def roomiest(empty: tl.int64) -> Any:
    """Of the empty places the last one in the emptier bucket, or -1.

    With the emptier of two buckets a directory at half load practically never runs full.
    """
    best = word(0)
    at = word(-1)
    for bucket in range(0, 2):
        room = word(0)
        last = word(-1)
        for k in range(0, ENTRIES_PER_BUCKET):
            i = word(bucket * ENTRIES_PER_BUCKET + k)
            free = (empty >> i) & 1
            room += free
            last = select(free == 1, i, last)
        at = select(room > best, last, at)
        best = select(room > best, room, best)
    return at


@triton.jit
def survey(world: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Where a new entry of a key should go. Returns (status, place): NO_ENTRY and -1, DUPLICATE, or OK."""
    tagged, empty = look(world, seg, key_hash, key_check)
    at = roomiest(empty)
    status = select(at >= 0, word(OK), word(NO_ENTRY))
    i = word(0)
    while tagged != 0:
        if (tagged & 1) == 1:
            seen = load64(candidate_at(world, seg, key_hash, i), "relaxed")
            if has_tag(seen, key_check) & ((seen & ENTRY_PHASE_MASK) == ENTRY_FINAL):
                answer = judge(world, seen, key_hash, key_check)
                status = select((answer == OK) | (answer == NOT_READY), word(DUPLICATE), status)
        tagged = tagged >> 1
        i += 1
    return status, at


@triton.jit
def place(world: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, entry: tl.int64) -> Any:
    """Write a TENTATIVE entry. Returns (status, place): OK, DUPLICATE if the key is there already, or NO_ENTRY."""
    status, start = survey(world, seg, key_hash, key_check)
    at = word(-1)
    i = word(0)
    while (status == OK) & (at < 0):
        here = (start + i) % CANDIDATES
        if cas64(candidate_at(world, seg, key_hash, here), 0, entry, "relaxed") == 0:
            at = here
        i += 1
        status = select((at < 0) & (i == CANDIDATES), word(NO_ENTRY), status)
    return status, at


@triton.jit
def settle(world: tl.int64, seg: tl.int64, key_hash: tl.int64, key_check: tl.int64, mine: tl.int64, i: tl.int64) -> Any:
    """Settle with the i-th entry, `mine` being the place of one's own. True if one's own may stay."""
    entry_at = candidate_at(world, seg, key_hash, i)
    stays = i == i
    seen = load64(entry_at, "relaxed")
    look = has_tag(seen, key_check)
    tries = word(0)
    while look & (tries < CANDIDATES):
        answer = judge(world, seen, key_hash, key_check)
        live = (answer == OK) | (answer == NOT_READY)
        final = (seen & ENTRY_PHASE_MASK) == ENTRY_FINAL
        look = live & (not final) & (mine < i)
        stays = (not live) | look
        if look:
            got = cas64(entry_at, seen, 0, "relaxed")
            look = (got != seen) & has_tag(got, key_check)
            seen = got
        tries += 1
    return stays & (not look)


@triton.jit
def claim(
    world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key_hash: tl.int64, key_check: tl.int64
) -> Any:
    """Insert the key of a RESERVED header: OK, DUPLICATE or NO_ENTRY. After OK the entry is FINAL."""
    seg = segment(world, home_of(world, key_check))
    tentative = entry_word(ENTRY_TENTATIVE, key_check, owner, slot, epoch)
    status, mine = place(world, seg, key_hash, key_check, tentative)
    if status == OK:
        turn = seg + table64(world + W_TURN_BASE) + first_bucket(world, key_hash) * WORD_BYTES
        add64(turn, 1, "acq_rel")
        tagged, _ = look(world, seg, key_hash, key_check)
        i = word(0)
        while (tagged != 0) & (status == OK):
            if ((tagged & 1) == 1) & (i != mine):
                if not settle(world, seg, key_hash, key_check, mine, i):
                    status = word(DUPLICATE)
            tagged = tagged >> 1
            i += 1
        entry_at = candidate_at(world, seg, key_hash, mine)
        target = select(status == OK, entry_word(ENTRY_FINAL, key_check, owner, slot, epoch), word(0))
        if cas64(entry_at, tentative, target, "relaxed") != tentative:
            status = word(DUPLICATE)
    return status


@triton.jit
def erase(
    world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, key_hash: tl.int64, key_check: tl.int64
) -> None:
    """Take the entry of a DEAD header out, whichever phase it is in. Does nothing if it is not there."""
    seg = segment(world, home_of(world, key_check))
    final = entry_word(ENTRY_FINAL, key_check, owner, slot, epoch)
    tentative = entry_word(ENTRY_TENTATIVE, key_check, owner, slot, epoch)
    tagged, _ = look(world, seg, key_hash, key_check)
    i = word(0)
    while tagged != 0:
        if (tagged & 1) == 1:
            entry_at = candidate_at(world, seg, key_hash, i)
            seen = load64(entry_at, "relaxed")
            if (seen == final) | (seen == tentative):
                cas64(entry_at, seen, 0, "relaxed")
        tagged = tagged >> 1
        i += 1
