"""Scenarios of free lists, extents and slots: ABA, exhaustion, splitting, joining."""

from collections.abc import Callable
from typing import Any

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.stage import Stage
from nanokv.device import extent, freelist, header, reclaim
from nanokv.device.layout import FREE_HEAD, HEADER_BYTES, WORD
from nanokv.host_poller.coalesce import join_free_extents

# --- one list ---------------------------------------------------------------------------------
NODES = 3


def _list(stage: Stage) -> tuple[int, int, int]:
    """Head, links and payload of the list of pages: a word of each page stands for what is in it."""
    base, at = stage.world.bases[0], stage.geometry.offsets
    return base + FREE_HEAD.value, base + at["links_base"], base + at["heap_base"]


def _push_nodes(stage: Stage) -> None:
    head, links, _ = _list(stage)
    for node in range(NODES):
        stage.function(freelist.push)(head, links, node)


class _Hands:
    """Who pushed a node last, as Python knows it; the word in the page must say the same."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.head, self.links, self.pages = _list(stage)
        self.pop, self.push = stage.function(freelist.pop), stage.function(freelist.push)
        self.held: set[int] = set()
        self.last: dict[int, int] = {}
        self.load, self.store = (stage.simulation.vocabulary[name] for name in ("load64", "store64"))

    def take(self) -> int:
        node: int = self.pop(self.head, self.links, NODES)
        if node >= 0:
            expect(node not in self.held, f"I2: node {node} was popped twice")
            self.held.add(node)
            said = self.load(self._page(node), "relaxed")
            expect(said == self.last.get(node, 0), f"what was done to node {node} is not visible to who popped it")
        self.stage.ended()
        return node

    def give(self, node: int, who: int) -> None:
        self.store(self._page(node), who, "relaxed")
        self.last[node] = who
        self.held.discard(node)
        self.push(self.head, self.links, node)
        self.stage.ended()

    def _page(self, node: int) -> int:
        return self.pages + node * self.stage.geometry.page_bytes

    def swap(self, who: int) -> Callable[[], None]:
        def body() -> None:
            node = self.take()
            if node >= 0:
                self.give(node, who)

        return body

    def two(self, who: int) -> Callable[[], None]:
        def body() -> None:
            nodes = [self.take(), self.take()]
            for node in nodes:
                if node >= 0:
                    self.give(node, who)

        return body


def _swap_twice(stage: Stage) -> None:
    hands = _Hands(stage)
    stage.spawn("one", hands.swap(1))
    stage.spawn("two", hands.swap(2))


def _aba(stage: Stage) -> None:
    hands = _Hands(stage)
    stage.spawn("one", hands.swap(1))
    stage.spawn("two", hands.two(2))
    stage.spawn("three", hands.swap(3))


def _whole_list(stage: Stage) -> None:
    head, links, _ = _list(stage)
    newest = stage.simulation.memory.newest
    node = newest(head) & 0xFFFFFFFF
    seen: list[int] = []
    while node and len(seen) <= NODES:
        seen.append(node - 1)
        node = newest(links + (node - 1) * WORD) & 0xFFFFFFFF
    expect(sorted(seen) == list(range(NODES)), f"I2: the list has nodes {seen}")


def _detach(stage: Stage) -> None:
    hands = _Hands(stage)
    detach, chain = stage.function(freelist.detach), stage.function(freelist.push_chain)

    def whole() -> None:
        first = detach(hands.head)
        last = first
        while first >= 0:
            after = (hands.load(hands.links + last * WORD, "relaxed") & 0xFFFFFFFF) - 1
            if after < 0:
                chain(hands.head, hands.links, first, last)
                break
            last = after
        stage.ended()

    stage.spawn("one", hands.swap(1))
    stage.spawn("host", whole)
    stage.spawn("two", hands.swap(2))


LIST = Scenario(
    "list",
    "pop and push of one node, twice",
    small(),
    _swap_twice,
    _whole_list,
    _push_nodes,
    rests=False,
    exhaustive=True,
)
ABA = Scenario(
    "list-aba", "pops and pushes that bring the first node back", small(), _aba, _whole_list, _push_nodes, rests=False
)
DETACH = Scenario(
    "list-detach",
    "a host takes the whole list and puts it back",
    small(),
    _detach,
    _whole_list,
    _push_nodes,
    rests=False,
)


# --- extents ----------------------------------------------------------------------------------
class _Extents:
    """Takes and gives extents; pages in hands are nobody else's."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.world, self.seg = stage.world.table(0), stage.world.bases[0]
        self.take, self.give = stage.function(extent.take), stage.function(extent.give)
        self.held: set[int] = set()
        self.refused = 0

    def use(self, *classes: int) -> Callable[[], None]:
        """Take an extent of each class, then give all back."""

        def body() -> None:
            mine: list[tuple[int, int]] = []
            for size_class in classes:
                page = self.take(self.world, self.seg, size_class)
                self.refused += page < 0
                if page >= 0:
                    pages = set(range(page, page + self.stage.geometry.class_pages[size_class]))
                    expect(max(pages) < self.stage.geometry.n_pages, f"I9: pages {pages} are beyond the end")
                    expect(not pages & self.held, f"I1: pages {pages & self.held} were taken twice")
                    self.held |= pages
                    mine.append((page, size_class))
                self.stage.ended()
            for page, size_class in mine:
                self.held -= set(range(page, page + self.stage.geometry.class_pages[size_class]))
                self.give(self.world, self.seg, page, size_class)
                self.stage.ended()

        return body


def _exhaust(stage: Stage) -> None:
    hands = _Extents(stage)
    stage.spawn("one", hands.use(0, 0))
    stage.spawn("two", hands.use(1))
    stage.spawn("three", hands.use(0))


def _free_whole(stage: Stage) -> None:
    take, give = stage.function(extent.take), stage.function(extent.give)
    world, seg = stage.world.table(0), stage.world.bases[0]
    largest = sum(size > 0 for size in stage.geometry.class_pages) - 1
    give(world, seg, take(world, seg, largest), largest)


def _split(stage: Stage) -> None:
    hands = _Extents(stage)
    stage.spawn("one", hands.use(0))
    stage.spawn("two", hands.use(1))
    stage.spawn("three", hands.use(0))


def _free_pieces(stage: Stage) -> None:
    take, give = stage.function(extent.take), stage.function(extent.give)
    world, seg = stage.world.table(0), stage.world.bases[0]
    for page in [take(world, seg, 0) for _ in range(stage.geometry.n_pages)]:
        give(world, seg, page, 0)


def _join(stage: Stage) -> None:
    hands = _Extents(stage)
    stage.spawn("one", hands.use(0))
    stage.spawn("large", hands.use(2))
    stage.spawn("host", _joiner(stage, 1), rank=1)


def _joiner(stage: Stage, rank: int) -> Callable[[], Any]:
    def body() -> Any:
        largest = join_free_extents(stage.machine(rank), 0)
        stage.ended()
        return largest

    return body


def _join_twice(stage: Stage) -> None:
    stage.spawn("one", _joiner(stage, 0))
    stage.spawn("host", _joiner(stage, 1), rank=1)


def _joined(stage: Stage) -> None:
    """When all pieces are free, joining makes the largest extent of them (I9)."""
    if not stage.deaths():
        join_free_extents(stage.machine(0), 0)
        page = stage.function(extent.take)(stage.world.table(0), stage.world.bases[0], 2)
        expect(page == 0, "I9: what is free cannot be used")


def _join_or_full(stage: Stage) -> None:
    """A producer that finds nothing looks whether somebody joins; if nobody does, it must find something."""
    take, joining = stage.function(extent.take), stage.function(reclaim.joining)
    world, seg = stage.world.table(1), stage.world.bases[0]

    def produce() -> str:
        if take(world, seg, 0) >= 0:
            return "taken"
        if joining(world, seg, 0) != 0:
            return "somebody joins"
        return "taken" if take(world, seg, 0) >= 0 else "full"

    stage.spawn("producer", produce)
    stage.spawn("host", _joiner(stage, 0))


def _never_full(stage: Stage) -> None:
    expect(stage.results["producer"] != "full", "I9: FULL was an accident: all pages were free")


JOIN_FULL = Scenario(
    "join-full",
    "a producer finds nothing while a host joins all there is",
    small(ranks=2),
    _join_or_full,
    _never_full,
    _free_pieces,
    rests=False,
)
EXHAUST = Scenario("exhaust", "takes from a heap that is too small", small(pages=3), _exhaust)
SPLIT = Scenario("split", "takes that split one large extent", small(), _split, prepare=_free_whole)
JOIN = Scenario(
    "join", "a host joins free pieces while others take", small(ranks=2), _join, _joined, _free_pieces, mortal=("host",)
)
JOIN_TWICE = Scenario(
    "join-twice", "two hosts join at once", small(ranks=2), _join_twice, _joined, _free_pieces, mortal=("host",)
)


# --- header slots -----------------------------------------------------------------------------
def _slots(stage: Stage) -> None:
    world, seg = stage.world.table(0), stage.world.bases[0]
    take, reserve, kill, give = (
        stage.function(function) for function in (header.take_slot, header.reserve, header.kill, header.give_slot)
    )
    held: set[int] = set()
    epochs: dict[int, int] = {}

    def use() -> None:
        for _ in range(2):
            slot = take(world, seg)
            stage.ended()
            if slot >= 0:
                expect(slot not in held, f"I2: slot {slot} was taken twice")
                held.add(slot)
                epoch = reserve(world, seg, slot, 1, 1, 0)
                expect(epoch > epochs.get(slot, 0), f"I7: slot {slot} got epoch {epoch} after {epochs.get(slot)}")
                epochs[slot] = epoch
                kill(stage.world.bases[0] + stage.geometry.offsets["hdr_base"] + slot * HEADER_BYTES.value, 0, epoch)
                held.discard(slot)
                give(world, seg, slot)
                stage.ended()

    for name in ("one", "two", "three"):
        stage.spawn(name, use)


SLOTS = Scenario("slots", "three take and give two header slots", small(objects=2), _slots)

SCENARIOS = [LIST, ABA, DETACH, EXHAUST, SPLIT, JOIN, JOIN_TWICE, JOIN_FULL, SLOTS]
