"""Scenarios of eviction: leased objects stay, as do all while free neighbours would do, and neighbours go together."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, Act, B, C, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.machines.records import Terms
from nanokv.device.protocol.reclaim import store_control
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import HEAP_CTL, KEPT, TERMS_PRIORITY_SHIFT
from nanokv.space.coalesce import join_free_extents

LARGE = 16  #: words: two pages
D = 7  #: another key


# --- leases -----------------------------------------------------------------------------------
def _lease_a(world: SmallWorld) -> None:
    expect(world.put_leased(A, 1) == Status.OK, "prepare")


def _read_before(world: SmallWorld) -> None:
    if world.results["writer"] == Status.OK:
        expect(world.results["asked"], "a leased object was evicted before any reader asked for it")


@Scenario(
    "leased-read",
    "an eviction against the first read of a leased object",
    small(pages=1, objects=2),
    _read_before,
    _lease_a,
    may_evict=True,
)
def _evict_or_read(world: SmallWorld) -> None:
    world.results["asked"] = False

    def read() -> tuple[Status, int]:
        world.results["asked"] = True
        return world.get(A)

    world.spawn("writer", lambda: world.put(B, 2))
    world.spawn("reader", read)


def _lease_holds(world: SmallWorld) -> None:
    put, leased = world.results["evicter"], world.results["writer"][1]
    if leased == Status.OK:
        expect(
            world.get(C) == (Status.OK, 1), f"a leased object that nobody read is gone; the put was answered {put!r}"
        )


def _put_a(world: SmallWorld) -> None:
    expect(world.put(A, 1) == Status.OK, "prepare")


def _replace_by_leased(world: SmallWorld, read: bool) -> None:
    world.spawn("writer", lambda: (world.remove(A), world.put_leased(C, 1)))
    world.spawn("evicter", lambda: world.put(B, 2))
    if read:
        world.spawn("reader", lambda: world.get(A))


def _leased_scenario(name: str, about: str, prepare: Act, *, read: bool) -> None:
    declared = Scenario(name, about, small(pages=1, objects=2), _lease_holds, prepare, may_evict=True)
    declared(partial(_replace_by_leased, read=read))


_leased_scenario(
    "leased", "an eviction against a new leased object, in a slot that was used before", _put_a, read=False
)
_leased_scenario("leased-late", "a late read of the object that had the slot of a leased one", _put_a, read=True)


def _not_leased(world: SmallWorld) -> None:
    expect(world.put(B, 2) == Status.OK, "an object that nobody leased cannot be evicted")


@Scenario(
    "renewed-late",
    "a late renewal of the lease of the object that had the slot of another one",
    small(pages=1, objects=2),
    _not_leased,
    _put_a,
    may_evict=True,
)
def _renew_or_replace(world: SmallWorld) -> None:
    def replace() -> None:
        if world.remove(A) == Status.OK:
            world.put(C, 1)

    world.spawn("renewer", lambda: world.renew(A))
    world.spawn("writer", replace)


def _put_kept(world: SmallWorld) -> None:
    expect(world.put_with(Terms(KEPT.value << TERMS_PRIORITY_SHIFT.value), A, 1) == Status.OK, "prepare")


def _a_is_kept(world: SmallWorld) -> None:
    expect(world.put(B, 2) == Status.FULL and world.find(A) == Status.OK, "a kept object was evicted")


@Scenario(
    "kept",
    "evictions against a kept object that is read",
    small(pages=1, objects=2),
    _a_is_kept,
    _put_kept,
    may_evict=True,
)
def _read_or_evict(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.get(A))
    world.spawn("evicter", lambda: world.put(B, 2))


# --- free neighbours --------------------------------------------------------------------------
def _free_neighbours(world: SmallWorld) -> None:
    """A has two pages; the other two are free, one extent each."""
    for key in (B, C):
        expect(world.put(key, 1) == Status.OK, "prepare")
    expect(world.put(A, 1, LARGE) == Status.OK, "prepare")
    expect((world.remove(B), world.remove(C)) == (Status.OK, Status.OK), "prepare")


def _a_is_there(world: SmallWorld) -> None:
    expect(world.find(A) == Status.OK, "an object was evicted, and free neighbours would have held the new one")


@Scenario(
    "neighbours",
    "a producer finds no extent, and a host joins the free neighbours that would do",
    small(ranks=2, objects=3),
    _a_is_there,
    _free_neighbours,
    may_evict=True,
)
def _join_or_evict(world: SmallWorld) -> None:
    def join() -> None:
        join_free_extents(world.machine(1), 0)
        world.ended()

    world.spawn("producer", lambda: world.put(B, 2, LARGE))
    world.spawn("host", join, rank=1)


def _b_came(world: SmallWorld) -> None:
    expect(world.results["producer"] == Status.OK, f"no free pages, and an eviction was answered {world.results}")


def _fill(world: SmallWorld) -> None:
    """A has two pages, C one; the last one is free."""
    for key, words in ((C, 2), (B, 2), (A, LARGE)):
        expect(world.put(key, 1, words) == Status.OK, "prepare")
    expect(world.remove(B) == Status.OK, "prepare")


@Scenario(
    "no-neighbours",
    "a producer finds no extent, and no free neighbours either: it evicts",
    small(objects=3),
    _b_came,
    _fill,
    may_evict=True,
)
def _evict(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(B, 2, LARGE))
    world.spawn("reader", lambda: world.get(C))


# --- neighbours that go together --------------------------------------------------------------
def _large_came(world: SmallWorld) -> None:
    expect(world.results["producer"] == Status.OK, f"no object had to stay, and a put was answered {world.results}")
    expect(world.get(C) == (Status.OK, 2), "a put was answered OK, and its object is not there")


@Scenario(
    "neighbours-go",
    "two objects are evicted for one that is larger, while another reads one of them",
    small(pages=2),
    _large_came,
    stored(A, B),
    may_evict=True,
)
def _evict_two(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(C, 2, LARGE))
    world.spawn("reader", lambda: world.get(B))


@Scenario(
    "neighbours-change",
    "two objects are evicted for one that is larger, while one of them is replaced",
    small(pages=2),
    prepare=stored(A, B),
    may_evict=True,
)
def _evict_or_replace(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(C, 2, LARGE))
    world.spawn("writer", lambda: (world.remove(B), world.put(B, 2)))


@Scenario(
    "neighbours-shared",
    "two producers evict the same two objects, one of them for a larger one",
    small(pages=2),
    prepare=stored(A, B),
    may_evict=True,
)
def _evict_the_same(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(C, 2, LARGE))
    world.spawn("other", lambda: world.put(D, 2))


def _small_and_large(world: SmallWorld) -> None:
    """Two small objects that have lived long enough, and a large one that has just been read."""
    expect(world.put(C, 1, LARGE) == Status.OK, "prepare")
    stored(A, B)(world)
    expect(world.get(C) == (Status.OK, 1), "prepare")
    world.on_owner(store_control)(HEAP_CTL.offsets["life"], 4)  # objects go that are older than two ticks


def _large_stays(world: SmallWorld) -> None:
    expect(world.results["producer"] == Status.OK, f"small objects may go, and a put was answered {world.results}")
    expect(world.find(C) == Status.OK, "a large object went that was just read, and small ones had lived long enough")


@Scenario(
    "young-stays",
    "small objects that have lived long enough go for a large one, and not the large one that was just read",
    small(),
    _large_stays,
    _small_and_large,
    may_evict=True,
)
def _evict_small(world: SmallWorld) -> None:
    world.time = 4  # four operations came before
    world.spawn("producer", lambda: world.put(D, 2, LARGE))
    world.spawn("reader", lambda: world.get(C))


def _a_and_leased_b(world: SmallWorld) -> None:
    stored(A)(world)
    expect(world.put_leased(B, 1) == Status.OK, "prepare")


def _both_are_there(world: SmallWorld) -> None:
    expect(world.results["producer"] == Status.FULL, f"a leased object is in the way: {world.results}")
    expect((world.find(A), world.find(B)) == (Status.OK, Status.OK), "an object went for a run that could not be had")


@Scenario(
    "neighbours-stay",
    "no object is evicted for a larger one beside an object that must stay",
    small(pages=2),
    _both_are_there,
    _a_and_leased_b,
    may_evict=True,
)
def _evict_none(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put(C, 2, LARGE))
    world.spawn("reader", lambda: world.get(A))
