"""A machine for PTX: runs compiled Triton kernels without a GPU, and says what is wrong with them.

    from nanokv.device import ptx
    report = ptx.run(kernel, (8,), tensor, 5, num_warps=1)      # or: with ptx.machine() as machine: kernel[(8,)](...)

A kernel is compiled by Triton for a GPU that is not there. Its PTX is cut into blocks, which become Python functions
over NumPy arrays of 32 lanes. Warps go on in random order, a block at a time, so that they interleave at each access to
global memory. docs/ptx.md says what is found and what is not.

Files, from the bottom up:

    kinds, operands             types of PTX; what instructions are made of
    statements, program         text cut into statements; a parsed module
    parse                       from statements to instructions
    writer                      from instructions to Python; the table of opcodes
    numbers, integers, bits, floats, conversions, lanes, matrices     groups of opcodes
    access, host_memory         the interface of memory; that of this process, with bounds
    spaces, memory_opcodes      shared, local and global memory, for blocks; the opcodes that access it
    control, blocks             branches, calls, barriers; a program cut into blocks
    counting, report            what a warp costs; what a machine says
    warp, launch, scheduler     lanes and their places; CTAs; `Machine`, which chooses the warp that goes on
    triton_driver               Triton's driver for the machine: `run`, `machine`
    fixtures                    for pytest

`nanokv.device.emulation` has what the machine for AMD's code needs too. Nothing here imports the rest of NanoKV, but
for the base of its errors.
"""

from nanokv.device.emulation.errors import (
    Divergence,
    Malformed,
    MemoryFault,
    Misaligned,
    NoProgress,
    Trap,
    Unsupported,
)
from nanokv.device.emulation.errors import (
    EmulatorError as PtxError,
)
from nanokv.device.ptx.access import Access, Late, Memory
from nanokv.device.ptx.counting import WarpCounts
from nanokv.device.ptx.host_memory import HostMemory, TensorMemory
from nanokv.device.ptx.launch import Cta, Launch
from nanokv.device.ptx.report import Finding, LaunchCounts, Report
from nanokv.device.ptx.scheduler import Machine
from nanokv.device.ptx.triton_driver import installed, machine, run
from nanokv.device.ptx.warp import Warp

__all__ = [
    "Access",
    "WarpCounts",
    "Cta",
    "Divergence",
    "Finding",
    "HostMemory",
    "Late",
    "Launch",
    "LaunchCounts",
    "Machine",
    "Malformed",
    "Memory",
    "MemoryFault",
    "Misaligned",
    "NoProgress",
    "PtxError",
    "Report",
    "TensorMemory",
    "Trap",
    "Unsupported",
    "Warp",
    "installed",
    "machine",
    "run",
]
