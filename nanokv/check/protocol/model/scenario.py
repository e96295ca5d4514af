"""What a scenario is: a small world, tasks that meet there, and what must be true when they have ended.

A scenario is declared where its tasks are; importing its module is enough:

    @Scenario("replace", "a read against the replacement of its object", small(1, 1), prepare=stored(A))
    def _replace(world: SmallWorld) -> None:
        world.spawn("reader", lambda: world.get(A))
        world.spawn("writer", lambda: (world.remove(A), world.put(A, 2, 4)))
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.check.report import CheckFailure
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry

A, B, C = 1, 3, 5  #: keys
PAGE = 64  #: bytes: the smallest page, eight words

Act = Callable[[SmallWorld], Any]


def small(
    pages: int = 4,
    objects: int = 4,
    *,
    ranks: int = 1,
    guests: int = 0,
    ring: int = 8,
    pins: int = 4,
    shards: int = 1,
    classes: tuple[int, ...] = (),
) -> Geometry:
    """A geometry of a few pages and slots. `classes`: pages of extents, by default 1, 2, 4, ... as far as they fit."""
    return Geometry.plan(
        pages * PAGE,
        PAGE,
        ranks,
        size_classes=classes or tuple(1 << k for k in range(pages.bit_length())),
        max_objects=objects,
        ring_slots=ring,
        pin_slots=pins,
        shards=shards,
        guests=guests,
    )


def expect(condition: bool, failure: str) -> None:
    """Fail the execution unless the condition is true."""
    if not condition:
        raise CheckFailure(failure)


def nothing(world: SmallWorld) -> None:
    """Do nothing, for scenarios that need nothing done."""


def stored(*keys: int, words: int = 2, rank: int = 0) -> Act:
    """Prepares a world in which these keys are there, put by `rank`, in version 1."""

    def prepare(world: SmallWorld) -> None:
        for key in keys:
            expect(world.put(key, 1, words, rank=rank) == Status.OK, "prepare")

    return prepare


@dataclass
class Scenario:
    """One scenario, as the decorator of the function that spawns its tasks.

    `prepare` runs once, alone; `tasks` and `judge` run for every execution.
    """

    name: str
    about: str  #: which operations meet, for the table
    geometry: Geometry
    judge: Act = nothing  #: what must hold beside what `small_world` and `explore.come_to_rest` check for all scenarios
    prepare: Act = nothing  #: fills the world beforehand
    mortal: tuple[str, ...] = ()  #: tasks that are killed, at every step in turn and at random ones
    may_evict: bool = False
    checksum: bool = False  #: objects have checksums, and readers insist on them
    rests: bool = True  #: whether fsck is to look at the segments; False where tasks use single lists only
    exhaustive: bool = False  #: small enough for all executions
    hosted: bool = False  #: production host code is among the tasks
    audited: bool = False  #: the task `host` audits what the task `one` does: `audit_search` can stop it where it hurts
    tasks: Act = field(init=False)

    def __call__(self, tasks: Act) -> Act:
        """Declare the scenario."""
        if SCENARIOS.setdefault(self.name, self) is not self:
            raise ValueError(f"two scenarios have the name {self.name!r}")
        self.tasks = tasks
        return tasks


#: every scenario that was declared; `scenarios` declares all of them
SCENARIOS: dict[str, Scenario] = {}
