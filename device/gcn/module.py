"""Reads the text that LLVM writes for one kernel of gfx942: instructions, labels, and what the launch must know.

Syntax: LLVM, "User Guide for AMDGPU Backend" and "Syntax of gfx940 Instructions". Directives that describe the kernel
(`.amdhsa_...`) and the metadata of its arguments are read; debug information gives each instruction its source line.
"""

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import Malformed

ENCODINGS = ("_e32", "_e64", "_dpp", "_sdwa")  #: suffixes that name an encoding, not an operation


class Statement(NamedTuple):
    """One instruction of the text."""

    text: str  #: without its comment
    name: str  #: the operation, without the suffix of its encoding
    encoding: str  #: "e32", "e64", "dpp", "sdwa" or ""
    operands: tuple[str, ...]
    modifiers: dict[str, str]  #: "offset:8 sc0" is {"offset": "8", "sc0": ""}
    source: str  #: "put.py:12:3", or "" if the text does not say


class Argument(NamedTuple):
    """One argument in the kernarg segment, written by the user or (hidden_...) by the launch."""

    offset: int
    size: int
    kind: str


class Kernel(NamedTuple):
    """A kernel as written: what it does, and what it expects of its launch."""

    name: str
    code: tuple[Statement, ...]  #: the kernel's, then that of the functions that it calls
    labels: dict[str, int]  #: label, or function -> index in `code`
    arguments: tuple[Argument, ...]
    settings: dict[str, int]  #: .amdhsa_NAME VALUE
    entry: int  #: where firmware that preloads arguments into SGPRs begins
    constants: dict[str, npt.NDArray[np.uint32]]  #: name -> words that the code reads beside its arguments


def read(text: str) -> Kernel:
    """The one kernel of a module's text.

    Raises:
        Malformed: the text has no kernel, or more than one.
    """
    names = re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", text, re.M)
    if len(names) != 1:
        raise Malformed(f"a module must have one kernel, not {names}")
    code, labels = _instructions(text, names[0])
    settings = {name: int(value, 0) for name, value in re.findall(r"^\s*\.amdhsa_(\w+)\s+(-?\w+)\s*$", text, re.M)
                if name != "kernel"}  # fmt: skip
    entry = 0
    if settings.get("user_sgpr_kernarg_preload_length"):
        # 256 bytes for firmware that does not preload: it loads the arguments, and branches to the kernel's body
        entry = next(labels[each.operands[0]] for each in code if each.name == "s_branch")
    return Kernel(names[0], code, labels, _arguments(text), settings, entry, _constants(text))


def _instructions(text: str, kernel: str) -> tuple[tuple[Statement, ...], dict[str, int]]:
    functions = re.findall(r"^\s*\.type\s+(\S+),@function", text, re.M)
    code: list[Statement] = []
    labels: dict[str, int] = {}
    for name in (kernel, *(each for each in functions if each != kernel)):
        labels[name] = len(code)
        source = ""
        for raw in _body(text, name).split("\n"):
            line, _, comment = raw.partition(";")
            line = line.strip()
            if line.startswith(".loc"):
                source = comment.split("@")[0].strip()
            elif line.endswith(":"):
                labels[line[:-1]] = len(code)
            elif line and not line.startswith("."):
                code.append(statement(line, source))
    return tuple(code), labels


def _body(text: str, function: str) -> str:
    name = re.escape(function)
    body = re.search(rf"^{name}:.*?$(.*?)^\s*\.size\s+{name},", text, re.M | re.S)
    if body is None:
        raise Malformed(f"the code of {function} does not end with a .size")
    return body[1]


def statement(line: str, source: str = "") -> Statement:
    """One line of the text, without comment: `global_load_dword v1, v2, s[2:3] offset:8 sc0`."""
    name, _, rest = line.partition(" ")
    encoding = next((suffix for suffix in ENCODINGS if name.endswith(suffix)), "")
    operation = name.removesuffix(encoding)
    if operation == "s_waitcnt":
        return Statement(line, operation, "", (), dict(re.findall(r"(\w+)\((\d+)\)", rest)), source)
    parts = re.split(r",(?![^\[(]*[\])])", rest) if rest.strip() else []
    operands = [part.strip() for part in parts]
    modifiers: dict[str, str] = {}
    if operands:
        operands[-1], *words = re.split(r"\s+(?![^\[(]*[\])])", operands[-1])
        if operands == [""] or re.fullmatch(r"sc[01]|nt", operands[0]):  # buffer_inv sc0 sc1
            words = [*operands, *words]
            operands = []
        modifiers = {key: value for key, _, value in (word.partition(":") for word in words if word)}
    return Statement(line, operation, encoding.removeprefix("_"), tuple(operands), modifiers, source)


def _constants(text: str) -> dict[str, npt.NDArray[np.uint32]]:
    objects = re.findall(r"^\s*\.type\s+(\S+),@object", text, re.M)
    found = re.findall(r"^([\w.$]+):[^\n]*\n((?:\s*\.long\s+\d+\s*\n)+)", text, re.M)
    return {name: np.array(lines.split()[1::2], np.uint32) for name, lines in found if name in objects}


def _arguments(text: str) -> tuple[Argument, ...]:
    metadata = re.search(r"^\s*\.amdgpu_metadata(.*?)^\s*\.end_amdgpu_metadata", text, re.M | re.S)
    if metadata is None:
        return ()
    pattern = r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)"
    return tuple(Argument(int(at), int(size), kind) for at, size, kind in re.findall(pattern, metadata[1]))
