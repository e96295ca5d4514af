"""Scenarios of the owner's host: grace periods, audits, events."""

from collections.abc import Callable
from typing import Any, cast

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import Stage, StageHeap, digest
from nanokv.device.protocol import activity, extent, header
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import producer_word
from nanokv.device.segment.layout import FLAG_PLAN, WORD
from nanokv.heap.base import Heap
from nanokv.host_poller.audit import AUDITS, LOOKS, Audit
from nanokv.host_poller.coalesce import join_free_extents
from nanokv.host_poller.events import EventKind
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.quarantine import Life

A, C = 1, 5  #: keys
STEPS = 2 * AUDITS * LOOKS  #: of an audit, enough to end it


def _put_and_remove(stage: Stage) -> None:
    expect((stage.put(A, 1), stage.remove(A)) == (Status.OK, Status.OK), "prepare")


# --- grace periods ----------------------------------------------------------------------------
def _operations(stage: Stage, names: tuple[str, ...] = ("one", "two"), each: int = 3, asks: int = 8) -> None:
    """Each operation has a word in the heap, which says 1 while it is at work."""
    enter, leave = stage.function(activity.enter), stage.function(activity.leave)
    world, seg = stage.world.table(0), stage.world.bases[0]
    words = [seg + stage.geometry.offsets["heap_base"] + at * WORD for at in range(len(names) * each)]
    store = stage.simulation.vocabulary["store64"]

    def work(mine: list[int]) -> None:
        for word in mine:
            phase = enter(world, seg)
            store(word, 1, "relaxed")
            stage.ended()
            store(word, 0, "relaxed")
            leave(world, seg, phase)

    for number, name in enumerate(names):
        stage.spawn(name, lambda number=number: work(words[number * each :][:each]))  # type: ignore[misc]
    stage.spawn("host", _asks(stage, words, asks))


def _asks(stage: Stage, words: list[int], times: int) -> Callable[[], None]:
    grace = Grace(stage.machine(), cast(Heap, StageHeap(stage, 0)))
    load = stage.simulation.vocabulary["load64"]

    def body() -> None:
        asked: list[tuple[list[int], int]] = []
        for _ in range(times):
            asked.append(([word for word in words if load(word, "relaxed")], grace.request()))
            grace.poll()
            for before, ticket in asked:
                late = [word for word in before if grace.completed >= ticket and load(word, "relaxed")]
                expect(not late, f"a grace period has passed, and operations {late} go on")
            stage.ended()

    return body


GRACE = Scenario(
    "grace", "who was at work when a grace period was asked for has ended", small(1, 1), _operations, rests=False
)
GRACE_TWICE = Scenario(
    "grace-twice",
    "one operation that begins in the old phase, and two grace periods",
    small(1, 1),
    lambda stage: _operations(stage, ("one",), 1, 2),
    rests=False,
    exhaustive=True,
)


# --- audits where nobody died: nothing may be given back --------------------------------------
def _audit(stage: Stage) -> None:
    grace = Grace(stage.machine(), cast(Heap, StageHeap(stage, 0)))
    audit = Audit(stage.machine(), 0, grace)

    def body() -> None:
        audit.start()
        for _ in range(STEPS):
            grace.poll()
            got = audit.step(set())
            expect(got == (0, 0), f"I2: the audit gives {got} pages and slots back, and nobody died")
            stage.ended()

    stage.spawn("host", body)


def _audited(stage: Stage) -> None:
    _audit(stage)
    stage.spawn("one", lambda: [(stage.put(A, n), stage.remove(A)) for n in range(3)])


def _audited_join(stage: Stage) -> None:
    def join() -> None:
        for _ in range(2):
            join_free_extents(stage.machine(1), 0)
            stage.ended()

    _audit(stage)
    stage.spawn("joiner", join, rank=1)


def _audited_evict(stage: Stage) -> None:
    _audit(stage)
    stage.spawn("one", lambda: [stage.put(key, 1) for key in (A, C, A, C)])


SHARDS_AUDITED = Scenario(
    "shards-audited", "an audit while objects come and go in many lists", small(4, 3, shards=2), _audited
)
AUDITED_EVICT = Scenario(
    "audited-evict",
    "an audit while one page goes from object to object by eviction",
    small(1, 2),
    _audited_evict,
    may_evict=True,
    audited=True,
)
AUDITED = Scenario("audited", "an audit while one object comes and goes", small(1, 1), _audited, audited=True)
AUDITED_JOIN = Scenario(
    "audited-join",
    "an audit while another host joins free extents",
    small(2, 1, ranks=2),
    _audited_join,
    prepare=_put_and_remove,
)


# --- audits that must find something ----------------------------------------------------------
def _lose_a_page(stage: Stage) -> None:
    """Rank 1 died with a page in its hands; the header of slot 0 still says where the page of its last object was."""
    _put_and_remove(stage)
    expect(stage.function(extent.take)(stage.world.table(1), stage.world.bases[0], 0, 0) == 0, "prepare")


def _sweep_after_a_death(stage: Stage, sweeps: int) -> None:
    sweeper = stage.sweeper()

    def body() -> None:
        for step in range(sweeps):
            sweeper.step(step)
            stage.ended()

    stage.buried = {1}
    stage.spawn("host", body)


def _leaked(stage: Stage) -> None:
    _sweep_after_a_death(stage, 6)
    stage.spawn("one", lambda: [(stage.put(A, n), stage.remove(A)) for n in range(3)])


LEAKED = Scenario(
    "leaked",
    "a page that a dead rank had in its hands, while puts disturb the audit",
    small(2, 1, ranks=2),
    _leaked,
    prepare=_lose_a_page,
    hosted=True,
)


def _reserve_for_a_plan(stage: Stage) -> None:
    """A plan of rank 2, which lives, is given up before it has pages."""
    world, seg = stage.world.table(2), stage.world.bases[0]
    slot = stage.function(header.take_slot)(world, seg, 0)
    epoch = stage.function(header.reserve)(world, seg, slot, *digest(A), FLAG_PLAN.value)
    expect((slot, epoch) == (0, 1), "prepare")
    expect(stage.machine().give_up(0, slot, epoch, producer_word(2, 1)), "prepare")


def _quarantined(stage: Stage) -> None:
    _sweep_after_a_death(stage, 14)
    sweeper = stage.hosts[0][1]
    sweeper._quarantine.give_up(Life(0, 1), stage.machine().headers(0, 0, 1)[0])
    at = stage.world.bases[0] + stage.geometry.offsets["hdr_base"]
    stage.spawn("late", lambda: stage.function(header.acknowledge)(at, 1), rank=2)
    stage.spawn("other", lambda: (stage.put(C, 1), stage.remove(C)))


QUARANTINED = Scenario(
    "quarantined",
    "a plan that was given up before it had pages has not said its word, and an audit looks",
    small(1, 2, ranks=3),
    _quarantined,
    prepare=_reserve_for_a_plan,
    hosted=True,
)


# --- events -----------------------------------------------------------------------------------
def _told(stage: Stage) -> None:
    poller = stage.poller()
    told: list[Any] = []
    stage.results["told"] = told
    poller.listeners.add(told.extend)

    def body() -> None:
        for step in range(5):
            poller.step(step)
            stage.ended()

    stage.spawn("host", body)
    stage.spawn("one", lambda: (stage.put(A, 1), stage.remove(A), stage.put(C, 2)))


def _told_once(stage: Stage) -> None:
    seen: set[tuple[int, int]] = set()
    there: set[tuple[int, int]] = set()
    for event in stage.results["told"]:
        life = event.meta.header_off, event.meta.epoch
        expect(event.key[0] in (A, C), f"I5: an event about key {event.key}, which nobody put")
        if event.kind is EventKind.STORED:
            expect(life not in seen, f"I5: {life} was told STORED twice")
            seen.add(life)
            there.add(life)
        else:
            expect(life in there, f"I5: {life} was told REMOVED and was not there")
            there.discard(life)


EVENTS = Scenario(
    "events",
    "listeners are told of each life of a slot once, in order",
    small(1, 1),
    _told,
    _told_once,
    hosted=True,
)

SCENARIOS = [GRACE, GRACE_TWICE, AUDITED, AUDITED_EVICT, SHARDS_AUDITED, AUDITED_JOIN, LEAKED, QUARANTINED, EVENTS]
