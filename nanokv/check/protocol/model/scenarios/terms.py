"""Scenarios of labels, by which the sweeper removes objects whose time is over, of quotas, and of generations."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, B, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.machines.records import Terms
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import unpack

REFUSED = (Status.NO_HEADER, Status.FULL)
TRIES = 4  #: a scheduler may let the writer alone go on
_OVER = Terms(until=1)  #: a time that is over long since


def _put_over(world: SmallWorld) -> None:
    expect(world.put_with(_OVER, A, 1) == Status.OK, "prepare")


def _a_went(world: SmallWorld) -> None:
    expect(world.find(A) == Status.MISS, "an object whose time is over is there after a pass of the sweeper")


@Scenario(
    "expired",
    "the sweeper removes an object whose time is over, while another rank reads it",
    small(ranks=2),
    _a_went,
    _put_over,
    hosted=True,
)
def _expire(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(), 1))
    world.spawn("reader", lambda: world.get(A), rank=1)


def _b_stayed(world: SmallWorld) -> None:
    put = world.results["writer"]
    expect(put in (Status.OK, *REFUSED), f"the put was answered {put!r}")
    expect(put != Status.OK or world.find(B) == Status.OK, "an object went at the time of the one before it")


@Scenario(
    "expired-replaced",
    "the sweeper removes an object whose time is over, while another one takes its slot",
    small(ranks=2, objects=1),
    _b_stayed,
    _put_over,
    hosted=True,
)
def _replace(world: SmallWorld) -> None:
    def replace() -> Status:
        world.remove(A)
        answers = (world.put(B, 2) for _ in range(TRIES))  # the sweeper may still give slot or page back
        return next((answer for answer in answers if answer not in REFUSED), REFUSED[0])

    world.spawn("host", world.steps_of(world.sweeper(), 1))
    world.spawn("writer", replace, rank=1)


def _one_row_each(world: SmallWorld) -> None:
    expect(set(world.results.values()) == {Status.OK}, f"refused: {world.results}")
    rows = world.machine().quotas(0)
    tags, pages = unpack("QUOTA", "tag", rows[rows != 0]).tolist(), unpack("QUOTA", "pages", rows[rows != 0]).tolist()
    found = dict(zip(tags, pages, strict=True))
    expect(sorted(tags) == [1, 2] and found[1] in (3, 4) and found[2] == 5, f"the quotas are {tags}, {pages}")


@Scenario("quotas", "three hosts set the quotas of two identities", small(ranks=2), _one_row_each)
def _quotas(world: SmallWorld) -> None:
    for name, rank, quota in (("one", 0, (1, 3)), ("same", 1, (1, 4)), ("other", 1, (2, 5))):
        world.spawn(name, partial(world.machine(rank).set_quota, 0, *quota), rank=rank)


def _new_numbers(world: SmallWorld) -> None:
    taken = [world.results[name] for name in ("one", "two")]
    expect(len(set(taken)) == len(taken), f"two hosts took the same number: {taken}")
    expect(world.machine().generation(0, 1) >= max(*taken, world.results["told"]), f"a raise was lost: {world.results}")
    expect(world.machine().generation(0, 0) == 0, "the word of another identity has changed")


@Scenario("generations", "hosts take new generations, and one hears of another's", small(ranks=2), _new_numbers)
def _generations(world: SmallWorld) -> None:
    for name, rank, at_least, more in (("one", 0, 0, 1), ("two", 1, 0, 1), ("told", 1, 1, 0)):
        world.spawn(name, partial(world.machine(rank).raise_generation, 0, 1, at_least, more), rank=rank)
