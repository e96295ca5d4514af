"""Scenarios of a reader on another host, which sees the owner's memory by transfers only (`device/fabric/rounds`)."""

from functools import partial

from nanokv.check.protocol.model.remote_gets import RemoteGets, put_shaped, shape
from nanokv.check.protocol.model.remote_reader import RemoteReader
from nanokv.check.protocol.model.scenario import A, Act, B, C, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld, digest
from nanokv.device.protocol import claim, header, put
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import HEAP_CTL, WORD
from nanokv.device.sim.memory import SHARED

_GAP = (2, 64)  #: lines and bytes: a reader that reads over them


def _gets(world: SmallWorld, *, gap: tuple[int, int] = (0, 0), may_go: bool = False) -> RemoteGets:
    """The gets of the one reader, in the execution that begins."""
    if "reader" not in world.kept:
        world.kept["reader"] = RemoteReader(world, gap=gap)
    return RemoteGets(world, world.kept["reader"], may_go=may_go)


def _stored(*keys: int, words: int = 2) -> Act:
    """Prepares a world in which these keys are there, in version 1."""

    def prepare(world: SmallWorld) -> None:
        for key in keys:
            expect(put_shaped(world, key, 1, words) == Status.OK, "prepare")

    return prepare


def _rewrite(world: SmallWorld, *puts: tuple[int, int, int], first: int = A) -> None:
    """Remove a key, and put another one (key, version, words) where it was; and so on."""
    for key, version, words in puts:
        world.remove(first)
        put_shaped(world, key, version, words)
        first = key


# --- the slot gets another object -------------------------------------------------------------
@Scenario(
    "remote-reuse",
    "a get from another host while slot and page of its object get another key",
    small(1, 1),
    prepare=_stored(A),
)
def _reuse(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: gets.get(A))
    world.spawn("writer", partial(_rewrite, world, (C, 1, 4)))


@Scenario(
    "remote-replace",
    "gets from another host while their object is replaced by one of another shape, and one without bytes",
    small(1, 1),
    prepare=_stored(A),
)
def _replace(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: [gets.get(A) for _ in range(2)])
    world.spawn("writer", partial(_rewrite, world, (A, 2, 4), (A, 3, 0)))


@Scenario(
    "remote-stays",
    "gets from another host of an object that stays, while other slots and pages come and go",
    small(2, 2),
    prepare=_stored(A, B),
)
def _stays(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: [gets.get(A) for _ in range(2)])
    world.spawn("writer", partial(_rewrite, world, (C, 1, 2), (B, 2, 2), first=B))


@Scenario(
    "remote-evicted",
    "a get from another host while the page of its object is handed on by an eviction",
    small(pages=1, objects=2),
    prepare=_stored(A),
    may_evict=True,
)
def _evicted(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: gets.get(A))
    world.spawn("writer", lambda: put_shaped(world, B, 2))


# --- an object that is just put ---------------------------------------------------------------
def _claimed(world: SmallWorld, *others: int) -> None:
    """A was removed, and is claimed anew. Its slot still has size and place of what it held, where others are now."""
    expect((put_shaped(world, A, 1), world.remove(A)) == (Status.OK, Status.OK), "prepare")
    expect(world.on_segment(header.take_slot)(0) == (0, 2), "prepare")
    _stored(*others)(world)
    world.on_segment(header.reserve)(0, 2, Key(*digest(A)), 0)
    expect(world.on_owner(claim.claim)(0, 2, Key(*digest(A))) == Status.OK, "prepare")


def _put_claimed(world: SmallWorld, words: int = 4) -> None:
    source = world.payload(A, 2, words)
    status, payload = world.on_segment(put.allocate)(0, 0, 2, 0, 1, words * WORD, 1, Key(*digest(A)), 0)
    expect(status == Status.OK, "a page that is free is refused")
    world.on_segment(header.describe)(0, Descriptor(*shape(A, 2, words)))
    world.copy(world.address() + payload, source.ctypes.data, source.nbytes)
    expect(world.on_owner(put.commit)(0, 2) == Status.OK, "a commit is refused")
    world.ended()


@Scenario(
    "remote-moved",
    "a get from another host of an object that is just put, in a slot that still names another one's page",
    small(2, 2),
    prepare=lambda world: _claimed(world, B),
)
def _moved(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: gets.get(A))
    world.spawn("writer", partial(_put_claimed, world))


@Scenario(
    "remote-fresh",
    "a get from another host of an object that is just put, and replaced by one of the size before it",
    small(1, 1),
    prepare=_claimed,
)
def _fresh(world: SmallWorld) -> None:
    gets = _gets(world)

    def write() -> None:
        _put_claimed(world)
        _rewrite(world, (A, 3, 2))

    world.spawn("reader", lambda: gets.get(A))
    world.spawn("writer", write)


# --- several keys; known places ---------------------------------------------------------------
@Scenario(
    "remote-many",
    "a get of two keys from another host, while their slots and pages change hands",
    small(2, 2),
    prepare=_stored(A, B),
)
def _many(world: SmallWorld) -> None:
    gets = _gets(world, gap=_GAP)
    world.spawn("reader", lambda: gets.get(A, B))
    world.spawn("one", partial(_rewrite, world, (A, 2, 4)))
    world.spawn("two", partial(_rewrite, world, (C, 1, 2), (B, 2, 2), first=B))


@Scenario(
    "remote-located",
    "a get from another host that knows its object's place of an earlier one, while the object is replaced",
    small(1, 1),
    prepare=_stored(A),
)
def _located(world: SmallWorld) -> None:
    gets = _gets(world)

    def read() -> None:
        location = gets.locate(A)
        if location is not None:
            for _ in range(2):
                gets.get_at(location)

    world.spawn("reader", read)
    world.spawn("writer", partial(_rewrite, world, (C, 1, 2), (A, 2, 2)))


def _stored_twice(world: SmallWorld) -> None:
    _stored(A)(world)
    expect(world.replicate(A, 1) == Status.OK, "prepare")


@Scenario(
    "remote-copied",
    "a get from another host of an object with a copy, which loses its primary",
    small(ranks=2),
    prepare=_stored_twice,
)
def _copied(world: SmallWorld) -> None:
    gets = _gets(world)

    def evict() -> None:
        world.machine().remove_slot(0, 0, 1)
        put_shaped(world, C, 1)

    world.spawn("reader", lambda: gets.get(A))
    world.spawn("evicter", evict)


# --- checksums; another segment ---------------------------------------------------------------
@Scenario(
    "remote-checksum",
    "a get from another host that insists on a checksum, while its object is replaced",
    small(1, 1),
    prepare=_stored(A),
    checksum=True,
)
def _checksum(world: SmallWorld) -> None:
    gets = _gets(world)
    world.spawn("reader", lambda: gets.get(A))
    world.spawn("writer", partial(_rewrite, world, (A, 2, 4), (C, 1, 2)))


_MAGIC, _WORLD_ID = (HEAP_CTL.offsets[name] for name in ("magic", "world_id"))


def _two_worlds(world: SmallWorld) -> None:
    """One world follows the other, with the same object in other bytes: their control blocks tell them apart."""
    expect(put_shaped(world, A, 2) == Status.OK, "prepare")
    world.kept["next"] = list(world.simulation.memory.words)
    world.restart()
    expect(put_shaped(world, A, 1) == Status.OK, "prepare")


def _begin_anew(world: SmallWorld) -> None:
    """Act as an owner that makes a segment where another one was: its identity, `magic` last, and then an object."""
    exchange, magic = world.simulation.vocabulary["xchg64"], world.address() + _MAGIC
    was = exchange(magic, 0, "acq_rel")
    world.store(world.address() + _WORLD_ID, 2, "relaxed")
    exchange(magic, was, "acq_rel")
    for at, word in enumerate(world.kept["next"]):
        address = SHARED + at * WORD
        if address != world.address() + _WORLD_ID and world.simulation.memory.newest(address) != word:
            world.store(address, word, "relaxed")
    world.ended()


@Scenario(
    "remote-gone",
    "a get from another host while another segment is made where the card says",
    small(1, 1),
    prepare=_two_worlds,
)
def _gone(world: SmallWorld) -> None:
    gets = _gets(world, may_go=True)
    world.spawn("reader", lambda: [gets.get(A) for _ in range(2)])
    world.spawn("owner", partial(_begin_anew, world))
