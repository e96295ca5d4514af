"""Scenarios of runs: objects that are alike, which one CTA puts one after another (`device/protocol/runs.py`)."""

from functools import partial
from typing import Any

import numpy as np

from nanokv.check.protocol.model.scenario import A, Act, B, C, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.device.protocol import runs
from nanokv.device.protocol.request import REQUEST
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.layout import WORD

WORDS = 2  #: of each object
PRODUCER, TICKETS = 1, 2  #: ranks: the one whose CTA puts the run, and one in whose arena its tickets lie


def _requests(world: SmallWorld, keys: tuple[int, ...]) -> Any:
    """Requests for objects in segment 0, as a private table."""
    rows = np.zeros((len(keys), REQUEST.size // WORD), np.int64)  # owner 0, raw bytes
    rows[:, :4] = [[0, *digest(key), WORDS * WORD] for key in keys]
    world.simulation.table(rows.ctypes.data, rows.reshape(-1).tolist())
    return rows


def _put_run(world: SmallWorld, *keys: int) -> list[Status]:
    """Put objects of version 1, as `kernels.many.put_run` does; their statuses."""
    calls = (runs.begin_run, runs.begin_member, runs.commit_member, runs.finish_run)
    begin, begin_member, commit_member, finish = map(world.function, calls)
    table, seg = world.segments.table(PRODUCER), world.address()
    rows = _requests(world, keys)
    answers: list[Status] = []
    while len(answers) < len(keys):
        done = len(answers)
        requests = int(rows[done:].ctypes.data)
        tickets = world.address("heap_base", rank=TICKETS) + done * TICKET.size
        common, members, claimed, phase, pages, size_class = begin(table, requests, tickets, len(keys) - done, 7)
        hand, left, stored_ones = -1, 0, 0
        for i in range(members):
            status, member = common, (requests + i * REQUEST.size, tickets + i * TICKET.size)
            if common == Status.OK:
                status, payload, hand, left, claimed = begin_member(
                    table, seg, 0, *member, pages, size_class, 7, hand, left, claimed
                )
                if status == Status.OK:
                    source = world.payload(keys[done + i], 1, WORDS)
                    world.copy(seg + payload, source.ctypes.data, source.nbytes)
                    status = commit_member(table, seg, 0, *member)
                stored_ones += status == Status.OK
            answers.append(Status(status))
        if common == Status.OK:
            expect(claimed == 0 and left == 0, f"{left} extents are left for {claimed} keys")
            finish(table, seg, tickets, members, stored_ones, phase)
        world.ended()
    return answers


def _spawn_run(world: SmallWorld, *keys: int) -> None:
    world.spawn("run", lambda: _put_run(world, *keys), rank=PRODUCER)


def _room(objects: int) -> Any:
    """A geometry with one page and one slot per object."""
    return small(max(objects, 2), objects, ranks=3)


def _freed(*keys: int) -> Act:
    """Prepares a world whose lists hold the slots and pages of these keys."""

    def prepare(world: SmallWorld) -> None:
        stored(*keys)(world)
        for key in keys:
            expect(world.remove(key) == Status.OK, "prepare")

    return prepare


# --- whole runs -------------------------------------------------------------------------------
def _all_stored(world: SmallWorld) -> None:
    """There was a slot, and a page, for each."""
    if not world.deaths():
        expect(world.results["run"] == [Status.OK] * 2, f"I9: there was room for all, and {world.results['run']!r}")
        expect(all(world.get(key) == (Status.OK, 1) for key in (A, B)), "an object of the run is not there")
    expect(world.results["other"] == Status.OK, f"I9: there was room for all, and {world.results['other']!r}")


def _put_beside(world: SmallWorld) -> None:
    _spawn_run(world, A, B)
    world.spawn("other", partial(world.put, C, 1, WORDS))


def _beside(name: str, about: str, prepare: Act, mortal: tuple[str, ...] = ()) -> None:
    Scenario(name, about, _room(3), _all_stored, prepare, mortal=mortal)(_put_beside)


_beside("run", "a run of two beside one put, with free slots and pages for just these", _freed(A, B, C))
_beside("run-cold", "the same in a heap that was never used", lambda world: None)
_beside("run-dies", "the producer of a run dies at each step; another one puts", _freed(A, B, C), ("run",))


@Scenario(
    "run-polled",
    "the poller keeps its index while the objects of a run come and go",
    small(objects=2, ring=2, ranks=3),
    prepare=stored(C),
    mortal=("run",),
    hosted=True,
)
def _polled(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.poller(), 4))
    _spawn_run(world, A, B)
    world.spawn("other", lambda: (world.remove(C), world.get(A), world.remove(A)))


# --- one key twice ----------------------------------------------------------------------------
def _one_of_each(world: SmallWorld) -> None:
    one, two, again = world.results["run"]
    other = world.results["other"]
    expect(two == Status.OK, f"the only put of a key is answered {two!r}")
    expect([one, again, other].count(Status.OK) == 1, f"three puts of one key: {one!r}, {again!r} and {other!r}")
    expect(world.get(A)[0] == Status.OK, "the object is not there")
    spare = [world.put(key, 3, WORDS) for key in (C, 7)]
    expect(spare == [Status.OK] * 2, f"I9: slots that were given back cannot be used: {spare!r}")


@Scenario("run-same-key", "a run with one key twice, and another put of that key", _room(4), _one_of_each)
def _same_key(world: SmallWorld) -> None:
    _spawn_run(world, A, B, A)
    world.spawn("other", partial(world.put, A, 2, WORDS))


# --- a heap that is smaller than the run ------------------------------------------------------
def _last_stays(world: SmallWorld) -> None:
    expect(world.results["run"] == [Status.OK] * 3, f"a run evicts its own objects: {world.results['run']!r}")
    expect(world.get(C) == (Status.OK, 1), "the last object of the run is not there")


def _put_and_read(world: SmallWorld) -> None:
    _spawn_run(world, A, B, C)
    world.spawn("reader", partial(world.get, A))


def _evicting(name: str, about: str, pages: int, objects: int) -> None:
    Scenario(name, about, small(pages, objects, ranks=3), _last_stays, may_evict=True)(_put_and_read)


_evicting("run-evicts", "a run of three puts into a heap of two pages", 2, 4)
_evicting("run-evicts-slots", "a run of three puts into a heap of two slots", 3, 2)


def _full_is_said(world: SmallWorld) -> None:
    answers = world.results["run"]
    expect(answers.count(Status.OK) == 2, f"two pages and slots for three puts: {answers!r}")
    expect(answers[2] in (Status.FULL, Status.NO_HEADER), f"{answers!r}")
    expect(world.find(C) == Status.MISS, "a key that was refused is found")
    expect(world.remove(A) == Status.OK and world.put(C, 2, WORDS) == Status.OK, "I9: freed pages cannot be used")


Scenario("run-full", "a run of three puts into a heap of two pages", small(2, 4, ranks=3), _full_is_said)(
    lambda world: _spawn_run(world, A, B, C)
)
Scenario("run-no-slots", "a run of three puts into a heap of two slots", small(3, 2, ranks=3), _full_is_said)(
    lambda world: _spawn_run(world, A, B, C)
)


# --- given up while it writes -----------------------------------------------------------------
def _late_are_told(world: SmallWorld) -> None:
    if not world.deaths():
        for key, status in zip((A, B), world.results["run"], strict=True):
            there = world.get(key)
            expect(there == ((Status.OK, 1) if status == Status.OK else (Status.MISS, 0)), f"{status!r}, then {there}")
    other, read = world.results["other"]
    if other == Status.OK:
        expect(read in ((Status.OK, 2), (Status.MISS, 0)), f"{read} where nobody removes")


@Scenario(
    "run-late",
    "a run is given up while it writes; another producer wants its pages",
    small(pages=2, objects=3, ranks=3),
    _late_are_told,
    mortal=("run",),
    hosted=True,
)
def _late(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(0, -1.0), 6))
    _spawn_run(world, A, B)
    world.spawn("other", lambda: (world.put(C, 2, WORDS), world.get(C)))
