"""The free list, natively compiled: no node is lost, and none comes out twice."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, store64, word
from nanokv.device.protocol.freelist import detach, pop, push, push_chain, stamp
from nanokv.device.segment.layout import LOW32, WORD_BYTES, unpack
from tests.support.plain_world import address, aligned_words, in_threads, native, yielding

NODES = 7
ROUNDS = 30_000


@triton.jit
def churn(head: tl.int64, links: tl.int64, count: tl.int64, marks: tl.int64, rounds: tl.int64) -> Any:
    """Pop up to two nodes and push them back, again and again. Returns (pops, nodes that another thread had too)."""
    pops = word(0)
    doubled = word(0)
    i = word(0)
    while i < rounds:
        one = pop(head, links, count, head + WORD_BYTES)
        two = pop(head, links, count, head + WORD_BYTES)
        if one >= 0:
            pops += 1
            if cas64(marks + one * WORD_BYTES, 0, 1, "acq_rel") != 0:
                doubled += 1
        if two >= 0:
            pops += 1
            if cas64(marks + two * WORD_BYTES, 0, 1, "acq_rel") != 0:
                doubled += 1
            store64(marks + two * WORD_BYTES, word(0), "release")
            push(head, links, two, head + WORD_BYTES)
        if one >= 0:
            store64(marks + one * WORD_BYTES, word(0), "release")
            stamp(links, one, word(1))
            push(head, links, one, head + WORD_BYTES)
        i += 1
    return pops, doubled


@triton.jit
def produce(head: tl.int64, links: tl.int64, first: tl.int64, count: tl.int64) -> Any:
    """Push `count` nodes."""
    node = first + 0
    while node < first + count:
        push(head, links, node, head + WORD_BYTES)
        node += 1
    return node


@triton.jit
def consume(head: tl.int64, links: tl.int64, count: tl.int64, wanted: tl.int64, out: tl.int64, tries: tl.int64) -> Any:
    """Pop until `wanted` nodes came, counting each in `out`. Gives up after `tries` pops."""
    got = word(0)
    i = word(0)
    while (got < wanted) & (i < tries):
        node = pop(head, links, count, head + WORD_BYTES)
        if node >= 0:
            add64(out + node * WORD_BYTES, 1, "relaxed")
            got += 1
        i += 1
    return got


@triton.jit
def take_all(head: tl.int64, links: tl.int64, count: tl.int64, rounds: tl.int64) -> Any:
    """Detach the whole list and push it back as one chain, again and again. Returns the number of nodes moved."""
    moved = word(0)
    i = word(0)
    while i < rounds:
        first = detach(head)
        if first >= 0:
            last = first
            after = load64(links + last * WORD_BYTES, "relaxed") & LOW32
            moved += 1
            while (after != 0) & (moved < rounds * count):
                last = after - 1
                moved += 1
                after = load64(links + last * WORD_BYTES, "relaxed") & LOW32
            push_chain(head, links, first, last, head + WORD_BYTES)
        i += 1
    return moved


class List:
    """A free list in plain memory."""

    def __init__(self, count: int = NODES) -> None:
        self.words = aligned_words(16 + count)
        self.count = count
        self.head, self.links = address(self.words), address(self.words[16:])

    def pop(self) -> int:
        return int(native(pop)(self.head, self.links, self.count, self.head + 8))

    def push(self, *nodes: int) -> None:
        for node in nodes:
            native(push)(self.head, self.links, node, self.head + 8)

    def inside(self) -> list[int]:
        """The nodes, first one first, as the links say."""
        nodes: list[int] = []
        at = int(unpack("LIST", "node", self.words[0]))
        while at and len(nodes) <= self.count:
            nodes.append(at - 1)
            at = int(unpack("LINK", "next", self.words[16 + at - 1]))
        return nodes


def test_smoke() -> None:
    nodes = List()
    nodes.push(3, 5)
    assert [nodes.pop(), nodes.pop(), nodes.pop()] == [5, 3, -1]


def test_capacity() -> None:
    nodes = List()
    nodes.push(*range(NODES))
    assert nodes.inside() == list(range(NODES))[::-1]
    assert sorted(nodes.pop() for _ in range(NODES)) == list(range(NODES))
    assert nodes.pop() == -1


def test_len_empty_full() -> None:
    nodes = List()
    for _ in range(3):
        assert nodes.inside() == [] and nodes.pop() == -1
        nodes.push(*range(NODES))
        assert len(nodes.inside()) == NODES
        while nodes.pop() >= 0:
            pass


def test_each_change_moves_the_tag() -> None:
    nodes = List()
    for change in range(4):
        assert unpack("LIST", "tag", nodes.words[0]) == change
        nodes.push(1) if change % 2 == 0 else nodes.pop()
    nodes.push(2)
    assert native(detach)(nodes.head) == 2
    assert unpack("LIST", "tag", nodes.words[0]) == 6
    assert native(detach)(nodes.head) == -1
    assert unpack("LIST", "tag", nodes.words[0]) == 6, "an empty list is left alone"


@pytest.mark.parametrize("tag", [0xFFFFFFFE, 0x7FFFFFFF])
def test_the_tag_wraps(tag: int) -> None:
    nodes = List()
    nodes.words[:1].view(np.uint64)[0] = tag << 32
    nodes.push(1, 2, 3)
    assert [nodes.pop() for _ in range(4)] == [3, 2, 1, -1]
    assert unpack("LIST", "tag", nodes.words[0]) == (tag + 6) % (1 << 32)


def test_a_stamp_survives_pushes() -> None:
    nodes = List()
    native(stamp)(nodes.links, 2, 2)
    nodes.push(2, 3)
    nodes.pop()
    nodes.push(3)
    native(stamp)(nodes.links, 3, 1)
    stamps = unpack("LINK", "stamp", nodes.words[16:])
    assert stamps.tolist() == [0, 0, 1, 2, 0, 0, 0]
    assert nodes.inside() == [3, 2]


def test_a_corrupt_head_makes_a_list_look_empty() -> None:
    nodes = List()
    nodes.words[0] = NODES + 1
    assert nodes.pop() == -1
    assert nodes.words[0] == NODES + 1


def test_spsc() -> None:
    count = 20_000
    nodes = List(count)
    counts = aligned_words(count)
    take = partial(
        native(consume), nodes.head, nodes.links, count, count, address(counts), 1 << 31
    )  # ends when all nodes have come
    make = partial(native(produce), nodes.head, nodes.links, 0, count)
    got, _ = in_threads(take, make)
    assert got == count
    assert (counts == 1).all()
    assert nodes.inside() == []


@pytest.mark.parametrize("machine, rounds", [(native, ROUNDS), (yielding, ROUNDS // 10)])
def test_mpmc(machine: Any, rounds: int) -> None:
    nodes = List()
    nodes.push(*range(NODES))
    marks = aligned_words(NODES)
    call = partial(machine(churn), nodes.head, nodes.links, NODES, address(marks), rounds)
    results = in_threads(*[call] * 4)
    assert [doubled for _, doubled in results] == [0] * 4
    assert sum(pops for pops, _ in results) > 4 * rounds, "most pops found a node"
    assert sorted(nodes.inside()) == list(range(NODES))


@pytest.mark.parametrize("machine, rounds", [(native, ROUNDS), (yielding, ROUNDS // 10)])
def test_mpmc_with_one_that_takes_the_whole_list(machine: Any, rounds: int) -> None:
    nodes = List()
    nodes.push(*range(NODES))
    marks = aligned_words(NODES)
    call = partial(machine(churn), nodes.head, nodes.links, NODES, address(marks), rounds)
    *results, moved = in_threads(call, call, partial(machine(take_all), nodes.head, nodes.links, NODES, rounds))
    assert [doubled for _, doubled in results] == [0, 0]
    assert moved > 0
    assert sorted(nodes.inside()) == list(range(NODES))
