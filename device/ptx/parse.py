"""From the text of a module to a `Program`: scopes and declarations.

Names are resolved here, by the scopes of PTX: inline assembly declares the same names again and again in its braces.
Places in .param space become registers, and each function has one set of registers: recursion is refused.
"""

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from nanokv.device.emulation.errors import EmulatorError, Malformed, Unsupported
from nanokv.device.ptx.kinds import DTYPES, size_of
from nanokv.device.ptx.operands import (
    Address,
    FunctionName,
    Group,
    Immediate,
    Instruction,
    KernelParam,
    Label,
    NegatedRegister,
    Operand,
    Pair,
    ParamVariable,
    Register,
    Sink,
    Special,
)
from nanokv.device.ptx.program import Declaration, Function, Program, declared, initial
from nanokv.device.ptx.statements import Statement, statements

# --- reads one instruction: its names are resolved by the scopes of PTX -----------------------
CALL = re.compile(r"(@\S+\s+)?call\b")
_INTEGER = re.compile(r"^[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"^[+-]?\d+\.\d*([eE][+-]?\d+)?$")
_SPECIAL = re.compile(
    r"^%(n?tid|n?ctaid)\.[xyz]$|^%(laneid|warpid|nwarpid|clock|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|lanemask_(eq|le|lt|ge|gt)|cluster_ctarank|cluster_nctarank|cluster_ctaid\.[xyz]|cluster_nctaid\.[xyz])$"
)

Entity = Register | ParamVariable | KernelParam | Immediate
Scope = dict[str, Entity]


class UnresolvedInstruction(NamedTuple):
    """An instruction whose labels are not known yet."""

    statement: Statement
    function: str
    scopes: tuple[Scope, ...]
    labels: tuple[dict[str, int], ...]
    results: bool = False  #: what follows a call: its results are copied to the caller


def split(text: str) -> list[str]:
    """Parts between the commas that stand outside of braces, brackets and parentheses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in (*parts, text[start:].strip()) if part]


class InstructionReader:
    """Reads one instruction."""

    def __init__(self, program: Program, pending: UnresolvedInstruction, first: int) -> None:
        self.program, self.pending, self.first = program, pending, first

    def instruction(self) -> Instruction:
        text, line, where = self.pending.statement.text, self.pending.statement.line, self.pending.statement.where
        try:
            guard, rest = None, text
            if rest.startswith("@"):
                name, rest = rest[1:].split(None, 1)
                register = self.operand(name.lstrip("!"))
                if not isinstance(register, Register):
                    raise Unsupported(f"the guard {name}")
                guard = register, name.startswith("!")
            name, _, operands = rest.partition(" ")
            opcode, *modifiers = name.split(".")
            made = tuple(self.operand(part) for part in split(operands))
            opcode = "results" if self.pending.results else opcode
            instruction = Instruction(opcode, tuple(modifiers), made, guard, text, line, where, self.pending.function)
            self.places(instruction)
            return instruction
        except EmulatorError as error:
            raise type(error)(f"{self.pending.function}, line {line}: `{text}` ({where}): {error}") from error

    def places(self, i: Instruction) -> None:
        """Make registers for the places in .param space that an instruction accesses."""
        if i.opcode not in ("ld", "st") or "param" not in i.modifiers:
            return
        address, value = (i.operands[1], i.operands[0]) if i.opcode == "ld" else i.operands[:2]
        if isinstance(address, Address) and isinstance(address.base, ParamVariable):
            places, size = address.base.places, size_of(i.modifiers[-1])
            for n in range(len(value.items) if isinstance(value, Group) else 1):
                at = address.offset + n * size
                if at not in places:
                    places[at] = self.program.register(f"{address.base.name}+{at}", f"b{8 * size}")
                elif places[at].size != size:
                    raise Unsupported(f"{address.base.name}+{at} is accessed by {size} and by {places[at].size} bytes")

    def operand(self, text: str) -> Operand:
        if text[0] in "{(":
            return Group(tuple(self.operand(part) for part in split(text[1:-1])))
        if text[0] == "[":
            return self.address(text[1:-1].strip())
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(first.strip()), self.operand(second.strip()))
        if text == "_":
            return Sink()
        if text[0] == "!":
            register = self.operand(text[1:].strip())
            if isinstance(register, Register):
                return NegatedRegister(register)
        return number(text) or self.name(text)

    def address(self, text: str) -> Address:
        match = re.fullmatch(r"([\w$.%]+)\s*(?:([+-])\s*([+-]?\w+))?", text)
        if match is None:
            raise Unsupported(f"the address [{text}]")
        offset = int((match[3] or "0").rstrip("U"), 0)
        return Address(self.operand(match[1]), -offset if match[2] == "-" else offset)

    def name(self, text: str) -> Operand:
        for scope in reversed(self.pending.scopes):
            if text in scope:
                return scope[text]
            family = re.match(r"(.*?)(\d+)$", text)
            if family and f"{family[1]}<" in scope:
                of = scope[f"{family[1]}<"]
                assert isinstance(of, Register)
                scope[text] = made = self.program.register(text, of.kind)
                return made
        for labels in reversed(self.pending.labels):
            if text in labels:
                return Label(text, self.first + labels[text])
        if _SPECIAL.match(text):
            return Special(text)
        offset = re.fullmatch(r"([\w$.]+)\s*\+\s*(\w+)", text)
        if offset:
            base = self.name(offset[1])
            if isinstance(base, Immediate):
                return Immediate(base.value + int(offset[2], 0))
        if CALL.match(self.pending.statement.text):
            return FunctionName(text)
        raise Unsupported(f"the operand {text}")


def number(text: str) -> Immediate | None:
    """A literal of PTX, or None."""
    if text[:2] in ("0f", "0F") and len(text) == 10:
        return Immediate(struct.unpack(">f", bytes.fromhex(text[2:]))[0], "f32")
    if text[:2] in ("0d", "0D") and len(text) == 18:
        return Immediate(struct.unpack(">d", bytes.fromhex(text[2:]))[0], "f64")
    if text == "WARP_SZ":
        return Immediate(32)
    if _INTEGER.match(text):
        digits = text.rstrip("U")
        octal = re.fullmatch(r"([+-]?)0([0-7]+)", digits)
        return Immediate(int(f"{octal[1]}0o{octal[2]}" if octal else digits, 0))
    return Immediate(float(text), "f64") if _DECIMAL.match(text) else None


# --- from statements to instructions -----------------------------------------------------------
_HEADER = re.compile(r"\.(entry|func)\s*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$.%]+)\s*(?:\((?P<params>[^)]*)\))?")
_REGISTERS = re.compile(r"([\w$%.]+)(?:<(\d+)>)?")


class _Parser:
    def __init__(self, ptx: str) -> None:
        self.program = Program(ptx)
        self.scopes: list[Scope] = [{}]
        self.labels: list[dict[str, int]] = [{}]
        self.function: Function | None = None
        self.bodies: dict[str, list[UnresolvedInstruction]] = {}
        self.dynamic: list[str] = []  #: shared memory whose size a launch says

    # declarations
    def statement(self, statement: Statement) -> None:
        kind, text = statement.kind, statement.text
        if kind == "function":
            self.begin(text)
        elif kind == "open":
            self.scopes.append({})
            self.labels.append({})
        elif kind == "close":
            self.close()
        elif kind == "label":
            self.labels[-1][text] = len(self.bodies[self.function.name]) if self.function else 0
        elif text.startswith(".reg"):
            self.declare_registers(text)
        elif text.startswith("."):
            self.directive(text)
        elif self.function is None:
            raise Malformed(f"line {statement.line}: `{text}` stands outside of a function")
        else:
            body = self.bodies[self.function.name]
            pending = UnresolvedInstruction(statement, self.function.name, tuple(self.scopes), tuple(self.labels))
            body.append(pending)
            if CALL.match(text):
                body.append(pending._replace(results=True))

    def close(self) -> None:
        if len(self.scopes) == 1:
            raise Malformed("a brace is closed that was not opened")
        self.scopes.pop()
        self.labels.pop()
        if len(self.scopes) == 1:
            self.function = None

    def begin(self, text: str) -> None:
        header = _HEADER.search(text)
        if header is None:
            raise Malformed(f"the head of a function: {text!r}")
        function = Function(header["name"], header[1] == "entry")
        self.scopes.append({})
        self.labels.append({})
        if function.entry:
            self.entry_params(header["params"] or "")
            threads = re.search(r"\.(?:req|max)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", text)
            if threads:
                if any(int(each or 1) != 1 for each in threads.groups()[1:]):
                    raise Unsupported(f"{function.name}: a CTA of more than one dimension")
                self.program.threads = int(threads[1])
        else:
            function.results = self.formal(header["results"] or "")
            function.params = self.formal(header["params"] or "")
            function.returns_to = self.program.register(f"{function.name}.returns_to", "b32")
        if function.name in self.bodies:
            raise Malformed(f"{function.name} has two bodies")
        self.function = self.program.functions[function.name] = function
        self.bodies[function.name] = []

    def entry_params(self, text: str) -> None:
        offset = 0
        for part in split(text):
            variable = re.match(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+.*?([\w$%]+)(?:\[(\d+)\])?$", part)
            if variable is None:
                raise Malformed(f"a parameter: {part!r}")
            size = DTYPES[variable[2]].itemsize
            offset += -offset % int(variable[1] or size)
            param = KernelParam(variable[3], variable[2], size * int(variable[4] or 1), offset)
            offset += param.size
            self.program.params.append(param)
            self.scopes[-1][param.name] = param

    def formal(self, text: str) -> list[ParamVariable]:
        made = []
        for part in split(text):
            variable = declared(part)
            if variable is None:
                raise Unsupported(f"a parameter of a function: {part!r}")
            made.append(ParamVariable(variable.name))
            self.scopes[-1][variable.name] = made[-1]
        return made

    def declare_registers(self, text: str) -> None:
        _, kind, rest = text.split(None, 2)
        kind = kind.lstrip(".")
        if kind not in DTYPES:
            raise Unsupported(f"registers of the type {kind}: `{text}`")
        for part in split(rest):
            name = _REGISTERS.fullmatch(part)
            if name is None:
                raise Unsupported(f"`{text}`")
            if name[2] is None:
                self.scopes[-1][name[1]] = self.program.register(name[1], kind)
            else:  # %r<10>: made when one is named
                self.scopes[-1][f"{name[1]}<"] = Register(name[1], kind, int(name[2]))

    def directive(self, text: str) -> None:
        variable = declared(text)
        if variable is not None:
            self.declare(variable)
        elif text.startswith((".global", ".const", ".shared", ".local", ".param")) or not re.match(
            r"\.(extern|visible|weak|func|pragma|entry|maxntid|reqntid|maxnreg|file|noreturn|alias)\b", text
        ):
            raise Unsupported(f"`{text[:200]}`")

    def declare(self, variable: Declaration) -> None:
        program, made = self.program, None
        if variable.space == "shared" and not variable.count:
            self.dynamic.append(variable.name)
            return
        if variable.space == "shared":
            program.shared_bytes += -program.shared_bytes % variable.align
            made = Immediate(program.shared_bytes)
            program.shared_bytes += variable.size
        elif variable.space == "local":
            program.local_bytes += -program.local_bytes % max(variable.align, 16)
            made = Immediate(program.local_bytes)
            program.local_bytes += variable.size
        elif variable.space == "param":
            self.scopes[-1][variable.name] = ParamVariable(variable.name)
            return
        else:
            program.variables[variable.name] = memory = initial(variable)
            made = Immediate(int(memory.ctypes.data))
        self.scopes[-1][variable.name] = made

    # code
    def finish(self) -> Program:
        program = self.program
        program.shared_bytes += -program.shared_bytes % 16
        for name in self.dynamic:
            self.scopes[0][name] = Immediate(program.shared_bytes)
        if sum(function.entry for function in program.functions.values()) != 1:
            raise Malformed(
                f"a module has one entry; here are {[f.name for f in program.functions.values() if f.entry]}"
            )
        for name in self.order():
            function = program.functions[name]
            function.first = len(program.code)
            for pending in self.bodies[name]:
                program.code.append(InstructionReader(program, pending, function.first).instruction())
            function.end = len(program.code)
        return program

    def order(self) -> list[str]:
        """Functions, those that are called before those that call them: lanes of a callee have the lower place."""
        done: list[str] = []

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                raise Unsupported(f"recursion: {' -> '.join((*path, name))}")
            if name in self.bodies and name not in done:
                for pending in self.bodies[name]:
                    if CALL.match(pending.statement.text):
                        for part in re.findall(r"[\w$.%]+", pending.statement.text):
                            visit(part, (*path, name))
                done.append(name)

        visit(self.program.name, ())
        return done


@lru_cache(maxsize=256)
def parse(ptx: str) -> Program:
    """A module, parsed once per text.

    Raises:
        Malformed: this is no module with one entry.
        Unsupported: a declaration or an operand that is not known.
    """
    parser = _Parser(ptx)
    for statement in statements(ptx):
        parser.statement(statement)
    return parser.finish()
