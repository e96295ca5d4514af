"""Docstrings are maps: that of a package names its modules, and each names only files and functions that are there."""

import ast
import re
from functools import cache
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


# --- what docstrings and comments name ----------------------------------------------------------
OTHERS = ("vllm", "iris", "mooncake")  # packages that docstrings name, and that are not ours


def sources(room: str) -> list[Path]:
    """The modules of a room, each once."""
    return [file for file in sorted((ROOT / room).rglob("*.py")) if not any(each.is_symlink() for each in file.parents)]


def is_there(path: str, file: Path) -> bool:
    """Whether a path that a file names is one of the project, of its package, or beside the file."""
    return any((start / path).exists() for start in (ROOT, ROOT / "nanokv", *list(file.parents)[:2]))


@cache
def names_in(module: Path) -> set[str]:
    """What a module defines or imports; of a package, what lies in it too."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found |= {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return found | (modules_of(module.parent) if module.name == "__init__.py" else set())


@cache
def modules() -> dict[str, list[Path]]:
    """Every module of the project, by its last name."""
    found: dict[str, list[Path]] = {}
    for file in [file for room in ROOMS for file in sources(room)]:
        found.setdefault(file.parent.name if file.name == "__init__.py" else file.stem, []).append(file)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_text_names_is_there(room: str) -> None:
    """Files in docstrings and comments; and where a module's docstring has `module.name`, the name in such a module."""
    gone = []
    for file in sources(room):
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        texts = [ast.get_docstring(tree) or ""]
        named = re.findall(r"`(?:\w+\.)?(\w+)\.([a-zA-Z]\w*)`", texts[0])
        gone += [
            f"{file.relative_to(ROOT)}: {module}.{name}"
            for module, name in named
            if module in modules()
            and module not in OTHERS
            and name != "py"
            and not any(name in names_in(each) for each in modules()[module])
        ]
        texts += [
            ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        texts += re.findall(r"(?:^|\s)#.*", source)
        paths = {path for text in texts for path in re.findall(r"`([\w./]+\.py)`|([\w/]+/\w+\.py)\b", text)}
        flat = {one or other for one, other in paths}
        gone += [
            f"{file.relative_to(ROOT)}: {path}"
            for path in sorted(flat)
            if path.split("/")[0] not in OTHERS and not is_there(path, file)
        ]
    assert gone == []
