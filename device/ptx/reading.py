"""Reads one instruction: its names are resolved by the scopes of PTX."""

import re
import struct
from typing import NamedTuple

from nanokv.device.ptx.errors import PtxError, Unsupported
from nanokv.device.ptx.kinds import size_of
from nanokv.device.ptx.operands import (
    Address,
    FunctionName,
    Group,
    Immediate,
    Instruction,
    KernelParam,
    Label,
    Negated,
    Operand,
    Pair,
    ParamVariable,
    Register,
    Sink,
    Special,
)
from nanokv.device.ptx.program import Program
from nanokv.device.ptx.statements import Statement

CALL = re.compile(r"(@\S+\s+)?call\b")
_INTEGER = re.compile(r"^[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"^[+-]?\d+\.\d*([eE][+-]?\d+)?$")
_SPECIAL = re.compile(
    r"^%(n?tid|n?ctaid)\.[xyz]$|^%(laneid|warpid|nwarpid|clock|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|lanemask_(eq|le|lt|ge|gt)|cluster_ctarank|cluster_nctarank|cluster_ctaid\.[xyz]|cluster_nctaid\.[xyz])$"
)

Entity = Register | ParamVariable | KernelParam | Immediate
Scope = dict[str, Entity]


class Pending(NamedTuple):
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


class Reader:
    """Reads one instruction."""

    def __init__(self, program: Program, pending: Pending, first: int) -> None:
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
        except PtxError as error:
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
                return Negated(register)
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
