"""Lets unmodified `kernel[grid](...)` calls run on the machine, on tensors of the CPU.

with as_triton_driver(Machine(seed=1)):
    my_kernel[(8,)](tensor, 5, num_warps=1)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.backends.compiler import GPUTarget

from nanokv.device.emulation.arguments import Grid
from nanokv.device.emulation.triton_driver import Driver, active
from nanokv.device.gcn.machine import LDS_BYTES, Machine
from nanokv.device.gcn.registers import LANES

_DEVICE = 1 << 17  #: the number of the device
_PROPERTIES = {"max_shared_mem": LDS_BYTES, "multiprocessor_count": 304, "warpSize": LANES, "max_num_regs": 512}


class GcnDriver(Driver):
    """Stands in for Triton's driver of AMD's GPUs."""

    backend = "amd"
    text = "amdgcn"
    binary = "hsaco"

    def __init__(self, machine: Machine, architecture: str) -> None:
        super().__init__(GPUTarget("hip", architecture, LANES), _DEVICE, _PROPERTIES)
        self._machine = machine

    def launch(self, text: str, grid: Grid, arguments: list[tuple[str, Any]], metadata: Any) -> None:
        words = [value.data_ptr() if hasattr(value, "data_ptr") else value for _, value in arguments]
        self._machine.run(text, grid, words, metadata.num_warps, metadata.shared)


@contextmanager
def as_triton_driver(machine: Machine, architecture: str = "gfx942") -> Iterator[Machine]:
    """Within, kernels of Triton are compiled for `architecture` and run on the machine."""
    with active(GcnDriver(machine, architecture)):
        yield machine
