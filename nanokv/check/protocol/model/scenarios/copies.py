"""Scenarios of copies: an object in several segments, while it is copied, removed, evicted, put anew."""

from functools import partial

from nanokv.check.protocol.model.scenario import A, B, Scenario, expect, small, stored
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol import header
from nanokv.device.protocol.claim import claim_at
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import WRITING

#: what a replicator may be answered where others are at work; FULL would be wrong in all of these scenarios
ANSWERS = {Status.OK, Status.DUPLICATE, Status.MISS, Status.NOT_READY, Status.TORN, Status.LOST}


def _copied(*targets: int) -> partial[None]:
    """Prepares A in the segment of rank 0, with copies in others."""

    def prepare(world: SmallWorld) -> None:
        stored(A)(world)
        for target in targets:
            expect(world.replicate(A, target) == Status.OK, "prepare")

    return partial(prepare)


def _end_one(world: SmallWorld, rank: int) -> None:
    """One object of A goes, in the first slot of a segment, as by an eviction."""
    world.machine().remove_slot(rank, 0, 1)
    world.ended()


def _all_alike(world: SmallWorld) -> list[int]:
    """The versions of the READY objects of A: at most one in all, and one object per segment."""
    there = world.versions_there(A)
    expect(len({version for _, version in there}) <= 1, f"READY objects of one key differ: {there}")
    expect(len({rank for rank, _ in there}) == len(there), f"a segment has two objects of a key: {there}")
    for name, answer in world.results.items():
        if name.startswith("copy"):
            expect(answer in ANSWERS, f"{name} is answered {answer!r}")
    unfinished = [
        rank for rank, view in enumerate(world.segments.views()) if (view.headers["state"] == WRITING.value).any()
    ]
    expect(bool(world.deaths()) or not unfinished, f"a copy that nobody makes is WRITING in segments {unfinished}")
    return [version for _, version in there]


# --- copies against removals ------------------------------------------------------------------
def _all_gone(world: SmallWorld) -> None:
    left, removed = _all_alike(world), world.results["remover"]
    expect(removed == Status.OK, f"the removal of an object that is there is answered {removed!r}")
    expect(not left, f"a removal was answered OK, and {len(left)} copies are left")


@Scenario("copy-remove", "a removal of an object that is being copied", small(ranks=2), _all_gone, stored(A))
def _copy_and_remove(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))
    world.spawn("remover", lambda: world.remove(A))


@Scenario(
    "copy-remove-busy",
    "a removal of a copied object that is being copied further, while one copy goes",
    small(ranks=3),
    _all_gone,
    _copied(1),
)
def _copy_chain(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A))
    world.spawn("copy", lambda: world.replicate(A, 2, rank=2))
    world.spawn("evicter", partial(_end_one, world, 1))


@Scenario("copies-lose", "a removal of a copied object that loses its primary", small(ranks=2), _all_gone, _copied(1))
def _lose_primary(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A))
    world.spawn("evicter", partial(_end_one, world, 0))


def _one_copy_left(world: SmallWorld) -> None:
    _copied(1)(world)
    _end_one(world, 0)


@Scenario(
    "copies-remove", "a removal of an object that has lost its primary", small(ranks=3), _all_gone, _one_copy_left
)
def _remove_copies(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A))
    world.spawn("copy", lambda: world.replicate(A, 2, rank=2))


def _two_copies_left(world: SmallWorld) -> None:
    _copied(1, 2)(world)
    _end_one(world, 0)


@Scenario(
    "copies-remove-busy",
    "a removal of an object that has lost its primary, while a copy that goes is copied further",
    small(ranks=3),
    _all_gone,
    _two_copies_left,
)
def _remove_busy_copies(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A, rank=2))
    world.spawn("copy", lambda: world.replicate(A, 0, rank=1))
    world.spawn("evicter", partial(_end_one, world, 1))


def _new_one_stays(world: SmallWorld) -> None:
    left, (removed, put, found) = _all_alike(world), world.results["writer"]
    expect(removed == Status.OK, f"the removal of an object that is there is answered {removed!r}")
    expect(put == Status.OK, f"a put after a removal is answered {put!r}")
    expect(found == (Status.OK, 2) and set(left) == {2}, f"after a put: {found}, and versions {left}")


@Scenario(
    "copy-replace",
    "an object is removed and put anew, while it is being copied",
    small(ranks=2),
    _new_one_stays,
    stored(A),
)
def _copy_and_replace(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))
    world.spawn("writer", lambda: (world.remove(A), world.put(A, 2), world.get(A)))


def _put_stays(world: SmallWorld) -> None:
    left = _all_alike(world)
    if world.results["put"] == Status.OK:
        expect(set(left) == {2}, f"a put was answered OK, and a removal before it took it: {left}")


@Scenario(
    "copies-remove-put",
    "a removal of an object with a copy, while a new one is put",
    small(ranks=2),
    _put_stays,
    _copied(1),
)
def _remove_and_put(world: SmallWorld) -> None:
    world.spawn("remover", lambda: world.remove(A))
    world.spawn("put", lambda: world.put(A, 2))


@Scenario(
    "copies-remove-recopy",
    "a removal of an object with a copy, while a new one is put and copied",
    small(ranks=2),
    _put_stays,
    _copied(1),
)
def _remove_and_recopy(world: SmallWorld) -> None:
    def put_and_copy() -> Status:
        answer = world.put(A, 2)
        world.replicate(A, 1)
        return answer

    world.spawn("remover", lambda: world.remove(A))
    world.spawn("put", put_and_copy)


def _pinned_or_gone(world: SmallWorld) -> None:
    left, removed, held = _all_alike(world), world.results["remover"], world.results["reader"]
    expect(removed in (Status.OK, Status.PINNED), f"a removal is answered {removed!r}")
    expect(bool(left) == (removed == Status.PINNED), f"a removal is answered {removed!r}, and {left} are left")
    expect(removed != Status.PINNED or held == Status.OK, "a removal is answered PINNED, and nobody pinned the object")


@Scenario("copies-pin", "a pin of a copy against a removal", small(ranks=2), _pinned_or_gone, _copied(1))
def _pin_copy(world: SmallWorld) -> None:
    world.spawn("reader", lambda: world.hold(A, rank=1))
    world.spawn("remover", lambda: world.remove(A))


# --- copies against evictions and puts --------------------------------------------------------
def _alike(world: SmallWorld) -> None:
    left = _all_alike(world)
    answer = world.results["writer"]
    expect(answer in (Status.OK, Status.DUPLICATE), f"a put is answered {answer!r}")
    if answer == Status.OK:
        expect(set(left) <= {2}, f"a new object was put, and version {left} is there")
    if world.results["copy"] == Status.OK and answer == Status.DUPLICATE:
        expect(bool(left), "an object that was copied is gone, though only its primary was evicted")


@Scenario(
    "copy-evict", "an object is evicted and put anew, while it is being copied", small(ranks=2), _alike, stored(A)
)
def _copy_and_evict(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))

    def write() -> Status:
        _end_one(world, 0)
        return world.put(A, 2)

    world.spawn("writer", write)


def _alike_at_rest(world: SmallWorld) -> None:
    _all_alike(world)


@Scenario(
    "copy-reuse",
    "the page of an object gets another one, while it is being copied",
    small(pages=1, objects=2, ranks=2),
    _alike_at_rest,
    stored(A),
    may_evict=True,
)
def _copy_and_reuse(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))
    world.spawn("writer", lambda: world.put(B, 2))


# --- a producer that has not looked yet -------------------------------------------------------
def _stored_and_reserved(world: SmallWorld) -> None:
    stored(A)(world)
    expect(world.on_segment(header.take_slot)(0) == (1, 1), "prepare")
    world.on_segment(header.reserve)(1, 1, Key(A, A), 0)


def _copied_or_claimed(world: SmallWorld) -> None:
    left, claimed = _all_alike(world), world.results["claim"]
    expect(claimed == Status.DUPLICATE or not left, "a key is claimed, and a copy of the old object is READY")


@Scenario(
    "copy-claim",
    "a claim of the key of an object that is copied, and goes",
    small(ranks=2),
    _copied_or_claimed,
    _stored_and_reserved,
    rests=False,
)
def _copy_and_claim(world: SmallWorld) -> None:
    def claim() -> int:
        answer: int = world.function(claim_at)(world.segments.table(0), world.address(rank=1), 3, 0, 1, 1, Key(A, A))
        world.ended()
        return answer

    world.spawn("claim", claim)
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))
    world.spawn("evicter", partial(_end_one, world, 0))


# --- several that copy ------------------------------------------------------------------------
def _one_in_each(world: SmallWorld) -> None:
    _all_alike(world)
    answers = [world.results[name] for name in ("copy1", "copy2")]
    expect(set(answers) <= {Status.OK, Status.DUPLICATE, Status.LOST}, f"two copies: {answers}")
    there = [rank for rank, _ in world.versions_there(A)]
    expect(Status.OK not in answers or 1 in there, f"a copy was answered OK, and is not there: {there}")
    expect(Status.OK in answers, f"two that copy both withdraw: {answers}")


@Scenario("copy-copy", "two copy one object into one segment", small(ranks=2), _one_in_each, stored(A))
def _two_copies(world: SmallWorld) -> None:
    world.spawn("copy1", lambda: world.replicate(A, 1, rank=1))
    world.spawn("copy2", lambda: world.replicate(A, 1))


def _always_there(world: SmallWorld) -> None:
    _all_alike(world)
    for found in world.results["reader"]:
        expect(
            found in ((Status.OK, 1), (Status.TORN, 0)), f"an object that is there all the while is answered {found}"
        )
    expect(world.get(A, rank=1) == (Status.OK, 1), "an object of which a copy was made is gone")


@Scenario("copy-get", "reads of an object that is being copied", small(ranks=2), _always_there, stored(A))
def _copy_and_get(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=1))
    world.spawn("reader", lambda: [world.get(A, rank=1) for _ in range(2)])


def _stored_late(world: SmallWorld) -> None:
    stored(B, A)(world)
    expect(world.remove(B) == Status.OK, "prepare")


@Scenario(
    "copy-get-first",
    "reads of an object whose copy has the first entry",
    small(ranks=2),
    _always_there,
    _stored_late,
)
def _copy_and_get_first(world: SmallWorld) -> None:
    _copy_and_get(world)


def _later_reads_follow(world: SmallWorld) -> None:
    _all_alike(world)
    if world.results["mover"] == Status.OK:
        expect(world.get(A) == (Status.OK, 1), "an object of which a copy was made is gone with its primary")


@Scenario(
    "copy-lose",
    "an object is copied, and loses its primary, under a reader",
    small(ranks=2),
    _later_reads_follow,
    stored(A),
)
def _copy_and_lose(world: SmallWorld) -> None:
    def move() -> Status:
        answer = world.replicate(A, 1, rank=1)
        _end_one(world, 0)
        return answer

    world.spawn("mover", move)
    world.spawn("reader", lambda: (world.get(A), world.get(A)))


# --- puts with copies -------------------------------------------------------------------------
def _one_version(world: SmallWorld) -> None:
    left, first, second = _all_alike(world), world.results["first"], world.results["second"]
    expect({first, second} == {Status.OK, Status.DUPLICATE}, f"puts of one key: {first!r}, {second!r}")
    expect(set(left) == {1 if first == Status.OK else 2}, f"{first!r}, {second!r}, and versions {left}")


@Scenario("put-copied", "a put with a copy against another put of its key", small(ranks=2), _one_version)
def _put_with_copy(world: SmallWorld) -> None:
    world.spawn("first", lambda: world.put_copied(A, 1, (1,)))
    world.spawn("second", lambda: world.put(A, 2))


def _removed_or_not(world: SmallWorld) -> None:
    left, put, removed = _all_alike(world), world.results["put"], world.results["remover"]
    expect(put == Status.OK, f"the only put is answered {put!r}")
    expect(removed in (Status.OK, Status.MISS, Status.NOT_READY), f"a removal is answered {removed!r}")
    expect(bool(left) == (removed != Status.OK), f"a removal is answered {removed!r}, and {left} are left")


@Scenario("put-copied-remove", "a put with copies against a removal", small(ranks=3), _removed_or_not)
def _put_copied_and_remove(world: SmallWorld) -> None:
    world.spawn("put", lambda: world.put_copied(A, 1, (1, 2)))
    world.spawn("remover", lambda: world.remove(A))


# --- killed at every step ---------------------------------------------------------------------
@Scenario(
    "copy-dies",
    "a replicator dies at each step; another removes and puts the object",
    small(ranks=3),
    _alike_at_rest,
    stored(A),
    mortal=("copy",),
)
def _copy_dies(world: SmallWorld) -> None:
    world.spawn("copy", lambda: world.replicate(A, 1, rank=2), rank=2)
    world.spawn("other", lambda: (world.remove(A), world.put(A, 2)))


@Scenario(
    "put-copied-dies",
    "a producer of copies dies at each step; another puts the key",
    small(ranks=3),
    _alike_at_rest,
    mortal=("producer",),
)
def _put_copied_dies(world: SmallWorld) -> None:
    world.spawn("producer", lambda: world.put_copied(A, 1, (1,), rank=2), rank=2)
    world.spawn("other", lambda: (world.put(A, 2), world.get(A)))
