"""Calls: where code lies, and how a function is entered and left.

Code is not in memory here. The instruction n has the address CODE + 4 n; a register may hold one, and nothing else can
be entered. The address of a function, or of a constant in memory, is written as the distance from an s_getpc_b64
(`f@rel32@lo+4`, `f@rel32@hi+12`): the linker would compute it.
Source: AMD, "CDNA3 Instruction Set Architecture" (SOP1); LLVM, "User Guide for AMDGPU Backend".
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from nanokv.device.emulation.errors import MemoryFault, Unsupported
from nanokv.device.gcn.operands import scalar_source, scalar_target
from nanokv.device.gcn.registers import MASK32

if TYPE_CHECKING:
    from nanokv.device.gcn.module import Kernel, Statement
    from nanokv.device.gcn.wave import Wave

CODE = 1 << 40
BYTES = 4  #: per instruction
GET_PC, SWAP_PC, SET_PC = "s_getpc_b64", "s_swappc_b64", "s_setpc_b64"
INSTRUCTIONS = (GET_PC, SWAP_PC, SET_PC)
JUMPS = (SWAP_PC, SET_PC)
DISTANCE = re.compile(r"(.+)@rel32@(lo\+4|hi\+12)")
BEHIND = {"lo+4": 1, "hi+12": 2}  #: instructions that an s_getpc_b64 stands before the half of a distance


def address_of(index: int) -> int:
    """The address of an instruction."""
    return CODE + BYTES * index


def step(index: int, kernel: "Kernel") -> Callable[["Wave"], int | None]:
    """One of INSTRUCTIONS, which stands at `index`; it returns the index of the instruction that follows."""
    statement, after = kernel.code[index], address_of(index + 1)
    if statement.name == GET_PC:
        keep = scalar_target(statement.operands[0], 64)
        return lambda wave: keep(wave, after)
    *kept, target = statement.operands
    read = scalar_source(target, 64)
    write = scalar_target(kept[0], 64) if kept else None
    end = address_of(len(kernel.code))

    def jump(wave: "Wave") -> int:
        to = read(wave)
        if not CODE <= to < end or to % BYTES:
            raise MemoryFault(f"a jump to {to:#x}, where no code lies")
        if write is not None:
            write(wave, after)
        return (to - CODE) // BYTES

    return jump


def linked(index: int, kernel: "Kernel") -> "Statement":
    """The instruction at `index`, with a number in place of half of the distance to a function or constant.

    Raises:
        Unsupported: it does not stand behind an s_getpc_b64, or there is no such name.
    """
    statement = kernel.code[index]
    *others, last = statement.operands or ("",)
    match = DISTANCE.fullmatch(last)
    if match is None:
        return statement
    name, half = match.groups()
    start = index - BEHIND[half]
    if name in kernel.constants:
        there = kernel.constants[name].ctypes.data
    elif name in kernel.labels:
        there = address_of(kernel.labels[name])
    else:
        raise Unsupported(f"there is no {name} in this module")
    if start < 0 or kernel.code[start].name != GET_PC:
        raise Unsupported(f"the distance to {name} from somewhere")
    distance = there - address_of(start + 1)
    word = (distance if half == "lo+4" else distance >> 32) & MASK32
    return statement._replace(operands=(*others, hex(word)))
