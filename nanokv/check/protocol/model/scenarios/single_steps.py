"""Scenarios of single steps: two device functions at one word. Small enough that all their executions are tried."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, B, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import RAW_BYTES, SmallWorld, digest
from nanokv.device.machines.records import Place
from nanokv.device.protocol import claim, directory, extent, header, host_alloc, pins, put, reclaim, remove
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import DEAD, REMOVED, WORD, unpack


# --- bump -------------------------------------------------------------------------------------
def _bumped(world: SmallWorld) -> None:
    got = [(page, pages) for page, pages in world.results.values() if page >= 0]
    taken = [page + i for page, pages in got for i in range(pages)]
    expect(len(set(taken)) == len(taken) and max(taken) < 3, f"I1, I9: extents {got} of three pages")
    expect(len(taken) == 3 or len(got) == 2, f"pages are left, and a task was refused: {got}")


@Scenario("bump", "three take from the last three pages", small(pages=3), _bumped, rests=False, exhaustive=True)
def _bump(world: SmallWorld) -> None:
    def bump(size_class: int) -> tuple[int, int]:
        return world.on_segment(extent.bump)(size_class), world.geometry.class_pages[size_class]

    for name, size_class in (("one", 0), ("two", 1), ("three", 0)):
        world.spawn(name, partial(bump, size_class))


# --- an object that is being written ----------------------------------------------------------
def _begin_a(world: SmallWorld) -> None:
    begun = world.machine().begin(0, digest(A), 2 * WORD, 0, RAW_BYTES, world.now())
    expect(begun.status == Status.OK and begun.place.slot == 0 and begun.place.epoch == 1, "prepare")
    world.machine().leave(0, begun.phase)


def _one_of_both(world: SmallWorld) -> None:
    committed, given_up = world.results["commit"] == Status.OK, world.results["give up"] == 1
    expect(committed != given_up, f"committed: {committed}, given up: {given_up}")
    expect(world.find(A) == (Status.OK if committed else Status.MISS), f"committed: {committed}")


@Scenario("commit", "a commit against being given up", small(), _one_of_both, _begin_a, exhaustive=True)
def _commit_or_give_up(world: SmallWorld) -> None:
    world.spawn("commit", partial(world.on_owner(put.commit), 0, 1))
    world.spawn("give up", partial(world.on_owner(reclaim.give_up), 0, 1))
    world.sweeper()


def _published_or_given_up(world: SmallWorld) -> None:
    state = world.on_owner(host_alloc.state_of)(0)
    given_up = unpack("STATE", "state", state) == DEAD.value
    expect(world.results["publish"] or given_up, f"given up, but the state is {state:#x}")


@Scenario(
    "publish",
    "a publication against being given up",
    small(),
    _published_or_given_up,
    rests=False,
    exhaustive=True,
)
def _publish_or_give_up(world: SmallWorld) -> None:
    take, reserve, publish = map(world.on_segment, (header.take_slot, header.reserve, header.publish))

    def produce() -> bool:
        slot, epoch = take(0)
        reserve(slot, epoch, Key(A, A), 0)
        return bool(publish(slot, epoch, 0, world.geometry.offsets["heap_base"], 0, 1))

    world.spawn("publish", produce)
    world.spawn("give up", partial(world.on_owner(reclaim.give_up), 0, 1))


# --- a READY object ---------------------------------------------------------------------------
def _removed_once(world: SmallWorld) -> None:
    expect(sorted(world.results.values()) == [Status.OK, Status.MISS], f"two removals: {world.results}")


@Scenario("remove", "two remove one object", small(1, 1), _removed_once, stored(A), exhaustive=True)
def _remove_twice(world: SmallWorld) -> None:
    for name in ("one", "two"):
        world.spawn(name, partial(world.on_owner(remove.remove_slot), 0, 1, REMOVED.value))


def _pinned_or_removed(world: SmallWorld) -> None:
    held, removed = world.results["pin"], world.results["remove"]
    expect(held in (Status.OK, Status.MISS) and removed in (Status.OK, Status.PINNED), f"{held!r}, {removed!r}")
    expect(Status.OK in (held, removed), "neither pinned nor removed")


@Scenario("pin", "a pin against a removal", small(1, 1, pins=1), _pinned_or_removed, stored(A), exhaustive=True)
def _pin_or_remove(world: SmallWorld) -> None:
    world.spawn("pin", lambda: world.hold(A, looks=1))
    world.spawn("remove", lambda: world.remove(A))


def _pin_a_dead_reader(world: SmallWorld) -> None:
    """One pin counted, its line an INTENT: a reader died there."""
    stored(A)(world)
    expect(world.on_segment(pins.note, rank=1)(0) >= 0, "prepare")
    expect(world.function(pins.add_pin)(world.address("hdr_base"), 1, 1 << 8), "prepare")


def _recounted(world: SmallWorld) -> None:
    state, dropped = world.on_owner(host_alloc.state_of)(0), world.results["host"]
    expect(unpack("STATE", "pins", state) == 1 - dropped, f"recount: {dropped}, state {state:#x}")


@Scenario(
    "recount",
    "pins are counted anew while two readers pin and unpin",
    small(1, 1, ranks=2),
    _recounted,
    _pin_a_dead_reader,
    rests=False,
)
def _recount(world: SmallWorld) -> None:
    def pin() -> None:
        machine, place = world.machine(), Place(0, 0, 1)
        answer, line = machine.pin(place)
        expect(answer == Status.OK, "a READY object cannot be pinned")
        expect(machine.unpin(place, line) == Status.OK, "a pin was lost")
        world.ended()

    world.spawn("host", partial(world.on_owner(pins.recount), 0, 1))
    world.spawn("one", pin)
    world.spawn("two", pin)


def _put_and_remove_a(world: SmallWorld) -> None:
    stored(A)(world)
    expect(world.remove(A) == Status.OK, "prepare")


def _b_is_there(world: SmallWorld) -> None:
    expect(world.get(B) == (Status.OK, 2), f"an object that nobody removed is answered {world.get(B)}")


@Scenario(
    "release",
    "a slot is released by its old epoch while it is taken again",
    small(1, 1),
    _b_is_there,
    _put_and_remove_a,
)
def _release_late(world: SmallWorld) -> None:
    """A look that was torn has put slot 0 into quarantine; meanwhile the slot is taken again."""

    def release() -> None:
        machine = world.machine()
        header = machine.headers(0, 0, 1)[0]
        if header["epoch"] == 1 and header["n_pages"] > 0:
            machine.release(0, 0, 1)
        world.ended()

    world.spawn("producer", lambda: world.put(B, 2))
    world.spawn("host", release)


# --- the directory ----------------------------------------------------------------------------
def _reserve_two(world: SmallWorld) -> None:
    take, reserve = world.on_segment(header.take_slot), world.on_segment(header.reserve)
    for slot in range(2):
        expect(take(0) == (slot, 1), "prepare")
        reserve(slot, 1, Key(A, A), 0)


def _one_claim(world: SmallWorld) -> None:
    answers = [world.results["claim0"], world.results["claim1"]]
    expect(sorted(answers) == [Status.OK, Status.DUPLICATE], f"two claims of one key: {answers}")


@Scenario(
    "claim",
    "two claims of one key that choose different entries",
    small(),
    _one_claim,
    _reserve_two,
    rests=False,
)
def _claim_apart(world: SmallWorld) -> None:
    cas = world.simulation.vocabulary["cas64"]

    def crowd() -> None:
        """An entry of another key comes and goes at the place that a survey prefers."""
        at = world.on_segment(directory.candidate_at)(A, 0)
        word = world.function(directory.entry_word)(2, B, 0, 3, 1)
        if cas(at, 0, word, "acq_rel") == 0:
            cas(at, word, 0, "acq_rel")

    for slot in range(2):
        world.spawn(f"claim{slot}", partial(world.on_owner(claim.claim), slot, 1, Key(A, A)))
    world.spawn("crowd", crowd)
