"""Imports go one way, and no import creates a top-level package called `device`."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "nanokv.device"
BARE = ("device", "host_poller", "compat_v1")
LEAVES = ("nanokv.errors", "nanokv.seldom", "nanokv.types")

# the rooms of `nanokv`, lowest first: a room imports only rooms before it
FLOORS = (
    *("errors", "types", "arguments", "dtypes", "seldom"),
    *("device", "heap", "space", "host_poller"),
    *("background", "keys", "statistics", "allocation", "compat_v1", "config"),
    *("fsck", "saved", "transfer", "leaving", "cache"),
    *("blocks", "sequences", "cluster", "integrations"),
    *("check", "bench", "tools", "__main__"),
)

# the rooms of `nanokv.device`, lowest first: a room imports only rooms before it
ROOMS = (
    "sources",
    "emulation",
    "memory",
    "segment",
    "protocol",
    "native",
    "fabric",
    "wire",
    "kernels",
    "machines",
    "sim",
)
ON_TOP = ("", "library", "remote", "ptx", "gcn")  #: the public face; no room imports it

# the modules of the project that a package may import, besides itself
ALLOWED = {
    "nanokv.device": ("nanokv.errors",),
    "nanokv.device.emulation": ("nanokv.errors",),
    "nanokv.device.ptx": ("nanokv.errors", "nanokv.device.emulation"),
    "nanokv.device.gcn": ("nanokv.errors", "nanokv.device.emulation"),
    "nanokv.heap": ("nanokv.device", *LEAVES),
    "nanokv.space": ("nanokv.device", *LEAVES),
    "nanokv.host_poller": ("nanokv.device", "nanokv.heap", "nanokv.space", *LEAVES),
    "nanokv.errors": (),
    "nanokv.seldom": (),
    "nanokv.types": ("nanokv.errors",),
}


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, in the repository's root."""
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its full name, the folders behind the links included."""
    found = {}
    for folder, _, names in os.walk(ROOT / "nanokv", followlinks=True):
        for path in (Path(folder) / name for name in names if name.endswith(".py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_later(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)


def _nothing(node: ast.AST) -> bool:
    return False


def _statements(tree: ast.AST, left_out: Callable[[ast.AST], bool]) -> list[ast.stmt]:
    """Import statements of a module, but for those within what is left out."""
    found: list[ast.stmt] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not left_out(node):
            found += _statements(node, left_out)
    return found


@cache
def imports(name: str, left_out: Callable[[ast.AST], bool] = _nothing) -> frozenset[str]:
    """The modules of the project that a module names in its imports, but for those within what is left out."""
    found = set()
    for node in _statements(ast.parse(modules()[name].read_text()), left_out):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import in line {node.lineno}"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_all_modules_are_looked_at() -> None:
    assert {"nanokv", "nanokv.cache.cache", "nanokv.device.segment.layout", "nanokv.host_poller.poller"} <= set(
        modules()
    )
    assert {"nanokv.device.protocol.extent", "nanokv.device.segment.layout"} <= imports("nanokv.device.protocol.put")


@pytest.mark.skipif(not (ROOT / "device").is_dir(), reason="in an unpacked sdist no folder has such a name")
@pytest.mark.parametrize("bare", BARE)
def test_the_bare_names_are_refused(bare: str) -> None:
    result = run(f"import {bare}")
    assert result.returncode == 1
    assert f"ImportError: import nanokv.{bare}: the bare name `{bare}` would be a second copy of it" in result.stderr


def test_no_module_imports_a_bare_name() -> None:
    assert not [(name, other) for name in modules() for other in imports(name) for bare in BARE if inside(other, bare)]


@pytest.mark.exhaustive
def test_no_import_brings_a_bare_name_with_it() -> None:
    names = [name for name in sorted(modules()) if not name.endswith("__main__")]
    result = run(
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name in ('vllm', 'sglang', 'lmcache'), error\n"  # their own tests import those
        f"print([name for name in sys.modules if name.split('.')[0] in {BARE!r}])\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows_go_one_way(package: str) -> None:
    for name in (name for name in modules() if inside(name, package)):
        for other in (other for other in imports(name) if inside(other, "nanokv")):
            assert any(inside(other, allowed) for allowed in (package, *ALLOWED[package])), f"{name} imports {other}"


def test_integrations_are_on_top() -> None:
    for name in (name for name in modules() if not inside(name, "nanokv.integrations")):
        if any(inside(other, "nanokv.integrations") for other in imports(name)):
            assert any(inside(name, user) for user in ("nanokv.bench", "nanokv.tools.cli", "nanokv.tools.demo")), name


def test_every_room_has_its_floor() -> None:
    rooms = {name.split(".")[1] for name in modules() if name != "nanokv"}
    assert rooms == set(FLOORS) and len(FLOORS) == len(rooms)


@pytest.mark.parametrize("room", FLOORS)
def test_no_room_imports_a_later_one(room: str) -> None:
    earlier = [f"nanokv.{name}" for name in FLOORS[: FLOORS.index(room) + 1]]
    for name in (name for name in modules() if inside(name, f"nanokv.{room}")):
        for other in imports(name, _is_for_types) & modules().keys() - {"nanokv"}:
            assert any(inside(other, each) for each in earlier), f"{name} imports {other}"


def test_every_part_of_device_is_a_room_or_on_top() -> None:
    parts = {name.removeprefix("nanokv.device").lstrip(".").split(".")[0] for name in modules() if inside(name, DEVICE)}
    assert parts == {*ROOMS, *ON_TOP}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_of_device_imports_a_later_one(room: str) -> None:
    earlier = [f"{DEVICE}.{name}" for name in ROOMS[: ROOMS.index(room) + 1]]
    for name in (name for name in modules() if inside(name, f"{DEVICE}.{room}")):
        for other in (other for other in imports(name) if inside(other, DEVICE)):
            assert any(inside(other, each) for each in earlier), f"{name} imports {other}"


def test_there_are_no_circles() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(imports(name, _is_later) & modules().keys()):
                visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())
    assert done == set(modules())


def test_nanokv_alone_does_not_import_torch() -> None:
    result = run("import nanokv, nanokv.errors, nanokv.types, sys; print('torch' in sys.modules)")
    assert (result.returncode, result.stdout.strip()) == (0, "False"), result.stderr


def test_the_cache_is_imported_without_the_compiler() -> None:
    """LLVM's import takes 20 ms. And vLLM 0.32 looks through all modules at its start (`triton_utils/dispatcher.py`),
    where llvmlite 0.47 has an object that claims to have any attribute, `__dict__` too: the engine would not start.
    """
    done = run("import sys, nanokv.cache.cache; print([name for name in ('numba', 'llvmlite') if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr
