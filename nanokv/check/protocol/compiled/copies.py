"""Which loads of a program are those of copies: what they load is only stored again."""

from collections.abc import Iterator
from functools import lru_cache

from nanokv.device.ptx.memory_opcodes import is_global
from nanokv.device.ptx.operands import Address, Group, Instruction, Negated, Operand, Pair, Register
from nanokv.device.ptx.parse import parse

_WITHOUT_RESULT = ("st", "red", "bra", "bar", "barrier", "ret", "exit", "call", "trap", "fence")
_WEAK = {"relaxed", "acquire", "volatile"}  #: a load with none of these is weak, as those of `copy_bytes` are


@lru_cache(maxsize=256)
def copying_loads(ptx: str) -> frozenset[str]:
    """The weak loads of global memory whose registers only stores of global memory read, by `Instruction.about`."""
    code = parse(ptx).code
    computed = {register.index for i in code for register in _read(i)}
    return frozenset(
        i.about
        for i in code
        if i.opcode == "ld" and is_global(i) and not _WEAK & {*i.modifiers}
        if not computed & {register.index for register in _registers(i.operands[0])}
    )


def _read(i: Instruction) -> Iterator[Register]:
    """The registers that an instruction reads, except for the value that a store of global memory stores."""
    if i.guard is not None:
        yield i.guard[0]
    if i.opcode == "st" and is_global(i):
        yield from _registers(i.operands[0])
        return
    written = None if i.opcode in _WITHOUT_RESULT else i.operands[0] if i.operands else None
    for operand in i.operands:
        if operand is not written or isinstance(operand, Address):
            yield from _registers(operand)


def _registers(operand: Operand) -> Iterator[Register]:
    match operand:
        case Register():
            yield operand
        case Negated():
            yield operand.register
        case Address():
            yield from _registers(operand.base)
        case Group():
            for item in operand.items:
                yield from _registers(item)
        case Pair():
            yield from _registers(operand.first)
            yield from _registers(operand.second)
