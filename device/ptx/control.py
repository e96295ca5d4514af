"""The flow of control: bra, call, ret, exit, trap, and barriers.

A call copies its arguments to the places of the callee's parameters; registers of a function exist once, and so do its
parameters, as there is no recursion. The block behind the call begins with the pseudo instruction `results`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import Array
from nanokv.device.ptx.lanes import all_together
from nanokv.device.ptx.operands import FunctionName, Group, Immediate, Instruction, Operand, ParamVariable
from nanokv.device.ptx.program import Program
from nanokv.device.ptx.writer import Writer, helper, known, opcode

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

ENDS = ("bra", "ret", "exit", "trap", "call")  #: instructions that end a block
CONVERGENT = ("shfl", "vote", "redux", "match", "elect", "bar", "barrier", "mma", "ldmatrix", "stmatrix")


def is_barrier(i: Instruction) -> bool:
    """Whether warps of a CTA wait for each other here."""
    return i.opcode in ("bar", "barrier") and "warp" not in i.modifiers


def callee(program: Program, i: Instruction) -> tuple[str, list[ParamVariable], list[ParamVariable]]:
    """(name, arguments, results) of a call."""
    groups = [operand for operand in i.operands if isinstance(operand, Group)]
    names = [operand for operand in i.operands if isinstance(operand, FunctionName)]
    if len(names) != 1 or {*i.modifiers} - {"uni"}:
        raise Unsupported("an indirect call")
    first = i.operands.index(names[0])
    results = [each for group in groups for each in _variables(group) if i.operands.index(group) < first]
    arguments = [each for group in groups for each in _variables(group) if i.operands.index(group) > first]
    return names[0].name, arguments, results


def _variables(group: Group) -> list[ParamVariable]:
    made = [item for item in group.items if isinstance(item, ParamVariable)]
    if len(made) != len(group.items):
        raise Unsupported("an argument that is no variable in .param space")
    return made


def copy_params(w: Writer, to: list[ParamVariable], of: list[ParamVariable]) -> None:
    """Copy what is read of the variables `to` from those of the other side."""
    if len(to) != len(of):
        raise Unsupported(f"{len(of)} arguments for {len(to)} parameters")
    for target, source in zip(to, of, strict=True):
        for offset, place in target.places.items():
            if offset not in source.places or source.places[offset].size != place.size:
                raise Unsupported(f"{target.name}+{offset}: not written as it is read")
            kind = f"u{8 * place.size}"
            w.write(place, w.read(source.places[offset], kind), kind)


@opcode("trap", "brkpt")
def _trap(w: Writer, i: Instruction) -> None:
    w.line(f"W.trap({w.lanes()}, {w.keep(i)})")


@opcode("results", "bra", "ret", "exit", "call")
def _elsewhere(w: Writer, i: Instruction) -> None:
    raise AssertionError(f"{i.opcode} is written with its block")


@helper
def failed(w: "Warp", i: Instruction, lanes: Array | None, *words: Array) -> None:
    """__assertfail: the message of a device_assert."""
    w.failed(i, lanes, [int(each[np.flatnonzero(lanes)[0] if lanes is not None else 0]) for each in words])


@helper
def went(w: "Warp", blocks: Array, lanes: Array | None) -> Any:
    """Where lanes go on after `ret`: one block, or one for each lane."""
    of = blocks if lanes is None else blocks[lanes]
    return int(of[0]) if (of == of[0]).all() else blocks.astype(np.int64)


@helper
def special(w: "Warp", name: str, dtype: Any) -> Array:
    """A special register."""
    return w.special(name).astype(dtype)


@helper
def arrive(w: "Warp", about: str, lanes: Array | None, number: int, threads: int) -> None:
    """bar.sync."""
    w.about = about
    w.arrive(lanes, number, threads)


@opcode("bar", "barrier")
def _barrier(w: Writer, i: Instruction) -> None:
    if "warp" in i.modifiers:
        known(i, "warp", "sync")
        all_together(w, i, i.operands[0])
        w.line(f"W.launch.memory.barrier((W,), {w.lanes()})")
        return
    known(i, "sync", "aligned", "cta")
    number, threads = (_immediate(i.operands, at) for at in range(2))
    if "sync" not in i.modifiers:
        raise Unsupported(f".{'.'.join(i.modifiers)}")
    w.tail.append(f"arrive(W, {i.about!r}, {w.lanes()}, {number}, {threads})")


def _immediate(operands: tuple[Operand, ...], at: int) -> int:
    if at >= len(operands):
        return 0
    operand = operands[at]
    if not isinstance(operand, Immediate):
        raise Unsupported("a barrier named by a register")
    return int(operand.value)


@opcode("nanosleep", "pragma", "griddepcontrol")
def _nothing(w: Writer, i: Instruction) -> None:
    """Time passes; launches do not overlap."""
