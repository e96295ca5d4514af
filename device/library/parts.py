"""One object, put or read in parts by many CTAs, with checked arguments.

The words of a request are checked by the protocol, once per object: all CTAs get the first one's answer.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.library.arguments import is_copy, is_memory, is_table, is_time
from nanokv.device.library.launch import check_launch
from nanokv.device.memory.triton import select, word
from nanokv.device.protocol.cooperative import MANY, get_answer, has_sum, put_answer
from nanokv.device.protocol.cooperative import begin_get_part as protocol_begin_get_part
from nanokv.device.protocol.cooperative import begin_put_part as protocol_begin_put_part
from nanokv.device.protocol.cooperative import finish_get_part as protocol_finish_get_part
from nanokv.device.protocol.cooperative import finish_put_part as protocol_finish_put_part
from nanokv.device.protocol.cooperative import sum_get_part as protocol_sum_get_part
from nanokv.device.protocol.cooperative import sum_put_part as protocol_sum_put_part
from nanokv.device.protocol.status import INVALID, OK
from nanokv.device.protocol.ticket import clear
from nanokv.device.segment.world_table import open_world, segment


@triton.jit
def clear_alone(ticket: tl.int64, parts: tl.int64) -> None:
    """Clear the ticket of a CTA that came alone: `begin_*_part` did not know that, and claimed it."""
    if parts == 1:
        clear(ticket, word(MANY))


@triton.jit
def begin_put_part(world: tl.int64, request: tl.int64, ticket: tl.int64, now: tl.int64) -> Any:
    """Begin an object, or learn that another CTA has. Returns (status, address of the payload; 0 unless OK)."""
    check_launch()
    status = word(INVALID)
    payload = word(0)
    if is_table(world) & is_table(request) & is_table(ticket):  # a wrong `now` too is shared with the other CTAs
        status, begun, seg = protocol_begin_put_part(open_world(world), request, ticket, word(MANY), word(now))
        payload = seg + begun.payload
    return status, select(status == OK, payload, word(0))


@triton.jit
def sum_put_part(world: tl.int64, ticket: tl.int64, src: tl.int64, nbytes: tl.int64, first: tl.int64) -> Any:
    """Add stored bytes to the object's checksum, if it has one. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_table(ticket) & (word(first) >= 0) & is_copy(world, src, nbytes):
        protocol_sum_put_part(open_world(world), ticket, src, nbytes, first)
        status = word(OK)
    return status


@triton.jit
def finish_put_part(world: tl.int64, request: tl.int64, ticket: tl.int64, parts: tl.int64) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole put."""
    check_launch()
    status = word(INVALID)
    if is_table(world) & is_table(request) & is_table(ticket) & (word(parts) >= 1):
        began, begun, seg = put_answer(ticket)
        status = protocol_finish_put_part(open_world(world), request, ticket, parts, began, begun, seg)
        clear_alone(ticket, parts)
    return status


@triton.jit
def begin_get_part(world: tl.int64, request: tl.int64, ticket: tl.int64) -> Any:
    """Look an object up, or learn what another CTA found. Returns (status, address of the payload; 0 unless OK)."""
    check_launch()
    status = word(INVALID)
    payload = word(0)
    if is_table(world) & is_table(request) & is_table(ticket):
        opened = open_world(world)
        status, found, _ = protocol_begin_get_part(opened, request, ticket, word(MANY))
        payload = segment(opened, found.owner) + found.payload
    return status, select(status == OK, payload, word(0))


@triton.jit
def sum_get_part(ticket: tl.int64, copy: tl.int64, nbytes: tl.int64, first: tl.int64) -> Any:
    """Add copied bytes to the sum that is compared with the object's checksum, if any. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_table(ticket) & is_memory(copy, nbytes) & (word(first) >= 0):
        protocol_sum_get_part(ticket, has_sum(ticket), copy, nbytes, first)
        status = word(OK)
    return status


@triton.jit
def finish_get_part(world: tl.int64, request: tl.int64, ticket: tl.int64, parts: tl.int64, now: tl.int64) -> Any:
    """Arrive after the CTA's part. Returns NOT_LAST, or for the last of `parts` CTAs the status of the whole get."""
    check_launch()
    status = word(INVALID)
    if is_table(world) & is_table(request) & is_table(ticket) & (word(parts) >= 1) & is_time(now):
        looked, found, flagged = get_answer(request, ticket)
        status = protocol_finish_get_part(open_world(world), request, ticket, parts, now, looked, found, flagged)
        clear_alone(ticket, parts)
    return status
