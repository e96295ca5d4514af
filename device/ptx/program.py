"""A parsed module: one entry, the functions that it calls, and the memory that it declares."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanokv.device.ptx.kinds import LANES, UNSIGNED, full
from nanokv.device.ptx.operands import Instruction, KernelParam, ParamVariable, Register


@dataclass
class Function:
    """The entry, or a function that is called.

    Attributes:
        first, end: its instructions are program.code[first:end].
        params, results: of a called function; the entry's are program.params.
        returns_to: a register that holds the block that each lane goes on with after `ret`.
    """

    name: str
    entry: bool
    first: int = 0
    end: int = 0
    params: list[ParamVariable] = field(default_factory=list)
    results: list[ParamVariable] = field(default_factory=list)
    returns_to: Register | None = None


@dataclass
class Program:
    """What a module says.

    Attributes:
        ptx: its text.
        threads: of a CTA.
        shared_bytes: declared statically; a launch may ask for more.
        local_bytes: of each lane, for all functions together: there is no recursion.
        variables: memory of the module by name, kept alive here; PTX holds their addresses.
    """

    ptx: str
    code: list[Instruction] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    params: list[KernelParam] = field(default_factory=list)
    threads: int = LANES
    shared_bytes: int = 0
    local_bytes: int = 0
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the entry."""
        return next(function.name for function in self.functions.values() if function.entry)

    def register(self, name: str, kind: str) -> Register:
        """A new register."""
        made = Register(name, kind, len(self.registers))
        self.registers.append(made)
        return made

    def poison(self) -> list[Any]:
        """What registers hold before they are written: a pattern that is seen, the same in every run."""
        words = {size: full(0xDEADBEEFDEADBEEF, dtype) for size, dtype in UNSIGNED.items()}
        false = np.zeros(LANES, bool)
        false.flags.writeable = False
        return [false if register.kind == "pred" else words[register.size] for register in self.registers]


_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?P<space>global|const|shared|local|param)"
    r"(?:\s+\.align\s+(?P<align>\d+))?\s+\.(?P<kind>[bsuf]\d+|pred)\s+(?P<name>[\w$.%]+)"
    r"(?P<count>\[\w*\])?(?:\s*=\s*(?P<values>.*))?$"
)


@dataclass(frozen=True)
class Declaration:
    """A variable, as it is declared."""

    space: str
    align: int
    element: int  #: bytes
    name: str
    count: int
    values: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.element * self.count


def declared(text: str) -> Declaration | None:
    """The variable that a statement declares, or None: it declares none in a form that is known."""
    match = _VARIABLE.match(text)
    if match is None:
        return None
    element = max(int(match["kind"][1:]) // 8, 1) if match["kind"] != "pred" else 1
    count = int(match["count"][1:-1] or "0", 0) if match["count"] else 1
    numbers = (match["values"] or "").strip("{} ")
    try:
        values = tuple(int(each, 0) for each in numbers.split(",")) if numbers else ()
    except ValueError:
        return None
    return Declaration(match["space"], int(match["align"] or element), element, match["name"], count, values)


def initial(variable: Declaration) -> Any:
    """Memory for a variable of the module, with its first content; aligned to 64 bytes."""
    words = np.array([each % (1 << 8 * variable.element) for each in variable.values], UNSIGNED[variable.element])
    raw = np.zeros(variable.size + 64, np.uint8)
    made = raw[-raw.ctypes.data % 64 :][: variable.size]
    made[: words.nbytes] = words.view(np.uint8)
    return made
