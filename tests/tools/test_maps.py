"""The docstring of each package is a map: it names the modules that are there, and no other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("nanokv", "device", "host_poller", "compat_v1", "bench")
_LINE = re.compile(r"^ *((?:[a-z]\w*)(?:, [a-z]\w*)*) {2,}\S", re.M)  # names, and what is in them


def packages() -> list[Path]:
    """The folders of modules, each once."""
    found = [file.parent for room in ROOMS for file in sorted((ROOT / room).rglob("__init__.py"))]
    return [each for each in dict.fromkeys(found) if not any(part.is_symlink() for part in (each, *each.parents))]


def modules_of(package: Path) -> set[str]:
    """The names of a package's modules and packages."""
    files = {file.stem for file in package.glob("*.py")} - {"__init__", "__main__"}
    return files | {file.parent.name for file in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", packages(), ids=lambda package: str(package.relative_to(ROOT)))
def test_a_package_names_its_modules(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    modules, words = modules_of(package), set(re.findall(r"\w+", text))
    assert modules - words == set(), "modules that the docstring leaves out"
    named = {name for line in _LINE.findall(text) for name in line.split(", ")}
    named |= {name for name in re.findall(r"`(\w+)\.py`", text) if not (ROOT / f"{name}.py").exists()}
    gone = named - modules - {"__main__", "__init__"}
    assert gone == set(), "what the docstring names, and is not there"
