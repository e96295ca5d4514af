"""Get, by a reader that sees the owner's memory only by transfers: four rounds, whatever the number of keys.

    1. the two buckets of each key
    2. the headers of the entries that may be of it
    3. the bytes, the descriptor, and the header again
    4. the STATE word, and the first line of the control block

Each round is one transfer per peer, and none begins before the last one is complete. A reader who knows where an object
lies, from an event or an earlier get, begins with the third.

Guarantees
- A reader gets the bytes and the descriptor of the key that it asked for, whole, or no object (I4). It does so also
  if the owner removes, evicts and puts meanwhile, or if another segment lies where the card says: the copy counts only
  if STATE was READY before the third round and is READY in the same epoch after it, if the header of the third round
  has the key, place and size by which the bytes were read, and if the control block is that of the card.
- The owner's process is not asked. It need not even run, where the link does not need it.
- A reader does not wait: it is told TORN, and asks again.

Why the orderings suffice: a transfer orders nothing within itself, and a transfer that is complete happened before one
that begins later. The owner's producers release READY after bytes, descriptor and header; the next producer that uses
slot or pages has acquired that the object is DEAD, or made it so by a read-modify-write, before it stores a word there.
So what is read between two looks at STATE that are READY in one epoch is of that epoch: the bytes, the descriptor, and
all words of the header except those of pins and last access.

The first look at a header is not at one instant. It may have STATE of one use of the slot and place or size of the one
before; the last look may have STATE of that use and the rest of the next one, which may be equal. So two equal looks
prove nothing about the words beside STATE, and the third round reads them once more (scenario remote-fresh). For the
same reason a first look that names impossible bytes is only DOUBTFUL: it may be torn, or the header is corrupt. And
descriptor and flags belong to the third round: those beside the first STATE may be of the slot's last use.

Transfers see a store that follows a read-modify-write of its thread not before that. x86 promises it; Arm's memory
model does not, after a compare-and-swap that only acquires (`header.kill`, in an eviction that hands pages on).

The functions of one round follow each other around its transfer. They touch private memory only.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.lines import field, gather, look_word, peek, poke, put_row, sort
from nanokv.device.fabric.records import (
    ASKER_MASK,
    F_DST,
    F_HEADER,
    F_KEY_CHECK,
    F_KEY_HASH,
    F_OWNER,
    F_SLOT,
    F_STATUS,
    F_WHAT,
    FETCH_BYTES,
    LINE_WORDS,
    W_BASE,
    W_BYTE_GAP,
    W_CONTROLS,
    W_FETCHES,
    W_LOOKS,
    W_MOST_LOOKS,
    W_PLACES,
)
from nanokv.device.memory.triton import checksum_bytes, copy_bytes, load64, select, store64, word
from nanokv.device.protocol.checksum import checksum
from nanokv.device.protocol.directory import (
    candidate_at,
    entry_header,
    entry_owner,
    home_of,
    in_bounds,
    is_sure,
)
from nanokv.device.protocol.header import check_word, epoch_of, phase_of, state_word
from nanokv.device.protocol.status import BUSY, CORRUPT, MISS, NOT_READY, OK, SIZE, TORN
from nanokv.device.segment.host_records import WHAT_FORMAT
from nanokv.device.segment.layout import (
    CANDIDATES,
    CHECKSUM_MASK,
    CHECKSUM_SHIFT,
    D_DIMS,
    D_FORMAT,
    DEAD,
    DTYPE_MASK,
    DTYPE_SHIFT,
    ENTRIES_PER_BUCKET,
    ENTRY_EPOCH_MASK,
    ENTRY_EPOCH_SHIFT,
    FLAG_CHECKSUM,
    H_ACCESS,
    H_BYTES,
    H_FLAGS,
    H_KEY_CHECK,
    H_KEY_HASH,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    LOW32,
    PIN_BITS,
    READY,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, descriptor_at, header_at, is_inside, segment

GONE = tl.constexpr(-1)  #: the answer of a fetch whose segment is not that of the card (any more)
DOUBTFUL = tl.constexpr(-2)  #: of one whose header names impossible bytes: another look tells whether it stays so


@triton.jit
def fetch_at(work: tl.int64, i: tl.int64) -> Any:
    """The address of the i-th FETCH."""
    return field(work, W_FETCHES) + i * FETCH_BYTES


@triton.jit
def dst_of(work: tl.int64, fetch: tl.int64) -> Any:
    """The address to which the bytes of a FETCH go."""
    return field(work, W_BASE) + field(fetch, F_DST)


@triton.jit
def add_look(work: tl.int64, i: tl.int64, asker: tl.int64, address: tl.int64) -> None:
    """Let the next transfer bring the line of the peer's `address`: its i-th look."""
    poke(field(work, W_LOOKS), i, look_word(address, asker))


# --- first round: buckets ---
@triton.jit
def ask_buckets(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring both buckets of each key. Askers: two per key."""
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        seg = segment(world, home_of(world, field(fetch, F_KEY_CHECK)))
        key_hash = field(fetch, F_KEY_HASH)
        store64(fetch + F_STATUS, word(MISS), "relaxed")
        add_look(work, 2 * i, 2 * i, candidate_at(world, seg, key_hash, word(0)))
        add_look(work, 2 * i + 1, 2 * i + 1, candidate_at(world, seg, key_hash, word(ENTRIES_PER_BUCKET)))
        i += 1
    rows, _ = gather(work, 2 * count, word(0), word(0))
    return rows


# --- second round: headers ---
@triton.jit
def ask_headers(world: World, work: tl.int64, count: tl.int64, candidates: tl.int64) -> Any:
    """The rows that bring the headers of all entries that may be of a key: (rows, candidates).

    Args:
        candidates: address of room for two words per look: the number of the fetch, and the entry.
    """
    places, most = field(work, W_PLACES), field(work, W_MOST_LOOKS)
    found = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        k = word(0)
        while k < CANDIDATES:
            bucket = peek(places, 2 * i + k // ENTRIES_PER_BUCKET)
            entry = peek(bucket, k % ENTRIES_PER_BUCKET)
            if is_sure(entry, field(fetch, F_KEY_CHECK)) and in_bounds(world, entry):
                if found < most:
                    poke(candidates, 2 * found, i)
                    poke(candidates, 2 * found + 1, entry)
                    found += 1
                else:
                    store64(fetch + F_STATUS, word(BUSY), "relaxed")
            k += 1
        i += 1
    return ask_candidates(world, work, candidates, found), found


@triton.jit
def ask_candidates(world: World, work: tl.int64, candidates: tl.int64, count: tl.int64) -> Any:
    """The rows that bring the headers behind entries. Askers: one per candidate."""
    k = word(0)
    while k < count:
        entry = peek(candidates, 2 * k + 1)
        seg = segment(world, entry_owner(entry))
        add_look(work, k, k, header_at(world, seg, entry_header(entry)))
        k += 1
    rows, _ = gather(work, count, word(0), word(0))
    return rows


@triton.jit
def judge_header(world: World, header: tl.int64, entry: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """What the copy of a header says of a key: OK, NOT_READY, DOUBTFUL, MISS; TORN: the slot has been used again since.

    As `directory.judge`, which can look again; here the key may have a newer entry that was not seen.
    """
    state = load64(header + H_STATE, "relaxed")
    epoch = epoch_of(state)
    answer = word(MISS)
    if (epoch & ENTRY_EPOCH_MASK) != ((entry >> ENTRY_EPOCH_SHIFT) & ENTRY_EPOCH_MASK):
        answer = word(TORN)
    else:
        same = load64(header + H_KEY_HASH, "relaxed") == key_hash
        same = same & (load64(header + H_KEY_CHECK, "relaxed") == check_word(key_check, epoch))
        if same & (phase_of(state) != DEAD):
            answer = word(NOT_READY)
            if phase_of(state) == READY:
                answer = word(OK)
                if not can_be(world, header):
                    answer = word(DOUBTFUL)
    return answer


@triton.jit
def can_be(world: World, header: tl.int64) -> Any:
    """Whether the copy of a READY header names bytes inside the payload arena, on as many pages as they need."""
    payload, nbytes = load64(header + H_PAYLOAD, "relaxed"), load64(header + H_BYTES, "relaxed")
    size = world.page_bytes
    inside = is_inside(world, payload, nbytes)
    first = select(inside, payload, world.heap_base) - world.heap_base
    pages = (select(inside, nbytes, word(0)) + size - 1) // size
    return inside & (first % size == 0) & ((load64(header + H_PAGES, "relaxed") & LOW32) == pages)


@triton.jit
def rank_of(status: tl.int64) -> Any:
    """How much an answer says: OK before NOT_READY before DOUBTFUL before TORN before MISS."""
    rank = select(status == TORN, word(1), word(0))
    rank = select(status == DOUBTFUL, word(2), rank)
    rank = select(status == NOT_READY, word(3), rank)
    return select(status == OK, word(4), rank)


@triton.jit
def take_headers(world: World, work: tl.int64, candidates: tl.int64, count: tl.int64) -> None:
    """After the second round: the answer of each fetch, and where its object lies."""
    places = field(work, W_PLACES)
    k = word(0)
    while k < count:
        fetch, entry, header = fetch_at(work, peek(candidates, 2 * k)), peek(candidates, 2 * k + 1), peek(places, k)
        answer = judge_header(world, header, entry, field(fetch, F_KEY_HASH), field(fetch, F_KEY_CHECK))
        if rank_of(answer) > rank_of(field(fetch, F_STATUS)):
            store64(fetch + F_STATUS, answer, "relaxed")
            store64(fetch + F_OWNER, entry_owner(entry), "relaxed")
            store64(fetch + F_SLOT, entry_header(entry), "relaxed")
            copy_line(fetch + F_HEADER, header)
        k += 1


@triton.jit
def copy_line(to: tl.int64, line: tl.int64) -> None:
    """Copy a line between private records."""
    i = word(0)
    while i < LINE_WORDS:
        poke(to, i, peek(line, i))
        i += 1


# --- third round: bytes, descriptors, headers again ---
@triton.jit
def in_order(world: World, work: tl.int64, count: tl.int64) -> Any:
    """Sorted LOOK words of the bytes of all fetches that are OK and have some, in LOOKS: how many."""
    looks = field(work, W_LOOKS)
    found = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if (field(fetch, F_STATUS) == OK) & (field(fetch, F_HEADER + H_BYTES) > 0):
            seg = segment(world, field(fetch, F_OWNER))
            poke(looks, found, look_word(seg + field(fetch, F_HEADER + H_PAYLOAD), i))
            found += 1
        i += 1
    sort(looks, found)
    return found


@triton.jit
def place_each(world: World, work: tl.int64, count: tl.int64) -> Any:
    """Choose where the bytes of each fetch go, so that few rows bring them. Returns how many bytes of room it takes.

    What lies close to each other there lies as far apart here.
    """
    looks, gap = field(work, W_LOOKS), field(work, W_BYTE_GAP)
    found = in_order(world, work, count)
    end_here = word(0)
    end_there = word(0)
    k = word(0)
    while k < found:
        fetch = fetch_at(work, peek(looks, k) & ASKER_MASK)
        at = segment(world, field(fetch, F_OWNER)) + field(fetch, F_HEADER + H_PAYLOAD)
        nbytes = field(fetch, F_HEADER + H_BYTES)
        apart = at - end_there
        if (k == 0) | (apart < 0) | (apart > gap):
            apart = (0 - end_here) & (LINE_WORDS * WORD_BYTES - 1)
        store64(fetch + F_DST, end_here + apart, "relaxed")
        end_here = end_here + apart + nbytes
        end_there = at + nbytes
        k += 1
    return end_here


@triton.jit
def ask_bytes(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring bytes, header and descriptor of all fetches that are OK: (rows, lines in use).

    Askers: two per fetch.

    Bytes that lie one after the other on both sides are one row. So are those with a small gap that is the same on both
    sides: what is between is copied too, so the room between two places belongs to this call.
    """
    row = rows_of_bytes(world, work, in_order(world, work, count))
    asked = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            seg = segment(world, field(fetch, F_OWNER))
            add_look(work, asked, 2 * i, header_at(world, seg, field(fetch, F_SLOT)))
            add_look(work, asked + 1, 2 * i + 1, descriptor_at(world, seg, field(fetch, F_SLOT)))
            asked += 2
        i += 1
    return gather(work, asked, row, word(0))


@triton.jit
def rows_of_bytes(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows of the payloads whose sorted LOOK words name the fetches. Returns how many."""
    looks, gap = field(work, W_LOOKS), field(work, W_BYTE_GAP)
    row = word(0)
    here = word(0)
    there = word(0)
    length = word(0)
    k = word(0)
    while k < count:
        fetch = fetch_at(work, peek(looks, k) & ASKER_MASK)
        dst, nbytes = dst_of(work, fetch), field(fetch, F_HEADER + H_BYTES)
        at = segment(world, field(fetch, F_OWNER)) + field(fetch, F_HEADER + H_PAYLOAD)
        apart = at - there - length
        if (k > 0) & (apart >= 0) & (apart <= gap) & (dst - here == at - there):
            length = at - there + nbytes
        else:
            if k > 0:
                put_row(work, row, here, there, length)
                row += 1
            here, there, length = dst, at, nbytes
        k += 1
    if count > 0:
        put_row(work, row, here, there, length)
        row += 1
    return row


@triton.jit
def take_descriptors(work: tl.int64, count: tl.int64) -> None:
    """After the third round: keep descriptors and headers, whose lines the next round overwrites.

    A fetch whose header is another one by now is TORN.
    """
    places = field(work, W_PLACES)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            header = peek(places, 2 * i)
            if same_header(fetch + F_HEADER, header):
                copy_line(fetch + F_HEADER, header)
                copy_line(fetch + F_WHAT, peek(places, 2 * i + 1))
            else:
                store64(fetch + F_STATUS, word(TORN), "relaxed")
        i += 1


# --- fourth round: STATE words again, and control blocks ---
@triton.jit
def ask_again(world: World, work: tl.int64, count: tl.int64) -> Any:
    """The rows that bring the headers of all fetches that are OK, and the control blocks. Askers: two per fetch."""
    asked = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            seg = segment(world, field(fetch, F_OWNER))
            add_look(work, asked, 2 * i, header_at(world, seg, field(fetch, F_SLOT)))
            add_look(work, asked + 1, 2 * i + 1, seg)
            asked += 2
        i += 1
    rows, _ = gather(work, asked, word(0), word(0))
    return rows


@triton.jit
def take_again(world: World, work: tl.int64, count: tl.int64) -> Any:
    """After the fourth round: the answer of each fetch. Returns how many are OK."""
    places = field(work, W_PLACES)
    good = word(0)
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            status = judge_again(world, work, fetch, peek(places, 2 * i), peek(places, 2 * i + 1))
            store64(fetch + F_STATUS, status, "relaxed")
            good += select(status == OK, word(1), word(0))
        i += 1
    return good


@triton.jit
def judge_again(world: World, work: tl.int64, fetch: tl.int64, header: tl.int64, control: tl.int64) -> Any:
    """OK, if STATE is what it was before the bytes were read; else TORN, CORRUPT or GONE."""
    status = word(OK)
    if not same_state(field(fetch, F_HEADER + H_STATE), load64(header + H_STATE, "relaxed")):
        status = word(TORN)
    elif not has_right_sum(world, work, fetch):
        status = word(CORRUPT)
    if not same_line(field(work, W_CONTROLS) + field(fetch, F_OWNER) * (LINE_WORDS * WORD_BYTES), control):
        status = word(GONE)
    return status


@triton.jit
def same_line(one: tl.int64, two: tl.int64) -> Any:
    """Whether two lines are equal."""
    differs = word(0)
    i = word(0)
    while i < LINE_WORDS:
        differs = differs | (peek(one, i) ^ peek(two, i))
        i += 1
    return differs == 0


@triton.jit
def same_state(one: tl.int64, two: tl.int64) -> Any:
    """Whether two STATE words are READY in one epoch."""
    return (((one ^ two) & ~PIN_BITS) == 0) & ((one & ~PIN_BITS) == state_word(READY, epoch_of(one)))


@triton.jit
def same_header(one: tl.int64, two: tl.int64) -> Any:
    """Whether two copies of a header are of one READY object: all is equal, except pins, flags and last access."""
    differs = word(0)
    i = word(0)
    while i < LINE_WORDS:
        if (i * WORD_BYTES != H_STATE) & (i * WORD_BYTES != H_ACCESS) & (i * WORD_BYTES != H_FLAGS):
            differs = differs | (peek(one, i) ^ peek(two, i))
        i += 1
    return (differs == 0) & same_state(field(one, H_STATE), field(two, H_STATE))


@triton.jit
def has_right_sum(world: World, work: tl.int64, fetch: tl.int64) -> Any:
    """True if the checksum of what was read is right, or if there is none and this reader does not insist on one."""
    right = world.checksum == 0
    if (field(fetch, F_HEADER + H_FLAGS) & FLAG_CHECKSUM) != 0:
        what, nbytes = fetch + F_WHAT, field(fetch, F_HEADER + H_BYTES)
        kind, dims = load64(what + D_FORMAT, "relaxed"), what + D_DIMS
        value = checksum(
            field(fetch, F_KEY_HASH),
            field(fetch, F_KEY_CHECK),
            nbytes,
            checksum_bytes(dst_of(work, fetch), nbytes, 0),
            kind,
            peek(dims, word(0)),
            peek(dims, word(1)),
            peek(dims, word(2)),
            peek(dims, word(3)),
            peek(dims, word(4)),
            peek(dims, word(5)),
            peek(dims, word(6)),
        )
        right = ((kind >> CHECKSUM_SHIFT) & CHECKSUM_MASK) == value
    return right


# --- afterwards ---
@triton.jit
def copy_each(work: tl.int64, count: tl.int64, targets: tl.int64, nbytes: tl.int64, what: tl.int64) -> None:
    """Copy the bytes of all fetches that are OK to addresses (words at `targets`).

    Those of another size, or of another dtype or shape than a WHAT record says, become SIZE. Raw bytes have any; so has
    a record whose format is 0.
    """
    i = word(0)
    while i < count:
        fetch = fetch_at(work, i)
        if field(fetch, F_STATUS) == OK:
            if (field(fetch, F_HEADER + H_BYTES) == nbytes) & is_described_so(fetch + F_WHAT, what):
                copy_bytes(peek(targets, i), dst_of(work, fetch), nbytes)
            else:
                store64(fetch + F_STATUS, word(SIZE), "relaxed")
        i += 1


@triton.jit
def is_described_so(found: tl.int64, what: tl.int64) -> Any:
    """Whether a descriptor that was read is that of a WHAT record: see `get.is_described`."""
    kind, wanted = load64(found + D_FORMAT, "relaxed"), load64(what + WHAT_FORMAT, "relaxed")
    differs = (kind ^ wanted) & LOW32
    i = word(1)
    while i < LINE_WORDS:
        differs = differs | (peek(found, i) ^ peek(what + WHAT_FORMAT, i))
        i += 1
    return (wanted == 0) | (((kind >> DTYPE_SHIFT) & DTYPE_MASK) == 0) | (differs == 0)
