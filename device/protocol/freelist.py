"""A lock-free stack of nodes: free pages of one size class, or free header slots.

Source: Treiber's stack (1986) with a tag against ABA. `head` is a LIST word (first node + 1, tag); the links stand in
an array beside the nodes, never inside them, so that a late writer cannot corrupt a list with payload bytes.

Guarantees
- A node comes out of `pop` once for each time it went in.
- No stop of any producer keeps the others from going on: each failed CAS means that another one succeeded.
- A corrupt head or link makes a list look empty; nothing outside the links is ever touched through it.

Why the orderings suffice
- `push` publishes with release what its caller did to the node; `pop` and `detach` take with acquire, on the head
  alone. What lies deeper in the list was released by earlier pushes: each change of the head is a read-modify-write,
  which carries them on. `pop` acquires already when it reads the head, or the link it reads next could be older.
- The link of a node that somebody else pops meanwhile may be old or being rewritten. The tag has changed then, so the
  CAS fails and the value is thrown away: a relaxed load is enough.
- The tag has 32 bits: a pop would have to sleep through exactly 2**32 changes to be fooled.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, count_up, load64, select, store64, word
from nanokv.device.segment.layout import LOW32, STAMP_MASK, STAMP_SHIFT, TAG_SHIFT, WORD_BYTES

SPIN_LIMIT = tl.constexpr(1 << 20)  # a bound for loops that are lock-free but not wait-free; never met in practice


@triton.jit
def pop(head: tl.int64, links: tl.int64, count: tl.int64) -> Any:
    """Take the first node, or -1 when there is none. `count`: how many nodes exist (a bound on what is believed)."""
    old = load64(head, "acquire")
    node = old & LOW32
    tries = word(0)
    more = (node != 0) & (node <= count)
    node = select(more, node, word(0))
    while more:
        after = load64(links + (node - 1) * WORD_BYTES, "relaxed") & LOW32
        got = cas64(head, old, (((old >> TAG_SHIFT) + 1) << TAG_SHIFT) | after, "acquire")
        more = got != old
        if more:
            old = got
            tries += 1
            node = old & LOW32
            more = (node != 0) & (node <= count) & (tries < SPIN_LIMIT)
            node = select(more, node, word(0))
    return node - 1


@triton.jit
def push_chain(head: tl.int64, links: tl.int64, first: tl.int64, last: tl.int64) -> None:
    """Put the nodes `first` to `last`, already linked to each other, in front of the list."""
    link = links + last * WORD_BYTES
    mark = (load64(link, "relaxed") >> TAG_SHIFT) << TAG_SHIFT
    old = load64(head, "relaxed")
    tries = word(0)
    more = tries == 0
    while more:
        store64(link, mark | (old & LOW32), "relaxed")
        got = cas64(head, old, (((old >> TAG_SHIFT) + 1) << TAG_SHIFT) | (first + 1), "release")
        tries += 1
        more = (got != old) & (tries < SPIN_LIMIT)
        old = got


@triton.jit
def push(head: tl.int64, links: tl.int64, node: tl.int64) -> None:
    """Put one node in front of the list."""
    push_chain(head, links, node, node)


@triton.jit
def stamp(links: tl.int64, first: tl.int64, count: tl.int64) -> None:
    """Note in the links of `count` nodes that they change hands, and that none is a first page.

    The audit (`reclaim`) relies on it.
    """
    count_up(links + first * WORD_BYTES, count, STAMP_SHIFT, STAMP_MASK, LOW32)


@triton.jit
def detach(head: tl.int64) -> Any:
    """Take the whole list with one CAS; returns its first node, or -1. The chain then belongs to the caller.

    The tag goes on, so that a pop that is under way cannot mistake the list for the one it read.
    """
    old = load64(head, "relaxed")
    tries = word(0)
    more = (old & LOW32) != 0
    while more:
        got = cas64(head, old, ((old >> TAG_SHIFT) + 1) << TAG_SHIFT, "acquire")
        tries += 1
        more = (got != old) & ((got & LOW32) != 0) & (tries < SPIN_LIMIT)
        old = got
    return (old & LOW32) - 1
