"""The parts of `nanokv check`, and how much of each is tried in the given seconds."""

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from nanokv.check.report import Row
from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from nanokv.config import Alloc


class Options(NamedTuple):
    """How much is to be checked, and where."""

    seconds: float  #: about how long a part may take
    heaps: tuple[str, ...]  #: "local", "shm"
    allocs: "tuple[Alloc, ...]"  #: "device", "host"
    device: str  #: of the segments of a `local` heap, and of litmus kernels
    seed: int
    target: str = "sm_90"  #: what compiled code is compiled for
    link: str = "wire"  #: how nodes exchange objects: "wire", "mapped" or "nixl"


def _threads(options: Options) -> list[Row]:
    from nanokv.check.machine.concurrency import run_concurrency

    if "local" not in options.heaps:
        return []
    share = options.seconds / len(options.allocs)
    return [
        row
        for alloc in options.allocs
        for row in run_concurrency(share, options.seed, alloc=alloc, device=options.device)
    ]


def _histories(options: Options) -> list[Row]:
    from nanokv.check.machine.histories.run import run_histories

    operations = max(int(options.seconds * OPERATIONS_A_SECOND), 1000)
    return run_histories(operations, options.seed, heaps=options.heaps, allocs=options.allocs)


def _kills(options: Options) -> list[Row]:
    from nanokv.check.machine.kills.run import run_kills

    if "shm" not in options.heaps or "device" not in options.allocs or not sys.platform.startswith("linux"):
        return []
    return run_kills(max(int(options.seconds * KILLS_A_SECOND), 8), options.seed)


def _model(options: Options) -> list[Row]:
    from nanokv.check.protocol.model.run import run_model

    return run_model(max(int(options.seconds * SCHEDULES_A_SECOND), 8), options.seed)


def _corruption(options: Options) -> list[Row]:
    from nanokv.check.machine.corruption.run import run_corruption

    return run_corruption(max(int(options.seconds * CASES_A_SECOND), 8), options.seed)


def _litmus(options: Options) -> list[Row]:
    from nanokv.check.machine.litmus import run_litmus

    return run_litmus(int(options.seconds * INSTANCES_A_SECOND), options.device)


def _mutants(options: Options) -> list[Row]:
    from nanokv.check.protocol.model.mutants.run import kill_mutants
    from nanokv.check.protocol.model.orderings import kill_orderings

    schedules = max(int(options.seconds * SCHEDULES_A_SECOND), 1000)
    return [kill_mutants(schedules, options.seed), kill_orderings(schedules, options.seed)]


def _compiled(options: Options) -> list[Row]:
    from nanokv.check.protocol.compiled.run import run_compiled

    return run_compiled(options.seconds, options.seed, options.target)


def _nodes(options: Options) -> list[Row]:
    from nanokv.check.nodes.run import run_nodes

    return run_nodes(options.seconds, options.seed, link=options.link)


def _wire(options: Options) -> list[Row]:
    from nanokv.check.wire.frames import run_wire

    return run_wire(max(int(options.seconds * FRAMES_A_SECOND), 1000), options.seed)


def _soak(options: Options) -> list[Row]:
    from nanokv.check.machine.soak.run import run_soak

    if "shm" not in options.heaps or "device" not in options.allocs or not sys.platform.startswith("linux"):
        return []
    # every wait for a rank is bounded; this is for a hang that nobody has thought of
    faulthandler.dump_traceback_later(options.seconds + SOAK_GRACE, exit=True)
    try:
        return run_soak(options.seconds, options.seed)
    finally:
        faulthandler.cancel_dump_traceback_later()


OPERATIONS_A_SECOND = 1000  #: in each way to record a history
KILLS_A_SECOND = 5
FRAMES_A_SECOND = 1000
CASES_A_SECOND = 8  #: of each kind of corruption
INSTANCES_A_SECOND = 40_000  #: of each litmus shape
SOAK_GRACE = 300.0  #: seconds after its time in which a soak must end
SCHEDULES_A_SECOND = 20  #: of each scenario, memory and scheduler

COMPILED = "compiled"  #: the part that compiles device functions for a GPU

#: checks of this machine: its compiler, its memory, its processes
MACHINE: dict[str, Callable[[Options], list[Row]]] = {
    "threads": _threads,
    "histories": _histories,
    "kills": _kills,
    "corruption": _corruption,
    "litmus": _litmus,
}
#: checks of the protocol itself, whose results are the same everywhere
PROTOCOL: dict[str, Callable[[Options], list[Row]]] = {
    "model": _model,
    "mutants": _mutants,
    COMPILED: _compiled,
}
#: checks of a cluster: processes, what is between them, and a registry; run by `--all` where its extra is installed
CLUSTER: dict[str, Callable[[Options], list[Row]]] = {"wire": _wire, "nodes": _nodes}
#: checks that are worth their time only if it is long: run if they are named, and not by `--all`
LONG: dict[str, Callable[[Options], list[Row]]] = {"soak": _soak}
PARTS = MACHINE | PROTOCOL | CLUSTER | LONG


def check_names(names: list[str]) -> None:
    """Refuse parts that cannot be run.

    Raises:
        InvalidArgument: a part is unknown, or needs a package that is not installed.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise InvalidArgument(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if any(name in PROTOCOL for name in names):
        need_greenlet()
    if COMPILED in names:
        need_triton()


def need_greenlet() -> None:
    """Raise InvalidArgument if the simulated machine cannot run."""
    if find_spec("greenlet") is None:
        raise InvalidArgument("the simulated machine needs greenlet: pip install 'nanokv[check]'")


def need_triton() -> None:
    """Raise InvalidArgument if device functions cannot be compiled for a GPU. No GPU is needed."""
    if find_spec("triton") is None:
        raise InvalidArgument("compiled code needs Triton, which there is for Linux: pip install 'triton>=3.6'")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise InvalidArgument("TRITON_INTERPRET is set: device functions are interpreted, not compiled; unset it")


def run_parts(names: list[str], options: Options, began: Callable[[str], None] = lambda name: None) -> Iterator[Row]:
    """Run parts one after the other. `began`: called with the name of each.

    Raises:
        InvalidArgument: as `check_names`.
    """
    check_names(names)
    for name in names:
        began(name)
        yield from PARTS[name](options)
