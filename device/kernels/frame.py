"""The frame of a launch: a few private words in device memory that carry arguments in and answers out.

A kernel takes only the address of its frame, so no argument value makes Triton compile it again. Words, all int64:

    0            the address of the world table
    1 .. 20      arguments, in the order of the protocol function that the kernel calls
    21 .. 30     a TICKET (`protocol.ticket`), for kernels of many CTAs
    32 .. 63     answers, in the order in which the function returns them

Only the launching rank uses a frame, one operation at a time: plain loads and stores suffice, except on the ticket.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import store64, table64, word
from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.layout import WORD, WORD_BYTES
from nanokv.device.segment.world_table import open_world

FRAME_WORDS = 64
FIRST_TICKET_WORD = 21
FIRST_ANSWER = 32
ANSWERS = tl.constexpr(FIRST_ANSWER * WORD)
FRAME_TICKET = tl.constexpr(FIRST_TICKET_WORD * WORD)
assert FIRST_TICKET_WORD * WORD + TICKET.size <= FIRST_ANSWER * WORD


@triton.jit
def arg(frame: tl.int64, i: tl.int64) -> Any:
    """The i-th word of a frame: arguments begin at 1."""
    return table64(frame + i * WORD_BYTES)


@triton.jit
def world_of(frame: tl.int64) -> Any:
    """The world whose table the frame names, opened."""
    return open_world(table64(frame))


@triton.jit
def answer(frame: tl.int64, i: tl.int64, value: tl.int64) -> None:
    """Write the i-th answer."""
    store64(frame + ANSWERS + i * WORD_BYTES, word(value), "relaxed")


@triton.jit
def answer_all(frame: tl.int64, answers: tl.tensor, count: tl.constexpr) -> None:
    """Write what a function with `count` answers has returned: a tuple unless it is one."""
    if count == 1:
        answer(frame, 0, answers)
    else:
        for i in tl.static_range(count):
            answer(frame, i, answers[i])


@triton.jit
def answered(frame: tl.int64, i: tl.int64) -> Any:
    """The i-th answer of the previous launch on this frame."""
    return table64(frame + ANSWERS + i * WORD_BYTES)


@triton.jit
def arguments(frame: tl.int64, count: tl.constexpr) -> Any:
    """The first `count` arguments, as a tuple."""
    if count == 1:
        return (arg(frame, 1),)
    else:
        return arguments(frame, count - 1) + (arg(frame, count),)


@triton.jit
def call_kernel(frame: tl.int64, function: tl.constexpr, n_arguments: tl.constexpr, n_answers: tl.constexpr) -> None:
    """Run one protocol function with the words of a frame; one CTA. `n_arguments` counts the world."""
    answer_all(frame, function(world_of(frame), *arguments(frame, n_arguments - 1)), n_answers)
