"""Scenarios of extents: exhaustion, splitting, joining by a host."""

from collections.abc import Callable
from typing import Any

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import Stage
from nanokv.device.protocol import extent, reclaim
from nanokv.host_poller.coalesce import join_free_extents


class _Extents:
    """Takes and gives extents; pages in hands are nobody else's."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.world, self.seg = stage.world.table(0), stage.world.bases[0]
        self.take, self.give = stage.function(extent.take), stage.function(extent.give)
        self.held: set[int] = set()
        self.refused = 0

    def use(self, *classes: int, home: int = 0) -> Callable[[], None]:
        """Take an extent of each class, then give all back. `home`: the list that is asked first."""

        def body() -> None:
            mine: list[tuple[int, int]] = []
            for size_class in classes:
                page = self.take(self.world, self.seg, size_class, home)
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


def _shards(stage: Stage) -> None:
    hands = _Extents(stage)
    stage.spawn("one", hands.use(0, 0))
    stage.spawn("two", hands.use(0, home=1))
    stage.spawn("three", hands.use(1, home=1))


def _free_whole(stage: Stage) -> None:
    take, give = stage.function(extent.take), stage.function(extent.give)
    world, seg = stage.world.table(0), stage.world.bases[0]
    largest = sum(size > 0 for size in stage.geometry.class_pages) - 1
    give(world, seg, take(world, seg, largest, 0), largest)


def _split(stage: Stage) -> None:
    hands = _Extents(stage)
    stage.spawn("one", hands.use(0))
    stage.spawn("two", hands.use(1))
    stage.spawn("three", hands.use(0))


def _free_pieces(stage: Stage) -> None:
    take, give = stage.function(extent.take), stage.function(extent.give)
    world, seg = stage.world.table(0), stage.world.bases[0]
    for page in [take(world, seg, 0, 0) for _ in range(stage.geometry.n_pages)]:
        give(world, seg, page, 0)


def _free_every_second_page(stage: Stage) -> None:
    """All pages of the first list are free, none of the second."""
    take, give = stage.function(extent.take), stage.function(extent.give)
    world, seg = stage.world.table(0), stage.world.bases[0]
    pages = [take(world, seg, 0, 0) for _ in range(stage.geometry.n_pages)]
    for page in pages[::2]:
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
        page = stage.function(extent.take)(stage.world.table(0), stage.world.bases[0], 2, 1)
        expect(page == 0, "I9: what is free cannot be used")


def _join_or_full(stage: Stage) -> None:
    """A producer that finds nothing looks whether somebody joins; if nobody does, it must find something."""
    take, joining = stage.function(extent.take), stage.function(reclaim.joining)
    world, seg = stage.world.table(1), stage.world.bases[0]

    def produce() -> str:
        if take(world, seg, 0, 1) >= 0:
            return "taken"
        if joining(world, 0, 0) != 0:
            return "somebody joins"
        return "taken" if take(world, seg, 0, 1) >= 0 else "full"

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
SHARDS_FULL = Scenario(
    "shards-full",
    "a producer finds nothing in many lists while a host joins all there is",
    small(ranks=2, shards=2),
    _join_or_full,
    _never_full,
    _free_every_second_page,
    rests=False,
)
SHARDS_JOIN = Scenario(
    "shards-join",
    "a host joins free pieces of many lists",
    small(ranks=2, shards=2),
    _join,
    _joined,
    _free_pieces,
    mortal=("host",),
)
EXHAUST = Scenario("exhaust", "takes from a heap that is too small", small(pages=3), _exhaust)
SHARDS = Scenario("shards", "takes from many lists, in a heap that is too small", small(pages=3, shards=2), _shards)
SPLIT = Scenario("split", "takes that split one large extent", small(), _split, prepare=_free_whole)
JOIN = Scenario(
    "join", "a host joins free pieces while others take", small(ranks=2), _join, _joined, _free_pieces, mortal=("host",)
)
JOIN_TWICE = Scenario(
    "join-twice", "two hosts join at once", small(ranks=2), _join_twice, _joined, _free_pieces, mortal=("host",)
)


# --- pages that were never used ---------------------------------------------------------------
def _join_fresh(stage: Stage) -> None:
    stage.spawn("one", lambda: (stage.put(1, 1), stage.put(3, 2)))
    stage.spawn("host", _joiner(stage, 1), rank=1)


JOIN_FRESH = Scenario(
    "join-fresh", "a host takes the pages that were never used while others take them", small(ranks=2), _join_fresh
)

SCENARIOS = [EXHAUST, SHARDS, SPLIT, JOIN, JOIN_TWICE, JOIN_FULL, SHARDS_JOIN, SHARDS_FULL, JOIN_FRESH]
