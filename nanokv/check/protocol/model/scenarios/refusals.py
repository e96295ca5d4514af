"""Scenarios of refusals: no producer finds nothing because another one has more in its hands than it keeps."""

from functools import partial
from typing import cast

from nanokv.check.protocol.model.scenario import A, B, C, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SMALL, SmallWorld
from nanokv.device.protocol import extent, splitting
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import SPLITTING
from nanokv.device.sim.simulation import Task

LARGE = 16  #: words: two pages


# --- pages and slots that were never used -----------------------------------------------------
def _nobody_refused(world: SmallWorld) -> None:
    """There was one slot, and an extent, per producer."""
    refused = {name: status for name, status in world.results.items() if status != Status.OK}
    expect(not refused, f"I9: there was room for all, and {refused!r}")


def _put_cold(world: SmallWorld, *words: int) -> None:
    for rank, (key, count) in enumerate(zip((A, B, C), words, strict=True)):
        world.spawn(f"producer{rank}", partial(world.put, key, 1, count, rank=rank), rank=rank)


def _cold_scenario(name: str, about: str, words: tuple[int, ...], mortal: tuple[str, ...] = ()) -> None:
    pages = sum(count // LARGE + 1 for count in words)
    geometry = small(pages, len(words), ranks=3, shards=2)
    Scenario(name, about, geometry, _nobody_refused, mortal=mortal)(lambda world: _put_cold(world, *words))


_cold_scenario("cold", "puts into a cold heap with room for each", (2, 2, 2))
_cold_scenario("cold-sizes", "puts of one and two pages into a cold heap with room for each", (2, LARGE, 2))
_cold_scenario("cold-dies", "a producer dies at each step in a cold heap with room for each", (2, 2, 2), ("producer1",))


# --- an extent that is split ------------------------------------------------------------------
def _free_whole(world: SmallWorld) -> None:
    take, give = world.on_segment(extent.take), world.on_segment(extent.give)
    give(take(2, 0, 0), 2)


def _not_by_accident(world: SmallWorld) -> None:
    expect(world.results["producer"] != "full", "I9: pages were free all the time, and no split was seen")


@Scenario(
    "split-full",
    "a producer finds nothing while another splits all there is",
    small(),
    _not_by_accident,
    _free_whole,
    rests=False,
)
def _split_or_full(world: SmallWorld) -> None:
    """A producer that finds nothing, and sees no split, was right."""
    take = world.on_segment(extent.take)
    ended, is_split = world.function(splitting.ended_splits), world.function(splitting.is_split_since)

    def produce() -> str:
        before = ended(world.address())
        if take(0, 1, 0) >= 0:
            return "taken"
        return "a split" if is_split(world.address(), before) else "full"

    world.spawn("producer", produce)
    world.spawn("one", lambda: take(0, 0, 0))
    world.spawn("two", lambda: take(1, 0, 0))


def _refused_after_all_looks(world: SmallWorld) -> None:
    for name, looks in world.results["looks"].items():
        status = world.results.get(name, Status.OK)
        expect(
            status == Status.OK or looks == SMALL["EXTENT_LOOKS"],
            f"I9: {name} was answered {status!r} after {looks} looks",
        )


def _put_split(world: SmallWorld) -> None:
    """Three producers of one page; all four pages are one extent. Counts the looks of each at the splits."""
    looks = world.results["looks"] = dict.fromkeys(("one", "two", "dies"), 0)

    def count(old: int, new: int) -> None:
        if old == new:
            looks[cast(Task, world.simulation.current).name] += 1

    world.simulation.memory.watched[world.address() + SPLITTING.value] = count
    world.spawn("one", partial(world.put, A, 1))
    world.spawn("two", partial(world.put, B, 1))
    world.spawn("dies", partial(world.put, C, 1, rank=1), rank=1)


def _split_scenario(name: str, about: str, mortal: tuple[str, ...] = ()) -> None:
    Scenario(name, about, small(ranks=2), _refused_after_all_looks, _free_whole, mortal=mortal)(_put_split)


_split_scenario("split-puts", "puts that split one large extent look again while others split")
_split_scenario("split-dies", "a producer dies at each step, also while it splits; others look again", ("dies",))
