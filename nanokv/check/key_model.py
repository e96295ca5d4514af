"""What one key promises, as a sequential specification: absent, or there with a value.

A put of a key that is there is answered DUPLICATE. So is one that meets another put of the key on its way, also if that
one fails afterwards (`device/directory.py`): with DUPLICATE the history must show the key there, or another put that
overlaps. NOT_READY says that a put is under way. Everything else is strict: a read returns the value of one put,
whole; a miss means that the key was absent at some moment of the call.
"""

from collections.abc import Iterable, Sequence

from nanokv.check.linearizability import Operation

ABSENT = 0  #: the state of a key that is not there; values are not 0
OK, MISS, DUPLICATE, NOT_READY, FULL, CONTENDED = "OK", "MISS", "DUPLICATE", "NOT_READY", "FULL", "CONTENDED"


def step(state: int, operation: Operation) -> Iterable[int]:
    """The states that an operation may lead to; none if it cannot be answered so."""
    what, answer = operation.what, operation.answer
    if answer in (CONTENDED, NOT_READY, FULL):
        return (state,) if answer != NOT_READY or state == ABSENT else ()
    if what == "put":
        return _put(state, operation)
    if what == "get":
        expected = ABSENT if answer == MISS else operation.value
        return (state,) if state == expected or not answer else ()
    if what == "remove":
        return _remove(state, answer)
    assert what == "exists", what
    return (state,) if not answer or (state != ABSENT) == (answer == OK) else ()


def _put(state: int, operation: Operation) -> Iterable[int]:
    if operation.answer == DUPLICATE:
        return (state,) if state != ABSENT else ()
    return (operation.value,) if state == ABSENT else ()


def _remove(state: int, answer: str) -> Iterable[int]:
    if answer == MISS:
        return (state,) if state == ABSENT else ()
    return (ABSENT,) if state != ABSENT else ()


def step_evicting(state: int, operation: Operation) -> Iterable[int]:
    """The same where objects may be evicted: a key may be gone at any moment."""
    return {*step(state, operation), *step(ABSENT, operation)}


def contended(history: Sequence[Operation]) -> list[Operation]:
    """The history of one key, with DUPLICATE and NOT_READY as CONTENDED where another put overlaps in time."""
    puts = [operation for operation in history if operation.what == "put"]
    return [operation._replace(answer=CONTENDED) if _meets(operation, puts) else operation for operation in history]


def _meets(operation: Operation, puts: list[Operation]) -> bool:
    if operation.answer not in (DUPLICATE, NOT_READY):
        return False
    return any(
        put is not operation and put.called < operation.returned and operation.called < put.returned for put in puts
    )
