"""The simulated memory, by litmus tests: every execution is tried, and exactly the outcomes of the model come out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import SHARED, Memory, MemoryFault, WeakMemory
from nanokv.device.sim.simulation import Simulation

pytestmark = pytest.mark.proved

X, Y, Z, FLAG = (SHARED + 8 * at for at in range(4))
Outcome = tuple[Any, ...]
Program = Callable[[Any], list[Callable[[], Any]]]


class Ops:
    """The vocabulary of a simulation, for programs written in Python."""

    def __init__(self, simulation: Simulation) -> None:
        self.load, self.store, self.cas, self.add, self.exchange, self.copy = (
            simulation.vocabulary[name] for name in ("load64", "store64", "cas64", "add64", "xchg64", "copy_bytes")
        )


def outcomes(memory: type[Memory], program: Program, *, last: tuple[int, ...] = ()) -> set[Outcome]:
    """The results of a program's tasks and the last words of some addresses, over all executions."""
    simulation = Simulation(memory)
    scheduler = Exhaustive()
    found = set()
    while (execution := scheduler.new_execution()) is not None:
        assert scheduler.executions < 50_000
        simulation.reset([0] * 8)
        for number, body in enumerate(program(Ops(simulation))):
            simulation.spawn(f"task{number}", body)
        try:
            simulation.run(execution)
        except Redundant:
            continue
        results = [task.result for task in simulation.tasks if task.result is not None]
        found.add((*results, *(simulation.memory.newest(address) for address in last)))
    return found


# --- shapes -----------------------------------------------------------------------------------
def message_passing(write: str, read: str) -> Program:
    def program(ops: Ops) -> list[Callable[[], Any]]:
        def writer() -> None:
            ops.store(X, 1, "relaxed")
            ops.store(FLAG, 1, write)

        return [writer, lambda: (ops.load(FLAG, read), ops.load(X, "relaxed"))]

    return program


def store_buffering(turn: str | None) -> Program:
    def program(ops: Ops) -> list[Callable[[], Any]]:
        def one(mine: int, other: int) -> int:
            ops.store(mine, 1, "release")
            if turn:
                ops.add(Z, 1, turn)
            value: int = ops.load(other, "acquire")
            return value

        return [lambda: one(X, Y), lambda: one(Y, X)]

    return program


def coherence(ops: Ops) -> list[Callable[[], Any]]:
    def writer() -> None:
        ops.store(X, 1, "relaxed")
        ops.store(X, 2, "relaxed")

    return [writer, lambda: (ops.load(X, "relaxed"), ops.load(X, "relaxed"))]


def release_sequence(middle: str) -> Program:
    """A read-modify-write by a third task between a release store and the acquire load."""

    def program(ops: Ops) -> list[Callable[[], Any]]:
        def writer() -> None:
            ops.store(X, 1, "relaxed")
            ops.store(FLAG, 1, "release")

        def other() -> None:
            if middle == "rmw":
                ops.cas(FLAG, 1, 2, "relaxed")
            elif ops.load(FLAG, "relaxed") == 1:
                ops.store(FLAG, 2, "relaxed")

        return [writer, other, lambda: (ops.load(FLAG, "acquire"), ops.load(X, "relaxed"))]

    return program


def two_writes_each(ops: Ops) -> list[Callable[[], Any]]:
    def writer(first: int, second: int, value: int) -> None:
        ops.store(first, value, "relaxed")
        ops.store(second, value, "relaxed")

    return [lambda: writer(X, Y, 1), lambda: writer(Y, X, 2)]


def independent_reads(sem: str) -> Program:
    def program(ops: Ops) -> list[Callable[[], Any]]:
        def read(first: int, second: int) -> Outcome:
            if sem == "rmw":
                return ops.add(first, 0, "acq_rel"), ops.add(second, 0, "acq_rel")
            return ops.load(first, sem), ops.load(second, sem)

        return [
            lambda: ops.store(X, 1, "release"),
            lambda: ops.store(Y, 1, "release"),
            lambda: read(X, Y),
            lambda: read(Y, X),
        ]

    return program


def validated_read(validate: Callable[[Any], int]) -> Program:
    """`header.still_ready`: a writer makes the state odd, changes two words, makes it even; a reader validates."""

    def program(ops: Ops) -> list[Callable[[], Any]]:
        def writer() -> None:
            ops.cas(FLAG, 0, 1, "acq_rel")
            ops.store(X, 1, "relaxed")
            ops.store(Y, 1, "relaxed")

        def reader() -> Outcome | None:
            before = ops.load(FLAG, "acquire")
            room = np.zeros(2, np.int64)
            ops.copy(room.ctypes.data, X, 16)
            after = validate(ops)
            return tuple(room.tolist()) if before == after == 0 else ("not valid",)

        return [writer, reader]

    return program


def read_then_release(sem: str) -> Program:
    """`pins.unpin`: bytes are copied, then the pin is given back; the next owner overwrites them."""

    def program(ops: Ops) -> list[Callable[[], Any]]:
        def reader() -> Outcome:
            room = np.zeros(1, np.int64)
            ops.copy(room.ctypes.data, X, 8)
            ops.add(FLAG, 1, sem)
            return (ops.load(room.ctypes.data, "relaxed"),)

        def writer() -> None:
            if ops.load(FLAG, "acquire") == 1:
                ops.store(X, 1, "relaxed")

        return [reader, writer]

    return program


# --- outcomes that may happen -----------------------------------------------------------------
def test_message_passing() -> None:
    assert outcomes(Memory, message_passing("relaxed", "relaxed")) == {((0, 0),), ((0, 1),), ((1, 1),)}
    strong = {((0, 0),), ((0, 1),), ((1, 1),)}
    assert outcomes(WeakMemory, message_passing("release", "acquire")) == strong
    for pair in (("relaxed", "acquire"), ("release", "relaxed"), ("relaxed", "relaxed")):
        assert outcomes(WeakMemory, message_passing(*pair)) == strong | {((1, 0),)}


def test_store_buffering_needs_the_turnstile() -> None:
    both_miss = (0, 0)
    assert both_miss not in outcomes(Memory, store_buffering(None))
    assert both_miss in outcomes(WeakMemory, store_buffering(None))
    assert outcomes(WeakMemory, store_buffering("acq_rel")) == {(0, 1), (1, 0), (1, 1)}
    assert both_miss in outcomes(WeakMemory, store_buffering("acquire"))
    assert both_miss in outcomes(WeakMemory, store_buffering("release"))


@pytest.mark.parametrize("memory", [Memory, WeakMemory])
def test_one_word_never_goes_back(memory: type[Memory]) -> None:
    assert outcomes(memory, coherence) == {((a, b),) for a in range(3) for b in range(a, 3)}


def test_a_read_modify_write_carries_a_release_on_and_a_store_does_not() -> None:
    broken = ((2, 0),)
    assert broken not in outcomes(WeakMemory, release_sequence("rmw"))
    assert broken in outcomes(WeakMemory, release_sequence("store"))
    assert broken not in outcomes(Memory, release_sequence("store"))


def test_stores_need_not_arrive_in_order() -> None:
    crossed = (1, 2)  # each word has the value of the task that wrote it first
    assert crossed not in outcomes(Memory, two_writes_each, last=(X, Y))
    assert crossed in outcomes(WeakMemory, two_writes_each, last=(X, Y))


def test_readers_may_see_two_writes_in_different_orders() -> None:
    different = ((1, 0), (1, 0))
    assert different not in outcomes(Memory, independent_reads("acquire"))
    assert different in outcomes(WeakMemory, independent_reads("acquire"))
    assert different not in outcomes(WeakMemory, independent_reads("rmw"))


def test_only_a_read_modify_write_validates() -> None:
    torn = {((0, 1),), ((1, 0),), ((1, 1),)}
    by_load = outcomes(WeakMemory, validated_read(lambda ops: ops.load(FLAG, "acquire")))
    by_rmw = outcomes(WeakMemory, validated_read(lambda ops: ops.add(FLAG, 0, "acq_rel")))
    assert by_load & torn and not by_rmw & torn
    assert not outcomes(Memory, validated_read(lambda ops: ops.load(FLAG, "acquire"))) & torn


def test_a_copy_may_be_late_until_a_release() -> None:
    assert ((1,),) in outcomes(WeakMemory, read_then_release("relaxed"))
    assert outcomes(WeakMemory, read_then_release("release")) == {((0,),)}


def test_a_failed_compare_and_swap_may_be_old() -> None:
    def program(ops: Ops) -> list[Callable[[], Any]]:
        def writer() -> None:
            ops.store(X, 1, "relaxed")
            ops.store(X, 2, "relaxed")

        return [writer, lambda: ops.cas(X, 2, 9, "acq_rel")]

    assert outcomes(Memory, program, last=(X,)) == {(0, 2), (1, 2), (2, 9)}
    assert outcomes(WeakMemory, program, last=(X,)) == {(0, 2), (1, 2), (2, 9)}
    late = outcomes(WeakMemory, lambda ops: [lambda: ops.store(X, 2, "relaxed"), lambda: ops.cas(X, 2, 9, "acq_rel")])
    assert late == {(0,), (2,)}


def test_nothing_comes_between_a_read_modify_write_and_what_it_read() -> None:
    def program(ops: Ops) -> list[Callable[[], Any]]:
        return [lambda: ops.store(X, 5, "relaxed"), lambda: ops.add(X, 1, "relaxed"), lambda: ops.add(X, 1, "relaxed")]

    values = outcomes(WeakMemory, program, last=(X,))
    assert {last for *_, last in values} == {2, 5, 6, 7} - {2} | {5}
    for _, one, two, last in [(None, *value) for value in values]:
        assert one != two, f"two additions read the same word: {one}, {two}, {last}"


@pytest.mark.parametrize("memory", [Memory, WeakMemory])
@pytest.mark.parametrize("address", [SHARED + 64, SHARED - 8, SHARED + 4, 8, -8])
def test_an_access_outside_is_an_error(memory: type[Memory], address: int) -> None:
    with pytest.raises(MemoryFault):
        outcomes(memory, lambda ops: [lambda: ops.load(address, "relaxed")])


def test_words_are_signed_and_wrap() -> None:
    simulation = Simulation(WeakMemory)
    ops = Ops(simulation)
    simulation.reset([2**63 - 1])
    assert ops.add(X, 1, "relaxed") == 2**63 - 1
    assert ops.cas(X, 2**63, 7, "relaxed") == -(2**63)
    assert simulation.memory.newest(X) == 7
