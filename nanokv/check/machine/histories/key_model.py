"""The sequential specification of one key: absent, or there with a value.

    put        OK: it was absent, and is there now     DUPLICATE: it is there
    get        OK: it is there with this value         MISS: it is absent
    remove     OK: it was there, and is absent now     MISS: it is absent
    exists     OK: it is there                         MISS: it is absent

Every answer is true at one moment of its call; a miss too: a reader that meets remove and put of another version either
finds one of the two, or there was a moment without any. Three answers tell of others that were under way meanwhile:

    DUPLICATE  also if another put of the key overlaps, even one that fails afterwards: a producer withdraws its entry
               when it sees another one (`device/protocol/directory.py`). That is weaker than "it is there"
    NOT_READY  of get, remove and exists: the key is absent, and a put of it overlaps
    TORN       of a single look (the API looks again): a removal that took effect overlaps

FULL is an answer only where memory may run out; where objects may be evicted, a key may be gone at any moment. Nothing
else is ever answered: not PINNED where nobody pins.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from nanokv.check.machine.histories.linearizability import Operation, Step

ABSENT = 0  #: the state of a key that is not there; values are not 0
OK, MISS, DUPLICATE, NOT_READY = "OK", "MISS", "DUPLICATE", "NOT_READY"
TORN, FULL, PINNED = "TORN", "FULL", "PINNED"
KILLED = ""  #: the answer of an operation that never returned


class WorldKind(NamedTuple):
    """The properties of a world that change the specification of its keys."""

    may_be_full: bool = False
    may_evict: bool = False

    def step(self) -> Step:
        """The specification of a key here."""
        return partial(_step_of, self)


PLAIN = WorldKind()  #: room for all, and no eviction


def step(state: int, operation: Operation) -> Iterable[int]:
    """The states that an operation may lead to with room for all and no eviction; none if it cannot be answered so."""
    return _STEPS[operation.call](state, operation)


def _step_of(world: WorldKind, state: int, operation: Operation) -> Iterable[int]:
    if operation.call == "put" and operation.answer == FULL:
        return (state,) if world.may_be_full else ()
    if not world.may_evict:
        return step(state, operation)
    return {*step(state, operation), *step(ABSENT, operation)}


def _put(state: int, operation: Operation) -> Iterable[int]:
    if operation.answer in (OK, KILLED):
        return (operation.value,) if state == ABSENT else ()
    return _same(state, operation.answer == DUPLICATE and (state != ABSENT or operation.excused))


def _get(state: int, operation: Operation) -> Iterable[int]:
    if operation.answer == OK:
        return _same(state, state == operation.value)
    return _look(state, operation)


def _remove(state: int, operation: Operation) -> Iterable[int]:
    if operation.answer in (OK, KILLED):
        return (ABSENT,) if state != ABSENT else ()
    return _look(state, operation)


def _exists(state: int, operation: Operation) -> Iterable[int]:
    if operation.answer == OK:
        return _same(state, state != ABSENT)
    return _look(state, operation)


def _look(state: int, operation: Operation) -> Iterable[int]:
    """The answer of any of the three if it did not find the object READY."""
    absent = state == ABSENT
    fits = {MISS: absent, NOT_READY: absent and operation.excused, TORN: operation.excused, KILLED: True}
    return _same(state, fits.get(operation.answer, False))


def _same(state: int, fits: bool) -> Iterable[int]:
    return (state,) if fits else ()


_STEPS: dict[str, Callable[[int, Operation], Iterable[int]]] = {
    "put": _put,
    "get": _get,
    "remove": _remove,
    "exists": _exists,
}


# --- overlaps ---------------------------------------------------------------------------------
def with_excuses(history: Sequence[Operation], world: WorldKind = PLAIN) -> list[Operation]:
    """The history of one key. Operations whose answer another one at the same time may explain are marked."""
    puts = _Overlaps([at for at, operation in enumerate(history) if operation.call == "put"], history)
    removals = _Overlaps([at for at, operation in enumerate(history) if _removes(operation)], history)

    def is_excused(at: int, operation: Operation) -> bool:
        if operation.answer == TORN:
            return world.may_evict or removals.meet(at)
        return operation.answer in (DUPLICATE, NOT_READY) and puts.meet(at)

    return [operation._replace(excused=is_excused(at, operation)) for at, operation in enumerate(history)]


def _removes(operation: Operation) -> bool:
    return operation.call == "remove" and operation.answer in (OK, KILLED)


class _Overlaps:
    """Tells which operations overlap any of `some` in time, except themselves."""

    def __init__(self, some: list[int], history: Sequence[Operation]) -> None:
        self._history = history
        some.sort(key=lambda at: history[at].called)
        self._called = [history[at].called for at in some]
        self._latest: list[tuple[int, ...]] = []  #: the two that return last, of those called up to each one
        latest: tuple[int, ...] = ()
        for at in some:
            latest = tuple(sorted((*latest, at), key=lambda at: history[at].returned)[-2:])
            self._latest.append(latest)

    def meet(self, at: int) -> bool:
        """Whether one of them was called before the operation returned, and returned after it was called."""
        operation = self._history[at]
        before = bisect_right(self._called, operation.returned)
        latest = self._latest[before - 1] if before else ()
        return any(other != at and self._history[other].returned >= operation.called for other in latest)
