"""Writes one block of PTX as a Python function over arrays of 32 lanes.

A block is a straight run of instructions. Its function reads registers from the list R into local names, computes, and
puts what it wrote back. There are two of each: for all lanes together (`mask` is None), and for some: what the other
lanes would have computed is thrown away when registers are put back.

Groups of opcodes (`integers`, `floats`, ...) register a writer per opcode with `@opcode`, and the functions that blocks
call with `@helper`. A writer names the modifiers that it knows; any other one is Unsupported.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import DTYPES, LANES, UNSIGNED, Array, full, is_float, size_of, unsigned
from nanokv.device.ptx.operands import (
    Address,
    Group,
    Immediate,
    Instruction,
    NegatedRegister,
    Operand,
    Register,
    Sink,
    Special,
)

Write = Callable[["Writer", Instruction], None]
F = TypeVar("F", bound=Callable[..., Any])

OPCODES: dict[str, Write] = {}  #: opcode -> what writes it

#: what blocks may name: helpers, types, constants
NAMES: dict[str, Any] = {
    "np": np,
    "where": np.where,
    "count": np.count_nonzero,
    **{f"T{kind}": dtype for kind, dtype in DTYPES.items()},
}

EXIT = -1  #: instead of a block: the lanes end


def opcode(*names: str) -> Callable[[Write], Write]:
    """Register what writes some opcodes."""

    def register(write: Write) -> Write:
        OPCODES.update(dict.fromkeys(names, write))
        return write

    return register


def helper(function: F) -> F:
    """Register a function that blocks call."""
    NAMES[function.__name__] = function
    return function


def known(i: Instruction, *allowed: str) -> None:
    """Refuse modifiers that are not among `allowed`."""
    strange = [each for each in i.modifiers if each not in allowed]
    if strange:
        raise Unsupported(f".{'.'.join(strange)}")


class Writer:
    """One block, while it is written.

    Args:
        names: the namespace of the program's blocks; constants are added to it.
        masked: for some lanes; the name `mask` tells which.
        late: a load may leave its registers to be filled later.
    """

    def __init__(self, names: dict[str, Any], masked: bool, late: bool = False) -> None:
        self.names, self.masked, self.late = names, masked, late
        self.lines: list[str] = []
        self.tail: list[str] = []  #: behind the registers that are put back
        self.incoming: dict[int, Register] = {}
        self.written: dict[int, Register] = {}
        self.guard_of: tuple[Register, bool] | None = None
        self.temporaries = 0

    def instruction(self, i: Instruction) -> None:
        """Write one."""
        if i.opcode not in OPCODES:
            hint = "; compile for capability=80, or with smaller tiles" if i.opcode in ("wgmma", "tcgen05") else ""
            raise Unsupported(f"{i.about}: unknown instruction {'.'.join((i.opcode, *i.modifiers))}{hint}")
        self.guard_of = i.guard
        try:
            OPCODES[i.opcode](self, i)
        except Unsupported as error:
            raise Unsupported(f"{i.about}: unknown: {error}") from error
        except (KeyError, ValueError, IndexError) as error:
            raise Unsupported(f"{i.about}: unknown form ({type(error).__name__}: {error})") from error

    def source(self, after: str) -> str:
        """The function, which returns the number of the next block, or (taken, target, other) where lanes part.

        Args:
            after: the statement that ends it.
        """
        loads = [f"{register.local} = R[{index}]" for index, register in self.incoming.items()]
        stores = [
            f"R[{index}] = where(mask, {register.local}, R[{index}])"
            if self.masked
            else f"R[{index}] = {register.local}"
            for index, register in self.written.items()
        ]
        if self.late and (self.incoming or self.written):
            loads.insert(0, f"if W.pending: W.settle({(*(self.incoming | self.written),)})")
        body = [*loads, *self.lines, *stores, *self.tail, after]
        return "def block(W, R, mask):\n" + "".join(f"    {line}\n" for line in body)

    # what writers of opcodes use
    def line(self, text: str) -> None:
        """A statement of the block."""
        self.lines.append(text)

    def temporary(self) -> str:
        """A name that no other instruction uses."""
        self.temporaries += 1
        return f"t{self.temporaries}"

    def let(self, expression: str) -> str:
        """The name of an expression's value."""
        name = self.temporary()
        self.line(f"{name} = {expression}")
        return name

    def keep(self, value: Any) -> str:
        """A name for an object that the block uses."""
        name = f"o{id(value)}"
        self.names[name] = value
        return name

    def constant(self, value: int | float, kind: str) -> str:
        """The name of a number in all lanes."""
        dtype = DTYPES[kind]
        if kind == "pred":
            made: Array = np.full(LANES, bool(value))
        elif isinstance(value, float):
            made = np.full(LANES, value, dtype)
        else:
            made = full(value, dtype)
        made.flags.writeable = False
        name = f"k_{kind}_{made.tobytes()[: dtype.itemsize].hex()}"
        self.names.setdefault(name, made)
        return name

    def read(self, operand: Operand, kind: str) -> str:
        """An expression: an operand as 32 lanes of a kind. A wider register gives its lower part."""
        match operand:
            case Register():
                return self._register(operand, kind)
            case NegatedRegister():
                return f"~{self._register(operand.register, kind)}"
            case Immediate():
                return self._immediate(operand, kind)
            case Special():
                return f"special(W, {operand.name!r}, T{kind})"
        raise Unsupported(f"the operand {operand}")

    def _register(self, register: Register, kind: str) -> str:
        self._incoming(register)
        if kind == "pred" or register.kind == "pred":
            if kind != register.kind:
                raise Unsupported(f"{register.name} of the type {register.kind} as {kind}")
            return register.local
        size, dtype = size_of(kind), DTYPES[kind]
        if size > register.size:
            raise Unsupported(f"{register.name} has {8 * register.size} bits, {8 * size} are wanted")
        narrow = register.local if size == register.size else f"{register.local}.astype(Tu{8 * size})"
        return narrow if dtype.kind == "u" else f"{narrow}.view(T{kind})"

    def _immediate(self, operand: Immediate, kind: str) -> str:
        value = operand.value
        if operand.kind == "int":
            if is_float(kind) and kind != "f16":
                raise Unsupported(f"the integer {value} as {kind}")
            return self.constant(value, kind)
        if is_float(kind):
            return self.constant(float(value), kind)
        if size_of(kind) != size_of(operand.kind):
            raise Unsupported(f"the number {value} as {kind}")
        bits = np.array(value, DTYPES[operand.kind]).view(UNSIGNED[size_of(kind)])
        return self.constant(int(bits), kind)

    def _incoming(self, register: Register) -> None:
        if register.index not in self.written:
            self.incoming.setdefault(register.index, register)

    def write(self, to: Operand, expression: str, kind: str, *, guarded: bool = True) -> None:
        """Assign an expression of a kind to a register. A wider one is filled with the sign, or with zeros.

        Args:
            guarded: keep the old value in lanes where the guard is false.
        """
        if isinstance(to, Sink):
            return
        if not isinstance(to, Register):
            raise Unsupported(f"a result in {to}")
        if (kind == "pred") != (to.kind == "pred"):
            raise Unsupported(f"{to.name} of the type {to.kind} for a result of the type {kind}")
        made = expression if kind == "pred" else self.widened(to, expression, kind)
        if guarded and self.guard_of is not None:
            self._incoming(to)
            made = f"where({self.guard()}, {made}, {to.local})"
        self.line(f"{to.local} = {made}")
        self.written[to.index] = to

    def widened(self, to: Register, expression: str, kind: str) -> str:
        """The words of a register that holds an expression of a kind."""
        dtype, size = DTYPES[kind], size_of(kind)
        if to.size < size:
            raise Unsupported(f"{to.name} has {8 * to.size} bits, the result {8 * size}")
        if to.size == size:
            return expression if dtype.kind == "u" else f"({expression}).view(Tu{8 * size})"
        if dtype.kind == "i":
            return f"({expression}).astype(Ts{8 * to.size}).view(Tu{8 * to.size})"
        words = f"({expression})" if dtype.kind == "u" else f"({expression}).view({'T' + unsigned(kind)})"
        return f"{words}.astype(Tu{8 * to.size})"

    def guard(self) -> str:
        """The guard of the instruction, as an expression."""
        assert self.guard_of is not None
        register, negated = self.guard_of
        return f"~{self.read(register, 'pred')}" if negated else self.read(register, "pred")

    def lanes(self) -> str:
        """An expression for the lanes that execute the instruction; "None": all."""
        if self.guard_of is None:
            return "mask" if self.masked else "None"
        return f"({self.guard()}) & mask" if self.masked else self.guard()

    def address(self, operand: Operand) -> str:
        """An expression: 32 addresses, in words of 64 bits."""
        if not isinstance(operand, Address):
            raise Unsupported(f"the address {operand}")
        base, offset = operand.base, operand.offset
        if isinstance(base, Immediate):
            return self.constant(int(base.value) + offset, "u64")
        if not isinstance(base, Register):
            raise Unsupported(f"the address {operand}")
        kind = "u64" if base.size == 8 else "u32"
        found = self.read(base, kind)
        if offset:
            found = f"({found} + {self.constant(offset, kind)})"
        return found if kind == "u64" else f"{found}.astype(Tu64)"

    @staticmethod
    def items(operand: Operand) -> list[Operand]:
        """The parts of a vector; a scalar is one part."""
        return list(operand.items) if isinstance(operand, Group) else [operand]
