"""What a scenario is: a small world, tasks that meet there, and what must be true when they have ended."""

from collections.abc import Callable
from dataclasses import dataclass

from nanokv.check.model.small_world import Stage
from nanokv.check.report import CheckFailure
from nanokv.device.segment.geometry import Geometry

PAGE = 64  #: bytes: the smallest page, eight words


def small(
    pages: int = 4,
    objects: int = 4,
    *,
    ranks: int = 1,
    ring: int = 8,
    pins: int = 4,
    classes: tuple[int, ...] | None = None,
    shards: int = 1,
) -> Geometry:
    """A geometry of a few pages and slots."""
    return Geometry.plan(
        pages * PAGE,
        PAGE,
        ranks,
        max_objects=objects,
        ring_slots=ring,
        pin_slots=pins,
        size_classes=classes,
        shards=shards,
    )


def expect(condition: bool, what: str) -> None:
    """Fail the execution unless."""
    if not condition:
        raise CheckFailure(what)


def nothing(stage: Stage) -> None:
    """For scenarios that need nothing done."""


@dataclass(frozen=True)
class Scenario:
    """One scenario. `prepare` runs alone, once; `tasks` and `judge` for every execution."""

    name: str
    about: str  #: what meets what, for the table
    geometry: Geometry
    tasks: Callable[[Stage], None]  #: spawns them
    judge: Callable[[Stage], None] = nothing  #: beside what `steps` and `rest` check for all of them
    prepare: Callable[[Stage], None] = nothing  #: what is there before
    mortal: tuple[str, ...] = ()  #: tasks that are killed, at every step in turn and at random ones
    may_evict: bool = False
    small: bool = True  #: a directory and an eviction with fewer candidates
    rests: bool = True  #: whether fsck is to look at the segments; False where tasks use single lists alone
    exhaustive: bool = False  #: small enough for all executions
    hosted: bool = False  #: production host code is among the tasks
    audited: bool = False  #: the task `host` audits what the task `one` does: `passages` can stop it where it hurts
