"""The frame of a launch: a few private words in device memory that carry arguments in and answers out.

A kernel takes one argument, the address of its frame, so that nothing is specialised or compiled again per value. Words,
all int64:

    0            the address of the world table
    1 .. 31      arguments, in the order of the device function that the kernel calls
    32 .. 63     answers, in the order in which the function returns them

Only the launching rank touches a frame, one launch at a time: plain loads and stores do.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.layout import WORD_BYTES
from nanokv.device.memory import Word, store64, table64, word

FRAME_WORDS = 64
ANSWERS = tl.constexpr(32)


@triton.jit
def arg(frame: Word, i: Word) -> Any:
    """The i-th word of a frame: 0 is the world, arguments begin at 1."""
    return table64(frame + i * WORD_BYTES)


@triton.jit
def answer(frame: Word, i: Word, value: Word) -> None:
    """Write the i-th answer."""
    store64(frame + (ANSWERS + i) * WORD_BYTES, word(value), "relaxed")
