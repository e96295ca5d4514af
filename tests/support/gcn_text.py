"""Texts of gfx942 kernels, and waves that execute them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
from triton.backends.amd import compiler

from nanokv.device.gcn.coherence import CoherentMemory
from nanokv.device.gcn.memory import HostMemory
from nanokv.device.gcn.module import read
from nanokv.device.gcn.operands import registers
from nanokv.device.gcn.program import Program
from nanokv.device.gcn.registers import LANES, MASK64, named
from nanokv.device.gcn.wave import Wave, Workgroup

KERNEL = """
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
\t.text
\t.globl\tkernel
\t.p2align\t8
\t.type\tkernel,@function
kernel:
{code}
\ts_endpgm
.Lend:
\t.size\tkernel, .Lend-kernel
{others}
\t.amdhsa_kernel kernel
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {private}
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_kernarg_size {size}
\t\t.amdhsa_next_free_vgpr 64
\t\t.amdhsa_next_free_sgpr 96
\t\t.amdhsa_accum_offset 64
\t.end_amdhsa_kernel
\t.amdgpu_metadata
amdhsa.kernels:
  - .args:
{arguments}
    .group_segment_fixed_size: {lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: {size}
    .max_flat_workgroup_size: 1024
    .name: kernel
    .private_segment_fixed_size: {private}
    .sgpr_count: 96
    .symbol: kernel.kd
    .vgpr_count: 64
    .wavefront_size: 64
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.version: [1, 2]
\t.end_amdgpu_metadata
"""


@cache
def module(code: str, arguments: int = 1, lds: int = 0, private: int = 0, others: str = "") -> str:
    """A module whose kernel has some lines of code and arguments of 64 bits; LLVM's assembler has accepted it.

    s[0:1] point to the arguments, s2 is the number of the workgroup, v0 that of the lane.

    Args:
        others: functions and constants; lines of text.
    """
    listed = "\n".join(
        f"      - .offset: {8 * n}\n        .size: 8\n        .value_kind: by_value" for n in range(arguments)
    )
    text = KERNEL.format(code=code, arguments=listed, size=8 * arguments, lds=lds, private=private, others=others)
    if hasattr(compiler, "assemble_amdgcn"):  # Triton has it from 3.9 on
        assert compiler.assemble_amdgcn(text, "gfx942", "")
    return text


def executed(
    code: str | Sequence[str],
    values: Mapping[str, Any],
    *,
    exec_: int = MASK64,
    lds: int = 0,
    private: int = 0,
    others: str = "",
) -> Wave:
    """A wave that has executed some lines.

    Args:
        code: of the kernel, without its end.
        values: register -> what it holds before: an integer, or one per lane; of one register or a pair.
        exec_: the lanes that act.
    """
    lines = code if isinstance(code, str) else "\n".join(code)
    program = Program(read(module(lines, lds=lds, private=private, others=others)))
    wave = Wave(program, Workgroup((0, 0, 0), 1, lds), 0, CoherentMemory(HostMemory()), Random(0), 0.0)
    for name, value in values.items():
        write(wave, name, value)
    wave.set_exec(exec_)
    with np.errstate(all="ignore"):
        while not wave.ended:
            program.run_on(wave)
    return wave


def write(wave: Wave, name: str, value: Any) -> None:
    """Set a register, whatever EXEC says."""
    if name == "scc":
        wave.scc = value
        return
    found = named(name)
    assert found is not None, name
    if not found.vector:
        wave.set_scalar(found.first, value, found.count)
        return
    lanes = [int(each) for each in np.broadcast_to(np.array(value, object), LANES)]
    for n in range(found.count):
        wave.vector[found.row + n] = [each >> 32 * n & 0xFFFFFFFF for each in lanes]


def lanes_of(wave: Wave, name: str) -> list[int]:
    """What each lane of a register, or of a pair of them, holds."""
    count = 2 if "[" in name else 1
    row = registers(name, count).row
    return [sum(int(wave.vector[row + n, lane]) << 32 * n for n in range(count)) for lane in range(LANES)]


def float_bits(values: Iterable[float]) -> list[int]:
    """The bits of float32 numbers."""
    return [int(bits) for bits in np.array(list(values), np.float32).view(np.uint32)]
