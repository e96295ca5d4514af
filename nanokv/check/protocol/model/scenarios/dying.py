"""Scenarios of the dead and the late: killed at every step, given up while they write, swept meanwhile."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, B, C, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import RAW_BYTES, SmallWorld, digest
from nanokv.device.machines.records import Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FLAG_ACK, FLAG_PLAN, FLAGS_EPOCH_SHIFT, WORD
from nanokv.host_poller.header_pass import Life


def _b_is_there(world: SmallWorld) -> None:
    """An object that was READY, and that nobody removed, is whole."""
    expect(world.get(B) == (Status.OK, 1), f"an object that nobody touched is answered {world.get(B)}")


# --- killed at every step ---------------------------------------------------------------------
@Scenario(
    "put-dies",
    "a producer dies at each step; another puts the same key",
    small(ranks=2),
    mortal=("producer",),
)
def _put_dies(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(A, 1, rank=1), rank=1)
    world.spawn("other", lambda: world.put(A, 2))


@Scenario(
    "remove-dies",
    "a remover dies at each step; another reads and puts the key",
    small(ranks=2),
    _b_is_there,
    stored(A, B),
    mortal=("remover",),
)
def _remove_dies(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A, rank=1), rank=1)
    world.spawn("other", lambda: (world.get(A), world.put(A, 2)))


@Scenario(
    "evict-dies",
    "a producer that evicts dies at each step; another evicts too",
    small(pages=2, objects=3, ranks=2),
    prepare=stored(A, B),
    mortal=("evicter",),
    may_evict=True,
)
def _evict_dies(world: SmallWorld) -> None:
    world.spawn("evicter", lambda: world.put(C, 3, rank=1), rank=1)
    world.spawn("other", lambda: (world.get(A), world.put(A, 4, 8)))


@Scenario(
    "pin-dies",
    "a reader in place dies at each step; others pin and remove",
    small(ranks=2),
    _b_is_there,
    stored(A, B),
    mortal=("reader",),
)
def _pin_dies(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.hold(A, rank=1), rank=1)
    world.spawn("other", lambda: world.hold(A))
    world.spawn("remover", lambda: world.remove(A))


# --- swept meanwhile --------------------------------------------------------------------------
def _spawn_sweeper(world: SmallWorld, write_timeout: float = 1e9, sweeps: int = 6) -> None:
    world.spawn("host", world.steps_of(world.sweeper(0, write_timeout), sweeps))


@Scenario(
    "swept",
    "the sweeper against puts and a removal, one of which dies",
    small(ranks=2, objects=3, pages=3),
    _b_is_there,
    stored(A, B),
    mortal=("producer",),
    hosted=True,
)
def _swept_puts(world: SmallWorld) -> None:
    _spawn_sweeper(world)
    world.spawn("producer", lambda: world.put(C, 3, rank=1), rank=1)
    world.spawn("other", lambda: (world.remove(A), world.put(A, 4)))


@Scenario(
    "guest",
    "the same, and it is a guest that dies: it has no segment, and a number behind the ranks",
    small(ranks=1, guests=1, objects=3, pages=3),
    _b_is_there,
    stored(A, B),
    mortal=("producer",),
    hosted=True,
)
def _swept_guest(world: SmallWorld) -> None:
    _swept_puts(world)


@Scenario(
    "swept-pins",
    "the sweeper takes away the pins of the dead while others pin",
    small(ranks=2, objects=2),
    _b_is_there,
    stored(A, B),
    mortal=("reader",),
    hosted=True,
)
def _swept_pins(world: SmallWorld) -> None:
    _spawn_sweeper(world, sweeps=4)
    world.spawn("reader", lambda: world.hold(A, rank=1), rank=1)
    world.spawn("other", lambda: (world.hold(A), world.hold(A)))


def _the_key_is_free(world: SmallWorld) -> None:
    dead, put, there = world.results["heir"]
    if dead and put != Status.OK:
        expect((put, there) == (Status.DUPLICATE, (Status.OK, 1)), f"a key of the dead is taken: {put!r}, {there}")


@Scenario(
    "orphans",
    "a producer dies at each step in its own segment, which nobody sweeps; another rank puts the same key",
    small(ranks=2),
    _the_key_is_free,
    mortal=("producer",),
)
def _orphans(world: SmallWorld) -> None:
    def inherit() -> tuple[bool, Status, tuple[Status, int]]:
        orphans, dead = world.orphans(), False
        for _ in range(3):
            dead = world.heap().peer_closed(1)
            orphans.give_up()
        return dead, world.put(A, 2), world.get(A)

    world.spawn("producer", lambda: world.put(A, 1, rank=1, owner=1), rank=1)
    world.spawn("heir", inherit)


# --- given up while it writes -----------------------------------------------------------------
def _write_slowly(world: SmallWorld, *, plan: bool) -> Status:
    """begin, store the payload word by word, commit: as a kernel of the engine does it."""
    machine = world.machine(1)
    source = world.payload(A, 1, 2)
    flags = FLAG_PLAN.value if plan else 0
    begun = machine.begin(0, digest(A), source.nbytes, flags, RAW_BYTES, world.now())
    answer = begun.status
    if answer == Status.OK:
        if plan:
            machine.leave(0, begun.phase)
        world.copy(world.address() + begun.place.payload, source.ctypes.data, source.nbytes)
        answer = machine.commit(begun.place) if plan else machine.finish(begun.place, begun.phase)
    world.ended()
    return Status(answer)


def _give_up(world: SmallWorld, *, plan: bool) -> None:
    _spawn_sweeper(world, write_timeout=-1.0)
    world.spawn("late", partial(_write_slowly, world, plan=plan), rank=1)
    world.spawn("other", lambda: (world.put(C, 2), world.get(C)))


def _late_is_told(world: SmallWorld) -> None:
    late = world.results.get("late")
    if late is not None:
        there = world.get(A)
        expect(there == ((Status.OK, 1) if late == Status.OK else (Status.MISS, 0)), f"{late!r}, and then {there}")
    other = world.results["other"]
    if other[0] == Status.OK:
        expect(other[1] in ((Status.OK, 2), (Status.MISS, 0)), f"{other} where nobody removes")


Scenario(
    "late",
    "a producer is given up while it writes; another one wants its page",
    small(pages=1, objects=2, ranks=2),
    _late_is_told,
    mortal=("late",),
    hosted=True,
)(partial(_give_up, plan=False))
Scenario(
    "guest-late",
    "the same for a guest",
    small(pages=1, objects=2, ranks=1, guests=1),
    _late_is_told,
    mortal=("late",),
    hosted=True,
)(partial(_give_up, plan=False))
Scenario(
    "late-plan",
    "the same for a plan, which no activity word counts",
    small(pages=1, objects=2, ranks=2),
    _late_is_told,
    mortal=("late",),
    hosted=True,
)(partial(_give_up, plan=True))


@Scenario(
    "abort",
    "an abort against being given up; another one wants the page",
    small(pages=1, objects=2, ranks=2),
    mortal=("late",),
    hosted=True,
)
def _abort_late(world: SmallWorld) -> None:
    def abort() -> Status:
        machine = world.machine(1)
        begun = machine.begin(0, digest(A), 2 * WORD, 0, RAW_BYTES, world.now())
        answer = begun.status
        if answer == Status.OK:
            answer = machine.abort(begun.place)
            machine.leave(0, begun.phase)
        world.ended()
        return Status(answer)

    _spawn_sweeper(world, write_timeout=-1.0)
    world.spawn("late", abort, rank=1)
    world.spawn("other", lambda: world.put(C, 2))


# --- the slots of the dead --------------------------------------------------------------------
def _heir_is_left_alone(world: SmallWorld) -> None:
    expect(world.results["heir"] == (Status.OK, Status.OK), f"remove and put: {world.results['heir']}")


@Scenario(
    "heir",
    "the sweeper against a put into the slot that a dead rank had",
    small(pages=1, objects=1, ranks=2),
    _heir_is_left_alone,
    stored(A, rank=1),
    hosted=True,
)
def _inherit(world: SmallWorld) -> None:
    world.buried = {1}
    _spawn_sweeper(world, sweeps=3)
    world.spawn("heir", lambda: (world.remove(A), world.put(C, 2)))


def _give_up_a_plan(world: SmallWorld, epoch: int = 1) -> None:
    machine = world.machine(1)
    begun = machine.begin(0, digest(A), 2 * WORD, FLAG_PLAN.value, RAW_BYTES, world.now())
    machine.leave(0, begun.phase)
    expect(begun.status == Status.OK and begun.place[1:3] == (0, epoch), "prepare")
    expect(world.machine().give_up(0, 0, epoch), "prepare")


def _give_up_two_plans(world: SmallWorld) -> None:
    """Two plans, one after the other in one slot; the first one was acknowledged."""
    _give_up_a_plan(world)
    expect(world.machine(1).commit(Place(0, 0, 1)) == Status.LOST, "prepare")
    expect(world.machine().release(0, 0, 1), "prepare")
    _give_up_a_plan(world, epoch=2)


def _nobody_scribbles(world: SmallWorld) -> None:
    late = world.results.get("late")
    expect(late in (None, Status.LOST), f"a plan that was given up is answered {late!r}")
    if world.results["host"] == Status.OK:
        expect(world.get(C) == (Status.OK, 2), "the late plan wrote into the pages of another object")


def _acknowledge(world: SmallWorld, epoch: int, *, early: bool = False) -> None:
    """`early`: the look that gave the plan up saw the flags of the first one."""

    def write() -> Status:
        source = world.payload(A, 1, 2)
        world.copy(world.address("heap_base"), source.ctypes.data, source.nbytes)
        answer = Status(world.machine(1).commit(Place(0, 0, epoch)))
        world.ended()
        return answer

    def reuse() -> Status:
        sweeps()
        return world.put(C, 2)

    sweeper = world.sweeper(0)
    header = world.machine().headers(0, 0, 1)[0]
    if early:
        header["flags"] = FLAG_PLAN.value | FLAG_ACK.value | 1 << FLAGS_EPOCH_SHIFT.value
    sweeper._quarantine.give_up(Life(0, epoch), header)
    sweeps = world.steps_of(sweeper, 5)
    world.spawn("late", write, rank=1)
    world.spawn("host", reuse)


Scenario(
    "acknowledge",
    "a plan that was given up writes, and says when it is done; its page is used again",
    small(pages=1, objects=2, ranks=2),
    _nobody_scribbles,
    _give_up_a_plan,
    mortal=("late",),
    hosted=True,
)(partial(_acknowledge, epoch=1))
Scenario(
    "second-plan",
    "the same for the second plan of a slot; the first one was given up and acknowledged",
    small(pages=1, objects=2, ranks=2),
    _nobody_scribbles,
    _give_up_two_plans,
    mortal=("late",),
    hosted=True,
)(partial(_acknowledge, epoch=2))
Scenario(
    "second-plan-early",
    "the same, and the look that gave it up saw the flags of the first one",
    small(pages=1, objects=2, ranks=2),
    _nobody_scribbles,
    _give_up_two_plans,
    mortal=("late",),
    hosted=True,
)(partial(_acknowledge, epoch=2, early=True))
