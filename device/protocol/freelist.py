"""A lock-free stack of nodes: free extents of one size class, or free header slots.

Source: Treiber's stack (1986) with a tag against ABA. `head` is a LIST word (first node + 1, tag). The links stand in
an array beside the nodes, never inside them: payload bytes that a producer writes too late cannot corrupt a list.

Guarantees
- `pop` and `pop_run` return a node once for each time that it was pushed.
- A producer that stops anywhere stops no other one: a CAS fails only because another one succeeded.
- A corrupt head or link makes the list look empty; no word outside the links is ever touched through it.

Why the orderings suffice
- `push` releases the caller's writes to the node; `pop_nodes` and `detach` acquire, and only at the head. Earlier
  pushes released the nodes deeper in the list: each change of the head is a read-modify-write, which carries those
  releases on. `pop_nodes` acquires already when it reads the head; otherwise the links that it reads next could be
  older.
- The link of a node that another producer pops meanwhile may be old, or rewritten already. The tag has changed then, so
  the CAS fails and all that was read is discarded: relaxed loads are enough.
- The tag has 32 bits: a pop is fooled only if it sleeps through exactly 2**32 changes.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, count_up, load64, select, store64, word
from nanokv.device.segment.layout import LOW32, STAMP_MASK, STAMP_SHIFT, TAG_SHIFT, WORD_BYTES

SPIN_LIMIT = tl.constexpr(1 << 20)  # bounds loops that are lock-free but not wait-free; never reached in practice


@triton.jit
def pop_nodes(
    head: tl.int64, links: tl.int64, count: tl.int64, most: tl.int64, retries: tl.int64, several: tl.constexpr
) -> Any:
    """Take the first nodes: (number of the first one or -1, how many, link of the first one while it was in the list).

    `count`: how many nodes exist; no other is believed. `retries`: the address of a word that counts compare-and-swaps
    which lost to another rank or thread. Only if `several`, more than one is taken: at most `most`, and after each
    compare-and-swap that lost half as many. The link of each names the next.
    """
    old = load64(head, "acquire")  # acquire: the links are at least as new as this head (scenario list-aba)
    node = old & LOW32
    link = word(0)
    tries = word(0)
    taken = word(0)
    more = (node != 0) & (node <= count)
    node = select(more, node, word(0))
    while more:
        link = load64(links + (node - 1) * WORD_BYTES, "relaxed")  # relaxed: if it is old, the CAS fails
        after = link & LOW32
        taken = word(1)
        if several:
            while (taken < most) & (after != 0) & (after <= count):
                after = load64(links + (after - 1) * WORD_BYTES, "relaxed") & LOW32
                taken += 1
        # acquire: the writes of the ranks that pushed the nodes (scenario list)
        got = cas64(head, old, (((old >> TAG_SHIFT) + 1) << TAG_SHIFT) | after, "acquire")
        more = got != old
        if more:
            old = got
            tries += 1
            most = (most + 1) >> 1
            node = old & LOW32
            more = (node != 0) & (node <= count) & (tries < SPIN_LIMIT)
            node = select(more, node, word(0))
    if tries > 0:
        add64(retries, tries, "relaxed")  # relaxed: a statistic
    return node - 1, select(node != 0, taken, word(0)), link


@triton.jit
def pop_run(head: tl.int64, links: tl.int64, count: tl.int64, most: tl.int64, retries: tl.int64) -> Any:
    """Take the first nodes, at most `most`: (number of the first one or -1, how many). See `pop_nodes`."""
    node, taken, _ = pop_nodes(head, links, count, most, retries, True)
    return node, taken


@triton.jit
def pop_linked(head: tl.int64, links: tl.int64, count: tl.int64, retries: tl.int64) -> Any:
    """Take the first node: (its number, or -1; its link while it was in the list). See `pop_nodes`."""
    node, _, link = pop_nodes(head, links, count, word(1), retries, False)
    return node, link


@triton.jit
def pop(head: tl.int64, links: tl.int64, count: tl.int64, retries: tl.int64) -> Any:
    """Take the first node: its number, or -1 if there is none. See `pop_nodes`."""
    node, _ = pop_linked(head, links, count, retries)
    return node


@triton.jit
def push_chain(head: tl.int64, links: tl.int64, first: tl.int64, last: tl.int64, retries: tl.int64) -> None:
    """Push the nodes `first` to `last`, which the caller has linked to each other, in front of the list."""
    mark = load64(links + last * WORD_BYTES, "relaxed")
    push_marked(head, links, first, last, mark, retries)


@triton.jit
def push_marked(
    head: tl.int64, links: tl.int64, first: tl.int64, last: tl.int64, mark: tl.int64, retries: tl.int64
) -> None:
    """`push_chain`; the last node's link gets the upper half of `mark`."""
    link = links + last * WORD_BYTES
    mark = (mark >> TAG_SHIFT) << TAG_SHIFT
    old = load64(head, "relaxed")  # relaxed: a guess, which the CAS compares
    tries = word(0)
    more = tries == 0
    while more:
        store64(link, mark | (old & LOW32), "relaxed")
        # release: the links, and all that the caller did to the nodes (scenario list)
        got = cas64(head, old, (((old >> TAG_SHIFT) + 1) << TAG_SHIFT) | (first + 1), "release")
        tries += 1
        more = (got != old) & (tries < SPIN_LIMIT)
        old = got
    if tries > 1:
        add64(retries, tries - 1, "relaxed")


@triton.jit
def push(head: tl.int64, links: tl.int64, node: tl.int64, retries: tl.int64) -> None:
    """Push one node in front of the list."""
    push_chain(head, links, node, node, retries)


@triton.jit
def stamped(link: tl.int64) -> Any:
    """A link, with its stamp one higher."""
    return (link & ~(STAMP_MASK << STAMP_SHIFT)) | ((((link >> STAMP_SHIFT) + 1) & STAMP_MASK) << STAMP_SHIFT)


@triton.jit
def stamp(links: tl.int64, first: tl.int64, count: tl.int64) -> None:
    """Note in the links of `count` nodes that they change hands, and that none of them is a first page.

    The audit (`host_poller/audit.py`) relies on it.
    """
    count_up(links + first * WORD_BYTES, count, STAMP_SHIFT, STAMP_MASK, LOW32)


@triton.jit
def detach(head: tl.int64) -> Any:
    """Take the whole list with one CAS: its first node, or -1. The chain then belongs to the caller.

    The tag keeps counting, so that a pop in progress cannot mistake a later list for the one that it read.
    """
    old = load64(head, "relaxed")  # relaxed: a guess, which the CAS compares
    tries = word(0)
    more = (old & LOW32) != 0
    while more:
        # acquire: the links that the pushers wrote (scenario list-detach)
        got = cas64(head, old, ((old >> TAG_SHIFT) + 1) << TAG_SHIFT, "acquire")
        tries += 1
        more = (got != old) & ((got & LOW32) != 0) & (tries < SPIN_LIMIT)
        old = got
    return (old & LOW32) - 1
