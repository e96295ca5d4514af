"""Scenarios of whole objects: puts of one key, removal, eviction and reuse under readers, pins."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, B, C, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol.status import Status


# --- an object that was just put --------------------------------------------------------------
@Scenario("read-own", "two put one key, and who stored it reads it", small())
def _read_own(world: SmallWorld) -> None:
    def both(version: int) -> None:
        if world.put(A, version) == Status.OK:
            found = world.get(A)
            expect(found == (Status.OK, version), f"an object that was just put is answered {found}")

    for version in (1, 2):
        world.spawn(f"put{version}", partial(both, version))


@Scenario("put-get", "reads of a key that is just being put", small(1, 1))
def _put_and_get(world: SmallWorld) -> None:
    world.spawn("put", lambda: world.put(A, 1))
    world.spawn("get", lambda: [world.get(A) for _ in range(3)])


# --- a slot that gets another object while it is read -----------------------------------------
def _c_stays(world: SmallWorld) -> None:
    if world.results["writer"][1] == Status.OK:
        expect(world.get(C) == (Status.OK, 1), f"an object that nobody removed is answered {world.get(C)}")


@Scenario("slot-reused", "a read and a pin while the slot gets another object", small(1, 1), _c_stays, stored(A))
def _reuse_slot(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.get(A))
    world.spawn("holder", lambda: world.hold(A))
    world.spawn("writer", lambda: (world.remove(A), world.put(C, 1)))


# --- an object that is larger than what is wanted ---------------------------------------------
@Scenario(
    "evict-larger",
    "two producers evict one object that is larger than what they need",
    small(2, 3),
    prepare=stored(A, words=16),
    may_evict=True,
)
def _evict_larger(world: SmallWorld) -> None:
    world.spawn("one", lambda: world.put(B, 1, 2))
    world.spawn("two", lambda: world.put(C, 1, 2))


# --- keys that look alike ---------------------------------------------------------------------
TWIN = A + (1 << 12)  #: the same tag in its entry as A, and the same buckets


def _told_apart(world: SmallWorld) -> None:
    one, twin, again = world.results["reader"]
    expect(again == Status.MISS or one != Status.MISS, "a key came back that was removed for ever")
    expect(twin != Status.OK or again == Status.MISS, "a key is there after its twin took its slot")


@Scenario("twins", "a key in the slot of another one with the same tag", small(1, 1), _told_apart, stored(A))
def _twins(world: SmallWorld) -> None:
    world.spawn("writer", lambda: (world.remove(A), world.put(TWIN, 5)))
    world.spawn("reader", lambda: (world.find(A), world.find(TWIN), world.find(A)))


def _stored_and_removed(world: SmallWorld) -> None:
    stored(A)(world)
    expect(world.remove(A) == Status.OK, "prepare")


def _both_are_put(world: SmallWorld) -> None:
    puts = world.results["one"], world.results["twin"]
    expect(puts == (Status.OK, Status.OK), f"the only puts of two keys are answered {puts}")


@Scenario(
    "twins-put",
    "puts of a key and of its twin, one of them into the slot that the key had before",
    small(2, 2),
    _both_are_put,
    _stored_and_removed,
)
def _put_twins(world: SmallWorld) -> None:
    world.spawn("one", lambda: world.put(A, 2))
    world.spawn("twin", lambda: world.put(TWIN, 5))


# --- a slot that has another key by now -------------------------------------------------------
def _b_stays(world: SmallWorld) -> None:
    put, found = world.results["writer"][1], world.get(B)
    expect(found == ((Status.OK, 2) if put == Status.OK else (Status.MISS, 0)), f"{put!r}, then {found}")


@Scenario("remove-late", "a removal of a key whose slot another one took meanwhile", small(1, 1), _b_stays, stored(A))
def _remove_late(world: SmallWorld) -> None:
    world.spawn("writer", lambda: (world.remove(A), world.put(B, 2)))
    world.spawn("remover", lambda: world.remove(A))


# --- producers of one key ---------------------------------------------------------------------
PRODUCERS = ("first", "second", "third")


def _one_wins(world: SmallWorld) -> None:
    answers = {name: world.results[name] for name in PRODUCERS if name in world.results}
    winners = [name for name, answer in answers.items() if answer == Status.OK]
    expect(len(winners) == 1 and set(answers.values()) <= {Status.OK, Status.DUPLICATE}, f"puts of one key: {answers}")
    version = 1 + PRODUCERS.index(winners[0])
    expect(world.get(A) == (Status.OK, version), f"{world.get(A)} where put {version} won")


def _puts(world: SmallWorld, count: int) -> None:
    for version, name in enumerate(PRODUCERS[:count], 1):
        world.spawn(name, partial(world.put, A, version))


@Scenario("same-key", "two puts of one key", small(), _one_wins)
def _two_puts(world: SmallWorld) -> None:
    _puts(world, 2)


@Scenario("same-key-3", "three puts of one key", small(), _one_wins)
def _three_puts(world: SmallWorld) -> None:
    _puts(world, 3)


@Scenario("same-key-busy", "two puts of one key, while entries around them come and go", small(), _one_wins, stored(B))
def _two_puts_and_others(world: SmallWorld) -> None:
    _puts(world, 2)
    world.spawn("remover", lambda: (world.remove(B), world.put(C, 1)))


# --- put, get, remove -------------------------------------------------------------------------
def _versions_ascend(world: SmallWorld) -> None:
    put, removed = world.results["put"], world.results["remove"]
    expect(removed in (Status.OK, Status.MISS, Status.NOT_READY), f"remove: {removed!r}")
    expect(put in (Status.OK, Status.DUPLICATE), f"put: {put!r}")
    (_, one), (_, two) = world.results["get"]
    expect(not (one == 2 and two == 1), "a newer version was read before an older one")
    there = world.find(A)
    if put == Status.DUPLICATE and removed == Status.OK:
        expect(there == Status.MISS, "nothing was put, and the object was removed, but the key is there")


@Scenario("put-remove-get", "a put, a removal and reads of one key", small(), _versions_ascend, stored(A))
def _put_remove_get(world: SmallWorld) -> None:
    world.spawn("put", lambda: world.put(A, 2))
    world.spawn("remove", lambda: world.remove(A))
    world.spawn("get", lambda: (world.get(A), world.get(A)))


# --- readers against eviction and reuse -------------------------------------------------------
@Scenario(
    "reuse",
    "a read against the eviction of its object and a put into the same page and slot",
    small(pages=1, objects=2),
    prepare=stored(A),
    may_evict=True,
)
def _reuse(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.get(A))
    world.spawn("writer", lambda: (world.put(B, 2, 2), world.put(C, 3, 2)))


@Scenario("replace", "a read against the replacement of its object in place", small(1, 1), prepare=stored(A))
def _replace(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.get(A))
    world.spawn("writer", lambda: (world.remove(A), world.put(A, 2, 4)))


@Scenario(
    "pin-evict",
    "a pin against eviction and removal",
    small(pages=1, objects=2),
    prepare=stored(A),
    may_evict=True,
)
def _pinned(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.hold(A))
    world.spawn("writer", lambda: world.put(B, 2, 2))
    world.spawn("remover", lambda: world.remove(A))
