"""A program cut into blocks, which become Python functions at their first use.

A block ends behind each access to global memory and each barrier, where other warps may go on, before each label, and
behind each branch.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx import bits, conversions, floats, integers, lanes, matrices, memory_opcodes
from nanokv.device.ptx.control import CONVERGENT, ENDS, callee, copy_params, is_barrier
from nanokv.device.ptx.memory_opcodes import is_global
from nanokv.device.ptx.operands import Instruction, Label
from nanokv.device.ptx.parse import parse
from nanokv.device.ptx.program import Program
from nanokv.device.ptx.writer import EXIT, NAMES, Writer

GROUPS = (bits, conversions, floats, integers, lanes, matrices, memory_opcodes)  #: that register their opcodes


@dataclass(frozen=True)
class Style:
    """How a program is cut.

    Attributes:
        single: each instruction is a block, to be counted.
        split: each load of global memory is a block, so that its lanes may be parted.
        late: loads may be satisfied later.
    """

    single: bool = False
    split: bool = False
    late: bool = False


@dataclass(slots=True)
class Block:
    """Instructions code[first:end].

    Attributes:
        functions: for all lanes, and for some; None: not made yet.
        convergent: lanes that can still come are waited for.
        splits: it is a load whose lanes may be parted.
    """

    number: int
    first: int
    end: int
    convergent: bool = False
    splits: bool = False
    functions: list[Any] = field(default_factory=lambda: [None, None])


class Translation:
    """The blocks of a program in one style."""

    def __init__(self, program: Program, style: Style) -> None:
        self.program, self.style = program, style
        self.names = dict(NAMES)
        self.blocks: list[Block] = []
        self.starts: dict[int, int] = {}  #: number of an instruction -> block
        targets = {
            operand.at
            for i in program.code
            if i.opcode == "bra"
            for operand in i.operands
            if isinstance(operand, Label)
        }
        for function in sorted(program.functions.values(), key=lambda each: each.first):
            self._cut(function.first, function.end, targets)
        entry = next(function for function in program.functions.values() if function.entry)
        self.entry = self.starts.get(entry.first, EXIT)
        self.poison = program.poison()

    def _cut(self, first: int, end: int, targets: set[int]) -> None:
        start = first
        for at in range(first, end):
            i = self.program.code[at]
            alone = self.style.single or (self.style.split and i.opcode == "ld" and is_global(i))
            if at > start and (at in targets or i.opcode == "results" or alone):
                self._add(start, at)
                start = at
            if alone or is_global(i) or is_barrier(i) or i.opcode in ENDS:
                self._add(start, at + 1)
                start = at + 1
        if start < end:
            self._add(start, end)

    def _add(self, first: int, end: int) -> None:
        code = self.program.code[first:end]
        convergent = any(i.opcode in CONVERGENT for i in code)
        splits = len(code) == 1 and code[0].opcode == "ld" and is_global(code[0])
        self.starts[first] = len(self.blocks)
        self.blocks.append(Block(len(self.blocks), first, end, convergent, splits))

    def function(self, block: Block, masked: bool) -> Any:
        """The Python function of a block: for all lanes, or for those of a mask."""
        made = block.functions[masked]
        if made is None:
            source = self.source(block, masked)
            exec(compile(source, f"<{self.program.name}, block {block.number}>", "exec"), self.names)
            made = block.functions[masked] = self.names.pop("block")
        return made

    def source(self, block: Block, masked: bool) -> str:
        """The text of that function."""
        writer = Writer(self.names, masked, self.style.late)
        after = ""
        for at in range(block.first, block.end):
            i = self.program.code[at]
            if i.opcode in ("bra", "ret", "exit", "call", "results"):
                try:
                    after = self._leave(writer, i, at) or after
                except (Unsupported, KeyError) as error:
                    raise Unsupported(f"{i.about}: {error}") from error
            else:
                writer.instruction(i)
        return writer.source(after or f"return {self._at(block.end, block.first)}")

    def _at(self, instruction: int, within: int) -> int:
        """The block that begins with an instruction of the same function; behind its end lanes end."""
        function = next(f for f in self.program.functions.values() if f.first <= within < f.end)
        return self.starts[instruction] if instruction < function.end else EXIT

    def _leave(self, w: Writer, i: Instruction, at: int) -> str:
        """Write a branch, a call or a return: the statement that ends the block."""
        function = self.program.functions[i.function]
        if i.opcode in ("call", "results"):
            return self._call(w, i, at)
        w.guard_of = None
        if i.opcode == "ret" and function.returns_to is not None:
            if i.guard is not None:
                raise Unsupported("a guarded ret of a function")
            return f"return went(W, {w.read(function.returns_to, 'u32')}, {'mask' if w.masked else 'None'})"
        target = EXIT
        if i.opcode == "bra":
            if {*i.modifiers} - {"uni"} or not isinstance(i.operands[0], Label):
                raise Unsupported("this branch")
            target = self._at(i.operands[0].at, at)
        if i.guard is None:
            return f"return {target}"
        following = self._at(at + 1, at)
        w.guard_of = i.guard
        taken = w.let(w.lanes())
        w.guard_of = None
        every = "count(mask)" if w.masked else "32"
        number = w.let(f"count({taken})")
        one = f"{target} if {number} == {every} else {following}"
        return f"return {one} if {number} in (0, {every}) else ({taken}, {target}, {following})"

    def _call(self, w: Writer, i: Instruction, at: int) -> str:
        name, arguments, results = callee(self.program, i)
        w.guard_of = None
        if name == "__assertfail":
            if i.opcode == "call":
                words = ", ".join(
                    w.read(each.places[0], "u64" if each.places[0].size == 8 else "u32") for each in arguments
                )
                w.guard_of = i.guard
                w.line(f"failed(W, {w.keep(i)}, {w.lanes()}, {words})")
                w.guard_of = None
            return ""
        function = self.program.functions.get(name)
        if function is None or i.guard is not None:
            raise Unsupported(f"a call of {name}" if function is None else "a guarded call")
        if i.opcode == "results":
            copy_params(w, results, function.results)
            return ""
        copy_params(w, function.params, arguments)
        assert function.returns_to is not None
        w.write(function.returns_to, w.constant(self._at(at + 1, at), "u32"), "u32")
        return f"return {self.starts[function.first]}"


@lru_cache(maxsize=256)
def translation(ptx: str, style: Style) -> Translation:
    """The blocks of a module, cut once per text and style."""
    return Translation(parse(ptx), style)
