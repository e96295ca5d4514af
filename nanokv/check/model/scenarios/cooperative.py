"""Scenarios of one object that several CTAs put or get in parts, with a ticket."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import WHAT, Stage, digest
from nanokv.device.protocol import cooperative
from nanokv.device.protocol.cooperative import NOT_LAST
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD

A = 1  #: a key
EACH = 2  #: words of a part


def _ticket(stage: Stage) -> int:
    """A ticket lies in memory of the launching rank: here in the arena of rank 1, which nobody else uses."""
    return stage.world.bases[1] + stage.geometry.offsets["heap_base"]


@cache
def _row(words: int) -> Any:
    return np.array([0, *digest(A), words * WORD, 0, 0, *WHAT], np.int64)


def _request(stage: Stage, words: int) -> int:
    """A request for key A, as a private table."""
    row = _row(words)
    stage.simulation.table(row.ctypes.data, row.tolist())
    return int(row.ctypes.data)


def _put_in_parts(stage: Stage, ctas: int) -> None:
    begin, finish = stage.function(cooperative.begin_put_part), stage.function(cooperative.finish_put_part)
    source = stage.payload(A, 2, ctas * EACH)
    request, ticket, world = _request(stage, ctas * EACH), _ticket(stage), stage.world.table(0)
    copy = stage.simulation.vocabulary["copy_bytes"]

    def part(number: int) -> int:
        status, payload = begin(world, request, ticket, 7)
        if status == Status.OK:
            at = number * EACH * WORD
            copy(payload + at, source.ctypes.data + at, EACH * WORD)
        answer: int = finish(world, request, ticket, ctas)
        stage.ended()
        return answer

    for number in range(ctas):
        stage.spawn(f"cta{number}", lambda number=number: part(number))  # type: ignore[misc]


def _get_in_parts(stage: Stage, ctas: int) -> None:
    begin, finish = stage.function(cooperative.begin_get_part), stage.function(cooperative.finish_get_part)
    room = np.zeros(ctas * EACH, np.int64)
    request, ticket, world = _request(stage, len(room)), _ticket(stage), stage.world.table(0)
    copy = stage.simulation.vocabulary["copy_bytes"]

    def part(number: int) -> int:
        status, payload = begin(world, request, ticket)
        if status == Status.OK:
            at = number * EACH * WORD
            copy(room.ctypes.data + at, payload + at, EACH * WORD)
        answer: int = finish(world, request, ticket, ctas, 7)
        if answer == Status.OK:
            stage.results["version"] = stage.check(A, room)
        stage.ended()
        return answer

    for number in range(ctas):
        stage.spawn(f"cta{number}", lambda number=number: part(number))  # type: ignore[misc]


def _answers(stage: Stage) -> list[int]:
    said = [answer for name, answer in stage.results.items() if name.startswith("cta")]
    last = [answer for answer in said if answer != NOT_LAST.value]
    expect(len(last) == 1, f"{said}: one CTA is the last")
    newest = stage.simulation.memory.newest
    left = [newest(_ticket(stage) + at * WORD) for at in range(3)]
    expect(not any(left), f"the ticket is left with {left}")
    return last


def _put_whole(stage: Stage) -> None:
    (status,) = _answers(stage)
    expect(status in (Status.OK, Status.BUSY), f"a put in parts is answered {status}")  # BUSY: one did not wait
    there = stage.get(A)
    expect(there == ((Status.OK, 2) if status == Status.OK else (Status.MISS, 0)), f"{status}, and then {there}")


def _readers(stage: Stage) -> None:
    _put_in_parts(stage, 2)
    stage.spawn("reader", lambda: [stage.get(A) for _ in range(2)])


def _get_or_torn(stage: Stage) -> None:
    (status,) = _answers(stage)
    allowed = (Status.OK, Status.MISS, Status.TORN, Status.NOT_READY, Status.BUSY)
    expect(status in allowed, f"a get in parts is answered {status}")


def _put_for_parts(stage: Stage) -> None:
    expect(stage.put(A, 1, 2 * EACH) == Status.OK, "prepare")


def _get_and_replace(stage: Stage) -> None:
    _get_in_parts(stage, 2)
    stage.spawn("writer", lambda: (stage.remove(A), stage.put(A, 3, 2 * EACH)))


def _put_smaller(stage: Stage) -> None:
    expect(stage.put(A, 1, EACH) == Status.OK, "prepare")


def _size_or_busy(stage: Stage) -> None:
    (status,) = _answers(stage)
    expect(status in (Status.SIZE, Status.BUSY), f"a get in parts of an object of another size is answered {status}")


def _scenario(
    name: str,
    about: str,
    tasks: Callable[[Stage], Any],
    judge: Callable[[Stage], None],
    prepare: Callable[[Stage], None] = lambda stage: None,
) -> Scenario:
    return Scenario(name, about, small(2, 1, ranks=2), tasks, judge, prepare)


SCENARIOS = [
    _scenario(
        "get-parts-size",
        "two CTAs read an object of another size",
        lambda stage: _get_in_parts(stage, 2),
        _size_or_busy,
        _put_smaller,
    ),
    _scenario("put-parts", "one object put by three CTAs", lambda stage: _put_in_parts(stage, 3), _put_whole),
    _scenario("put-parts-read", "one object put by two CTAs, and read meanwhile", _readers, _put_whole),
    _scenario(
        "get-parts", "one object read by two CTAs while it is replaced", _get_and_replace, _get_or_torn, _put_for_parts
    ),
]
