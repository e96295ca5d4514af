"""Scenarios of whole objects: puts of one key, removal, eviction and reuse under readers, pins."""

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import Stage
from nanokv.device.protocol.status import Status

A, B, C = 1, 3, 5  #: keys


# --- producers of one key ---------------------------------------------------------------------
def _two_puts(stage: Stage) -> None:
    stage.spawn("first", lambda: stage.put(A, 1))
    stage.spawn("second", lambda: stage.put(A, 2))


def _three_puts(stage: Stage) -> None:
    _two_puts(stage)
    stage.spawn("third", lambda: stage.put(A, 3))


def _one_wins(stage: Stage) -> None:
    said = sorted(stage.results.values())
    expect(said.count(Status.OK) == 1, f"{said} for puts of one key")
    expect(set(said) <= {Status.OK, Status.DUPLICATE}, f"{said} for puts of one key")
    winner = 1 + ["first", "second", "third"].index(next(n for n, s in stage.results.items() if s == Status.OK))
    expect(stage.get(A) == (Status.OK, winner), f"{stage.get(A)} where put {winner} won")


def _two_puts_and_others(stage: Stage) -> None:
    _two_puts(stage)
    stage.spawn("remover", lambda: (stage.remove(B), stage.put(C, 1)))


def _one_of_two_wins(stage: Stage) -> None:
    del stage.results["remover"]
    _one_wins(stage)


def _put_b(stage: Stage) -> None:
    expect(stage.put(B, 1) == Status.OK, "prepare")


SAME_KEY = Scenario("same-key", "two puts of one key", small(), _two_puts, _one_wins)
SAME_KEY_3 = Scenario("same-key-3", "three puts of one key", small(), _three_puts, _one_wins)


# --- put, get, remove -------------------------------------------------------------------------
def _put_a(stage: Stage) -> None:
    expect(stage.put(A, 1) == Status.OK, "prepare")


def _put_remove_get(stage: Stage) -> None:
    stage.spawn("put", lambda: stage.put(A, 2))
    stage.spawn("remove", lambda: stage.remove(A))
    stage.spawn("get", lambda: (stage.get(A), stage.get(A)))


def _judge_put_remove_get(stage: Stage) -> None:
    put, removed = stage.results["put"], stage.results["remove"]
    expect(removed in (Status.OK, Status.MISS, Status.NOT_READY), f"remove: {removed!r}")
    expect(put in (Status.OK, Status.DUPLICATE), f"put: {put!r}")
    (_, one), (_, two) = stage.results["get"]
    expect(not (one == 2 and two == 1), "a newer version was read before an older one")
    there = stage.find(A)
    if put == Status.DUPLICATE and removed == Status.OK:
        expect(there == Status.MISS, "nothing was put, and what was there was removed, but it is there")


PUT_REMOVE = Scenario(
    "put-remove-get", "a put, a removal and reads of one key", small(), _put_remove_get, _judge_put_remove_get, _put_a
)


# --- readers against eviction and reuse -------------------------------------------------------
def _reuse(stage: Stage) -> None:
    stage.spawn("reader", lambda: stage.get(A))
    stage.spawn("writer", lambda: (stage.put(B, 2, 2), stage.put(C, 3, 2)))


REUSE = Scenario(
    "reuse",
    "a read against the eviction of its object and a put into the same page and slot",
    small(pages=1, objects=2),
    _reuse,
    prepare=_put_a,
    may_evict=True,
)


def _replace(stage: Stage) -> None:
    stage.spawn("reader", lambda: stage.get(A))
    stage.spawn("writer", lambda: (stage.remove(A), stage.put(A, 2, 4)))


REPLACE = Scenario(
    "replace",
    "a read against the replacement of its object in place",
    small(pages=1, objects=1),
    _replace,
    prepare=_put_a,
)


def _pinned(stage: Stage) -> None:
    stage.spawn("reader", lambda: stage.hold(A))
    stage.spawn("writer", lambda: stage.put(B, 2, 2))
    stage.spawn("remover", lambda: stage.remove(A))


PINNED = Scenario(
    "pin-evict",
    "a pin against eviction and removal",
    small(pages=1, objects=2),
    _pinned,
    prepare=_put_a,
    may_evict=True,
)

SAME_KEY_BUSY = Scenario(
    "same-key-busy",
    "two puts of one key, while entries around them come and go",
    small(),
    _two_puts_and_others,
    _one_of_two_wins,
    _put_b,
)

# --- keys that look alike -----------------------------------------------------------------------
TWIN = A + (1 << 12)  #: the same tag in its entry as A, and the same buckets


def _twins(stage: Stage) -> None:
    stage.spawn("writer", lambda: (stage.remove(A), stage.put(TWIN, 5)))
    stage.spawn("reader", lambda: (stage.find(A), stage.find(TWIN), stage.find(A)))


def _told_apart(stage: Stage) -> None:
    one, twin, again = stage.results["reader"]
    expect(again == Status.MISS or one != Status.MISS, "a key came back that was removed for ever")
    expect(twin != Status.OK or again == Status.MISS, "a key is there after its twin took its slot")


TWINS = Scenario(
    "twins",
    "a key in the slot of another one with the same tag",
    small(pages=1, objects=1),
    _twins,
    _told_apart,
    _put_a,
)


# --- a slot that has another key by now ---------------------------------------------------------
def _remove_late(stage: Stage) -> None:
    stage.spawn("writer", lambda: (stage.remove(A), stage.put(B, 2)))
    stage.spawn("remover", lambda: stage.remove(A))


def _b_stays(stage: Stage) -> None:
    put = stage.results["writer"][1]
    expect(stage.get(B) == ((Status.OK, 2) if put == Status.OK else (Status.MISS, 0)), f"{put!r}, then {stage.get(B)}")


REMOVE_LATE = Scenario(
    "remove-late",
    "a removal of a key whose slot another one took meanwhile",
    small(pages=1, objects=1),
    _remove_late,
    _b_stays,
    _put_a,
)


# --- what was just put --------------------------------------------------------------------------
def _read_own(stage: Stage) -> None:
    def both(version: int) -> None:
        if stage.put(A, version) == Status.OK:
            found = stage.get(A)
            expect(found == (Status.OK, version), f"what was just put is answered {found}")

    for version in (1, 2):
        stage.spawn(f"put{version}", lambda version=version: both(version))  # type: ignore[misc]


READ_OWN = Scenario("read-own", "two put one key, and who stored it reads it", small(), _read_own)


def _put_and_get(stage: Stage) -> None:
    stage.spawn("put", lambda: stage.put(A, 1))
    stage.spawn("get", lambda: [stage.get(A) for _ in range(3)])


PUT_GET = Scenario("put-get", "reads of a key that is just being put", small(1, 1), _put_and_get)


# --- a slot that gets another object while it is read -------------------------------------------
def _reuse_slot(stage: Stage) -> None:
    stage.spawn("reader", lambda: stage.get(A))
    stage.spawn("holder", lambda: stage.hold(A))
    stage.spawn("writer", lambda: (stage.remove(A), stage.put(C, 1)))


def _c_stays(stage: Stage) -> None:
    if stage.results["writer"][1] == Status.OK:
        expect(stage.get(C) == (Status.OK, 1), f"an object that nobody removed is answered {stage.get(C)}")


SLOT_REUSED = Scenario(
    "slot-reused", "a read and a pin while the slot gets another object", small(1, 1), _reuse_slot, _c_stays, _put_a
)


# --- an object that is larger than what is wanted -----------------------------------------------
def _put_large(stage: Stage) -> None:
    expect(stage.put(A, 1, 16) == Status.OK, "prepare")


def _evict_larger(stage: Stage) -> None:
    stage.spawn("one", lambda: stage.put(B, 1, 2))
    stage.spawn("two", lambda: stage.put(C, 1, 2))


EVICT_LARGER = Scenario(
    "evict-larger",
    "two producers evict one object that is larger than what they need",
    small(2, 3),
    _evict_larger,
    prepare=_put_large,
    may_evict=True,
)

SCENARIOS = [
    READ_OWN,
    PUT_GET,
    SLOT_REUSED,
    EVICT_LARGER,
    TWINS,
    REMOVE_LATE,
    SAME_KEY,
    SAME_KEY_3,
    SAME_KEY_BUSY,
    PUT_REMOVE,
    REUSE,
    REPLACE,
    PINNED,
]
