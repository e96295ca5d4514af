"""Runs launches: the waves of all workgroups take turns at random.

    machine = Machine(seed=1)
    machine.run(compiled.asm["amdgcn"], grid=(8, 1, 1), arguments=[tensor.data_ptr(), 5], warps=1)

A wave goes on until an instruction that others may notice (an access to memory, a wait, a barrier); then another may be
chosen. Equal seeds give equal schedules.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.arguments import Grid, packed
from nanokv.device.emulation.errors import Malformed, NoProgress, Unsupported
from nanokv.device.gcn.caches import CachedMemory
from nanokv.device.gcn.coherence import CoherentMemory
from nanokv.device.gcn.memory import HostMemory
from nanokv.device.gcn.module import Kernel
from nanokv.device.gcn.program import Program, translated
from nanokv.device.gcn.registers import LANES
from nanokv.device.gcn.wave import Wave, Workgroup

Bytes = npt.NDArray[np.uint8]
LDS_BYTES = 65536  #: per workgroup, at most


class Machine:
    """A GPU of kind gfx942, without clocks.

    Args:
        seed: of the schedule.
        weak: memory operations are late, and caches keep and show what they may (`caches`); else memory is coherent.
        resident: workgroups that run at a time, at most; None: all.
        burst: turns of a wave before another one may go on, on average.
        host: the memory; None: all that this process has mapped.
        limit: instructions of a launch.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        weak: bool = False,
        resident: int | None = None,
        burst: float = 3.0,
        host: HostMemory | None = None,
        limit: int = 100_000_000,
    ) -> None:
        self.dice = Random(seed)
        host = host if host is not None else HostMemory()
        self.memory = CachedMemory(host, self.dice) if weak else CoherentMemory(host)
        self.late = 0.5 if weak else 0.0  #: the chance that an operation accesses memory after its issue
        self.resident, self.burst, self.limit = resident, burst, limit
        self.instructions = 0
        self.launches: Counter[str] = Counter()

    def run(self, text: str, grid: Grid, arguments: Sequence[int | float], warps: int = 1, lds_bytes: int = 0) -> None:
        """Launch a kernel and wait for it.

        Args:
            text: AMDGCN of a module with one kernel.
            grid: workgroups along each axis.
            arguments: as the kernel declares them, without what the launch adds (hidden arguments).
            warps: waves of a workgroup.
            lds_bytes: of a workgroup; what the kernel declares is the least.

        Raises:
            EmulatorError: a kernel did what it must not do, or does not end.
        """
        program = translated(text)
        kernel = program.kernel
        self.launches[kernel.name] += 1
        segment = kernarg(kernel, grid, warps, arguments)
        own: list[npt.NDArray[Any]] = [segment, *kernel.constants.values()]
        self.memory.host.begin(*map(np.lib.array_utils.byte_bounds, own))
        lds = max(lds_bytes, kernel.settings.get("group_segment_fixed_size", 0))
        x, y, z = (range(count) for count in grid)
        places = [(i, j, k) for k in reversed(z) for j in reversed(y) for i in reversed(x)]
        waves: list[Wave] = []
        over: list[Wave] = []
        resident, executed, workgroups = self.resident or len(places), 0, 0
        with np.errstate(all="ignore"):
            while places or waves:
                while places and workgroups < resident:
                    waves += self._start(program, places.pop(), warps, lds, segment)
                    workgroups += 1
                executed += self._turn(program, waves)
                if executed > self.limit:
                    raise NoProgress(f"{kernel.name}: more than {self.limit} instructions")
                for wave in [wave for wave in waves if wave.ended]:
                    waves.remove(wave)
                    over.append(wave)
                    workgroups -= not wave.workgroup.live
                if over:
                    self.dice.choice(over).stir()
            for wave in over:
                wave.complete()
            self.memory.end()
        self.instructions += executed

    def _turn(self, program: Program, waves: list[Wave]) -> int:
        """One wave goes on for a while; returns how many instructions it executed."""
        ready = [wave for wave in waves if not wave.at_barrier]  # never empty: the last to arrive opens a barrier
        wave = ready[int(self.dice.random() * len(ready))]
        executed = 0
        while not (wave.ended or wave.at_barrier):
            executed += program.run_on(wave)
            wave.stir()
            self.memory.stir()
            if self.dice.random() * self.burst < 1.0 or executed > self.limit:
                break
        return executed

    def _start(self, program: Program, place: Grid, warps: int, lds_bytes: int, segment: Bytes) -> list[Wave]:
        workgroup = Workgroup(place, warps, min(lds_bytes, LDS_BYTES))
        made = [Wave(program, workgroup, number, self.memory, self.dice, self.late) for number in range(warps)]
        for wave in made:
            set_up(wave, program.kernel, segment)
        return made


def kernarg(kernel: Kernel, grid: Grid, warps: int, arguments: Sequence[int | float]) -> Bytes:
    """The segment with a launch's arguments, as the code object's metadata lays it out."""
    hidden: dict[str, int] = {"hidden_grid_dims": 3}
    for axis, count in zip("xyz", grid, strict=True):
        hidden[f"hidden_block_count_{axis}"] = count
        hidden[f"hidden_group_size_{axis}"] = warps * LANES if axis == "x" else 1
        hidden[f"hidden_remainder_{axis}"] = hidden[f"hidden_global_offset_{axis}"] = 0
    ends = [argument.offset + argument.size for argument in kernel.arguments]
    size = max([kernel.settings.get("kernarg_size", 0), *ends])
    segment = np.zeros(size + 16, np.uint8)  # room to begin at a multiple of 16
    segment = segment[-segment.ctypes.data % 16 :][:size]
    given = list(arguments)
    for argument in kernel.arguments:
        if argument.kind.startswith("hidden_"):
            if argument.kind not in hidden:
                continue  # zero: this machine has no host calls, heaps or queues
            value: int | float = hidden[argument.kind]
        elif given:
            value = given.pop(0)
        else:
            value = 0  # scratch of Triton, which these kernels do not use
        raw = packed(value, argument.size)
        segment[argument.offset :][: argument.size] = np.frombuffer(raw, np.uint8)
    if given:
        raise Malformed(f"{kernel.name}: {len(given)} arguments too many")
    return segment


def set_up(wave: Wave, kernel: Kernel, segment: Bytes) -> None:
    """What a wave finds in its registers (LLVM, "User Guide for AMDGPU Backend", initial kernel execution state)."""
    settings, scalars = kernel.settings, wave.scalar
    at = 0
    for name in ("private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr", "dispatch_id"):
        if settings.get(f"user_sgpr_{name}"):
            if name != "kernarg_segment_ptr":
                raise Unsupported(f"{kernel.name} wants its {name}, which this machine does not have")
            wave.set_scalar(at, segment.ctypes.data, 2)
            at += 2
    first = settings.get("user_sgpr_kernarg_preload_offset", 0)
    count = settings.get("user_sgpr_kernarg_preload_length", 0)
    scalars[at : at + count] = segment.view(np.uint32)[first : first + count].tolist()
    at = settings.get("user_sgpr_count", at + count)
    for axis, place in zip("xyz", wave.workgroup.place, strict=True):
        if settings.get(f"system_sgpr_workgroup_id_{axis}"):
            scalars[at] = place
            at += 1
