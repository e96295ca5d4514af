"""Writes the K and V of a step's tokens into an engine's paged cache, and the blocks that become full into objects.

The cache is vLLM's, of either layout: `reshape_and_cache_flash` (NHD or HND, by strides) or `reshape_and_cache` (heads
before tokens, K split by x). `slot_mapping` names each token's slot, block * BLOCK + position; a negative slot is
padding. `engine_tokens` moves the elements, and converts them as vLLM does: divided by a scale and rounded to fp8, or
cast to the cache's dtype.

A step has one launch per layer, and an object holds all layers of one block: [layers, 2, BLOCK, heads, dim], in the
cache's dtype, without gaps, whatever the layout. So the put of an object goes on over the launches of a step:

    first launch    one CTA per object does nothing but begin it, so that many are begun at once; all others store
                    their part, and wait for it, or begin it if they come first
    each other one  each CTA finds the answer in the ticket, and stores its part of this layer
    last launch     each CTA arrives; the last one publishes

The first launch may be the last one too. A part is one position of a block. The positions at the end of a block whose
tokens this launch brings are `fresh`: the CTA of such a token stores it into the cache and into the object. The other
positions were filled by earlier launches: another CTA copies each of them out of the cache. So BLOCK parts arrive, and
in a first launch that is the last one also the CTA that only begins: else it might begin an object that is finished.

The table of requests names the blocks; `object_of` leads from a block to its request. It is never cleared: an entry
counts only if the request that it names is about that block (the sparse set of Briggs and Torczon, 1993). A request is
used up when its object is published, refused or abandoned: its block becomes -1. So a graph that is replayed without a
new table publishes nothing again.

Guarantees: those of `device/protocol/cooperative.py`. The cache is written whatever becomes of an object. No object
becomes READY before all of its positions are stored, in the launches of all layers from the first one on.

Why the orderings suffice
- No CTA reads what another CTA of its launch has stored into the cache: it has its fresh tokens in registers, and takes
  from the cache only positions that earlier launches wrote. The end of a launch makes its stores visible to the next.
- Between launches a ticket keeps its stage and its answer. Its words are private to the launching rank, and only the
  last CTA that arrives changes them again, after all have read them: plain loads suffice (`continue_put_part`).
- The parts of earlier launches were stored before the last launch began, and each of its CTAs releases as it arrives,
  so the commit releases all parts.
- A wrong `fresh` is a caller's error. Of too many, some never arrive, and nothing is published. Of too few, a token's
  CTA spoils the ticket; with several launches the last one sees that, and the object is given up.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.engine_tokens import L_BLOCK, L_HEAD_SIZE, L_HEADS, move_position
from nanokv.device.memory.triton import select, store64, table64, word
from nanokv.device.protocol.cooperative import (
    MANY,
    NOT_LAST,
    abort_parts,
    begin_put_part,
    finish_put_part,
    put_answer,
    sum_put_part,
)
from nanokv.device.protocol.request import Q_ADDRESS, Q_BLOCK, REQUEST_BYTES
from nanokv.device.protocol.status import BUSY, OK
from nanokv.device.protocol.structs import Begun
from nanokv.device.protocol.ticket import SHARED, T_SPOILED, T_STAGE, TICKET_BYTES, clear
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World, open_world

REGISTERS = 255  #: of a thread on NVIDIA: see `many.REGISTERS`
Q_FRESH = Q_ADDRESS  # how many tokens of a block the launch brings: a block has no address
USED_UP = tl.constexpr(-1)  # the block of a request that is done with
UNFINISHED = tl.constexpr(-1)  # in place of a status: no launch has published or refused the object
ABANDONED = tl.constexpr(-2)  # in place of a status: the launch has no object to store into


# --- the part of an object --------------------------------------------------------------------
@triton.jit
def slot_of_token(slots_ptr: tl.tensor, token: tl.int64, slots: tl.int64) -> Any:
    """The slot of a token, or -1 if it is padding, or beyond the cache."""
    slot = tl.load(slots_ptr + token).to(tl.int64)
    return select(slot < slots, slot, word(-1))


@triton.jit
def request_of_token(
    requests: tl.int64, tickets: tl.int64, control: tl.int64, object_of: tl.int64, slot: tl.int64, BLOCK: tl.constexpr
) -> Any:
    """The number of the request that a fresh token has a part in, or -1. Spoils one that does not expect the token."""
    block = slot // BLOCK
    n = table64(object_of + block * WORD_BYTES)
    found = n < table64(control)
    if found:
        request = requests + n * REQUEST_BYTES
        found = table64(request + Q_BLOCK) == block
        if found & (slot % BLOCK < BLOCK - table64(request + Q_FRESH)):
            store64(tickets + n * TICKET_BYTES + T_SPOILED, word(1), "relaxed")  # relaxed: for the last launch
            found = n < 0
    return select(found, n, word(-1))


@triton.jit
def copied_slot(requests: tl.int64, item: tl.int64, BLOCK: tl.constexpr) -> Any:
    """The `item`-th position of all requests: (number of the request, slot to copy), or (-1, -1) if it is fresh."""
    n = item // BLOCK
    request = requests + n * REQUEST_BYTES
    block = table64(request + Q_BLOCK)
    position = item % BLOCK
    copied = (block >= 0) & (position < BLOCK - table64(request + Q_FRESH))
    return select(copied, n, word(-1)), select(copied, block * BLOCK + position, word(-1))


@triton.jit
def position_of(
    item: tl.int64,
    tokens: tl.int64,
    slots_ptr: tl.tensor,
    slots: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    control: tl.int64,
    object_of: tl.int64,
    begins: tl.int64,
    publishes: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """What an item of a launch is about: (number of a request or -1, slot or -1 if nothing is moved).

    In this order: `begins` items from -begins on, each of which only begins an object; the tokens of the launch; and
    the positions of all requests.
    """
    n, slot = word(-1), word(-1)
    if publishes and item < 0:
        n = item + begins
        n = select(table64(requests + n * REQUEST_BYTES + Q_BLOCK) >= 0, n, word(-1))
    elif item < tokens:
        slot = slot_of_token(slots_ptr, item, slots)
        if publishes:
            if slot >= 0:
                n = request_of_token(requests, tickets, control, object_of, slot, BLOCK)
    elif publishes:
        n, slot = copied_slot(requests, item - tokens, BLOCK)
    return n, slot


@triton.jit
def continue_put_part(ticket: tl.int64) -> Any:
    """What `begin_put_part` returned in an earlier launch; ABANDONED if there was none, or the object was abandoned."""
    status = word(ABANDONED)
    begun = Begun(word(-1), word(0), word(0), word(0))
    seg = word(0)
    if table64(ticket + T_STAGE) == SHARED:
        status, begun, seg = put_answer(ticket)
    return status, begun, seg


@triton.jit
def join_put(
    world: World, n: tl.int64, request: tl.int64, ticket: tl.int64, control: tl.int64, is_first: tl.constexpr
) -> Any:
    """`begin_put_part` in the first launch of a step, else `continue_put_part`; ABANDONED if `n` is no request.

    Returns (status, Begun, address of the segment, address of the payload).
    """
    began = word(ABANDONED)
    begun = Begun(word(-1), word(0), word(0), word(0))
    seg = word(0)
    payload = word(0)
    if n >= 0:
        if is_first:
            now = table64(control + WORD_BYTES)
            began, begun, seg = begin_put_part(world, request, ticket, word(MANY), now)
        else:
            began, begun, seg = continue_put_part(ticket)
        payload = seg + begun.payload
    return began, begun, seg, payload


@triton.jit
def finish_position(
    world: World,
    request: tl.int64,
    ticket: tl.int64,
    out: tl.int64,
    began: tl.int64,
    begun: Begun,
    seg: tl.int64,
    PARTS: tl.constexpr,
) -> None:
    """Arrive with one of PARTS parts; the last CTA publishes, and notes the status at `out`."""
    status = finish_put_part(world, request, ticket, word(PARTS), began, begun, seg)
    if status != NOT_LAST:
        if PARTS == 1:
            clear(ticket, word(MANY))  # `begin_put_part` did not know that the CTA is alone, and claimed it
        store64(request + Q_BLOCK, word(USED_UP), "relaxed")  # relaxed: for later launches
        store64(out, status, "relaxed")


# --- the kernels ------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["tokens", "slots", "plane"])
def reshape_and_cache_kernel(
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    tokens: tl.int64,
    slots: tl.int64,
    key_stride: tl.int64,
    value_stride: tl.int64,
    k_block: tl.int64,
    k_slot: tl.int64,
    k_head: tl.int64,
    k_outer: tl.int64,
    v_block: tl.int64,
    v_slot: tl.int64,
    v_head: tl.int64,
    v_outer: tl.int64,
    table: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    control: tl.int64,
    object_of: tl.int64,
    plane: tl.int64,
    publishes: tl.constexpr,
    is_first: tl.constexpr,
    is_last: tl.constexpr,
    layout: tl.constexpr,
) -> None:
    """Write one layer of a step's tokens, and (`publishes`) its part of the objects of full blocks. One warp per CTA.

    `tokens`: how many `slots_ptr` names; `slots`: how many the cache has. Strides count elements. `table` and the five
    addresses after it are 0 unless the launch publishes. `plane`: which one of an object this launch's K is.
    """
    BLOCK: tl.constexpr = layout[L_BLOCK]
    ROW: tl.constexpr = layout[L_HEADS] * layout[L_HEAD_SIZE]
    ROW_BYTES: tl.constexpr = ROW * (k_cache_ptr.dtype.element_ty.primitive_bitwidth // 8)
    PARTS: tl.constexpr = BLOCK + 1 if is_first and is_last else BLOCK  # who only begins arrives in the same launch
    items = tokens
    begins = word(0)
    if publishes:
        count = table64(control)
        items += count * BLOCK
        if is_first:
            begins = count
    item = tl.program_id(0).to(tl.int64) - begins
    while item < items:
        n, slot = position_of(
            item, tokens, slots_ptr, slots, requests, tickets, control, object_of, begins, publishes, BLOCK
        )
        began = word(ABANDONED)
        payload = word(0)
        if publishes:
            world = open_world(table)
            request = requests + n * REQUEST_BYTES
            ticket = tickets + n * TICKET_BYTES
            began, begun, seg, payload = join_put(world, n, request, ticket, control, is_first)
        if slot >= 0:
            block, position = slot // BLOCK, slot % BLOCK
            row = plane * BLOCK + position  # of the object
            k_object = payload + row * ROW_BYTES
            v_object = k_object + BLOCK * ROW_BYTES
            move_position(
                key_ptr + item * key_stride,
                value_ptr + item * value_stride,
                k_cache_ptr + (block * k_block + position * k_slot),
                v_cache_ptr + (block * v_block + position * v_slot),
                k_scale_ptr,
                v_scale_ptr,
                k_head,
                k_outer,
                v_head,
                v_outer,
                k_object,
                v_object,
                item < tokens,
                began == OK,
                publishes,
                layout,
            )
            if publishes:
                if began == OK:
                    sum_put_part(world, ticket, k_object, word(ROW_BYTES), row * (ROW_BYTES // WORD_BYTES))
                    sum_put_part(world, ticket, v_object, word(ROW_BYTES), (row + BLOCK) * (ROW_BYTES // WORD_BYTES))
        if publishes and is_last:
            if began != ABANDONED:
                out = statuses + n * WORD_BYTES
                finish_position(world, request, ticket, out, began, begun, seg, PARTS)
        item += tl.num_programs(0).to(tl.int64)


@triton.jit
def abandon_blocks_kernel(
    table: tl.int64, requests: tl.int64, tickets: tl.int64, statuses: tl.int64, control: tl.int64
) -> None:
    """Give up the objects of a table that no launch has finished. Clears the tickets, and uses the table up.

    The status of such an object is why it was refused, or UNFINISHED. After the last launch that may store a part.
    """
    count = table64(control)
    n = tl.program_id(0).to(tl.int64)
    while n < count:
        request = requests + n * REQUEST_BYTES
        ticket = tickets + n * TICKET_BYTES
        if table64(request + Q_BLOCK) >= 0:
            status = word(UNFINISHED)
            if table64(ticket + T_STAGE) == SHARED:
                status = abort_parts(table, request, ticket)
                status = select(status == BUSY, word(UNFINISHED), status)
            store64(request + Q_BLOCK, word(USED_UP), "relaxed")  # relaxed, all four: for later launches
            store64(statuses + n * WORD_BYTES, status, "relaxed")
        clear(ticket, word(MANY))
        n += tl.num_programs(0).to(tl.int64)
