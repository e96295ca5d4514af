"""Scenarios of single steps: two device functions at one word. Small enough that all their executions are tried."""

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import WHAT, Stage, digest
from nanokv.device.machines.records import Place
from nanokv.device.protocol import directory, extent, header, host_alloc, pins, put, reclaim, remove
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import producer_word
from nanokv.device.segment.layout import WORD

A, B = 1, 3  #: keys


def _begin_a(stage: Stage) -> None:
    begun = stage.machine().begin(0, digest(A), 2 * WORD, 0, WHAT, stage.now())
    expect(begun.status == Status.OK and begun.place.slot == 0 and begun.place.epoch == 1, "prepare")
    stage.machine().leave(0, begun.phase)


def _put_a(stage: Stage) -> None:
    expect(stage.put(A, 1) == Status.OK, "prepare")


# --- bump -------------------------------------------------------------------------------------
def _bump(stage: Stage) -> None:
    bump = stage.function(extent.bump)
    world, seg = stage.world.table(0), stage.world.bases[0]
    for name, size_class in (("one", 0), ("two", 1), ("three", 0)):
        stage.spawn(name, lambda k=size_class: (bump(world, seg, k, 0), stage.geometry.class_pages[k]))  # type: ignore[misc]


def _bumped(stage: Stage) -> None:
    got = [(page, pages) for page, pages in stage.results.values() if page >= 0]
    taken = [page + i for page, pages in got for i in range(pages)]
    expect(len(set(taken)) == len(taken) and max(taken) < 3, f"I1, I9: extents {got} of three pages")
    expect(len(taken) == 3 or len(got) == 2, f"pages are left, and somebody was refused: {got}")


BUMP = Scenario(
    "bump", "three take from the last three pages", small(pages=3), _bump, _bumped, rests=False, exhaustive=True
)


# --- an object that is being written ----------------------------------------------------------
def _commit_or_give_up(stage: Stage) -> None:
    commit, give_up = stage.function(put.commit), stage.function(reclaim.give_up)
    world = stage.world.table(0)
    stage.spawn("commit", lambda: commit(world, 0, 0, 1))
    stage.spawn("give up", lambda: give_up(world, 0, 0, 1, producer_word(0, 1)))
    stage.sweeper()


def _one_of_both(stage: Stage) -> None:
    committed, given_up = stage.results["commit"] == Status.OK, stage.results["give up"] == 1
    expect(committed != given_up, f"committed: {committed}, given up: {given_up}")
    expect(stage.find(A) == (Status.OK if committed else Status.MISS), f"committed: {committed}")


COMMIT = Scenario(
    "commit", "a commit against being given up", small(), _commit_or_give_up, _one_of_both, _begin_a, exhaustive=True
)


def _publish_or_give_up(stage: Stage) -> None:
    take, reserve, publish, give_up = (
        stage.function(function) for function in (header.take_slot, header.reserve, header.publish, reclaim.give_up)
    )
    world, seg = stage.world.table(0), stage.world.bases[0]
    payload = stage.geometry.offsets["heap_base"]

    def produce() -> bool:
        slot = take(world, seg, 0)
        epoch = reserve(world, seg, slot, A, A, 0)
        return bool(publish(world, seg, slot, epoch, 0, payload, 0, 1))

    stage.spawn("publish", produce)
    stage.spawn("give up", lambda: give_up(world, 0, 0, 1, producer_word(0, 1)))


def _published_or_given_up(stage: Stage) -> None:
    state = stage.function(host_alloc.state_of)(stage.world.table(0), 0, 0)
    expect(stage.results["publish"] or state & 0xFF == 3, f"given up, but the state is {state:#x}")


PUBLISH = Scenario(
    "publish",
    "a publication against being given up",
    small(),
    _publish_or_give_up,
    _published_or_given_up,
    rests=False,
    exhaustive=True,
)


# --- a READY object ---------------------------------------------------------------------------
def _remove_twice(stage: Stage) -> None:
    remove_slot = stage.function(remove.remove_slot)
    for name in ("one", "two"):
        stage.spawn(name, lambda: remove_slot(stage.world.table(0), 0, 0, 1))


def _removed_once(stage: Stage) -> None:
    expect(sorted(stage.results.values()) == [Status.OK, Status.MISS], f"two removals: {stage.results}")


REMOVE = Scenario("remove", "two remove one object", small(1, 1), _remove_twice, _removed_once, _put_a, exhaustive=True)


def _pin_or_remove(stage: Stage) -> None:
    stage.spawn("pin", lambda: stage.hold(A, looks=1))
    stage.spawn("remove", lambda: stage.remove(A))


def _pinned_or_removed(stage: Stage) -> None:
    held, removed = stage.results["pin"], stage.results["remove"]
    expect(held in (Status.OK, Status.MISS) and removed in (Status.OK, Status.PINNED), f"{held!r}, {removed!r}")
    expect(Status.OK in (held, removed), "neither pinned nor removed")


PIN = Scenario(
    "pin", "a pin against a removal", small(1, 1, pins=1), _pin_or_remove, _pinned_or_removed, _put_a, exhaustive=True
)


def _pin_a_dead_reader(stage: Stage) -> None:
    """One pin counted, its line an INTENT: a reader died there."""
    _put_a(stage)
    note, add = stage.function(pins.note), stage.function(pins.add_pin)
    world, seg = stage.world.table(1), stage.world.bases[0]
    expect(note(world, seg, 0) >= 0, "prepare")
    expect(add(seg + stage.geometry.offsets["hdr_base"], 1, 1 << 8), "prepare")


def _recount(stage: Stage) -> None:
    recount = stage.function(pins.recount)
    stage.spawn("host", lambda: recount(stage.world.table(0), 0, 0, 1))
    for name in ("one", "two"):
        stage.spawn(name, lambda: _pin_only(stage))


def _pin_only(stage: Stage) -> int:
    machine = stage.machine()
    answer, line = machine.pin(Place(0, 0, 1))
    expect(answer == Status.OK, "a READY object cannot be pinned")
    expect(machine.unpin(Place(0, 0, 1), line) == Status.OK, "a pin was lost")
    stage.ended()
    return line


def _recounted(stage: Stage) -> None:
    state = stage.function(host_alloc.state_of)(stage.world.table(0), 0, 0)
    expect(state >> 8 & 0x7FFFFF == 1 - stage.results["host"], f"recount: {stage.results['host']}, state {state:#x}")


RECOUNT = Scenario(
    "recount",
    "pins are counted anew while two readers pin and unpin",
    small(1, 1, ranks=2),
    _recount,
    _recounted,
    _pin_a_dead_reader,
    rests=False,
)


def _put_and_remove_a(stage: Stage) -> None:
    _put_a(stage)
    expect(stage.remove(A) == Status.OK, "prepare")


def _release_late(stage: Stage) -> None:
    """A look that was torn has put slot 0 into quarantine; meanwhile the slot is taken again."""

    def release() -> None:
        machine = stage.machine()
        header = machine.headers(0, 0, 1)[0]
        if header["epoch"] == 1 and header["n_pages"] > 0:
            machine.release(0, 0, 1)
        stage.ended()

    stage.spawn("producer", lambda: stage.put(B, 2))
    stage.spawn("host", release)


def _b_is_there(stage: Stage) -> None:
    expect(stage.get(B) == (Status.OK, 2), f"an object that nobody removed is answered {stage.get(B)}")


RELEASE = Scenario(
    "release",
    "a slot is released by its old epoch while it is taken again",
    small(1, 1),
    _release_late,
    _b_is_there,
    _put_and_remove_a,
)


# --- the directory ----------------------------------------------------------------------------
def _reserve_two(stage: Stage) -> None:
    for slot in range(2):
        take, reserve = stage.function(header.take_slot), stage.function(header.reserve)
        world, seg = stage.world.table(0), stage.world.bases[0]
        expect(take(world, seg, 0) == slot and reserve(world, seg, slot, A, A, 0) == 1, "prepare")


def _claim_apart(stage: Stage) -> None:
    claim = stage.function(directory.claim)
    world, seg = stage.world.table(0), stage.world.bases[0]
    cas, other = stage.simulation.vocabulary["cas64"], stage.function(directory.candidate_at)

    def crowd() -> None:
        """Somebody else's entry comes and goes at the place that a survey prefers."""
        at = other(world, seg, A, 1)
        word = stage.function(directory.entry_word)(2, B, 0, 3, 1)
        if cas(at, 0, word, "acq_rel") == 0:
            cas(at, word, 0, "acq_rel")

    for slot in range(2):
        stage.spawn(f"claim{slot}", lambda slot=slot: claim(world, 0, slot, 1, A, A))  # type: ignore[misc]
    stage.spawn("crowd", crowd)


def _one_claim(stage: Stage) -> None:
    said = [stage.results["claim0"], stage.results["claim1"]]
    expect(sorted(said) == [Status.OK, Status.DUPLICATE], f"two claims of one key: {said}")


CLAIM = Scenario(
    "claim",
    "two claims of one key that choose different entries",
    small(),
    _claim_apart,
    _one_claim,
    _reserve_two,
    rests=False,
)

SCENARIOS = [BUMP, COMMIT, PUBLISH, REMOVE, PIN, RECOUNT, RELEASE, CLAIM]
