"""From the words that a round needs to the rows of one transfer: each line once, neighbours as one row.

A descriptor of a transfer takes as long as some kilobytes, so small gaps between lines are read over.

Source of the sort: Williams (1964), heapsort: no memory, and no bad case.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.records import (
    ASKER_BITS,
    ASKER_MASK,
    LINE_SHIFT,
    ROW_BYTES,
    ROW_HERE,
    ROW_NBYTES,
    ROW_THERE,
    W_GAP,
    W_LINES,
    W_LOOKS,
    W_MOST_LINES,
    W_PLACES,
    W_ROWS,
)
from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.segment.layout import WORD_BYTES


@triton.jit
def peek(words: tl.int64, i: tl.int64) -> Any:
    """The i-th of the words at an address."""
    return load64(words + i * WORD_BYTES, "relaxed")


@triton.jit
def poke(words: tl.int64, i: tl.int64, value: tl.int64) -> None:
    """Set the i-th of the words at an address."""
    store64(words + i * WORD_BYTES, value, "relaxed")


@triton.jit
def field(record: tl.int64, at: tl.constexpr) -> Any:
    """A word of a private record."""
    return load64(record + at, "relaxed")


@triton.jit
def look_word(address: tl.int64, asker: tl.int64) -> Any:
    """The LOOK word of an address."""
    return ((address >> LINE_SHIFT) << ASKER_BITS) | asker


@triton.jit
def sift(words: tl.int64, root: tl.int64, end: tl.int64) -> None:
    """Let the word at `root` sink in the heap of the words before `end`, to where both children are smaller."""
    value = peek(words, root)
    child = 2 * root + 1
    while child < end:
        if child + 1 < end:
            child += select(peek(words, child + 1) > peek(words, child), word(1), word(0))
        if peek(words, child) > value:
            poke(words, root, peek(words, child))
            root = child
            child = 2 * root + 1
        else:
            child = end
    poke(words, root, value)


@triton.jit
def is_sorted(words: tl.int64, count: tl.int64) -> Any:
    """Whether words ascend."""
    i = word(1)
    while (i < count) and (peek(words, i - 1) <= peek(words, i)):
        i += 1
    return i >= count


@triton.jit
def sort(words: tl.int64, count: tl.int64) -> None:
    """Sort words, ascending. Those of objects that were put one after the other ascend already."""
    if not is_sorted(words, count):
        root = count // 2 - 1
        while root >= 0:
            sift(words, root, count)
            root -= 1
        end = count - 1
        while end > 0:
            last = peek(words, end)
            poke(words, end, peek(words, word(0)))
            poke(words, word(0), last)
            sift(words, word(0), end)
            end -= 1


@triton.jit
def put_row(work: tl.int64, row: tl.int64, here: tl.int64, there: tl.int64, nbytes: tl.int64) -> None:
    """Write the `row`-th row of the next transfer."""
    at = field(work, W_ROWS) + row * ROW_BYTES
    store64(at + ROW_HERE, here, "relaxed")
    store64(at + ROW_THERE, there, "relaxed")
    store64(at + ROW_NBYTES, nbytes, "relaxed")


@triton.jit
def lines_of(looks: tl.int64, count: tl.int64, gap: tl.int64) -> Any:
    """How many lines the rows of sorted looks have, if gaps of up to `gap` lines are read over."""
    total = word(0)
    i = word(0)
    last = word(-2) - gap
    while i < count:
        line = peek(looks, i) >> ASKER_BITS
        step = line - last
        total += select(step - 1 <= gap, step, word(1))
        last = line
        i += 1
    return total


@triton.jit
def gather(work: tl.int64, count: tl.int64, row: tl.int64, line: tl.int64) -> Any:
    """The rows that bring the lines of `count` looks: (rows of the transfer, lines used).

    After the transfer PLACES has, per asker, the address of its line.

    Args:
        row: rows that the transfer has already. line: lines that are in use already.
    """
    looks, places, room = field(work, W_LOOKS), field(work, W_PLACES), field(work, W_MOST_LINES) - line
    sort(looks, count)
    gap = field(work, W_GAP)
    while (gap > 0) and (lines_of(looks, count, gap) > room):
        gap = gap // 4
    here = field(work, W_LINES) + (line << LINE_SHIFT)
    first = word(0)
    last = word(-2) - gap
    i = word(0)
    while i < count:
        look = peek(looks, i)
        at = look >> ASKER_BITS
        if at - last - 1 > gap:
            if i > 0:
                length = (last - first + 1) << LINE_SHIFT
                put_row(work, row, here, first << LINE_SHIFT, length)
                row += 1
                here += length
            first = at
        last = at
        poke(places, look & ASKER_MASK, here + ((at - first) << LINE_SHIFT))
        i += 1
    if count > 0:
        length = (last - first + 1) << LINE_SHIFT
        put_row(work, row, here, first << LINE_SHIFT, length)
        row += 1
        here += length
    return row, (here - field(work, W_LINES)) >> LINE_SHIFT


@triton.jit
def add_look(work: tl.int64, i: tl.int64, asker: tl.int64, address: tl.int64) -> None:
    """Let the next transfer bring the line of the peer's `address`: its i-th look."""
    poke(field(work, W_LOOKS), i, look_word(address, asker))
