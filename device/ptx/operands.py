"""What an instruction is made of, after parsing: names are resolved, nothing is text any more."""

from dataclasses import dataclass, field
from typing import TypeAlias

from nanokv.device.ptx.kinds import size_of


@dataclass(frozen=True, slots=True)
class Register:
    """A register. Those of different scopes and functions differ in their index."""

    name: str
    kind: str  #: as declared
    index: int

    @property
    def local(self) -> str:
        """The register's name in the Python that is made of a block."""
        return f"r{self.index}"

    @property
    def size(self) -> int:
        """Bytes; a predicate has 1."""
        return size_of(self.kind)


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number: an integer, or the value of a literal of `kind` f32 or f64."""

    value: int | float
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Special:
    """A special register: %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(eq=False, slots=True)
class ParamVariable:
    """A variable in the .param space of a function: each place in it that is accessed is a register."""

    name: str
    places: dict[int, Register] = field(default_factory=dict)  #: offset -> register


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of the entry."""

    name: str
    kind: str
    size: int  #: bytes
    offset: int  #: in the parameters of a launch


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function of the module, or one that is outside of it."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the code; `at` is the number of the instruction behind it."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]"""

    base: "Operand"
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """{a, b} or (a, b)"""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Pair:
    """a|b: a result and its predicate."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class NegatedRegister:
    """!p"""

    register: Register


Operand: TypeAlias = (
    Register
    | Immediate
    | Special
    | Sink
    | ParamVariable
    | KernelParam
    | FunctionName
    | Label
    | Address
    | Group
    | Pair
    | NegatedRegister
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: the first part of its name: `ld`.
        modifiers: the others: ("global", "b32").
        guard: the predicate and whether it is negated, or None.
        line: of the PTX, from 1.
        where: the line of the source, as the compiler noted it: "kernel.py:36:0".
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    text: str
    line: int
    where: str
    function: str

    @property
    def about(self) -> str:
        """The instruction as messages name it."""
        return f"{self.function}, line {self.line}: `{self.text}`" + (f" ({self.where})" if self.where else "")
