"""Scenarios of the dead and the late: killed at every step, given up while they write, swept meanwhile."""

from collections.abc import Callable

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import WHAT, Stage, digest
from nanokv.device.machines.records import Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import producer_word
from nanokv.device.segment.layout import FLAG_PLAN, WORD

A, B, C = 1, 3, 5  #: keys
SWEEPS = 6


def _put_a(stage: Stage) -> None:
    expect(stage.put(A, 1) == Status.OK, "prepare")


def _put_a_b(stage: Stage) -> None:
    _put_a(stage)
    expect(stage.put(B, 1) == Status.OK, "prepare")


def _still_there(stage: Stage) -> None:
    """What was READY and that nobody removed is whole."""
    expect(stage.get(B) == (Status.OK, 1), f"an object that nobody touched is answered {stage.get(B)}")


# --- killed at every step ---------------------------------------------------------------------
def _put_dies(stage: Stage) -> None:
    stage.spawn("producer", lambda: stage.put(A, 1, rank=1), rank=1)
    stage.spawn("other", lambda: stage.put(A, 2))


PUT_DIES = Scenario(
    "put-dies",
    "a producer dies at each step; another puts the same key",
    small(ranks=2),
    _put_dies,
    mortal=("producer",),
)


def _remove_dies(stage: Stage) -> None:
    stage.spawn("remover", lambda: stage.remove(A, rank=1), rank=1)
    stage.spawn("other", lambda: (stage.get(A), stage.put(A, 2)))


REMOVE_DIES = Scenario(
    "remove-dies",
    "a remover dies at each step; another reads and puts the key",
    small(ranks=2),
    _remove_dies,
    _still_there,
    _put_a_b,
    mortal=("remover",),
)


def _evict_dies(stage: Stage) -> None:
    stage.spawn("evicter", lambda: stage.put(C, 3, rank=1), rank=1)
    stage.spawn("other", lambda: (stage.get(A), stage.put(A, 4, 8)))


EVICT_DIES = Scenario(
    "evict-dies",
    "a producer that evicts dies at each step; another evicts too",
    small(pages=2, objects=3, ranks=2),
    _evict_dies,
    prepare=_put_a_b,
    mortal=("evicter",),
    may_evict=True,
)


def _pin_dies(stage: Stage) -> None:
    stage.spawn("reader", lambda: stage.hold(A, rank=1), rank=1)
    stage.spawn("other", lambda: stage.hold(A))
    stage.spawn("remover", lambda: stage.remove(A))


PIN_DIES = Scenario(
    "pin-dies",
    "a reader in place dies at each step; others pin and remove",
    small(ranks=2),
    _pin_dies,
    _still_there,
    _put_a_b,
    mortal=("reader",),
)


# --- swept meanwhile --------------------------------------------------------------------------
def _sweep(stage: Stage, write_timeout: float = 1e9, sweeps: int = SWEEPS) -> Callable[[], None]:
    sweeper = stage.sweeper(0, write_timeout)

    def body() -> None:
        for step in range(sweeps):
            sweeper.step(step)
            stage.ended()

    return body


def _swept_puts(stage: Stage) -> None:
    stage.spawn("host", _sweep(stage))
    stage.spawn("producer", lambda: stage.put(C, 3, rank=1), rank=1)
    stage.spawn("other", lambda: (stage.remove(A), stage.put(A, 4)))


SWEPT = Scenario(
    "swept",
    "the sweeper against puts and a removal, one of which dies",
    small(ranks=2, objects=3, pages=3),
    _swept_puts,
    _still_there,
    _put_a_b,
    mortal=("producer",),
    hosted=True,
)


def _swept_pins(stage: Stage) -> None:
    stage.spawn("host", _sweep(stage, sweeps=4))
    stage.spawn("reader", lambda: stage.hold(A, rank=1), rank=1)
    stage.spawn("other", lambda: (stage.hold(A), stage.hold(A)))


SWEPT_PINS = Scenario(
    "swept-pins",
    "the sweeper takes away the pins of the dead while others pin",
    small(ranks=2, objects=2),
    _swept_pins,
    _still_there,
    _put_a_b,
    mortal=("reader",),
    hosted=True,
)


# --- given up while it writes -----------------------------------------------------------------
def write_slowly(stage: Stage, key: int, version: int, *, plan: bool, rank: int = 1, words: int = 2) -> Status:
    """begin, store the payload word by word, commit: as a kernel of the engine does it."""
    machine = stage.machine(rank)
    source = stage.payload(key, version, words)
    begun = machine.begin(0, digest(key), words * WORD, FLAG_PLAN.value if plan else 0, WHAT, stage.now())
    if begun.status == Status.OK:
        if plan:
            machine.leave(0, begun.phase)
        target = stage.world.bases[0] + begun.place.payload
        stage.simulation.vocabulary["copy_bytes"](target, source.ctypes.data, words * WORD)
        answer = machine.commit(begun.place) if plan else machine.finish(begun.place, begun.phase)
    else:
        answer = begun.status
    stage.ended()
    return Status(answer)


def _give_up(stage: Stage, *, plan: bool) -> None:
    stage.spawn("host", _sweep(stage, write_timeout=-1.0))
    stage.spawn("late", lambda: write_slowly(stage, A, 1, plan=plan), rank=1)
    stage.spawn("other", lambda: (stage.put(C, 2), stage.get(C)))


def _late_is_told(stage: Stage) -> None:
    late = stage.results.get("late")
    if late is not None:
        there = stage.get(A)
        expect(there == ((Status.OK, 1) if late == Status.OK else (Status.MISS, 0)), f"{late!r}, and then {there}")
    stored = stage.results["other"]
    if stored[0] == Status.OK:
        expect(stored[1] in ((Status.OK, 2), (Status.MISS, 0)), f"{stored} where nobody removes")


LATE = Scenario(
    "late",
    "a producer is given up while it writes; another one wants its page",
    small(pages=1, objects=2, ranks=2),
    lambda stage: _give_up(stage, plan=False),
    _late_is_told,
    mortal=("late",),
    hosted=True,
)
LATE_PLAN = Scenario(
    "late-plan",
    "the same for a plan, which no activity word counts",
    small(pages=1, objects=2, ranks=2),
    lambda stage: _give_up(stage, plan=True),
    _late_is_told,
    mortal=("late",),
    hosted=True,
)


# --- the slots of the dead --------------------------------------------------------------------
def _put_by_one(stage: Stage) -> None:
    expect(stage.put(A, 1, rank=1) == Status.OK, "prepare")


def _inherit(stage: Stage) -> None:
    stage.buried = {1}
    stage.spawn("host", _sweep(stage, sweeps=3))
    stage.spawn("heir", lambda: (stage.remove(A), stage.put(C, 2)))


def _heir_is_left_alone(stage: Stage) -> None:
    expect(stage.results["heir"] == (Status.OK, Status.OK), f"remove and put: {stage.results['heir']}")


HEIR = Scenario(
    "heir",
    "the sweeper against a put into the slot that a dead rank had",
    small(pages=1, objects=1, ranks=2),
    _inherit,
    _heir_is_left_alone,
    _put_by_one,
    hosted=True,
)


def _give_up_a_plan(stage: Stage) -> None:
    machine = stage.machine(1)
    begun = machine.begin(0, digest(A), 2 * WORD, FLAG_PLAN.value, WHAT, stage.now())
    machine.leave(0, begun.phase)
    expect(begun.status == Status.OK and begun.place.slot == 0 and begun.place.epoch == 1, "prepare")
    expect(stage.machine().give_up(0, 0, 1, producer_word(1, 1)), "prepare")


def _acknowledge(stage: Stage) -> None:
    def write() -> Status:
        source = stage.payload(A, 1, 2)
        target = stage.world.bases[0] + stage.geometry.offsets["heap_base"]
        stage.simulation.vocabulary["copy_bytes"](target, source.ctypes.data, 2 * WORD)
        answer = Status(stage.machine(1).commit(Place(0, 0, 1)))
        stage.ended()
        return answer

    def reuse() -> Status:
        for step in range(5):
            sweeper.step(step)
            stage.ended()
        return stage.put(C, 2)

    sweeper = stage.sweeper(0)
    sweeper._given_up.add((0, 1))
    sweeper._quarantine[0, 1] = None
    stage.spawn("late", write, rank=1)
    stage.spawn("host", reuse)


def _nobody_scribbles(stage: Stage) -> None:
    late = stage.results.get("late")
    expect(late in (None, Status.LOST), f"a plan that was given up is answered {late!r}")
    if stage.results["host"] == Status.OK:
        expect(stage.get(C) == (Status.OK, 2), "the late plan wrote into the pages of another object")


ACKNOWLEDGE = Scenario(
    "acknowledge",
    "a plan that was given up writes, and says when it is done; its page is used again",
    small(pages=1, objects=2, ranks=2),
    _acknowledge,
    _nobody_scribbles,
    _give_up_a_plan,
    mortal=("late",),
    hosted=True,
)


def _abort_late(stage: Stage) -> None:
    def abort() -> Status:
        machine = stage.machine(1)
        begun = machine.begin(0, digest(A), 2 * WORD, 0, WHAT, stage.now())
        answer = begun.status
        if answer == Status.OK:
            answer = machine.abort(begun.place)
            machine.leave(0, begun.phase)
        stage.ended()
        return Status(answer)

    stage.spawn("host", _sweep(stage, write_timeout=-1.0))
    stage.spawn("late", abort, rank=1)
    stage.spawn("other", lambda: stage.put(C, 2))


ABORT = Scenario(
    "abort",
    "an abort against being given up; another one wants the page",
    small(pages=1, objects=2, ranks=2),
    _abort_late,
    mortal=("late",),
    hosted=True,
)

SCENARIOS = [PUT_DIES, REMOVE_DIES, EVICT_DIES, PIN_DIES, SWEPT, SWEPT_PINS, LATE, LATE_PLAN, ABORT, HEIR, ACKNOWLEDGE]
