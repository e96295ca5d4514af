"""Object headers: one 64-byte record per object, with one word that decides everything.

The STATE word holds (state, pins, epoch). Legal transitions, each one CAS except the first:

    (any free slot, e-1)  -> (RESERVED, 0, e)    reserve: a store, since the slot belongs to its taker
    (RESERVED, 0, e)      -> (WRITING, 0, e)     publish: key, extent and size are in the header
    (WRITING, 0, e)       -> (READY, 0, e)       commit: the payload is there
    (READY, n, e)         -> (READY, n +- 1, e)  pin, unpin (and `pins.recount`)
    (READY, 0, e)         -> (DEAD, 0, e)        remove, evict
    (RESERVED|WRITING, 0, e) -> (DEAD, 0, e)     abort by the producer, or given up by the owner's sweeper

Source: a seqlock per object, whose counter is the epoch; readers validate as in Boehm (2012).

Guarantees
- An epoch never goes back, and names one use of the slot (I7). No rank acts on a slot whose word has moved on.
- READY implies that the payload is there (I3): `commit_state` releases, and fails if the slot was given up before.
- A producer is answered NO_HEADER only if, when it had looked, every free slot had been given back while it looked: no
  producer takes more slots than it puts objects. `hdr_head` passes the end by at most one per producer, as `bump_ptr`
  does.
- A producer that finds its slot given up frees nothing. The header names its extent, and the owner's sweeper frees both
  after a grace period: one rule, so that nothing is freed twice.

Why the orderings suffice: `reserve` releases nothing. A rank that sees the new epoch may still see key, flags and
producer of an older one. So these words name their epoch: a key of another epoch is no key, and the host looks again
at flags of another epoch. The turnstile releases them to later producers of the key (`claim`), and the end of the
operation releases them to the host. `commit_state` releases everything that the producer wrote, and `kill` acquires it.
A reader acquires the STATE word first, and validates with a read-modify-write that releases: it reads the newest word,
after the loads of the copy. A plain acquire load could be satisfied before those loads, and torn bytes would pass.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, store64, word
from nanokv.device.protocol.freelist import pop, push
from nanokv.device.protocol.shards import next_filled, slot_list
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import (
    COUNT_CORRUPT,
    D_DIMS,
    D_FORMAT,
    DEAD,
    EPOCH_MASK,
    EPOCH_SHIFT,
    FLAG_ACK,
    FLAGS_EPOCH_MASK,
    FLAGS_EPOCH_SHIFT,
    H_ACCESS,
    H_BYTES,
    H_FLAGS,
    H_KEY_CHECK,
    H_KEY_HASH,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    HDR_HEAD,
    LOW32,
    PIN_BITS,
    READY,
    RESERVED,
    STATE_MASK,
    WORD_BYTES,
    WRITING,
)
from nanokv.device.segment.world_table import (
    World,
    descriptor_at,
    header_at,
    header_links,
    retries_at,
)


@triton.jit
def state_word(state: tl.int64, epoch: tl.int64) -> Any:
    """(state, 0 pins, epoch)."""
    return word(state) | (epoch << EPOCH_SHIFT)


@triton.jit
def epoch_of(state: tl.int64) -> Any:
    """The epoch in a STATE word."""
    return (state >> EPOCH_SHIFT) & EPOCH_MASK


@triton.jit
def next_epoch(state: tl.int64) -> Any:
    """The epoch of the next use of a slot with this STATE word."""
    return (epoch_of(state) + 1) & EPOCH_MASK


@triton.jit
def check_word(key_check: tl.int64, epoch: tl.int64) -> Any:
    """The high half of a key as a header of this epoch stores it; of the stored word, the high half."""
    return key_check ^ (epoch << EPOCH_SHIFT)


@triton.jit
def flags_epoch(epoch: tl.int64) -> Any:
    """The FLAGS bits of an epoch."""
    return (epoch & FLAGS_EPOCH_MASK) << FLAGS_EPOCH_SHIFT


@triton.jit
def believed(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """(`slot` as taken, epoch of its next use). The slot is -1 if it is in use or holds pages.

    Then the list, or `hdr_head`, is corrupt.
    """
    epoch = word(0)
    if slot >= 0:
        header = header_at(world, seg, slot)
        state = load64(header + H_STATE, "relaxed")  # relaxed: `pop` has acquired it, or nobody has used the slot
        epoch = next_epoch(state)
        idle = (state == state_word(DEAD, epoch_of(state))) | (state == 0)
        if (not idle) | (pages_of(header) != 0):
            add64(seg + COUNT_CORRUPT, 1, "relaxed")
            slot = word(-1)
    return slot, epoch


@triton.jit
def bump_slot(world: World, seg: tl.int64) -> Any:
    """Take a header slot that was never used: (slot or -1, epoch of this use)."""
    count = world.hdr_count
    slot = load64(seg + HDR_HEAD, "relaxed")
    if (slot >= 0) & (slot < count):
        slot = add64(seg + HDR_HEAD, 1, "relaxed")  # relaxed: nobody has used this slot
    return believed(world, seg, select((slot >= 0) & (slot < count), slot, word(-1)))


@triton.jit
def take_slot_elsewhere(world: World, seg: tl.int64, home: tl.int64) -> Any:
    """`take_slot`, after the list `home` was found empty: from another list, or by `bump_slot`."""
    links = header_links(world, seg)
    rows = slot_list(world, seg, word(0))
    slot = word(-1)
    epoch = word(0)
    place = word(0)
    while (slot < 0) & (place >= 0):
        place = next_filled(world, rows, word(1), home, place, 1)
        if place >= 0:
            node = pop(slot_list(world, seg, home + place), links, world.hdr_count, retries_at(world, seg))
            slot, epoch = believed(world, seg, node)
    if slot < 0:
        slot, epoch = bump_slot(world, seg)
    return slot, epoch


@triton.jit
def take_slot_at_home(world: World, seg: tl.int64, home: tl.int64) -> Any:
    """Take a header slot out of the list `home`: (slot or -1, epoch of this use)."""
    node = pop(slot_list(world, seg, home), header_links(world, seg), world.hdr_count, retries_at(world, seg))
    return believed(world, seg, node)


@triton.jit
def take_slot(world: World, seg: tl.int64, home: tl.int64) -> Any:
    """Take a header slot: (slot or -1 if all are in use, epoch of this use). `home`: the list that is asked first."""
    slot, epoch = take_slot_at_home(world, seg, home)
    if slot < 0:
        slot, epoch = take_slot_elsewhere(world, seg, home)
    return slot, epoch


@triton.jit
def give_slot(world: World, seg: tl.int64, slot: tl.int64) -> None:
    """Give a header slot back. It must be DEAD and hold no pages."""
    push(slot_list(world, seg, slot), header_links(world, seg), slot, retries_at(world, seg))


@triton.jit
def reserve(world: World, seg: tl.int64, slot: tl.int64, epoch: tl.int64, key: Key, flags: tl.int64) -> None:
    """Mark a slot that the caller has taken: producer, key, its new epoch, RESERVED."""
    header = header_at(world, seg, slot)
    store64(header + H_KEY_HASH, key.hash, "relaxed")
    store64(header + H_KEY_CHECK, check_word(key.check, epoch), "relaxed")
    store64(header + H_FLAGS, word(flags) | flags_epoch(epoch) | (world.producer << 32), "relaxed")
    store64(header + H_STATE, state_word(RESERVED, epoch), "relaxed")  # relaxed: the words above name their epoch


@triton.jit
def load_descriptor(at: tl.int64) -> Any:
    """The descriptor at an address: `format` and seven dimensions."""
    return Descriptor(
        load64(at + D_FORMAT, "relaxed"),
        load64(at + D_DIMS, "relaxed"),
        load64(at + D_DIMS + 1 * WORD_BYTES, "relaxed"),
        load64(at + D_DIMS + 2 * WORD_BYTES, "relaxed"),
        load64(at + D_DIMS + 3 * WORD_BYTES, "relaxed"),
        load64(at + D_DIMS + 4 * WORD_BYTES, "relaxed"),
        load64(at + D_DIMS + 5 * WORD_BYTES, "relaxed"),
        load64(at + D_DIMS + 6 * WORD_BYTES, "relaxed"),
    )


@triton.jit
def store_descriptor(at: tl.int64, descriptor: Descriptor) -> None:
    """Write a descriptor to an address: `format` and seven dimensions."""
    store64(at + D_FORMAT, descriptor.kind, "relaxed")
    store64(at + D_DIMS, descriptor.d0, "relaxed")
    store64(at + D_DIMS + 1 * WORD_BYTES, descriptor.d1, "relaxed")
    store64(at + D_DIMS + 2 * WORD_BYTES, descriptor.d2, "relaxed")
    store64(at + D_DIMS + 3 * WORD_BYTES, descriptor.d3, "relaxed")
    store64(at + D_DIMS + 4 * WORD_BYTES, descriptor.d4, "relaxed")
    store64(at + D_DIMS + 5 * WORD_BYTES, descriptor.d5, "relaxed")
    store64(at + D_DIMS + 6 * WORD_BYTES, descriptor.d6, "relaxed")


@triton.jit
def describe(world: World, seg: tl.int64, slot: tl.int64, descriptor: Descriptor) -> None:
    """Write the descriptor of an object. The commit releases it."""
    store_descriptor(descriptor_at(world, seg, slot), descriptor)


@triton.jit
def descriptor_of(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """Read the descriptor of an object. It counts only if the STATE word is validated afterwards."""
    return load_descriptor(descriptor_at(world, seg, slot))


@triton.jit
def raw_bytes() -> Any:
    """The descriptor of bytes without a dtype or a shape."""
    return Descriptor(word(0), word(0), word(0), word(0), word(0), word(0), word(0), word(0))


@triton.jit
def unlike(one: Descriptor, other: Descriptor) -> Any:
    """0 if two descriptors say the same dtype and shape. Checksums are not compared."""
    differs = ((one.kind ^ other.kind) & LOW32) | (one.d0 ^ other.d0) | (one.d1 ^ other.d1)
    differs = differs | (one.d2 ^ other.d2) | (one.d3 ^ other.d3) | (one.d4 ^ other.d4)
    return differs | (one.d5 ^ other.d5) | (one.d6 ^ other.d6)


@triton.jit
def publish(
    world: World,
    seg: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    n_pages: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    access: tl.int64,
) -> Any:
    """Name the extent and the size in the header, then RESERVED -> WRITING. False if the slot was given up before."""
    header = header_at(world, seg, slot)
    store64(header + H_PAYLOAD, payload, "relaxed")
    store64(header + H_BYTES, nbytes, "relaxed")
    store64(header + H_ACCESS, access, "relaxed")
    store64(header + H_PAGES, n_pages | (world.page_bytes << 32), "relaxed")
    reserved = state_word(RESERVED, epoch)
    # relaxed: nobody reads the extent of a WRITING object, and the sweeper frees it only after a grace period
    return cas64(header + H_STATE, reserved, state_word(WRITING, epoch), "relaxed") == reserved


@triton.jit
def commit_state(header: tl.int64, epoch: tl.int64) -> Any:
    """WRITING -> READY. Returns the previous STATE word."""
    # release: payload, size and descriptor before READY (scenario replace)
    return cas64(header + H_STATE, state_word(WRITING, epoch), state_word(READY, epoch), "release")


@triton.jit
def kill(header: tl.int64, state: tl.int64, epoch: tl.int64) -> Any:
    """(state, 0, epoch) -> (DEAD, 0, epoch). Returns the previous STATE word: (state, 0, epoch) on success."""
    # acquire: the extent that the header names is read next, and freed (scenario host-evicts)
    return cas64(header + H_STATE, state_word(state, epoch), state_word(DEAD, epoch), "acquire")


@triton.jit(noinline=True)
def acknowledge(header: tl.int64, epoch: tl.int64) -> None:
    """Tell the sweeper that the producer of an object that was given up writes to its pages no more."""
    seen = add64(header + H_STATE, 0, "release")  # release: or LLVM makes it a load, which may be old (kept)
    if seen == state_word(DEAD, epoch):
        flags = load64(header + H_FLAGS, "relaxed")
        cas64(header + H_FLAGS, flags, flags | FLAG_ACK, "release")  # release: all stores to the pages (kept)


@triton.jit
def still_ready(header: tl.int64, epoch: tl.int64) -> Any:
    """Validate after a copy: True if the slot is still READY in this epoch, whatever its pins."""
    seen = add64(header + H_STATE, 0, "release")  # release: after the copy, and the newest word (scenario reuse)
    return (seen & ~PIN_BITS) == state_word(READY, epoch)


@triton.jit
def pages_of(header: tl.int64) -> Any:
    """How many pages the slot holds."""
    return load64(header + H_PAGES, "relaxed") & LOW32


@triton.jit
def is_key(header: tl.int64, key: Key, epoch: tl.int64) -> Any:
    """True if the header carries this key in this epoch. False if the key is not visible yet: see `reserve`."""
    same = load64(header + H_KEY_HASH, "relaxed") == key.hash
    return same & (load64(header + H_KEY_CHECK, "relaxed") == check_word(key.check, epoch))


@triton.jit
def key_of(header: tl.int64, epoch: tl.int64) -> Any:
    """The key of a header that the caller owns, or waited for, in this epoch."""
    check = load64(header + H_KEY_CHECK, "relaxed")
    return Key(load64(header + H_KEY_HASH, "relaxed"), check_word(check, epoch))


@triton.jit
def phase_of(state: tl.int64) -> Any:
    """The life-cycle state in a STATE word: RESERVED, WRITING, READY or DEAD."""
    return state & STATE_MASK
