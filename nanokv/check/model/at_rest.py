"""What must hold when all has come to rest.

When all tasks have ended or were killed, the production sweepers run until they rest, natively, on a copy of memory;
then fsck must find nothing at all: what the dead held is back (I2, I5, I6).
"""

from array import array
from collections.abc import Callable
from typing import Any

from nanokv.check.model.small_world import Stage
from nanokv.check.report import CheckFailure
from nanokv.device.machines.native import NativeMachine
from nanokv.device.segment.layout import READY, unpack
from nanokv.fsck import check_segments

MOST_SWEEPS = 60


def come_to_rest(stage: Stage) -> None:
    """Let the production sweepers run until they have nothing to do, on a copy of memory; then fsck must be clean.

    Where no host code took part, what comes out depends on memory alone: each content is looked at once.
    """
    dead = stage.deaths()
    content = (array("q", stage.simulation.memory.words).tobytes(), *sorted(dead))
    if stage.hosts or content not in stage.sound:
        _look(stage, dead)
        stage.sound.add(content)


def _look(stage: Stage, dead: set[int]) -> None:
    views = stage.world.views()
    bases = [int(view.raw.ctypes.data) for view in views]
    ranks = range(stage.geometry.world_size)
    tables = [stage.geometry.world_table(rank, 1, bases) for rank in ranks]
    machines = [NativeMachine(stage.geometry, table, views, lambda rank: None) for table in tables]
    if dead or stage.hosts:
        _sweep(stage, machines, sorted({0, *stage.hosts}))
    alive: Callable[[int, int], bool] = lambda rank, incarnation: rank not in dead  # noqa: E731
    report = check_segments(views, mode="device", quiescent=True, alive=alive)
    findings = [str(finding) for finding in report.findings if not _waits(str(finding), dead)]
    if findings:
        raise CheckFailure("fsck: " + "; ".join(findings))


def _waits(finding: str, dead: set[int]) -> bool:
    """Counts of operations of a dead rank stay until it attaches again."""
    return any(f"activity of rank {rank}" in finding for rank in dead)


def _sweep(stage: Stage, machines: list[NativeMachine], ranks: list[int]) -> None:
    sweepers: list[tuple[Any, Any]] = []
    for rank in ranks:
        if rank not in stage.hosts:
            stage.sweeper(rank)
        bridge, sweeper, poller = stage.hosts[rank]
        bridge.machine = machines[rank]
        sweepers.append((sweeper, poller))
    for step in range(MOST_SWEEPS):
        for sweeper, poller in sweepers:
            if poller is not None:
                poller.drain(1e6 + step)
            sweeper.step(1e6 + step)
        if step > 1 and not any(sweeper.pending for sweeper, _ in sweepers):
            break
    else:
        raise CheckFailure(f"I6: the sweeper does not come to rest in {MOST_SWEEPS} sweeps")
    for rank, (sweeper, _) in zip(ranks, sweepers, strict=True):
        _check_index(sweeper, machines[rank], rank)


def _check_index(sweeper: Any, machine: NativeMachine, rank: int) -> None:
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    state = unpack("STATE", "state", headers["state"])
    want = [int(row["epoch"]) if at == READY.value else -1 for row, at in zip(headers, state, strict=True)]
    have = sweeper.index.epochs().tolist()
    if want != have:
        raise CheckFailure(f"I5: the index of rank {rank} has epochs {have}, the headers say {want}")
    slots, rows = sweeper.index.rows()
    for name in ("key_hash", "key_check", "payload_base", "bytes_total", "n_pages"):
        if (rows[name] != headers[slots][name]).any():
            raise CheckFailure(
                f"I5: the index of rank {rank} has {name} {rows[name]}, the headers {headers[slots][name]}"
            )
