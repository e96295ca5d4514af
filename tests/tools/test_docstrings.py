"""A docstring begins with a verb or names its subject: it is understood without its neighbours."""

import ast
import re

import pytest

from tests.tools.test_inner_surface import ROOT, files

_LEANS = re.compile(
    r"(Of|It|Its|Those|That of|Their|Whose|For|As|The same (as|for|with)|Likewise|So|And|But|Also|With|Without|In|On|"
    r"By|Until|See above)\b|The \w+'s\.$"
)


@pytest.mark.parametrize("room", ["nanokv", "device", "host_poller", "compat_v1", "bench", "examples"])
def test_no_docstring_leans_on_what_stands_around_it(room: str) -> None:
    found = []
    for file in files():
        if file.relative_to(ROOT).parts[0] == room:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    text = ast.get_docstring(node) or ""
                    if _LEANS.match(text):
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}")
    assert found == []
