"""Histories of real threads and processes on the native machine, and whether they are linearizable for every key.

`recordings` has the ways to record, `key_model` the specification of a key, `linearizability` the search. There are few
keys, so that nearly every operation meets another one. There is memory for all objects and nothing is evicted: FULL,
and misses of keys that are there, would be wrong.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from nanokv.check.machine.histories.key_model import ABSENT, PLAIN, WorldKind, with_excuses
from nanokv.check.machine.histories.linearizability import NEVER, Operation, check
from nanokv.check.machine.histories.recorder import compiled_record, yielding_record
from nanokv.check.machine.histories.recordings import (
    History,
    record_compiled,
    record_killed,
    record_processes,
    record_threads,
)
from nanokv.check.machine.histories.timeline import explain
from nanokv.check.report import CheckFailure, Row
from nanokv.config import Alloc

MOST = 400_000  #: configurations per key
KILLED_SHARE = 8  #: a process that lingers after each load does so many times fewer operations


def run_histories(
    operations: int, seed: int, *, heaps: Sequence[str] = ("local", "shm"), allocs: Sequence[Alloc] = ("device", "host")
) -> list[Row]:
    """Record about `operations` operations in each way, and check them.

    Args:
        seed: of the calls; the machine decides which of them overlap.
    """
    rows = []
    if "local" in heaps:
        if "device" in allocs:
            rows.append(_checked("compiled threads", record_compiled(operations, seed, compiled_record())))
            rows.append(_checked("compiled, giving way", record_compiled(operations, seed, yielding_record())))
        for alloc in allocs:
            rows.append(_checked(f"threads, {alloc}", record_threads(operations, seed, alloc)))
    if "shm" in heaps and "device" in allocs:
        rows.append(_checked("processes", record_processes(operations, seed)))
        rows.append(_checked("killed processes", record_killed(max(operations // KILLED_SHARE, 1), seed)))
    return rows


def _checked(name: str, recorded: Iterator[History]) -> Row:
    row = Row("histories", name, unit="operations")
    with row.timed():
        explored = most = cut = keys = 0
        for history in recorded:
            keys = max(keys, len(history))
            for key, operations in history.items():
                row.tried += len(operations)
                cut += sum(operation.returned == NEVER for operation in operations)
                most = max(most, _overlap(operations))
                explored += check_key(key, operations)
        row.note = f"{keys} keys, up to {most} operations at once, {explored} configurations"
        if cut:
            row.note += f"; {cut} operations cut off by a kill"
    return row


def check_key(key: int, operations: Sequence[Operation], world: WorldKind = PLAIN) -> int:
    """Check the history of one key; returns how many configurations were explored.

    Raises:
        CheckFailure: it is not linearizable, or it could not be decided.
    """
    history, step = with_excuses(operations, world), world.step()
    verdict = check(history, step, ABSENT, MOST)
    if verdict.holds is None:
        raise CheckFailure(f"key {key}: undecided after {verdict.explored} configurations")
    if not verdict.holds:
        raise CheckFailure(f"key {key}: not linearizable; {explain(history, step, ABSENT, MOST)}")
    return verdict.explored


def _overlap(operations: Sequence[Operation]) -> int:
    """The most operations that were under way at once."""
    edges = sorted([(op.called, 1) for op in operations] + [(op.returned, -1) for op in operations])
    return int(np.cumsum([change for _, change in edges]).max(initial=0))
