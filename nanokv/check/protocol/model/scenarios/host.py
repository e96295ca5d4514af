"""Scenarios of the owner's host: grace periods, audits, events."""

from functools import partial
from typing import Any

from nanokv.check.protocol.model.scenario import A, B, C, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.device.protocol import activity, extent, header
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import FLAG_PLAN, WORD
from nanokv.host_poller.audit import AUDITS, LOOKS, Audit
from nanokv.host_poller.events import EventKind
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.header_pass import Life
from nanokv.space.coalesce import join_free_extents

STEPS = 2 * AUDITS * LOOKS  #: of an audit, enough to end it


def _put_and_remove(world: SmallWorld) -> None:
    expect((world.put(A, 1), world.remove(A)) == (Status.OK, Status.OK), "prepare")


# --- grace periods ----------------------------------------------------------------------------
def _operations(world: SmallWorld, names: tuple[str, ...] = ("one", "two"), each: int = 3, asks: int = 8) -> None:
    """Each operation has a word in the heap, which is 1 while the operation is at work."""
    enter, leave = world.on_segment(activity.enter), world.on_segment(activity.leave)
    words = [world.address("heap_base") + at * WORD for at in range(len(names) * each)]

    def work(mine: list[int]) -> None:
        for word in mine:
            phase = enter()
            world.store(word, 1, "relaxed")
            world.ended()
            world.store(word, 0, "relaxed")
            leave(phase)

    for number, name in enumerate(names):
        world.spawn(name, partial(work, words[number * each :][:each]))
    world.spawn("host", partial(_ask, world, Grace(world.machine(), world.heap()), words, asks))


def _ask(world: SmallWorld, grace: Grace, words: list[int], times: int) -> None:
    """Ask for grace periods. When one has passed, the operations that were at work before have ended."""
    asked: list[tuple[list[int], int]] = []
    for _ in range(times):
        asked.append(([word for word in words if world.load(word, "relaxed")], grace.request()))
        grace.poll()
        for before, ticket in asked:
            late = [word for word in before if grace.completed >= ticket and world.load(word, "relaxed")]
            expect(not late, f"a grace period has passed, and operations {late} go on")
        world.ended()


Scenario("grace", "who was at work when a grace period was asked for has ended", small(1, 1), rests=False)(_operations)
Scenario(
    "grace-twice",
    "one operation that begins in the old phase, and two grace periods",
    small(1, 1),
    rests=False,
    exhaustive=True,
)(partial(_operations, names=("one",), each=1, asks=2))


# --- audits where nobody died: nothing may be given back --------------------------------------
def _spawn_audit(world: SmallWorld) -> None:
    grace = Grace(world.machine(), world.heap())
    audit = Audit(world.machine(), 0, grace)

    def body() -> None:
        audit.start()
        for _ in range(STEPS):
            grace.poll()
            got = audit.step(set())
            expect(got == (0, 0), f"I2: the audit gives {got} pages and slots back, and nobody died")
            world.ended()

    world.spawn("host", body)


def _come_and_go(world: SmallWorld) -> None:
    world.spawn("one", lambda: [(world.put(A, n), world.remove(A)) for n in range(3)])


@Scenario("audited", "an audit while one object comes and goes", small(1, 1), audited=True)
def _audited(world: SmallWorld) -> None:
    _spawn_audit(world)
    _come_and_go(world)


@Scenario(
    "audited-evict",
    "an audit while one page goes from object to object by eviction",
    small(1, 2),
    may_evict=True,
    audited=True,
)
def _audited_evict(world: SmallWorld) -> None:
    _spawn_audit(world)
    world.spawn("one", lambda: [world.put(key, 1) for key in (A, C, A, C)])


def _fill_lists(world: SmallWorld) -> None:
    """Free pages and slots stand in every list."""
    expect([world.put(key, 1) for key in (A, B, C)] == [Status.OK] * 3, "prepare")
    expect([world.remove(key) for key in (A, B, C)] == [Status.OK] * 3, "prepare")


Scenario(
    "shards-audited", "an audit while objects come and go in many lists", small(4, 3, shards=2), prepare=_fill_lists
)(_audited)


@Scenario(
    "audited-join",
    "an audit while another host joins free extents",
    small(2, 1, ranks=2),
    prepare=_put_and_remove,
)
def _audited_join(world: SmallWorld) -> None:
    def join() -> None:
        for _ in range(2):
            join_free_extents(world.machine(1), 0)
            world.ended()

    _spawn_audit(world)
    world.spawn("joiner", join, rank=1)


# --- audits that must find something ----------------------------------------------------------
def _lose_a_page(world: SmallWorld) -> None:
    """Rank 1 died with a page in its hands; the header of slot 0 still names the page of its last object."""
    _put_and_remove(world)
    expect(world.on_segment(extent.take, rank=1)(0, 0, 0) == 0, "prepare")


@Scenario(
    "leaked",
    "a page that a dead rank had in its hands, while puts disturb the audit",
    small(2, 1, ranks=2),
    prepare=_lose_a_page,
    hosted=True,
)
def _leaked(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(), 6))
    world.buried = {1}
    _come_and_go(world)


def _reserve_for_a_plan(world: SmallWorld) -> None:
    """A plan of rank 2, which lives, is given up before it has pages."""
    slot, epoch = world.on_segment(header.take_slot, rank=2)(0)
    expect((slot, epoch) == (0, 1), "prepare")
    world.on_segment(header.reserve, rank=2)(slot, epoch, Key(*digest(A)), FLAG_PLAN.value)
    expect(world.machine().give_up(0, slot, epoch), "prepare")


@Scenario(
    "quarantined",
    "a plan that was given up before it had pages has not said its word, and an audit looks",
    small(1, 2, ranks=3),
    prepare=_reserve_for_a_plan,
    hosted=True,
)
def _quarantined(world: SmallWorld) -> None:
    sweeper = world.sweeper()
    world.buried = {1}
    sweeper._quarantine.give_up(Life(0, 1), world.machine().headers(0, 0, 1)[0])
    world.spawn("host", world.steps_of(sweeper, 14))
    acknowledge = world.function(header.acknowledge)
    world.spawn("late", partial(acknowledge, world.address("hdr_base"), 1), rank=2)
    world.spawn("other", lambda: (world.put(C, 1), world.remove(C)))


# --- events -----------------------------------------------------------------------------------
def _told_once(world: SmallWorld) -> None:
    seen: set[tuple[int, int]] = set()
    there: set[tuple[int, int]] = set()
    for event in world.results["told"]:
        assert event.key is not None and event.meta is not None  # no rank comes or goes here
        life = event.meta.header_off, event.meta.epoch
        expect(event.key[0] in (A, C), f"I5: an event about key {event.key}, which nobody put")
        if event.kind is EventKind.STORED:
            expect(life not in seen, f"I5: {life} was told STORED twice")
            seen.add(life)
            there.add(life)
        else:
            expect(life in there, f"I5: {life} was told REMOVED and was not there")
            there.discard(life)


@Scenario(
    "events", "listeners are told of each life of a slot once, in order", small(1, 1), judge=_told_once, hosted=True
)
def _told(world: SmallWorld) -> None:
    poller = world.poller()
    told: list[Any] = []
    world.results["told"] = told
    poller.listeners.add(told.extend)
    world.spawn("host", world.steps_of(poller, 5))
    world.spawn("one", lambda: (world.put(A, 1), world.remove(A), world.put(C, 2)))
