"""A wave, its workgroup, and the launch that they belong to."""

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.gcn.coherence import CoherentMemory
from nanokv.device.gcn.outstanding import Operation, OperationQueue
from nanokv.device.gcn.registers import LANES, UNWRITTEN, RegisterFile

if TYPE_CHECKING:
    from nanokv.device.gcn.program import Program


class Workgroup:
    """What the waves of one workgroup share: its place in the grid, its LDS, and its barrier."""

    def __init__(self, place: tuple[int, int, int], waves: int, lds_bytes: int) -> None:
        self.place = place
        self.live = waves  #: waves that have not ended
        self.arrived: list[Wave] = []  #: waves at the barrier
        self.lds = np.zeros(lds_bytes, np.uint8)

    def open_barrier(self) -> None:
        """Let the waves go on if all that have not ended have arrived."""
        if len(self.arrived) == self.live:
            for wave in self.arrived:
                wave.at_barrier = False
            self.arrived.clear()


class Wave(RegisterFile):
    """64 lanes with one program counter."""

    def __init__(
        self, program: "Program", workgroup: Workgroup, number: int, memory: CoherentMemory, dice: Random, late: float
    ) -> None:
        super().__init__()
        self.program, self.workgroup, self.memory = program, workgroup, memory
        self.number = number  #: within the workgroup
        self.pc = program.kernel.entry
        self.at_barrier = self.ended = False
        self.vm, self.lgkm = OperationQueue("vmcnt"), OperationQueue("lgkmcnt")
        self._dice, self._late = dice, late
        words = program.kernel.settings.get("private_segment_fixed_size", 0) // 4
        self.private = np.full((words, LANES), UNWRITTEN, np.uint32)  #: memory of each lane (`private`)
        self.vector[0] = np.arange(LANES, dtype=np.uint32) + np.uint32(number * LANES)

    def issue(self, operation: Operation) -> None:
        """Issue an operation of vector memory: it accesses memory now, or perhaps later."""
        self.vm.issue(operation)
        if self._dice.random() >= self._late:
            self.vm.advance(operation)

    def stir(self) -> None:
        """Let some of the operations that wait access memory."""
        if self._late:
            for operation in self.vm.operations[:]:
                if not operation.done and self._dice.random() < self._late / 2:
                    self.vm.advance(operation)

    def arrive(self) -> None:
        """Wait for the other waves of the workgroup."""
        self.at_barrier = True
        self.workgroup.arrived.append(self)
        self.workgroup.open_barrier()

    def end(self) -> None:
        """s_endpgm: what was issued may still access memory later."""
        self.ended = True
        self.workgroup.live -= 1
        self.workgroup.open_barrier()

    def complete(self) -> None:
        """The launch is over: all that was issued has accessed memory."""
        self.vm.wait(0)
        self.lgkm.wait(0)
