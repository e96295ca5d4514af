"""The frame of a launch: a few private words in device memory that carry arguments in and answers out.

A kernel takes one argument, the address of its frame, so nothing is specialised or compiled again per value. Words, all
int64:

    0            the address of the world table
    1 .. 29      arguments, in the order of the device function that the kernel calls
    30           the sum over the payload (`memory.checksum_bytes`), from all CTAs
    31           how many CTAs of a launch have arrived at its end
    32 .. 63     answers, in the order in which the function returns them

Only the launching rank touches a frame, one operation at a time: plain loads and stores do, but for the arrivals.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, store64, table64, word
from nanokv.device.segment.layout import WORD_BYTES

FRAME_WORDS = 64
FIRST_ANSWER = 32
SUM = tl.constexpr(30)
ARRIVALS = tl.constexpr(31)
ANSWERS = tl.constexpr(FIRST_ANSWER)


@triton.jit
def arg(frame: tl.int64, i: tl.int64) -> Any:
    """The i-th word of a frame: 0 is the world, arguments begin at 1."""
    return table64(frame + i * WORD_BYTES)


@triton.jit
def answer(frame: tl.int64, i: tl.int64, value: tl.int64) -> None:
    """Write the i-th answer."""
    store64(frame + (ANSWERS + i) * WORD_BYTES, word(value), "relaxed")


@triton.jit
def answered(frame: tl.int64, i: tl.int64) -> Any:
    """The i-th answer of the launch before."""
    return table64(frame + (ANSWERS + i) * WORD_BYTES)


@triton.jit
def arrive(frame: tl.int64) -> Any:
    """Count this CTA as done with its bytes; returns how many were before. Acquires what those did."""
    return add64(frame + ARRIVALS * WORD_BYTES, word(1), "acq_rel")


@triton.jit
def add_sum(frame: tl.int64, value: tl.int64) -> None:
    """Add this CTA's part of the sum over the payload."""
    add64(frame + SUM * WORD_BYTES, value, "relaxed")


@triton.jit
def whole_sum(frame: tl.int64) -> Any:
    """The sum of all parts, once every CTA has arrived."""
    return load64(frame + SUM * WORD_BYTES, "acquire")
