"""What copies of lines say: whether a header has a key, whether two looks are of one object. Private memory only."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.fetches import has_right_sum
from nanokv.device.fabric.lines import field, peek, poke
from nanokv.device.fabric.records import F_HEADER, F_OWNER, LINE_WORDS, W_CONTROLS
from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.header import epoch_of, is_key, phase_of, state_word
from nanokv.device.protocol.status import CORRUPT, MISS, NOT_READY, OK, TORN
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import (
    DEAD,
    ENTRY_EPOCH_MASK,
    ENTRY_EPOCH_SHIFT,
    H_ACCESS,
    H_BYTES,
    H_FLAGS,
    H_PAGES,
    H_PAYLOAD,
    H_STATE,
    LOW32,
    PIN_BITS,
    READY,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, is_inside

GONE = tl.constexpr(-1)  #: the answer of a fetch whose segment is not that of the card (any more)
DOUBTFUL = tl.constexpr(-2)  #: of one whose header names impossible bytes: another look tells whether it stays so
UNFIT = tl.constexpr(-3)  #: of a get whose key or tensor are not the usual ones, or that is too large: nothing was read


@triton.jit
def judge_header(world: World, header: tl.int64, entry: tl.int64, key: Key) -> Any:
    """What the copy of a header says of a key: OK, NOT_READY, DOUBTFUL, MISS; TORN: the slot has been used again since.

    As `directory.judge`, which can look again; here the key may have a newer entry that was not seen.
    """
    state = load64(header + H_STATE, "relaxed")
    epoch = epoch_of(state)
    answer = word(MISS)
    if (epoch & ENTRY_EPOCH_MASK) != ((entry >> ENTRY_EPOCH_SHIFT) & ENTRY_EPOCH_MASK):
        answer = word(TORN)
    elif is_key(header, key, epoch) & (phase_of(state) != DEAD):
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
def copy_line(to: tl.int64, line: tl.int64) -> None:
    """Copy a line between private records."""
    i = word(0)
    while i < LINE_WORDS:
        poke(to, i, peek(line, i))
        i += 1


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
