"""Where objects of other nodes lie, as far as this process has heard: a table of hints.

A hint saves the first two rounds of a get.

Guarantees
- A hint that a reader uses names a slot that was READY in that epoch before the read began. The last two rounds need
  that (`rounds`): a hint of a use that is still to come would let bytes pass that were read before it.
- It is of one object: one thread writes the table while others read it, and nobody waits, so an entry may be torn. A
  reader takes each word once, and drops the entry if its check is not that of these words.

Why that suffices: who learns has an event, or a header, that said READY; a number stands for one world of one node, and
a world that is made anew has another one (`nanokv.cluster.locations`). Epochs of a world never go back.

Buckets of eight entries; a new one takes the place of another one in a full bucket.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.lines import field, peek, poke
from nanokv.device.fabric.records import (
    A_EPOCH,
    A_PAYLOAD,
    A_RANK,
    A_SLOT,
    A_STATUS,
    F_HEADER,
    F_KEY_CHECK,
    F_KEY_HASH,
    F_OWNER,
    F_SLOT,
    F_STATUS,
    FETCH_BYTES,
    LINE_SHIFT,
    P_KEY_CHECK,
    P_KEY_HASH,
    P_NBYTES,
    PULL_BYTES,
    PULLED_BYTES,
    W_FETCHES,
)
from nanokv.device.memory.triton import load64, mixed, select, store64, word
from nanokv.device.protocol.header import check_word, epoch_of, phase_of, state_word
from nanokv.device.protocol.status import MISS, OK
from nanokv.device.segment.layout import (
    H_BYTES,
    H_KEY_CHECK,
    H_KEY_HASH,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    HEADER_BYTES,
    READY,
)
from nanokv.device.segment.location import (
    L_CHECK,
    L_CHECKED,
    L_EPOCH,
    L_HASH,
    L_NBYTES,
    L_NODE,
    L_PAYLOAD,
    L_RANK,
    L_SLOT,
    LOCATION_BYTES,
)
from nanokv.device.segment.world_table import World, is_inside, is_rank

WAYS = tl.constexpr(8)  #: entries of a bucket


@triton.jit
def entry_of(table: tl.int64, mask: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """The entry of a key in a table of `mask` + 1 buckets: its address, or 0."""
    bucket = table + (key_hash & mask) * (WAYS * LOCATION_BYTES)
    found = word(0)
    i = word(0)
    while i < WAYS:
        entry = bucket + i * LOCATION_BYTES
        if (field(entry, L_HASH) == key_hash) & (field(entry, L_CHECK) == key_check) & (field(entry, L_NODE) > 0):
            found = entry
        i += 1
    return found


@triton.jit
def place_for(table: tl.int64, mask: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """The entry that a key gets: its own, an empty one, or that of another key."""
    entry = entry_of(table, mask, key_hash, key_check)
    if entry == 0:
        bucket = table + (key_hash & mask) * (WAYS * LOCATION_BYTES)
        entry = bucket + ((key_check >> 8) & (WAYS - 1)) * LOCATION_BYTES
        i = word(0)
        while i < WAYS:
            if field(bucket + i * LOCATION_BYTES, L_NODE) == 0:
                entry = bucket + i * LOCATION_BYTES
            i += 1
    return entry


@triton.jit
def check_of(
    key_hash: tl.int64,
    key_check: tl.int64,
    node: tl.int64,
    rank: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
) -> Any:
    """A hash of the words of an entry, made as checksums are (`protocol.checksum`): if one changes, so does it."""
    first = mixed(key_hash, 0) ^ mixed(key_check, 1) ^ mixed(node, 2) ^ mixed(rank, 3)
    return first ^ mixed(slot, 4) ^ mixed(epoch, 5) ^ mixed(payload, 6) ^ mixed(nbytes, 7)


@triton.jit
def write(
    entry: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    node: tl.int64,
    rank: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
) -> None:
    """Write an entry. Readers drop it until its check is there."""
    store64(entry + L_HASH, key_hash, "relaxed")
    store64(entry + L_CHECK, key_check, "relaxed")
    store64(entry + L_NODE, node, "relaxed")
    store64(entry + L_RANK, rank, "relaxed")
    store64(entry + L_SLOT, slot, "relaxed")
    store64(entry + L_EPOCH, epoch, "relaxed")
    store64(entry + L_PAYLOAD, payload, "relaxed")
    store64(entry + L_NBYTES, nbytes, "relaxed")
    check = check_of(key_hash, key_check, node, rank, slot, epoch, payload, nbytes)
    store64(entry + L_CHECKED, check, "relaxed")


@triton.jit
def learn(table: tl.int64, mask: tl.int64, location: tl.int64, node: tl.int64) -> None:
    """Take a LOCATION of a node; or, if it says that the object has gone, forget the entry that it names."""
    key_hash, key_check = field(location, L_HASH), field(location, L_CHECK)
    if field(location, L_NODE) < 0:
        entry = entry_of(table, mask, key_hash, key_check)
        if entry != 0:
            same = (field(entry, L_NODE) == node) & (field(entry, L_SLOT) == field(location, L_SLOT))
            if same & (field(entry, L_EPOCH) == field(location, L_EPOCH)):
                store64(entry + L_NODE, word(0), "relaxed")
    else:
        write(
            place_for(table, mask, key_hash, key_check),
            key_hash,
            key_check,
            node,
            field(location, L_RANK),
            field(location, L_SLOT),
            field(location, L_EPOCH),
            field(location, L_PAYLOAD),
            field(location, L_NBYTES),
        )


@triton.jit
def learn_each(table: tl.int64, mask: tl.int64, locations: tl.int64, count: tl.int64, node: tl.int64) -> None:
    """`learn` for `count` LOCATIONs."""
    i = word(0)
    while i < count:
        learn(table, mask, locations + i * LOCATION_BYTES, node)
        i += 1


@triton.jit
def learn_headers(
    table: tl.int64,
    mask: tl.int64,
    headers: tl.int64,
    first: tl.int64,
    count: tl.int64,
    node: tl.int64,
    rank: tl.int64,
) -> Any:
    """Learn the objects of `count` copied headers, of the slots from `first` on: how many."""
    found = word(0)
    i = word(0)
    while i < count:
        header = headers + i * HEADER_BYTES
        state = load64(header + H_STATE, "relaxed")
        if phase_of(state) == READY:
            epoch = epoch_of(state)
            key_hash = load64(header + H_KEY_HASH, "relaxed")
            key_check = check_word(load64(header + H_KEY_CHECK, "relaxed"), epoch)
            write(
                place_for(table, mask, key_hash, key_check),
                key_hash,
                key_check,
                node,
                rank,
                first + i,
                epoch,
                load64(header + H_PAYLOAD, "relaxed"),
                load64(header + H_BYTES, "relaxed"),
            )
            found += 1
        i += 1
    return found


@triton.jit
def forget_node(table: tl.int64, mask: tl.int64, node: tl.int64) -> None:
    """Forget all that lies on a node."""
    count = (mask + 1) * WAYS
    i = word(0)
    while i < count:
        entry = table + i * LOCATION_BYTES
        if field(entry, L_NODE) == node:
            store64(entry + L_NODE, word(0), "relaxed")
        i += 1


@triton.jit
def learn_put(
    table: tl.int64, mask: tl.int64, pulls: tl.int64, answers: tl.int64, count: tl.int64, node: tl.int64
) -> None:
    """Learn where objects of this process' own puts lie: PULLs, and the node's answers, PULLEDs."""
    i = word(0)
    while i < count:
        pull, answer = pulls + i * PULL_BYTES, answers + i * PULLED_BYTES
        if field(answer, A_STATUS) == OK:
            key_hash, key_check = field(pull, P_KEY_HASH), field(pull, P_KEY_CHECK)
            write(
                place_for(table, mask, key_hash, key_check),
                key_hash,
                key_check,
                node,
                field(answer, A_RANK),
                field(answer, A_SLOT),
                field(answer, A_EPOCH),
                field(answer, A_PAYLOAD),
                field(pull, P_NBYTES),
            )
        i += 1


@triton.jit
def node_of(table: tl.int64, mask: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """The number of the node that has the object of a key, as far as is known; 0: none is."""
    entry = entry_of(table, mask, key_hash, key_check)
    node = word(0)
    if entry != 0:
        node = field(entry, L_NODE)
    return node


@triton.jit
def size_of(table: tl.int64, mask: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """How many bytes the object of a key has, as far as is known; 0: nothing is."""
    entry = entry_of(table, mask, key_hash, key_check)
    size = word(0)
    if entry != 0:
        size = field(entry, L_NBYTES)
    return size


@triton.jit
def nodes_of(table: tl.int64, mask: tl.int64, keys: tl.int64, count: tl.int64, out: tl.int64) -> None:
    """`node_of` of `count` keys, two words each, as words at `out`."""
    i = word(0)
    while i < count:
        poke(out, i, node_of(table, mask, peek(keys, 2 * i), peek(keys, 2 * i + 1)))
        i += 1


@triton.jit
def sizes_of(table: tl.int64, mask: tl.int64, keys: tl.int64, count: tl.int64, out: tl.int64) -> None:
    """`size_of` of `count` keys, two words each, as words at `out`."""
    i = word(0)
    while i < count:
        poke(out, i, size_of(table, mask, peek(keys, 2 * i), peek(keys, 2 * i + 1)))
        i += 1


@triton.jit
def recall(world: World, table: tl.int64, mask: tl.int64, work: tl.int64, count: tl.int64, node: tl.int64) -> Any:
    """Fill in where the objects of `count` FETCHes lie on a node: OK, or MISS. Returns how many are OK."""
    good = word(0)
    i = word(0)
    while i < count:
        fetch = field(work, W_FETCHES) + i * FETCH_BYTES
        entry = entry_of(table, mask, field(fetch, F_KEY_HASH), field(fetch, F_KEY_CHECK))
        status = word(MISS)
        if entry != 0:
            if place(world, fetch, entry, node):
                status = word(OK)
                good += 1
        store64(fetch + F_STATUS, status, "relaxed")
        i += 1
    return good


@triton.jit
def place(world: World, fetch: tl.int64, entry: tl.int64, node: tl.int64) -> Any:
    """Copy an entry to a FETCH, as the header that a reader expects there. False: it is torn, of another node, or
    impossible."""
    key_hash, key_check = field(fetch, F_KEY_HASH), field(fetch, F_KEY_CHECK)
    rank, slot, epoch = field(entry, L_RANK), field(entry, L_SLOT), field(entry, L_EPOCH)
    payload, nbytes, size = field(entry, L_PAYLOAD), field(entry, L_NBYTES), world.page_bytes
    whole = field(entry, L_CHECKED) == check_of(key_hash, key_check, node, rank, slot, epoch, payload, nbytes)
    inside = is_inside(world, payload, nbytes)
    pages = (select(inside, nbytes, word(0)) + size - 1) // size
    header = fetch + F_HEADER
    store64(fetch + F_OWNER, rank, "relaxed")
    store64(fetch + F_SLOT, slot, "relaxed")
    store64(header + H_KEY_HASH, key_hash, "relaxed")
    store64(header + H_PAGES, pages | (size << 32), "relaxed")
    store64(header + H_PAYLOAD, payload, "relaxed")
    store64(header + H_BYTES, nbytes, "relaxed")
    store64(header + H_STATE, state_word(READY, epoch), "relaxed")
    store64(header + H_KEY_CHECK, check_word(key_check, epoch), "relaxed")
    aligned = ((payload >> LINE_SHIFT) << LINE_SHIFT) == payload
    possible = is_rank(world, rank) & (slot >= 0) & (slot < world.hdr_count) & (epoch >= 0)
    return whole & inside & aligned & possible
