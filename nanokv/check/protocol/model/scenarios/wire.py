"""Scenarios of the wire: what comes by a socket, whose bytes are torn, late, half, or sent again."""

from functools import partial

from nanokv.check.protocol.model.remote_gets import put_shaped
from nanokv.check.protocol.model.scenario import A, Act, B, C, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.check.protocol.model.wire_owner import Script, WireOwner, brings, finds, gets, offers, removes
from nanokv.device.protocol.status import Status

_REFUSED = (Status.FULL, Status.NO_HEADER, Status.LOST)


def _stored(*objects: tuple[int, int]) -> Act:
    """Prepares a world in which objects, (key, words) each, are there in version 1."""

    def prepare(world: SmallWorld) -> None:
        for key, words in objects:
            expect(put_shaped(world, key, 1, words) == Status.OK, "prepare")

    return prepare


def _spawn_owner(world: SmallWorld, script: Script, *, cut: bool = True, rank: int | None = None) -> None:
    """A task that does what another host's script asks. `rank`: of a process that may die."""
    owner = WireOwner(world, rank or 0)
    world.spawn("owner", partial(owner.talk, script, cut=cut), rank=rank)


def _put_and_get(world: SmallWorld) -> tuple[Status, tuple[Status, int]]:
    return put_shaped(world, C, 2), world.get(C)


# --- puts -------------------------------------------------------------------------------------
def _as_told(world: SmallWorld) -> None:
    """What was answered OK is there, in the bytes that came; and nobody wrote into another object."""
    (answer,) = world.results.get("owner") or [None]
    expect(answer in (None, Status.OK, *_REFUSED), f"a put is answered {answer!r}")
    found = world.get(A)
    whole, none = (Status.OK, 1), (Status.MISS, 0)
    if "owner" not in world.results:  # it has died, and what it put may be there, or half
        right: tuple[tuple[Status, int], ...] = (whole, none, (Status.NOT_READY, 0))
    else:
        right = (whole,) if answer == Status.OK else (none,)
    expect(found in right, f"{answer!r}, and then {found}")
    put, read = world.results["other"]
    expect(put in (Status.OK, *_REFUSED), f"a put is answered {put!r}")
    wanted = (Status.OK, 2) if put == Status.OK else none
    expect(read == wanted and world.get(C) == wanted, f"{put!r}, then {read}, then {world.get(C)}")


@Scenario(
    "wire-put",
    "a put that brings its bytes, may be torn, and cut anywhere, against its reader, and one that wants its page",
    small(pages=1, objects=2),
    _as_told,
)
def _put(world: SmallWorld) -> None:
    _spawn_owner(world, brings(world, (A, 2)))
    world.spawn("reader", lambda: world.get(A))
    world.spawn("other", partial(_put_and_get, world))


@Scenario(
    "wire-offer",
    "a put whose bytes go into the page by a socket that may end anywhere, against one that wants that page",
    small(pages=1, objects=2),
    _as_told,
)
def _offer(world: SmallWorld) -> None:
    _spawn_owner(world, offers(world, (A, 4)))
    world.spawn("other", partial(_put_and_get, world))


@Scenario(
    "wire-swept",
    "the same, and the sweeper gives the object up before",
    small(pages=1, objects=2),
    _as_told,
    hosted=True,
)
def _swept(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(0, write_timeout=-1.0), 6))
    _spawn_owner(world, offers(world, (A, 4)))
    world.spawn("other", partial(_put_and_get, world))


@Scenario(
    "wire-dies",
    "the process that serves the wire dies at each step; another one wants its page",
    small(pages=1, objects=2, ranks=2),
    _as_told,
    mortal=("owner",),
    hosted=True,
)
def _dies(world: SmallWorld) -> None:
    world.spawn("host", world.steps_of(world.sweeper(), 6))
    _spawn_owner(world, offers(world, (A, 4)), cut=False, rank=1)
    world.spawn("other", partial(_put_and_get, world))


def _one_wins(world: SmallWorld) -> None:
    answers, put = world.results.get("owner"), world.results["other"]
    expect(put in (Status.OK, Status.DUPLICATE), f"a put is answered {put!r}")
    expect(answers is not None, "a whole put is not answered")
    here, taken = answers or (None, None)
    expect(taken == Status.DUPLICATE, f"a put of a key that is there is answered {taken!r}")
    expect(here in (Status.OK, Status.LOST, Status.DUPLICATE), f"a put is answered {here!r}")
    there = [version for answer, version in ((here, 1), (put, 2)) if answer == Status.OK]
    expect(len(there) < 2, "two puts of one key are answered OK")
    found = world.get(A)
    expect(found == ((Status.OK, *there) if there else (Status.MISS, 0)), f"{here!r}, {put!r}, and then {found}")
    expect(world.get(B) == (Status.OK, 1), f"a key that was there is answered {world.get(B)}")


@Scenario(
    "wire-same-key",
    "a put of two objects over the wire, one of whose keys is there, against a put of the other one's key",
    small(),
    _one_wins,
    _stored((B, 4)),
    checksum=True,
)
def _same_key(world: SmallWorld) -> None:
    _spawn_owner(world, offers(world, (A, 4), (B, 4)), cut=False)
    world.spawn("other", lambda: put_shaped(world, A, 2))


def _only_once(world: SmallWorld) -> None:
    expect(world.results["owner"] is None, "the connection goes on after a frame that was sent again")
    if world.results["remover"] == Status.OK:
        expect(world.get(A) == (Status.MISS, 0), f"an object that was removed comes back: {world.get(A)}")


@Scenario("wire-replay", "a put that is sent twice, and its object is removed in between", small(), _only_once)
def _replay(world: SmallWorld) -> None:
    _spawn_owner(world, brings(world, (A, 2), times=2), cut=False)
    world.spawn("remover", lambda: world.remove(A))


# --- gets and removals ------------------------------------------------------------------------
def _right_versions(world: SmallWorld) -> None:
    for status, version in world.results["owner"] or []:
        expect(status in (Status.OK, Status.MISS, Status.NOT_READY, Status.TORN), f"a get is answered {status!r}")
        expect(version in ((1, 2) if status == Status.OK else (0,)), f"{status!r} with version {version}")


def _replace(world: SmallWorld, words: int) -> None:
    world.remove(A)
    put_shaped(world, C, 1, words)
    world.remove(C)
    put_shaped(world, A, 2, words)


@Scenario(
    "wire-get",
    "a get whose bytes go with its answer, while page and slot get another key, and then the same one",
    small(1, 1),
    _right_versions,
    _stored((A, 2)),
)
def _get(world: SmallWorld) -> None:
    _spawn_owner(world, gets(world, A), cut=False)
    world.spawn("writer", partial(_replace, world, 2))


@Scenario(
    "wire-get-stream",
    "a get of three keys sent from the pages, in pieces, while one page and slot get another key and the same again",
    small(2, 2),
    _right_versions,
    _stored((A, 4), (B, 4)),
)
def _get_stream(world: SmallWorld) -> None:
    _spawn_owner(world, gets(world, A, C, B), cut=False)
    world.spawn("writer", partial(_replace, world, 4))


def _gone_once(world: SmallWorld) -> None:
    statuses = world.results["owner"]
    expect(statuses is not None and statuses[1] == Status.MISS, f"removals are answered {statuses}")
    removed = [statuses[0], world.results["other"]].count(Status.OK)
    expect(removed == 1, f"one object is removed {removed} times: {statuses[0]!r}, {world.results['other']!r}")
    expect(world.get(A) == (Status.MISS, 0), f"a removed object is answered {world.get(A)}")


@Scenario("wire-remove", "a removal over the wire against one here", small(), _gone_once, _stored((A, 2)))
def _remove(world: SmallWorld) -> None:
    _spawn_owner(world, removes(A, C), cut=False)
    world.spawn("other", lambda: world.remove(A))


def _not_missed(world: SmallWorld) -> None:
    there, other = world.results["owner"]
    expect(there == Status.OK, f"an object that is there all the while is answered {there!r}")
    expect(other in (Status.OK, Status.NOT_READY, Status.MISS), f"one that comes is answered {other!r}")


@Scenario("wire-exists", "whether objects exist, while one of them comes", small(), _not_missed, _stored((A, 2)))
def _exists(world: SmallWorld) -> None:
    _spawn_owner(world, finds(A, C), cut=False)
    world.spawn("other", lambda: put_shaped(world, C, 2))
