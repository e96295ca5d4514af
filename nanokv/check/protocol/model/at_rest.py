"""What must hold when all has come to rest.

When all tasks have ended or were killed, the production sweepers run natively on a copy of memory until they rest. Then
fsck must find nothing at all: everything that the dead held is back (I2, I5, I6). And no task may have counted anything
as corrupt: no scenario damages a word, so an operation that met impossible ones believed what it should have validated,
or another one left them there.
"""

from array import array

from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.check.report import CheckFailure
from nanokv.device.machines.native import NativeMachine
from nanokv.device.segment.layout import READY, unpack
from nanokv.fsck import check_segments
from nanokv.host_poller.index import HeaderIndex

MOST_SWEEPS = 60


def come_to_rest(world: SmallWorld) -> None:
    """Let the production sweepers run on a copy of memory until they have nothing to do; then fsck must be clean.

    Where no host code took part, the result depends on memory only: each content is checked once.
    """
    dead = world.deaths()
    content = (array("q", world.simulation.memory.words).tobytes(), *sorted(dead))
    if world.hosts or content not in world.sound:
        _check(world, dead)
        world.sound.add(content)


def _check(world: SmallWorld, dead: set[int]) -> None:
    views = world.segments.views()
    corrupt = [int(view.ctl[0]["corrupt"]) for view in views]
    if any(corrupt):
        raise CheckFailure(f"nothing is corrupt, and the segments count {corrupt}")
    bases = [int(view.raw.ctypes.data) for view in views]
    tables = [world.geometry.world_table(rank, 1, bases) for rank in range(world.geometry.world_size)]
    machines = [NativeMachine(world.geometry, table, views, lambda rank: None) for table in tables]
    if dead or world.hosts:
        used = {rank for rank, view in enumerate(views) if int(view.ctl[0]["hdr_head"])}
        _sweep(world, machines, sorted({0, *world.hosts, *used}))
    report = check_segments(views, mode="device", quiescent=True, alive=lambda rank, incarnation: rank not in dead)
    findings = [str(finding) for finding in report.findings if not _waits(str(finding), dead)]
    if findings:
        raise CheckFailure("fsck: " + "; ".join(findings))


def _waits(finding: str, dead: set[int]) -> bool:
    """Counts of operations of a dead rank stay until it attaches again."""
    return any(f"activity of rank {rank}" in finding for rank in dead)


def _sweep(world: SmallWorld, machines: list[NativeMachine], ranks: list[int]) -> None:
    for rank in ranks:
        if rank not in world.hosts:
            world.sweeper(rank)
        world.hosts[rank].machine.machine = machines[rank]
    hosts = [world.hosts[rank] for rank in ranks]
    for step in range(MOST_SWEEPS):
        for host in hosts:
            if host.poller is not None:
                host.poller.drain(1e6 + step)
            host.sweeper.step(1e6 + step)
        if step > 1 and not any(host.sweeper.pending for host in hosts):
            break
    else:
        raise CheckFailure(f"I6: the sweeper does not come to rest in {MOST_SWEEPS} sweeps")
    for rank, host in zip(ranks, hosts, strict=True):
        _check_index(host.sweeper.index, machines[rank], rank)


def _check_index(index: HeaderIndex, machine: NativeMachine, rank: int) -> None:
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    state = unpack("STATE", "state", headers["state"])
    want = [int(row["epoch"]) if at == READY.value else -1 for row, at in zip(headers, state, strict=True)]
    have = index.epochs().tolist()
    if want != have:
        raise CheckFailure(f"I5: the index of rank {rank} has epochs {have}, the headers have {want}")
    slots, rows = index.rows()
    for name in ("key_hash", "key_check", "payload_base", "bytes_total", "n_pages"):
        if (rows[name] != headers[slots][name]).any():
            raise CheckFailure(
                f"I5: the index of rank {rank} has {name} {rows[name]}, the headers have {headers[slots][name]}"
            )
