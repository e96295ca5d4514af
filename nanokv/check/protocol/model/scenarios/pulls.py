"""Scenarios of puts from another host: the owner reads the producer's memory (`device/fabric/pulls`)."""

from functools import partial

from nanokv.check.protocol.model.remote_gets import put_shaped
from nanokv.check.protocol.model.remote_put import Offered, RemoteProducer, RemotePut
from nanokv.check.protocol.model.scenario import A, Act, B, C, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol.status import Status

_REFUSED = (Status.FULL, Status.NO_HEADER, Status.LOST)
_LINE = 8  #: words of a ticket's line


def _offered(*objects: Offered, stored: tuple[int, ...] = ()) -> Act:
    """Prepares a producer on another host that offers objects, and keys that are there in version 2."""

    def prepare(world: SmallWorld) -> None:
        world.kept["producer"] = RemoteProducer(world, *objects)
        for key in stored:
            expect(put_shaped(world, key, 2) == Status.OK, "prepare")

    return prepare


def _spawn_owner(world: SmallWorld, rank: int | None = None) -> RemoteProducer:
    """`rank`: of a process that may die. Whoever asks for the link afterwards finds it in `kept`."""
    producer: RemoteProducer = world.kept["producer"]
    producer.begin()
    put = RemotePut(world, producer, rank or 0)
    world.kept["link"] = put.link
    world.spawn("owner", put.pull, rank=rank)
    return producer


def _put_and_get(world: SmallWorld) -> tuple[Status, tuple[Status, int]]:
    return put_shaped(world, C, 2), world.get(C)


def _as_told(world: SmallWorld) -> None:
    """What was answered OK is there, in the bytes that were offered; and nobody wrote into another object."""
    if "owner" in world.results:
        (answer,) = world.results["owner"] or [None]
        expect(answer in (None, Status.OK, *_REFUSED), f"a pull is answered {answer!r}")
        found = world.get(A)
        expect(found == ((Status.OK, 1) if answer == Status.OK else (Status.MISS, 0)), f"{answer!r}, and then {found}")
    put, found = world.results["other"]
    expect(put in (Status.OK, *_REFUSED), f"a put is answered {put!r}")
    wanted = (Status.OK, 2) if put == Status.OK else (Status.MISS, 0)
    expect(found == wanted and world.get(C) == wanted, f"{put!r}, then {found}, then {world.get(C)}")


@Scenario(
    "pull",
    "a put from another host, which may be given up on both sides, against one that wants its page",
    small(pages=1, objects=2),
    _as_told,
    _offered((A, 4)),
)
def _pull(world: SmallWorld) -> None:
    producer = _spawn_owner(world)
    world.spawn("producer", producer.give_up)
    world.spawn("other", partial(_put_and_get, world))


@Scenario(
    "pull-swept",
    "the same, and the sweeper gives the object up before",
    small(pages=1, objects=2),
    _as_told,
    _offered((A, 4)),
    hosted=True,
)
def _pull_swept(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(0, write_timeout=-1.0), 6))
    _spawn_owner(world)
    world.spawn("other", partial(_put_and_get, world))


@Scenario(
    "pull-dies",
    "the process that pulls dies at each step; another one wants its page",
    small(pages=1, objects=2, ranks=2),
    _as_told,
    _offered((A, 4)),
    mortal=("owner",),
    hosted=True,
)
def _pull_dies(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(), 6))
    _spawn_owner(world, rank=1)
    world.spawn("other", partial(_put_and_get, world))


# --- keys that others have --------------------------------------------------------------------
def _one_wins(world: SmallWorld) -> None:
    (pulled,), put = world.results["owner"] or [None], world.results["other"]
    expect(pulled in (None, Status.OK, Status.LOST, Status.DUPLICATE), f"a pull is answered {pulled!r}")
    expect(put in (Status.OK, Status.DUPLICATE), f"a put is answered {put!r}")
    expect((pulled, put) != (Status.DUPLICATE, Status.DUPLICATE), "two puts of one key both withdraw")
    expect(pulled != Status.DUPLICATE or not world.kept["link"].moved, "bytes move for a key that is taken")
    there = [version for answer, version in ((pulled, 1), (put, 2)) if answer == Status.OK]
    expect(len(there) < 2, "two puts of one key are answered OK")
    found = world.get(A)
    expect(found == ((Status.OK, *there) if there else (Status.MISS, 0)), f"{pulled!r}, {put!r}, and then {found}")


@Scenario("pull-same-key", "a put from another host against a put of its key", small(), _one_wins, _offered((A, 4)))
def _pull_same_key(world: SmallWorld) -> None:
    _spawn_owner(world)
    world.spawn("other", lambda: put_shaped(world, A, 2))


def _all_but_one(world: SmallWorld) -> None:
    one, two, taken = world.results["owner"] or (None, None, Status.DUPLICATE)
    expect(taken == Status.DUPLICATE, f"a pull of a key that is there is answered {taken!r}")
    expect(one == two and one in (None, Status.OK, Status.LOST), f"two pulls are answered {one!r}, {two!r}")
    moved = world.kept["link"].moved
    expect(moved in (16, 16 + _LINE), f"{moved} words move for two objects of 8 words and a ticket")
    wanted = (Status.OK, 1) if one == Status.OK else (Status.MISS, 0)
    expect(world.get(A) == world.get(C) == wanted, f"{one!r}, and then {world.get(A)}, {world.get(C)}")
    expect(world.get(B) == (Status.OK, 2), f"a key that was there is answered {world.get(B)}")


@Scenario(
    "pull-many",
    "a put of three objects from another host, one of whose keys is there, with checksums, under readers",
    small(),
    _all_but_one,
    _offered((A, 8), (C, 8), (B, 4), stored=(B,)),
    checksum=True,
)
def _pull_many(world: SmallWorld) -> None:
    producer = _spawn_owner(world)
    world.spawn("producer", producer.give_up)
    world.spawn("reader", lambda: (world.get(A), world.get(C)))
