"""The text of a PTX module, cut into statements."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from nanokv.device.emulation.errors import Malformed

_FUNCTION = re.compile(r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?:entry|func)\b")
_LABEL = re.compile(r"\s*([\w$.%]+)\s*:(?!:)")
_LINE_DIRECTIVES = (".version", ".target", ".address_size", ".file")
_LOCATION = re.compile(r"^\s*\.loc\b(.*)")


class Statement(NamedTuple):
    """`kind` is "function" (a header whose body follows), "open", "close", "label", or "plain" (it ended with `;`)."""

    kind: str
    text: str
    line: int
    where: str  #: the line of the source


class _Scanner:
    """Puts statements together from the parts of lines between `;`, `{` and `}`."""

    def __init__(self) -> None:
        self.pending = ""
        self.line = 0  #: where the pending statement began
        self.inside = 0  #: braces open in it
        self.skipped = 0  #: braces open in a section of debugging information

    def part(self, part: str, line: int, where: str) -> Iterator[Statement]:
        if self.skipped:
            self.skipped += (part == "{") - (part == "}")
        elif part == ";" and not self.inside:
            yield from self._end("plain", where)
        elif part == "{" and not self.inside and not self.pending.strip():
            yield Statement("open", "{", line, where)
        elif part == "{" and not self.inside and _FUNCTION.match(self.pending.strip()):
            yield from self._end("function", where)
        elif part == "{" and self.pending.strip().startswith(".section"):
            self.pending, self.skipped = "", 1
        elif part == "}" and not self.inside and not self.pending.strip():
            yield Statement("close", "}", line, where)
        else:
            self.inside += (part == "{") - (part == "}")
            yield from self._more(part, line, where)

    def _more(self, part: str, line: int, where: str) -> Iterator[Statement]:
        while not self.pending.strip():
            self.pending, self.line = "", line
            label = _LABEL.match(part)
            if label is None:
                break
            yield Statement("label", label[1], line, where)
            part = part[label.end() :]
            if not part.strip():
                return
        self.pending += part

    def _end(self, kind: str, where: str) -> Iterator[Statement]:
        text = " ".join(self.pending.split())
        self.pending = ""
        if text:
            yield Statement(kind, text, self.line, where)


def statements(ptx: str) -> Iterator[Statement]:
    """The statements of a module, in their order.

    Raises:
        Malformed: the text ends within a statement.
    """
    scanner, where = _Scanner(), ""
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), ptx, flags=re.S)
    for number, raw in enumerate(text.split("\n"), 1):
        code, _, comment = raw.partition("//")
        location = _LOCATION.match(code)
        if location:
            where = comment.split("@[")[0].strip() or f"file:line:column {location[1].strip()}"
            continue
        if code.lstrip().startswith(_LINE_DIRECTIVES) and not scanner.pending.strip():
            continue
        for part in re.split(r"([;{}])", code + " "):
            if part:
                yield from scanner.part(part, number, where)
    if scanner.pending.strip():
        raise Malformed(f"the text ends within a statement that began in line {scanner.line}: {scanner.pending[:80]!r}")
